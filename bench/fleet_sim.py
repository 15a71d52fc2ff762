"""The head's placement by simulation: make bench-fleet SIM=1, or python -m bench.fleet --sim.

The head's real core decides for simulated nodes in virtual time (tests/harness/cost_node.py has
the cost model). All but the CPU times and the memory is the same on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from bench.fleet_sim_decisions import decision_times, memory
from bench.fleet_sim_load import (
    LOAD,
    Scale,
    hot_prefix_ratio,
    load_aware_gain,
    prefix_gain,
)
from bench.fleet_sim_rejoin import rejoin
from tests.harness.cost_node import DECODE_RATE, KV_TOKENS, LANES, PREFILL_RATE

NODES, MANY_NODES, REJOINING = 64, 1000, 200
#: The same fleet with nodes that are all alike: there least-loaded has nothing against it.
ALIKE = (2.0,)


def workload(scale: Scale) -> str:
    """What is simulated, in words."""
    seeds = f"{scale.seeds[0]} to {scale.seeds[-1]}"
    return f"""\
simulated: {scale.nodes} nodes of speeds 1:2:4 in turn; Poisson arrivals at {LOAD:.0%} of capacity,
  {scale.requests} requests a run, seeds {seeds}, the median of {len(scale.seeds)} runs
node of speed 1: prefill {PREFILL_RATE:g} tokens/s, one prompt at a time, without what its prefix
  cache of 20,000 tokens holds; decode {DECODE_RATE:g} tokens/s a lane, a twentieth less with each
  other of {LANES} lanes, half while a prompt is computed; KV for {KV_TOKENS:,} tokens; a status
  each second
capacity: what a node serves that always has work of the kind, times the sum of speeds
round-robin, least-loaded: the head's policies of these names, so that work waits at the head too
plain: 256 tokens in, 32 to 96 out. shared: 2,112 in, and 70% of them begin with one of
  {2 * scale.nodes} prefixes of 2,048. hot: one prefix of 2,048 at 3 times what the fastest node
  serves, plain ones besides"""


def run_simulation(scale: Scale, rejoining: int = REJOINING) -> dict[str, float]:
    """All figures; prints each as it comes."""
    found: dict[str, float] = {}
    _take(found, "decisions (CPU)", decision_times(NODES) | decision_times(MANY_NODES))
    _take(found, "memory of the core", memory(MANY_NODES))
    _take(found, "plain", load_aware_gain(scale))
    _take(found, "shared", prefix_gain(scale))
    _take(found, "hot", hot_prefix_ratio(scale))
    alike = hot_prefix_ratio(replace(scale, in_turn=ALIKE))
    _take(found, "hot, all nodes alike", {f"{name}_alike": alike[name] for name in alike})
    _take(found, "rejoin", rejoin(rejoining, scale.seeds))
    return found


def main() -> None:
    """Print what is simulated, the figures, and one JSON object as the last line."""
    scale = Scale(nodes=NODES)
    print(workload(scale), flush=True)
    print(json.dumps(run_simulation(scale)))


def _take(found: dict[str, float], title: str, figures: Mapping[str, float]) -> None:
    found.update(figures)
    shown = ", ".join(f"{name} {value:g}" for name, value in figures.items())
    print(f"{title}: {shown}", flush=True)


if __name__ == "__main__":
    main()

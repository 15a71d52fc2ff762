"""What a decision costs the head's core at a number of nodes, in CPU time of the thread.

A decision is what `WaitingLine.explain` does for one request: the prompt's hashes, what nodes hold
of it, the snapshot (views of nodes anew where something changed since the last decision), and the
policy. It is timed at moments drawn at random while the fleet is under load.
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import mean, median

from bench.fleet_sim_load import LOAD, Scale, capacity, plain, sharing
from bus.ids import pack_ids
from bus.messages.api import MARK, encode_body
from head.core import HeadCore
from head.effects import TextJob
from tests.harness.cost_fleet import Ask, CostFleet, head_core
from tests.harness.cost_node import LANES, TOY, CostNode, confirm_of
from tests.harness.memory_parts import text_reply

#: Decisions that are timed in a run, and requests that come before the first of them.
DECISIONS = 1000
WARM_UP = 2000
MB = 1e6


@dataclass(slots=True)
class TimedFleet:
    """A fleet under load, some of whose decisions are timed.

    Attributes:
        fleet: the fleet.
        ask: gives requests like those of the load.
        decision_s: CPU seconds of each decision that was timed.
        request_s: CPU seconds of the core for each request, with its rows, replies and commands.
    """

    fleet: CostFleet
    ask: Ask
    decision_s: list[float] = field(default_factory=list)
    request_s: list[float] = field(default_factory=list)

    def decide(self, number: int) -> None:
        """Time one decision now; nothing changes."""
        tokens, max_new = self.ask(random.Random(number))
        waiting, packed = self.fleet.core.runs.waiting, pack_ids(tokens)
        start = time.thread_time()
        wanted = waiting.wanted(TOY, packed, max_new)
        waiting.explain(wanted, 0, self.fleet.now)
        self.decision_s.append(time.thread_time() - start)

    def request(self, number: int, tokens: list[int], max_new: int) -> None:
        start = time.thread_time()
        self.fleet.request(number, tokens, max_new)
        self.request_s.append(time.thread_time() - start)


def decision_times(nodes: int, seed: int = 1) -> dict[str, float]:
    """Median milliseconds of a decision at so many nodes, and what else they give."""
    scale = Scale(nodes=nodes)
    ask = sharing(nodes)
    rate = LOAD * sum(scale.speeds) * capacity(ask)
    timed = TimedFleet(CostFleet("load-aware", scale.speeds), ask)
    chance, due = random.Random(seed), 2.0
    for number in range(WARM_UP + DECISIONS):
        due += chance.expovariate(rate)
        timed.fleet.at(due, partial(timed.request, number, *ask(chance)))
        if number >= WARM_UP:
            timed.fleet.at(due + chance.random() / rate, partial(timed.decide, number))
    timed.fleet.run(WARM_UP + DECISIONS)
    del timed.request_s[:WARM_UP]
    return {
        f"decision_ms_{nodes}": round(1000 * median(timed.decision_s), 4),
        f"decisions_per_s_{nodes}": round(1 / mean(timed.decision_s)),
        f"request_ms_{nodes}": round(1000 * median(timed.request_s), 4),
    }


# --- memory -----------------------------------------------------------------------------------


def memory(nodes: int) -> dict[str, float]:
    """Megabytes that the core comes to hold: of nodes that have joined, then with all lanes busy.

    The nodes only join: what is counted is the head's alone. Links are not part of the core.
    """
    model = CostNode(_NoClock(), _unheard, 1.0, 0).status()
    prompts = random.Random(1)
    gc.collect()
    tracemalloc.start()
    try:
        core = head_core()
        core.models_found({TOY: "/toy"}, 0.0)
        for link in range(nodes):
            core.link_up(link, confirm_of(link, model), 0.0)
        _settle(core)
        idle = _traced()
        for number in range(LANES * nodes):
            tokens, max_new = plain(prompts)
            body = {"op": "generate", "id": number.to_bytes(4, "big"), "model": TOY, "seed": 1}
            asked = encode_body({**body, "tokens": tokens, "max_new": max_new, "credit": 1000})
            core.client_request(b"c%d" % (number % nodes), [MARK, asked], 1.0)
            _settle(core)
        busy = _traced()
    finally:
        tracemalloc.stop()
    if core.runs.running != LANES * nodes:
        raise ValueError(f"{core.runs.running} requests run on {nodes} nodes, not one a lane")
    return {f"head_mb_{nodes}": round(idle / MB, 1), f"head_mb_{nodes}_busy": round(busy / MB, 1)}


class _NoClock:
    now = 0.0

    def at(self, due: float, act: Callable[[], None]) -> None:
        """Nothing is ever due."""


def _unheard(message: object) -> None:
    """What the node says goes nowhere."""


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _settle(core: HeadCore) -> None:
    while (effects := core.effects()).outputs or effects.persist:
        for tagged in effects.outputs:
            if isinstance(tagged.output, TextJob):
                core.text_reply(text_reply(tagged.output.message), 0.0)

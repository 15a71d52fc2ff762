"""`make bench-pipeline`: one model in two stages on two nodes, against the same model on one node.

Both sides are real processes: a head, and agents with a worker each. The stages have one engine
thread each, the whole model two. In one run:

* **pipeline_ratio_8**: tokens/s of 8 sessions over the stages, over those of the whole model with
  the same prompts; pairs that alternate in order, over several starts of both sides; the median.
* **hop_ms_p50**: from a stage's worker handing its hidden states to its socket until the next
  stage's worker has them in hand, through both agents and the head; one session, so that the next
  stage waits for them. `hop_8_ms_p50`: the same with 8 sessions until they are in the pipe of the
  next stage's worker, which takes them when it is done with what it computes. The processes note
  large messages themselves (`bench/hop_clock`), and the two ends have the same bytes.
* **bytes_per_token_hop**: of the frame that carries one token's hidden states from node to head, in
  the clear sizes of sealed Link-F and ZMTP; the median of one session's.
* **cost_ratio_1500_over_100**: seconds of a token between the first and the last of an answer, at
  1,500 tokens of context on average over the same at 100; pairs in turn, one session, the median.
  `whole_cost_ratio_1500_over_100` is that of the whole model. `cpu_ratio_1500_over_100` has CPU
  seconds of all processes of the fleet in place of seconds.

    python -m bench.pipeline --pairs 9 --starts 3
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from agent.models.folder import ModelFolder
from agent.models.split import split_model
from agent.models.stages import even_stages
from bench.cluster import Cluster
from bench.fleet import median_interval
from bench.hops import HopClocks
from bench.models import add_model_option, open_model
from bench.stage_cluster import StageCluster
from bus.errors import ModelIncomplete, NotFound

STREAMS = 8
PROMPT_TOKENS = 24
MAX_NEW = 96
#: Of an answer whose tokens are timed; contexts are counted in its middle.
COST_TOKENS = 64
CONTEXTS = (100, 1500)
HOP_TOKENS = 128
FIRST, LAST = "node-1", "node-2"
FLOAT_BYTES = 4


class Asker:
    """Prompts, and answers to them in full."""

    def __init__(self, vocab: int, seed: int) -> None:
        self._rng = random.Random(seed)
        self._vocab = vocab

    def prompts(self, count: int, tokens: int = PROMPT_TOKENS) -> list[list[int]]:
        return [
            [self._rng.randrange(100, self._vocab) for _ in range(tokens)] for _ in range(count)
        ]

    def rate(self, side: Cluster, prompts: list[list[int]]) -> tuple[float, list[Any]]:
        """Tokens/s of all prompts at once, and the tokens."""
        start = time.perf_counter()
        calls = [_generate(side, prompt, MAX_NEW) for prompt in prompts]
        answers = [list(call.result().tokens) for call in calls]
        return len(prompts) * MAX_NEW / (time.perf_counter() - start), answers

    def cost(self, side: Cluster, context: int) -> tuple[float, float]:
        """Seconds and CPU seconds of a token behind the first, in an answer of a lone session."""
        (prompt,) = self.prompts(1, context - COST_TOKENS // 2)
        call = _generate(side, prompt, COST_TOKENS)
        while not call.tokens:
            call.next_event(None)
        begun, cpu, start = len(call.tokens), sum(side.cpu_s().values()), time.perf_counter()
        call.result()
        tokens = COST_TOKENS - begun
        seconds = time.perf_counter() - start
        return seconds / tokens, (sum(side.cpu_s().values()) - cpu) / tokens


def _generate(side: Cluster, prompt: list[int], max_new: int) -> Any:
    return side.client.generate(
        side.model, prompt, max_new=max_new, temperature=0.0, ignore_eos=True
    )


def stages_of(whole: ModelFolder) -> list[ModelFolder]:
    """Two stages of a model, made beside it when they are not there."""
    choices = even_stages(whole.signature.layers, 2)
    models = whole.path.parent
    try:
        found = [ModelFolder.open(models / each.folder_name(whole.path.name)) for each in choices]
    except (NotFound, ModelIncomplete):
        return split_model(whole, models, choices)
    return found


def sides(whole: ModelFolder, stages: list[ModelFolder], stack: ExitStack, order: int) -> Any:
    """The stages and the whole model, started one after the other."""
    served = dict(zip((FIRST, LAST), ([stage] for stage in stages), strict=True))
    made: dict[str, Cluster] = {}
    for name in ("stages", "whole")[:: 1 if order % 2 else -1]:
        if name == "stages":
            made[name] = stack.enter_context(StageCluster(served, threads=1))
        else:
            made[name] = stack.enter_context(Cluster(whole.path, threads=2))
    return made["stages"], made["whole"]


def measure_rates(
    whole: ModelFolder, stages: list[ModelFolder], pairs: int, starts: int
) -> dict[str, Any]:
    """Pairs of both sides with the same prompts."""
    rates: list[tuple[float, float]] = []
    costs: list[float] = []
    differing = 0
    for start in range(starts):
        with ExitStack() as stack:
            chain, one = sides(whole, stages, stack, start)
            asker = Asker(whole.signature.vocab, seed=start)
            for number in range(1 + (pairs + start) // starts):
                prompts = asker.prompts(STREAMS)
                order = (chain, one) if number % 2 else (one, chain)
                found = {side: asker.rate(side, prompts) for side in order}
                differing += sum(
                    a != b for a, b in zip(found[chain][1], found[one][1], strict=True)
                )
                if number:
                    rates.append((found[chain][0], found[one][0]))
            few, many = (asker.cost(one, context)[0] for context in CONTEXTS)
            costs.append(many / few)
    ratios = sorted(chain / one for chain, one in rates)
    return {
        "pipeline_ratio_8": round(median(ratios), 4),
        "pipeline_ratio_8_interval": [round(bound, 4) for bound in median_interval(ratios)],
        "stages_tokens_per_s_8": round(median(chain for chain, _ in rates), 1),
        "whole_tokens_per_s_8": round(median(one for _, one in rates), 1),
        "texts_differing": differing,
        "whole_cost_ratio_1500_over_100": round(median(costs), 3),
    }


def measure_hops(stages: list[ModelFolder], rounds: int) -> dict[str, Any]:
    """Hops and costs, on a fleet whose processes note their large messages."""
    hidden = stages[0].signature.hidden * FLOAT_BYTES
    asker = Asker(stages[0].signature.vocab, seed=99)
    served = dict(zip((FIRST, LAST), ([stage] for stage in stages), strict=True))
    with tempfile.TemporaryDirectory(prefix="sf-hops-") as folder:
        clocks = HopClocks(Path(folder), hidden)
        with StageCluster(served, threads=1, settings=clocks.settings) as fleet:
            (worker,), (following,) = fleet.workers(FIRST), fleet.workers(LAST)
            _generate(fleet, asker.prompts(1)[0], MAX_NEW).result()
            clocks.clear()
            _generate(fleet, asker.prompts(1)[0], HOP_TOKENS).result()
            alone = clocks.hop_ms(worker, following)
            sizes = clocks.link_bytes(fleet.pid(FIRST))
            clocks.clear()
            asker.rate(fleet, asker.prompts(STREAMS))
            together = clocks.hop_ms(worker, fleet.pid(LAST), held=False)
            costs = [[asker.cost(fleet, context) for context in CONTEXTS] for _ in range(rounds)]
    ratios = [[many[part] / few[part] for few, many in costs] for part in (0, 1)]
    return {
        "hop_ms_p50": round(median(alone), 3),
        "hop_ms_p90": round(sorted(alone)[int(0.9 * len(alone))], 3),
        "hop_8_ms_p50": round(median(together), 3),
        "bytes_per_token_hop": int(median(sizes)),
        "hidden_bytes": hidden,
        "cost_ratio_1500_over_100": round(median(ratios[0]), 3),
        "cpu_ratio_1500_over_100": round(median(ratios[1]), 3),
        "ms_per_token_100": round(1000 * median(few[0] for few, _ in costs), 2),
        "ms_per_token_1500": round(1000 * median(many[0] for _, many in costs), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="two stages on two nodes against one node")
    parser.add_argument("--pairs", type=int, default=9, help="interleaved pairs [default: 9]")
    parser.add_argument("--starts", type=int, default=3, help="of both sides [default: 3]")
    parser.add_argument("--rounds", type=int, default=5, help="of the costs [default: 5]")
    add_model_option(parser)
    options = parser.parse_args()
    whole = open_model(options.model_folder)
    stages = stages_of(whole)
    found = {"load_average": round(os.getloadavg()[0], 1)}
    found |= measure_rates(whole, stages, options.pairs, options.starts)
    found |= measure_hops(stages, options.rounds)
    _print_table(found)
    print(json.dumps(found))


def _print_table(found: dict[str, Any]) -> None:
    low, high = found["pipeline_ratio_8_interval"]
    print(
        f"8 sessions: {found['stages_tokens_per_s_8']} tokens/s over two stages of one thread, "
        f"{found['whole_tokens_per_s_8']} of the whole model with two: "
        f"{found['pipeline_ratio_8']} ({low} to {high}); texts that differ: "
        f"{found['texts_differing']}"
    )
    print(
        f"a hop: p50 {found['hop_ms_p50']} ms, p90 {found['hop_ms_p90']} ms with one session; "
        f"p50 {found['hop_8_ms_p50']} ms with 8; {found['bytes_per_token_hop']} bytes a token, of "
        f"which {found['hidden_bytes']} are hidden states"
    )
    print(
        f"a token: {found['ms_per_token_100']} ms at 100 tokens of context, "
        f"{found['ms_per_token_1500']} at 1,500: {found['cost_ratio_1500_over_100']} (whole model: "
        f"{found['whole_cost_ratio_1500_over_100']}); of CPU {found['cpu_ratio_1500_over_100']}"
    )


if __name__ == "__main__":
    main()

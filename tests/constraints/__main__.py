"""`make constraints`: the JSON-Schema test suite, random schemas, a real model's answers."""

from __future__ import annotations

import argparse
import sys
import time

from bus.text.constraints import make_tokenizer
from bus.text.tokenizer import TextModel
from tests.constraints.driver import Driver
from tests.constraints.judge import Verdict, judge
from tests.constraints.model_answers import judge_model
from tests.constraints.random_schemas import random_cases
from tests.constraints.suite import SuiteMissing, cases
from tests.harness.models import smollm2_folder, toy_model_folder


def main() -> int:
    """Judge the suite; 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8, help="answers drawn of each schema")
    parser.add_argument("--random", type=int, default=1000, help="schemas drawn at random")
    parser.add_argument("--random-seed", type=int, default=1, help="from which they are drawn")
    parser.add_argument("--verbose", action="store_true", help="list why schemas are refused")
    options = parser.parse_args()
    try:
        found = cases()
    except SuiteMissing as error:
        print(f"constraints: skipped: {error}", file=sys.stderr)
        return 1
    toy, smollm2 = toy_model_folder(), smollm2_folder()
    drawn = list(random_cases(options.random, options.random_seed))
    runs = [
        ("suite tokenizer=toy", toy, found),
        ("suite tokenizer=smollm2", smollm2, found),
        ("random tokenizer=toy", toy, drawn),
    ]
    bad = False
    for name, folder, taken in runs:
        start = time.perf_counter()
        model = TextModel.open(folder.path)
        verdict = judge(taken, model, Driver(model, make_tokenizer(model)), options.seeds)
        bad |= _show(name, verdict, time.perf_counter() - start, options.verbose)
    start = time.perf_counter()
    verdict = judge_model(smollm2)
    bad |= _show("chat model=smollm2", verdict, time.perf_counter() - start, options.verbose)
    return int(bad)


def _show(name: str, verdict: Verdict, elapsed_s: float, verbose: bool) -> bool:
    """Print a verdict; whether something is wrong."""
    for text in verdict.wrong[:40]:
        print(f"wrong: {text[:300]}")
    for text in verdict.crashes[:40]:
        print(f"crash: {text[:300]}")
    if verbose:
        for reason, count in sorted(verdict.reasons.items(), key=lambda item: -item[1]):
            print(f"{count:5} {reason}")
    print(f"{verdict.line()} {name} seconds={elapsed_s:.1f}", flush=True)
    return bool(verdict.wrong or verdict.crashes)


if __name__ == "__main__":
    sys.exit(main())

"""`make constraints`: every schema of the JSON-Schema test suite, on two tokenizers."""

from __future__ import annotations

import argparse
import sys
import time

from bus.text.constraints import make_tokenizer
from bus.text.tokenizer import TextModel
from tests.constraints.driver import Driver
from tests.constraints.judge import Verdict, judge
from tests.constraints.suite import SuiteMissing, cases
from tests.harness.models import smollm2_folder, toy_model_folder


def main() -> int:
    """Judge the suite; 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8, help="answers drawn of each schema")
    parser.add_argument("--verbose", action="store_true", help="list why schemas are refused")
    options = parser.parse_args()
    try:
        found = cases()
    except SuiteMissing as error:
        print(f"constraints: skipped: {error}", file=sys.stderr)
        return 1
    bad = False
    for name, folder in (("toy", toy_model_folder()), ("smollm2", smollm2_folder())):
        start = time.perf_counter()
        model = TextModel.open(folder.path)
        driver = Driver(model, make_tokenizer(model))
        verdict = judge(found, model, driver, options.seeds)
        _show(verdict, options.verbose)
        print(f"{verdict.line()} tokenizer={name} seconds={time.perf_counter() - start:.1f}")
        bad |= bool(verdict.wrong or verdict.crashes)
    return int(bad)


def _show(verdict: Verdict, verbose: bool) -> None:
    for text in verdict.wrong[:40]:
        print(f"wrong: {text[:300]}")
    for text in verdict.crashes[:40]:
        print(f"crash: {text[:300]}")
    if verbose:
        for reason, count in sorted(verdict.reasons.items(), key=lambda item: -item[1]):
            print(f"{count:5} {reason}")


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.fuzz`: random, changed and structured input for everything that reads bytes."""

from __future__ import annotations

import argparse
import random
import sys

from tests.fuzz.runner import TARGETS, run, run_case


def main() -> int:
    """1 when a case failed."""
    parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", default="", help="a whole number; empty draws one")
    parser.add_argument("--target", choices=sorted(TARGETS), help="only this one")
    parser.add_argument("--case", type=int, help="only this case of the target")
    options = parser.parse_args()
    seed = int(options.seed) if options.seed else random.SystemRandom().randrange(1 << 32)
    if options.case is not None:
        if options.target is None:
            parser.error("--case needs --target")
        run_case(options.target, seed, options.case)
        print(f"fuzz: {options.target} case {options.case} holds")
        return 0
    print(f"fuzz: seed={seed}", flush=True)
    targets = [options.target] if options.target else list(TARGETS)
    tally = run(targets, seed, options.seconds)
    print(tally.line())
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())

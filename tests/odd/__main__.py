"""`python -m tests.odd`: odd requests against a live worker, ordinary streams beside them.

Four fifths go to a worker process as its agent's messages, one fifth to a head as raw frames of its
API. A request's number and the seed make it again.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.harness.models import toy_model_folder
from tests.odd.api_run import api_run
from tests.odd.tally import Tally
from tests.odd.worker_run import worker_run


def main() -> int:
    """1 when something was not as it should be."""
    parser = argparse.ArgumentParser(prog="tests.odd", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", default="", help="a whole number; empty draws one")
    options = parser.parse_args()
    seed = int(options.seed) if options.seed else random.SystemRandom().randrange(1 << 32)
    print(f"odd: seed={seed}", flush=True)
    to_api = options.requests // 5
    with tempfile.TemporaryDirectory(prefix="sf-odd-") as folder:
        start = time.monotonic()
        tally = worker_run(toy_model_folder().path, Path(folder), seed, options.requests - to_api)
        _tell("to the worker", tally, start)
    start = time.monotonic()
    of_api = api_run(toy_model_folder().path, seed, to_api)
    _tell("to the head", of_api, start)
    tally.add(of_api)
    print(tally.line())
    return 0 if tally.holds else 1


def _tell(where: str, tally: Tally, start: float) -> None:
    codes = ", ".join(f"{code} {count}" for code, count in sorted(tally.codes.items()))
    print(
        f"odd: {where}: {tally.requests} requests beside {tally.neighbour_rounds} rounds of "
        f"neighbours in {time.monotonic() - start:.0f} s; errors: {codes or 'none'}"
    )
    for fault in tally.faults:
        print(f"odd: FAULT {fault}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

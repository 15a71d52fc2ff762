"""`python -m tests.odd`: odd requests against a live worker, ordinary streams beside them."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.harness.models import toy_model_folder
from tests.odd.live_worker import live_worker
from tests.odd.worker_run import ARGUMENTS, WorkerRun


def main() -> int:
    """1 when something was not as it should be."""
    parser = argparse.ArgumentParser(prog="tests.odd", description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first request's number")
    parser.add_argument("--seed", default="", help="a whole number; empty draws one")
    options = parser.parse_args()
    seed = int(options.seed) if options.seed else random.SystemRandom().randrange(1 << 32)
    print(f"odd: seed={seed}", flush=True)
    start = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="sf-odd-") as folder,
        live_worker(
            toy_model_folder().path, Path(folder), *ARGUMENTS, "--park", f"{folder}/parked"
        ) as worker,
    ):
        tally = WorkerRun(worker, seed).run(options.requests, options.first)
    print(f"odd: errors by type: {dict(sorted(tally.codes.items()))}")
    print(f"odd: neighbour_rounds={tally.neighbour_rounds} s={time.monotonic() - start:.1f}")
    for fault in tally.faults:
        print(f"odd: FAULT {fault}")
    print(tally.line())
    return 0 if tally.holds else 1


if __name__ == "__main__":
    sys.exit(main())

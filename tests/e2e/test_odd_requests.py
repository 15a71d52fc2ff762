"""A small run of `make odd-requests`; the seeds are fixed, so a failure is this commit's."""

from __future__ import annotations

from pathlib import Path

from tests.harness.models import toy_model_folder
from tests.odd.api_run import api_run
from tests.odd.tally import Tally
from tests.odd.worker_run import worker_run

SEED = 20


def check(tally: Tally, requests: int) -> None:
    assert not tally.faults
    assert tally.holds, tally.line()
    assert tally.requests == requests
    # Of both kinds many: else the requests are not odd, or all alike.
    assert min(tally.answered, tally.errors) > requests // 8
    assert tally.neighbour_rounds >= 16


def test_odd_requests_to_a_worker_harm_nobody(tmp_path: Path) -> None:
    check(worker_run(toy_model_folder().path, tmp_path, SEED, 600), 600)


def test_odd_requests_to_a_head_harm_nobody() -> None:
    check(api_run(toy_model_folder().path, SEED, 150), 150)

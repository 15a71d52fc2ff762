"""What most tests of the head's core begin with."""

from __future__ import annotations

import pytest

from tests.harness.head_bench import Bench


@pytest.fixture
def bench() -> Bench:
    """A core with one node."""
    made = Bench()
    made.node(1)
    return made

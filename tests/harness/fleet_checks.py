"""What every case on a fleet in memory must find in the end."""

from __future__ import annotations

from bus.ids import pack_ids
from tests.harness.memory_fleet import MemoryFleet, Stream
from tests.harness.memory_parts import expected_tokens

#: More requests than the four lanes of a node and the one that it may have ahead.
MORE_THAN_ROOM = 8


def whole_answer(prompt: str, count: int) -> list[int]:
    return expected_tokens(pack_ids(list(prompt.encode())), count)


def check_complete(stream: Stream, prompt: str, count: int) -> None:
    assert stream.error is None
    assert stream.end is not None
    assert stream.end["finish"] == "length"
    assert stream.tokens == whole_answer(prompt, count)


def check_idle(fleet: MemoryFleet) -> None:
    """Every counter is back at nothing."""
    assert fleet.head is not None
    core = fleet.head.core
    answers = core.status(fleet.now)["answers"]
    assert (answers["running"], answers["queued"]) == (0, 0)
    assert all(not node.claims for node in core.fleet.nodes)
    for node in fleet.nodes:
        assert node.worker is not None
        assert not node.worker.running
        assert node.core is not None
        assert not node.core.is_busy

"""Cases from the field under virtual time: every way to leave; by their numbers."""

from __future__ import annotations

import pytest

from tests.harness.fleet_checks import MORE_THAN_ROOM, check_idle, whole_answer
from tests.harness.memory_fleet import CLIENT, MemoryFleet
from tests.harness.memory_parts import STEP_S


@pytest.mark.parametrize("credit", [1, 256])
@pytest.mark.parametrize("stage", ["queue", "decode"])
def test_g2_cancel_frees_the_lane_within_a_step_and_100_ms(stage: str, credit: int) -> None:
    fleet = MemoryFleet()
    fleet.run(1.0)
    count = MORE_THAN_ROOM if stage == "queue" else 0
    others = [fleet.generate(f"o{i}", 300) for i in range(count)]
    stream = fleet.generate("leave", 200, credit=credit)
    fleet.run(1.0)
    assert fleet.nodes[0].worker is not None
    running = set(fleet.nodes[0].worker.running)
    gone = fleet.request("cancel", about=stream.id)
    fleet.run(STEP_S + 0.1)
    assert gone.end is not None
    if stage == "decode":
        assert not fleet.nodes[0].worker.running
        # A reader without credit keeps its cursor: it gets the rest, then the end.
        fleet.request("more", about=stream.id, credit=100)
        fleet.run(0.1)
    else:
        assert set(fleet.nodes[0].worker.running) == running
        assert not stream.tokens
    assert stream.end is not None
    assert stream.end["finish"] == "cancelled"
    assert stream.tokens == whole_answer("leave", len(stream.tokens))
    for other in others:
        fleet.request("cancel", about=other.id)
    fleet.run(1.0)
    check_idle(fleet)


@pytest.mark.parametrize("stage", ["queue", "decode"])
def test_g2_a_client_that_vanished_is_cancelled_after_its_grace(stage: str) -> None:
    fleet = MemoryFleet()
    fleet.run(1.0)
    count = MORE_THAN_ROOM if stage == "queue" else 1
    for i in range(count):
        fleet.generate(f"v{i}", 3000, credit=4096)
    fleet.run(1.0)
    assert fleet.head is not None
    core = fleet.head.core
    core.client_gone(CLIENT, fleet.now)
    fleet.head.turn()
    fleet.run(4.9)
    answers = core.status(fleet.now)["answers"]
    assert answers["running"] + answers["queued"] == count
    fleet.run(0.1 + STEP_S + 0.1)
    check_idle(fleet)


def test_g2_a_client_that_vanished_and_asked_to_keep_finds_its_answer() -> None:
    fleet = MemoryFleet()
    fleet.run(1.0)
    kept = fleet.generate("kept", 400, on_disconnect="keep")
    fleet.run(1.0)
    assert fleet.head is not None
    fleet.head.core.client_gone(CLIENT, fleet.now)
    fleet.head.turn()
    fleet.run(20.0)
    again = fleet.request("attach", session=kept.session, offset=len(kept.tokens))
    fleet.finish(again)
    assert kept.tokens + again.tokens == whole_answer("kept", 400)
    check_idle(fleet)


def test_g2_a_client_that_comes_back_within_the_grace_keeps_its_stream() -> None:
    fleet = MemoryFleet()
    fleet.run(1.0)
    stream = fleet.generate("back", 400)
    fleet.run(1.0)
    assert fleet.head is not None
    fleet.head.core.client_gone(CLIENT, fleet.now)
    fleet.head.turn()
    fleet.run(4.0)
    again = fleet.request("attach", session=stream.session, offset=len(stream.tokens))
    fleet.finish(again)
    assert stream.tokens + again.tokens == whole_answer("back", 400)

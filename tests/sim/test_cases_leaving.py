"""Cases from the field under virtual time: every way to leave at every stage; by their numbers."""

from __future__ import annotations

import pytest

from tests.harness.fleet_checks import MORE_THAN_ROOM, check_complete, check_idle, whole_answer
from tests.harness.memory_fleet import CLIENT, MemoryFleet, Stream
from tests.harness.memory_parts import MODEL, STEP_S

STAGES = ("queue", "prefill", "decode")
#: One that streams takes what comes; one that does not has read the first event and no more.
CREDITS = {"streaming": 4096, "not streaming": 1}
OTHER = b"other"
#: Four lanes of the node and the one that it may have ahead.
ROOM = 5
#: Tokens of every answer: more than can be made in the grace.
COUNT = 400


class Scene:
    """One request of `CLIENT` at a stage; for the queue, others are before it."""

    def __init__(self, stage: str, credit: int = 4096, **options: object) -> None:
        self.fleet = MemoryFleet()
        self.fleet.run(1.0)
        self.others = MORE_THAN_ROOM if stage == "queue" else 0
        for number in range(self.others):
            prompt, request = f"other {number}", b"o%d" % number
            body = {"op": "generate", "id": request, "model": MODEL, "prompt": prompt}
            self.fleet.to_head(OTHER, {**body, "max_new": COUNT, "credit": 4096})
        self.fleet.run(0.1)
        # A worker in the middle of a prefill makes no token, and hears what it is told.
        assert self.fleet.nodes[0].worker is not None
        self.fleet.nodes[0].worker_paused = stage == "prefill"
        self.stream: Stream = self.fleet.generate("leave", COUNT, credit=credit, **options)
        self.fleet.run(0.3)
        self.running_before = self.running - (stage != "queue")
        assert self.running == (ROOM if stage == "queue" else 1)
        assert self.counts() == self.expected(1)
        assert bool(self.stream.tokens) == (stage == "decode" and credit > 1)

    @property
    def running(self) -> int:
        """Lanes of the worker that are taken."""
        worker = self.fleet.nodes[0].worker
        assert worker is not None
        return len(worker.running)

    def counts(self) -> int:
        """Answers that the head has open."""
        assert self.fleet.head is not None
        answers = self.fleet.head.core.status(self.fleet.now)["answers"]
        return int(answers["running"] + answers["queued"])

    def expected(self, ours: int) -> int:
        return self.others + ours

    def vanish(self) -> None:
        assert self.fleet.head is not None
        self.fleet.head.client_gone(CLIENT)

    def check_over(self) -> None:
        """Its lane is free, nobody else's is, and in the end all counters are at nothing."""
        assert self.running == self.running_before
        assert self.counts() == self.expected(0)
        for number in range(self.others):
            about = {"op": "cancel", "id": b"c%d" % number, "about": b"o%d" % number}
            self.fleet.to_head(OTHER, about)
        self.fleet.nodes[0].worker_paused = False
        self.fleet.run(1.0)
        check_idle(self.fleet)


@pytest.mark.parametrize("reading", CREDITS)
@pytest.mark.parametrize("stage", STAGES)
def test_g2_cancel_frees_the_lane_within_a_step_and_100_ms(stage: str, reading: str) -> None:
    scene = Scene(stage, CREDITS[reading])
    stream, fleet = scene.stream, scene.fleet
    gone = fleet.request("cancel", about=stream.id)
    fleet.run(STEP_S + 0.1)
    assert gone.end is not None
    scene.check_over()
    if reading == "not streaming" and stage == "decode":
        # A reader without credit keeps its cursor: it gets the rest, then the end.
        fleet.request("more", about=stream.id, credit=100)
        fleet.run(0.1)
    assert stream.end is not None
    assert stream.end["finish"] == "cancelled"
    assert stream.tokens == whole_answer("leave", len(stream.tokens))
    assert bool(stream.tokens) == (stage == "decode")


@pytest.mark.parametrize("reading", CREDITS)
@pytest.mark.parametrize("stage", STAGES)
def test_g2_goodbye_frees_the_lane_within_a_step_and_100_ms(stage: str, reading: str) -> None:
    scene = Scene(stage, CREDITS[reading])
    gone = scene.fleet.request("goodbye")
    scene.fleet.run(STEP_S + 0.1)
    assert gone.end is not None
    scene.check_over()
    assert not scene.stream.closed, "nothing is said to a client that left"


@pytest.mark.parametrize("reading", CREDITS)
@pytest.mark.parametrize("stage", STAGES)
def test_g2_a_client_that_vanished_is_cancelled_after_its_grace(stage: str, reading: str) -> None:
    scene = Scene(stage, CREDITS[reading])
    scene.vanish()
    scene.fleet.run(4.9)
    assert scene.counts() == scene.expected(1)
    scene.fleet.run(0.1 + STEP_S + 0.1)
    scene.check_over()


@pytest.mark.parametrize("way", ["goodbye", "vanish"])
@pytest.mark.parametrize("stage", STAGES)
def test_g2_a_client_that_left_and_asked_to_keep_finds_its_answer(stage: str, way: str) -> None:
    scene = Scene(stage, on_disconnect="keep", key="kept")
    fleet = scene.fleet
    if way == "goodbye":
        fleet.request("goodbye")
    else:
        scene.vanish()
    fleet.run(6.0)
    fleet.nodes[0].worker_paused = False
    fleet.run(30.0)
    assert scene.counts() == 0
    again = fleet.request("attach", key="kept", credit=4096)
    fleet.finish(again)
    check_complete(again, "leave", COUNT)
    check_idle(fleet)


def test_g2_what_others_read_too_goes_on_when_one_reader_says_goodbye() -> None:
    scene = Scene("decode")
    fleet, session = scene.fleet, scene.stream.session
    fleet.to_head(OTHER, {"op": "attach", "id": b"a", "session": session, "credit": 4096})
    fleet.run(0.1)
    fleet.request("goodbye")
    fleet.run(30.0)
    again = fleet.request("attach", session=session, credit=4096)
    fleet.finish(again)
    check_complete(again, "leave", COUNT)


def test_g2_a_client_that_comes_back_within_the_grace_keeps_its_stream() -> None:
    scene = Scene("decode")
    stream, fleet = scene.stream, scene.fleet
    scene.vanish()
    fleet.run(4.0)
    again = fleet.request("attach", session=stream.session, offset=len(stream.tokens))
    fleet.finish(again)
    assert stream.tokens + again.tokens == whole_answer("leave", COUNT)

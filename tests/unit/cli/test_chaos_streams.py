"""Streams under watch, against what a head may send them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bus.call import Call
from bus.client_session import ClientSession
from bus.errors import Internal
from bus.messages.api import MARK, decode_body, encode_body
from head.cli.chaos_streams import StreamLoad

ANSWER = (7, 8, 9, 10)
Reply = Mapping[str, Any]


class ScriptedDoor:
    """A client whose head is a list of replies, each at its second; the session is the real one."""

    def __init__(self) -> None:
        self.session = ClientSession(_counting())
        self.now = 0.0
        self.script: list[tuple[float, int, Reply]] = []
        self.requests: list[bytes] = []
        self.attached: list[Reply] = []
        self.cancelled: list[bytes] = []

    def clock(self) -> float:
        return self.now

    def flush(self) -> None:
        for frames in self.session.frames_to_send():
            body = decode_body(frames)
            if body["op"] == "generate":
                self.requests.append(body["id"])
            elif body["op"] == "cancel":
                self.cancelled.append(body["about"])
            elif body["op"] == "attach":
                for reply in self.attached:
                    self._give(body["id"], reply)

    def settle(self) -> None:
        self.flush()

    def pump(self, until: float | None) -> None:
        """The next reply that is due by then; of no time, the next one."""
        self.flush()
        due = [each for each in self.script if until is None or each[0] <= until]
        self.now = max(self.now, due[0][0] if due else until or 0.0)
        for at, number, reply in due[:1]:
            self.script.remove((at, number, reply))
            self._give(self.requests[number], reply)

    def ask(self, number: int, key: str) -> Call:
        request = self.session.start("generate", {"key": key}, now=self.now)
        self.flush()
        return Call(self, request)

    def attach(self, *, session: str) -> Call:
        request = self.session.start("attach", {"session": session}, now=self.now)
        self.flush()
        return Call(self, request)

    def _give(self, request: bytes, reply: Reply) -> None:
        self.session.receive([MARK, encode_body({"id": request, **reply})], self.now)


def _counting() -> Callable[[int], bytes]:
    numbers = iter(range(1, 1000))
    return lambda size: next(numbers).to_bytes(size, "big")


def token(offset: int, *tokens: int) -> Reply:
    return {"kind": "event", "type": "token", "offset": offset, "tokens": list(tokens), "text": ""}


def placed(node: str) -> Reply:
    return {"kind": "event", "type": "placed", "node": node, "session": "s"}


def moved(to: str, *, exact: bool = True) -> Reply:
    return {"kind": "event", "type": "moved", "from": "a", "to": to, "offset": 1, "exact": exact}


END: Reply = {
    "kind": "end",
    "finish": "length",
    "node": "a",
    "session": "s",
    "usage": {"prompt": 1, "completion": 4},
    "timing": {},
}


FAILED: Reply = {"code": "internal", "message": "x", "param": None, "details": {}}


def load_on(door: ScriptedDoor, *, exact: bool = True) -> StreamLoad:
    """One stream at a time, whose undisturbed answer is known."""
    load = StreamLoad(door, door.ask, streams=1, prompts=1, exact=exact, name="t")
    door.script = [(0.0, 0, placed("a")), (0.0, 0, token(0, *ANSWER)), (0.0, 0, END)]
    load.learn()
    return load


def run(door: ScriptedDoor, load: StreamLoad, *script: tuple[float, Reply]) -> None:
    """Play a script to the stream that is open, or begins now."""
    door.script = [(at, 1, reply) for at, reply in script]
    while door.script:
        load.turn(0.1)


def test_what_is_learned_is_cancelled_when_one_of_it_fails() -> None:
    door = ScriptedDoor()
    load = StreamLoad(door, door.ask, streams=2, prompts=2, exact=True, name="t")
    door.script = [(0.0, 1, token(0, 7)), (0.0, 0, {"kind": "error", "error": FAILED})]
    with pytest.raises(Internal):
        load.learn()
    load.cancel()
    assert door.cancelled == door.requests[1:]


def test_a_whole_answer_is_complete_and_equal() -> None:
    door = ScriptedDoor()
    load = load_on(door)
    run(door, load, (1.0, placed("a")), (1.0, token(0, 7, 8)), (1.1, token(2, 9, 10)), (1.2, END))
    tally = load.tally
    assert (tally.completed, tally.compared, tally.failed) == (1, 1, 0)
    assert (tally.lost, tally.repeated, tally.differing, tally.tokens) == (0, 0, 0, 4)


@pytest.mark.parametrize(
    ("second", "lost", "repeated"), [(token(3, 10), 1, 0), (token(1, 8, 9, 10), 0, 1)]
)
def test_tokens_that_are_left_out_or_come_twice_are_counted(
    second: Reply, lost: int, repeated: int
) -> None:
    door = ScriptedDoor()
    load = load_on(door)
    run(door, load, (1.0, placed("a")), (1.0, token(0, 7, 8)), (1.1, second))
    assert (load.tally.failed, load.tally.lost, load.tally.repeated) == (1, lost, repeated)
    assert len(load.tally.said) == 1


def test_an_answer_that_ends_early_has_lost_tokens() -> None:
    door = ScriptedDoor()
    load = load_on(door)
    short = {**END, "usage": {"prompt": 1, "completion": 3}}
    run(door, load, (1.0, placed("a")), (1.0, token(0, 7, 8, 9)), (1.1, short))
    assert (load.tally.failed, load.tally.lost) == (1, 1)


@pytest.mark.parametrize(("exact_move", "differing", "inexact"), [(True, 1, 0), (False, 0, 1)])
def test_another_text_after_a_move_counts_unless_the_move_was_inexact(
    exact_move: bool, differing: int, inexact: int
) -> None:
    door = ScriptedDoor()
    load = load_on(door)
    door.attached = [placed("b"), token(0, 7, 8, 9, 11), END]
    run(
        door,
        load,
        *((1.0, placed("a")), (1.0, token(0, 7))),
        *((1.1, moved("b", exact=exact_move)), (1.2, token(1, 8, 9, 11)), (1.3, END)),
    )
    assert (load.tally.differing, load.tally.inexact) == (differing, inexact)
    assert (load.tally.failed, load.tally.completed) == (0, 1)


def test_a_stream_that_is_not_what_the_head_kept_has_failed() -> None:
    door = ScriptedDoor()
    load = load_on(door, exact=False)
    door.attached = [placed("b"), token(0, 7, 8, 9, 12), END]
    run(door, load, (1.0, placed("a")), (1.0, token(0, 7, 8, 9, 11)), (1.3, END))
    assert load.tally.failed == 1


def test_the_longest_gap_of_a_strike_and_the_replay_in_it() -> None:
    door = ScriptedDoor()
    load = load_on(door)
    run(door, load, (1.0, placed("a")), (1.0, token(0, 7)))
    assert load.struck("b") == []
    (gap,) = load.struck("a")
    run(door, load, (1.5, moved("b")), (1.75, token(1, 8)), (1.9, token(2, 9)))
    assert gap.longest_s == pytest.approx(0.75)
    assert gap.replay_s == pytest.approx(0.25)
    assert load.nodes == {"b": 1}
    load.calm()
    run(door, load, (9.0, token(3, 10)))
    assert gap.longest_s == pytest.approx(0.75)


def test_a_stream_without_tokens_for_a_second_stands_still() -> None:
    door = ScriptedDoor()
    load = load_on(door)
    run(door, load, (1.0, placed("a")), (1.0, token(0, 7)))
    assert load.still() == 0
    door.now += 1.5
    assert load.still() == 1

"""Made sessions under virtual time: turns that survive moves, restarts and cancels."""

from __future__ import annotations

from typing import Any

from bus.ids import pack_ids
from tests.harness.memory_fleet import MemoryFleet, Stream
from tests.harness.memory_parts import expected_tokens


class Talk:
    """One session; `context` is what it must be, kept by hand."""

    def __init__(self, fleet: MemoryFleet) -> None:
        self.fleet = fleet
        self.context: list[int] = []
        self.session = self.call("session.create", model="toy")["session"]

    def call(self, op: str, **body: Any) -> dict[str, Any]:
        stream = self.fleet.request(op, **body)
        self.fleet.finish(stream)
        assert stream.error is None
        assert stream.end is not None
        return stream.end

    def say(self, text: str) -> None:
        self.context += list(text.encode())
        end = self.call("session.append", session=self.session, text=text)
        assert end["tokens"] == len(self.context)

    def begin(self, max_new: int) -> Stream:
        return self.fleet.request(
            "session.generate", session=self.session, max_new=max_new, credit=4096
        )

    def end(self, stream: Stream, max_new: int) -> None:
        """A turn ends with what the model says to the whole of the context, and nothing else."""
        self.fleet.finish(stream)
        assert stream.error is None
        assert stream.tokens == expected_tokens(pack_ids(self.context), max_new)
        self.context += stream.tokens
        self.check()

    def check(self) -> None:
        seen = self.call("session.get", session=self.session, limit=60_000)
        assert seen["ids"] == self.context


def test_turns_follow_each_other_on_the_full_history() -> None:
    talk = Talk(MemoryFleet(nodes=2))
    for turn in range(4):
        talk.say(f"turn {turn}?")
        talk.end(talk.begin(20), 20)


def test_g3_turn_at_once_after_a_cancel_sees_the_full_history_and_no_ghosts() -> None:
    fleet = MemoryFleet(nodes=2)
    talk = Talk(fleet)
    talk.say("first")
    stream = talk.begin(200)
    fleet.run_until(lambda: len(stream.tokens) >= 7)
    fleet.request("cancel", about=stream.id)
    # Not waited for: the cancel and the next turn may cross everything that is on its way.
    second = talk.begin(20)
    fleet.finish(stream)
    assert stream.end is not None
    assert stream.end["finish"] == "cancelled"
    talk.context += stream.tokens
    talk.end(second, 20)


def test_turn_that_moves_goes_on_and_the_next_one_too() -> None:
    fleet = MemoryFleet(nodes=2)
    talk = Talk(fleet)
    talk.say("mover")
    stream = talk.begin(60)
    fleet.run_until(lambda: len(stream.tokens) >= 10)
    node = next(node for node in fleet.nodes if node.worker and node.worker.running)
    node.kill()
    talk.end(stream, 60)
    assert any(event["type"] == "moved" for event in stream.events)
    node.start()
    talk.say("and?")
    talk.end(talk.begin(20), 20)


def test_session_outlives_the_head_idle_and_in_a_turn() -> None:
    fleet = MemoryFleet()
    talk = Talk(fleet)
    talk.say("before")
    talk.end(talk.begin(10), 10)
    fleet.kill_head()
    fleet.start_head()
    fleet.run(3.0)
    talk.check()
    talk.say("between")
    stream = talk.begin(60)
    fleet.run_until(lambda: len(stream.tokens) >= 10)
    fleet.kill_head()
    fleet.start_head()
    again = fleet.request("attach", session=talk.session)
    talk.end(again, 60)
    talk.say("after")
    talk.end(talk.begin(10), 10)


def test_idle_session_over_a_cut_link_goes_on() -> None:
    fleet = MemoryFleet()
    talk = Talk(fleet)
    talk.say("cut")
    talk.end(talk.begin(10), 10)
    fleet.nodes[0].cut_connection()
    fleet.run(2.0)
    talk.end(talk.begin(10), 10)
    fleet.run(700.0)
    talk.end(talk.begin(10), 10)
    talk.call("session.finish", session=talk.session)
    fleet.run(1.0)
    core = fleet.nodes[0].core
    assert core is not None
    assert core.confirm().held == ()

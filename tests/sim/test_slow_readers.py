"""Readers that grant no credit: their nodes run on, or wait for them when the request says so."""

from __future__ import annotations

from bus.event_window import PAUSE_AT, WINDOW_EVENTS
from bus.ids import pack_ids
from head.token_intake import HOLD_LIMIT_S
from tests.harness.memory_fleet import CLIENT, MemoryFleet, Stream
from tests.harness.memory_parts import expected_tokens

MANY = 2000
#: Where a node's window is full enough to pause, and what may come in one step more.
MOST_AHEAD = round(WINDOW_EVENTS * PAUSE_AT) + 64


def slow_reader(**body: object) -> tuple[MemoryFleet, Stream]:
    """A reader that took two events and grants no more, a minute later."""
    fleet = MemoryFleet(windows=[1 << 20])
    stream = fleet.generate("slow", MANY, credit=2, **body)
    fleet.run(60.0)
    return fleet, stream


def kept(fleet: MemoryFleet) -> int:
    (answer,) = fleet.disk.answers.values()
    return len(answer.tokens) // 4


def more(fleet: MemoryFleet, stream: Stream) -> None:
    fleet.finish(fleet.request("more", about=stream.id, credit=4096))


def test_lane_of_a_slow_reader_runs_on() -> None:
    fleet, stream = slow_reader()
    assert not stream.closed
    assert kept(fleet) == MANY
    more(fleet, stream)
    fleet.finish(stream)
    assert len(stream.tokens) == MANY


def test_lane_waits_for_a_slow_reader_when_the_request_says_so() -> None:
    fleet, stream = slow_reader(pause_when_slow=True)
    seen = len(stream.tokens)
    ahead = kept(fleet) - seen
    assert 256 <= ahead <= MOST_AHEAD
    fleet.run(60.0)
    assert kept(fleet) == ahead + seen
    more(fleet, stream)
    fleet.finish(stream)
    assert stream.tokens == expected_tokens(pack_ids(b"slow"), MANY)


def test_lane_is_not_held_for_ever_by_a_reader_who_takes_nothing() -> None:
    fleet, stream = slow_reader(pause_when_slow=True)
    more_at = len(stream.tokens)
    fleet.run(HOLD_LIMIT_S)
    assert kept(fleet) == MANY
    assert len(stream.tokens) == more_at
    more(fleet, stream)
    fleet.finish(stream)
    assert stream.tokens == expected_tokens(pack_ids(b"slow"), MANY)


def test_a_slow_reader_is_waited_for_wherever_its_answer_moves() -> None:
    fleet, stream = slow_reader(pause_when_slow=True)
    before = kept(fleet)
    for moves in (1, 2, 3):
        fleet.nodes[0].kill_worker()
        fleet.run(30.0)
        # At each worker it makes what shows that this one bears it, and a step until it pauses.
        assert 32 * moves <= kept(fleet) - before <= 34 * moves
    more(fleet, stream)
    fleet.finish(stream)
    assert stream.tokens == expected_tokens(pack_ids(b"slow"), MANY)


def test_a_reader_who_takes_all_is_not_waited_for_where_its_answer_moves() -> None:
    fleet, stream = slow_reader(pause_when_slow=True)
    fleet.nodes[0].kill_worker()
    more(fleet, stream)
    fleet.finish(stream)
    assert stream.tokens == expected_tokens(pack_ids(b"slow"), MANY)


def test_a_reader_who_takes_a_little_now_and_then_is_waited_for() -> None:
    fleet, stream = slow_reader(pause_when_slow=True)
    for _ in range(2):
        fleet.run(HOLD_LIMIT_S / 2)
        fleet.finish(fleet.request("more", about=stream.id, credit=1))
    assert kept(fleet) < MANY


def test_lane_goes_on_when_the_slow_reader_has_left() -> None:
    fleet, _ = slow_reader(pause_when_slow=True, on_disconnect="keep")
    assert fleet.head is not None
    fleet.head.client_gone(CLIENT)
    fleet.run(60.0)
    assert kept(fleet) == MANY


def test_lane_goes_on_for_another_reader_who_is_not_slow() -> None:
    fleet, stream = slow_reader(pause_when_slow=True)
    session = stream.session
    again = fleet.request("attach", session=session, credit=4096)
    fleet.finish(again)
    assert len(again.tokens) == MANY
    assert not stream.closed


def test_a_slow_reader_is_waited_for_over_a_restart_of_the_head() -> None:
    fleet, stream = slow_reader(pause_when_slow=True, key="k")
    before = kept(fleet)
    fleet.kill_head()
    fleet.start_head()
    fleet.run(3.0)
    again = fleet.request("attach", key="k", offset=len(stream.tokens), credit=1)
    fleet.run(60.0)
    assert before <= kept(fleet) < MANY
    more(fleet, again)
    fleet.finish(again)
    assert len(stream.tokens) + len(again.tokens) == MANY

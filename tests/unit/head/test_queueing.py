"""The order in which waiting requests are tried, by hand-computed cases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bus.errors import QueueFull
from bus.ids import ModelName
from head.queueing import Entry, RequestQueue

MODEL = ModelName("m")


def entry(
    answer: int,
    at: float = 0.0,
    *,
    owner: str = "ann",
    qos: int = 0,
    cost: int = 100,
    expires: float = float("inf"),
) -> Entry:
    return Entry(
        answer=answer, owner=owner, qos=qos, cost_tokens=cost, queued_s=at, expires_s=expires
    )


def queue_of(*entries: Entry) -> RequestQueue:
    queue = RequestQueue(MODEL)
    for item in entries:
        queue.push(item)
    return queue


def order(queue: RequestQueue) -> list[int]:
    return [item.answer for item in queue.candidates()]


def test_one_owner_is_served_in_order_of_arrival() -> None:
    queue = queue_of(entry(1, 1.0), entry(2, 2.0), entry(3, 2.0))
    assert order(queue) == [1, 2, 3]
    assert [queue.position(n) for n in (1, 2, 3, 4)] == [0, 1, 2, None]


def test_a_request_that_waits_again_keeps_its_place() -> None:
    queue = queue_of(entry(5, 5.0), entry(6, 6.0))
    queue.readmit(entry(1, 1.0))
    assert order(queue) == [1, 5, 6]


def test_of_those_that_have_waited_long_one_gets_every_fourth_turn() -> None:
    # Aged after 0, 5, 20, 60 s: at 100, 105, 120, 160.
    queue = queue_of(*(entry(qos, 100.0, qos=qos) for qos in (3, 2, 1, 0)))
    assert order(queue) == [0, 1, 2, 3]
    for number in range(10, 19):
        queue.push(entry(number, 101.0 + number))
    # 1 is older than what is passed before it from 10 on, 2 from 19 on: nobody of class 0.
    assert order(queue) == [0, 10, 11, 12, 1, 13, 14, 15, 16, 17, 18, 2, 3]
    assert queue.would_wait_behind(0, 200.0) == 11
    assert queue.would_wait_behind(3, 200.0) == 13


def test_turns_of_those_that_have_waited_long_are_counted_as_requests_are_taken() -> None:
    queue = queue_of(*(entry(number, 0.0, qos=3) for number in (1, 2)))
    for number in range(10, 18):
        queue.push(entry(number, 100.0))
    taken = []
    while len(queue):
        taken.append(queue.candidates(1)[0].answer)
        queue.take(taken[-1], 200.0)
    assert taken == [10, 11, 12, 1, 13, 14, 15, 2, 16, 17]


def test_a_long_queue_of_background_work_holds_up_no_interactive_request() -> None:
    queue = queue_of(*(entry(number, float(number), qos=3) for number in range(1000)))
    queue.push(entry(5000, 5000.0))
    assert order(queue)[:2] == [5000, 0]


def test_one_that_has_waited_long_and_finds_no_room_keeps_its_turn() -> None:
    queue = queue_of(entry(1, 0.0, qos=3), *(entry(n, 100.0) for n in range(10, 20)))
    for number in range(10, 16):
        queue.take(number, 200.0)
    assert order(queue)[:2] == [1, 16]


def test_owners_of_a_class_share_by_tokens() -> None:
    queue = queue_of(
        *(entry(n, float(n), owner="bulk", cost=100) for n in range(1, 7)),
        entry(10, 9.0, owner="new", cost=200),
        entry(11, 9.5, owner="new", cost=200),
    )
    # bulk 0, new 0 (younger), bulk 100, then bulk 200 and new 200 (bulk is older), ...
    assert order(queue) == [1, 10, 2, 3, 11, 4, 5, 6]


def test_taking_out_of_order_is_charged_to_the_owner() -> None:
    queue = queue_of(
        entry(1, 1.0, owner="a"), entry(2, 2.0, owner="b"), entry(3, 3.0, owner="a"),
        entry(4, 4.0, owner="b"),
    )  # fmt: skip
    queue.take(2, 10.0)
    # b has 100, a 0: a goes, then both have 100 and the older request goes.
    assert order(queue) == [1, 3, 4]
    queue.take(1, 11.0)
    assert order(queue) == [3, 4]


def test_a_pause_earns_no_credit() -> None:
    queue = queue_of(*(entry(n, float(n), owner="steady") for n in range(1, 6)))
    for n in range(1, 5):
        queue.take(n, 10.0 + n)
    # steady had 300 when it was last served: that is where others begin, and steady has 400.
    queue.push(entry(20, 20.0, owner="late"))
    queue.push(entry(21, 21.0, owner="late"))
    queue.push(entry(22, 22.0, owner="late"))
    # late 300, then steady 400 (older) before late 400.
    assert order(queue) == [20, 5, 21, 22]


def test_expired_ones_leave_the_queue() -> None:
    queue = queue_of(
        entry(1, 1.0, expires=50.0), entry(2, 2.0), entry(3, 3.0, expires=40.0), entry(4, 0.0)
    )
    assert queue.expired(39.9) == []
    assert [item.answer for item in queue.expired(50.0)] == [1, 3]
    assert order(queue) == [4, 2]


def test_a_full_queue_refuses_with_a_hint() -> None:
    queue = RequestQueue(MODEL, limit=2)
    queue.push(entry(1))
    queue.push(entry(2))
    with pytest.raises(QueueFull, match="2 requests wait for m") as caught:
        queue.push(entry(3))
    assert caught.value.retry_after_ms == 1000
    queue.readmit(entry(4))
    assert len(queue) == 3
    queue.take(1, 10.0)
    queue.take(2, 12.5)
    assert queue.retry_after_ms() == 2500
    queue.take(4, 112.5)
    assert queue.retry_after_ms() == 5000


def test_remove_and_membership() -> None:
    queue = queue_of(entry(1), entry(2))
    assert 1 in queue
    assert queue.remove(1) == entry(1)
    assert queue.remove(1) is None
    assert 1 not in queue
    with pytest.raises(KeyError):
        queue.take(1, 0.0)


def test_a_wrong_entry_is_refused() -> None:
    queue = queue_of(entry(1))
    with pytest.raises(ValueError, match="waits already"):
        queue.push(entry(1))
    with pytest.raises(ValueError, match="QoS class 4"):
        queue.push(entry(2, qos=4))
    assert len(queue) == 1


@given(
    st.lists(
        st.tuples(
            st.floats(0, 100),
            st.sampled_from(["a", "b", "c"]),
            st.integers(0, 3),
            st.integers(0, 500),
        ),
        max_size=30,
    ),
    st.data(),
)
def test_all_are_served_once_and_the_look_ahead_is_what_happens(
    made: list[tuple[float, str, int, int]], data: st.DataObject
) -> None:
    queue = queue_of(
        *(entry(n, at, owner=o, qos=q, cost=c) for n, (at, o, q, c) in enumerate(made))
    )
    planned = order(queue)
    assert sorted(planned) == list(range(len(made)))
    served = []
    while len(queue):
        served.append(queue.take(queue.candidates(1)[0].answer, 1.0).answer)
    assert served == planned

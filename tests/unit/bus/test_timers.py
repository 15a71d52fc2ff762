"""Timers fire in order, once, and only when their time has come."""

from __future__ import annotations

from bus.timers import Timers


def test_fire_in_order_of_time_then_of_making() -> None:
    timers = Timers()
    fired: list[tuple[str, float]] = []
    timers.at(2.0, lambda now: fired.append(("b", now)))
    timers.at(1.0, lambda now: fired.append(("a", now)))
    timers.at(2.0, lambda now: fired.append(("c", now)))
    assert timers.next_timeout() == 1.0
    timers.fire(0.5)
    assert fired == []
    timers.fire(2.0)
    assert fired == [("a", 2.0), ("b", 2.0), ("c", 2.0)]
    assert timers.next_timeout() is None


def test_cancelled_timer_never_fires_and_is_not_next() -> None:
    timers = Timers()
    fired: list[float] = []
    handle = timers.at(1.0, fired.append)
    timers.at(3.0, fired.append)
    timers.cancel(handle)
    timers.cancel(None)
    assert timers.next_timeout() == 3.0
    timers.fire(5.0)
    assert fired == [5.0]


def test_timer_added_for_now_waits_for_the_next_call() -> None:
    timers = Timers()
    fired: list[str] = []

    def again(now: float) -> None:
        fired.append("first")
        timers.at(now, lambda _: fired.append("second"))

    timers.at(1.0, again)
    timers.fire(1.0)
    assert fired == ["first"]
    timers.fire(1.0)
    assert fired == ["first", "second"]


def test_cancelled_timers_of_a_far_day_do_not_pile_up() -> None:
    timers = Timers()
    kept = timers.at(5e6, lambda now: None)
    for _ in range(10_000):
        timers.cancel(timers.at(4e6, lambda now: None))
    assert len(timers._heap) < 200
    assert timers.next_timeout() == 5e6
    timers.cancel(kept)
    assert timers.next_timeout() is None

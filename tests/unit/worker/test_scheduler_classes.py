"""The scheduler by itself: who goes first, and who leaves its lane."""

from __future__ import annotations

from itertools import pairwise

import pytest

from agent.worker.priority import aged_class
from agent.worker.work import LoadLane, SaveLane
from bus.messages.parts import Usage
from tests.harness.scheduler_driver import TOKEN_BYTES, Driver, submit

ROOM = 5000 * TOKEN_BYTES


def prompt(generation: int, length: int) -> list[int]:
    """Tokens that no other generation's prompt begins with."""
    return [1000 + generation] + [100 + n for n in range(length - 1)]


def driver_with(*, lanes: int = 2, host_bytes: int = ROOM) -> Driver:
    return Driver(lanes=lanes, host_bytes=host_bytes, telling=True, chunk_rate=400.0, step_s=0.04)


@pytest.mark.parametrize(
    ("qos", "waited_s", "level"),
    [
        (0, 0.0, 0),
        (1, 4.9, 1),
        (1, 5.0, 0),
        (2, 14.9, 2),
        (2, 15.0, 1),
        (2, 20.0, 0),
        (3, 39.9, 3),
        (3, 40.0, 2),
        (3, 55.0, 1),
        (3, 60.0, 0),
        (3, 1e6, 0),
    ],
)
def test_those_that_wait_rise_as_in_the_heads_queue(qos: int, waited_s: float, level: int) -> None:
    assert aged_class(qos, waited_s) == level


def test_prefill_goes_by_class_then_by_what_is_left() -> None:
    driver = driver_with(lanes=8)
    for generation, (length, qos) in enumerate([(300, 3), (400, 1), (200, 1), (290, 3), (500, 0)]):
        driver.submit(submit(generation, prompt(generation, length), qos=qos, max_new=1))
    driver.run()
    assert list(driver.first_at) == [4, 2, 1, 3, 0]


def test_a_better_class_goes_between_the_chunks_of_another() -> None:
    driver = driver_with(lanes=8)
    driver.submit(submit(1, prompt(1, 900), qos=3, max_new=1))
    driver.turn()
    driver.submit(submit(2, prompt(2, 600), qos=0, max_new=1))
    driver.run()
    assert [generation for generation, _, _ in driver.chunks] == [1] + [2] * 5 + [1] * 7


def test_a_long_prompt_is_not_passed_for_ever() -> None:
    driver = driver_with(lanes=8)
    driver.submit(submit(1, prompt(1, 900), max_new=1))
    driver.turn()
    for generation in range(2, 400):
        # A shorter one always waits.
        driver.submit(submit(generation, prompt(generation, 200), max_new=1))
        for _ in range(2):
            driver.turn()
        if 1 in driver.first_at:
            break
    assert 10.0 <= driver.first_at[1] <= 13.0


def test_class_0_takes_the_lane_of_the_lowest_class() -> None:
    driver = driver_with(lanes=3)
    for generation, qos in ((1, 2), (2, 3), (3, 3)):
        length = 100 * generation
        driver.submit(submit(generation, prompt(generation, length), qos=qos, max_new=60))
    while len(driver.first_at) < 3:
        driver.turn()
    driver.submit(submit(4, prompt(4, 40), qos=0, max_new=5))
    driver.run()
    (saved,) = [op for op in driver.ops if isinstance(op, SaveLane) and op.tokens < 250][:1]
    assert saved.tokens >= 200, "of the two of class 3, the one with less to copy"
    assert driver.scheduler.preemptions == 1
    assert [len(driver.ids(generation)) for generation in (1, 2, 3, 4)] == [60, 60, 60, 5]
    assert driver.finish(2).usage == Usage(prompt_tokens=200, completion_tokens=60)


def test_without_host_memory_none_is_preempted() -> None:
    for host_bytes in (0, 50 * TOKEN_BYTES):
        driver = driver_with(lanes=1, host_bytes=host_bytes)
        driver.submit(submit(1, prompt(1, 100), qos=3, max_new=20))
        driver.turn()
        driver.submit(submit(2, prompt(2, 20), qos=0, max_new=1))
        driver.run()
        assert driver.scheduler.preemptions == 0
        assert driver.finish(2).reason == "length"


@pytest.mark.parametrize(("waiting", "running"), [(2, 3), (3, 3), (0, 0), (1, 1), (1, 0)])
def test_only_classes_0_and_1_preempt_and_only_lower_ones(waiting: int, running: int) -> None:
    driver = driver_with(lanes=1)
    driver.submit(submit(1, prompt(1, 100), qos=running, max_new=20))
    driver.turn()
    driver.submit(submit(2, prompt(2, 20), qos=waiting, max_new=1))
    driver.run()
    assert driver.scheduler.preemptions == 0


def test_prefixes_make_room_for_a_preempted_lane() -> None:
    driver = driver_with(lanes=1, host_bytes=300 * TOKEN_BYTES)
    driver.submit(submit(1, prompt(1, 200), max_new=1))
    driver.run()
    assert driver.scheduler.kv_host_bytes == 200 * TOKEN_BYTES
    driver.submit(submit(2, prompt(2, 250), qos=3, max_new=20))
    driver.turn()
    driver.turn()
    driver.submit(submit(3, prompt(3, 20), qos=0, max_new=1))
    driver.run()
    assert driver.scheduler.preemptions == 1
    assert len(driver.ids(2)) == 20


def test_a_prefill_that_was_preempted_goes_on_where_it_was() -> None:
    driver = driver_with(lanes=1)
    driver.submit(submit(1, prompt(1, 600), qos=3, max_new=3))
    driver.turn()
    driver.submit(submit(2, prompt(2, 300), qos=1, max_new=2))
    driver.run()
    assert driver.chunks[0] == (1, 0, 128)
    assert next(chunk for chunk in driver.chunks[1:] if chunk[0] == 1)[1] == 128
    assert sum(size for generation, _, size in driver.chunks if generation == 1) == 600
    assert driver.finish(1).usage.cached_tokens == 0


def test_one_that_came_back_is_safe_for_2_s_or_64_tokens() -> None:
    driver = driver_with(lanes=1)
    driver.submit(submit(1, prompt(1, 50), qos=3, max_new=300))
    driver.turn()
    lengths: list[int] = []
    generation = 2
    while not driver.scheduler.idle and generation < 9:
        if not driver.scheduler.queued:
            # One of class 0 waits as soon as the one before it is done.
            driver.submit(submit(generation, prompt(generation, 20), qos=0, max_new=1))
            generation += 1
            lengths.append(len(driver.ids(1)))
        driver.turn()
    driver.run()
    gaps = [later - earlier for earlier, later in pairwise(lengths[1:])]
    assert driver.scheduler.preemptions >= 4
    # 2 s are 50 steps.
    assert all(gap == 0 or 49 <= gap <= 64 for gap in gaps)
    assert len(driver.ids(1)) == 300


def preempted() -> Driver:
    """Generation 1 has given 5 tokens and left its lane to 2."""
    driver = driver_with(lanes=1)
    driver.submit(submit(1, prompt(1, 100), qos=3, max_new=60, wall_ms=60_000))
    while len(driver.ids(1)) < 5:
        driver.turn()
    driver.submit(submit(2, prompt(2, 100), qos=0, max_new=40))
    driver.turn()
    assert driver.scheduler.preemptions == 1
    assert driver.scheduler.kv_host_bytes == 104 * TOKEN_BYTES
    return driver


def test_cancel_reaches_a_preempted_one() -> None:
    driver = preempted()
    driver.cancel(1)
    driver.turn()
    assert driver.finish(1).reason == "cancelled"
    assert driver.scheduler.kv_host_bytes == 0
    driver.run()


def test_the_wall_budget_goes_on_while_preempted() -> None:
    driver = preempted()
    driver.now += 61.0
    driver.run()
    assert driver.finish(1).reason == "expired"
    assert len(driver.ids(1)) == 5
    assert len(driver.ids(2)) == 40


def test_one_that_is_paused_while_preempted_keeps_its_place_in_host_memory() -> None:
    driver = preempted()
    driver.pause(1)
    driver.run()
    assert driver.scheduler.idle
    assert driver.finish(2).reason == "length"
    driver.resume(1)
    driver.run()
    assert len(driver.ids(1)) == 60
    assert [op.tokens for op in driver.ops if isinstance(op, LoadLane)] == [104]


def test_a_lane_that_is_paused_for_2_s_goes_to_any_that_waits() -> None:
    driver = driver_with(lanes=1)
    driver.submit(submit(1, prompt(1, 100), max_new=9))
    driver.turn()
    driver.pause(1)
    driver.submit(submit(2, prompt(2, 50), qos=3, max_new=2))
    assert not driver.turn()
    assert driver.scheduler.idle
    due = driver.scheduler.next_deadline()
    assert due is not None
    assert driver.now < due <= driver.now + 2.0
    driver.now += 2.0
    driver.run()
    assert driver.finish(2).reason == "length"
    driver.resume(1)
    driver.run()
    assert len(driver.ids(1)) == 9


def test_the_lowest_class_does_not_starve() -> None:
    """Class 0 always waits, for more than both lanes can do."""
    driver = driver_with(lanes=2)
    driver.submit(submit(0, prompt(0, 300), qos=3, max_new=200))
    generation = 1
    while not any(e.finish for e in driver.emitted if e.generation == 0):
        while driver.scheduler.queued < 4:
            message = submit(generation, prompt(generation, 60), qos=0, max_new=30)
            driver.submit(message)
            generation += 1
        driver.turn()
        assert driver.now < 200.0
    assert len(driver.ids(0)) == 200
    assert driver.now > 60.0, "until it counted as class 0 it had to wait"


def test_32_requests_on_8_lanes_all_complete_and_a_fresh_one_is_served_then() -> None:
    driver = driver_with(lanes=8, host_bytes=0)
    for generation in range(32):
        driver.submit(submit(generation, prompt(generation, 40 + generation), max_new=30))
    driver.run()
    assert [len(driver.ids(generation)) for generation in range(32)] == [30] * 32
    driver.submit(submit(99, prompt(99, 30), max_new=1))
    driver.run()
    assert driver.finish(99).reason == "length"


def test_a_lane_that_host_memory_has_room_for_is_taken_when_others_are_too_large() -> None:
    driver = driver_with(lanes=2, host_bytes=200 * TOKEN_BYTES)
    driver.submit(submit(1, prompt(1, 400), qos=3, max_new=100))
    driver.submit(submit(2, prompt(2, 50), qos=3, max_new=100))
    while len(driver.emitted) < 2 or len({e.generation for e in driver.emitted}) < 2:
        driver.turn()
    driver.pause(1)
    driver.now += 5.0
    driver.submit(submit(3, prompt(3, 50), qos=0, max_new=2))
    driver.turn()
    assert driver.scheduler.preemptions == 1
    driver.resume(1)
    driver.run()
    assert [len(driver.ids(generation)) for generation in (1, 2, 3)] == [100, 100, 2]

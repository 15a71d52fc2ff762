"""The scheduler by itself: what others have computed is not computed again."""

from __future__ import annotations

from agent.worker.work import CopyPrefix, LoadLane, SaveLane
from bus.messages.parts import Segment
from bus.messages.worker import Submit
from tests.harness.scheduler_driver import TOKEN_BYTES, Driver, submit

ROOM = 20_000 * TOKEN_BYTES
STEM = [500 + n for n in range(300)]


def driver_with(*, lanes: int = 4, host_bytes: int = ROOM) -> Driver:
    return Driver(lanes=lanes, window=2000, host_bytes=host_bytes, telling=True)


def ended(driver: Driver, message: Submit) -> Submit:
    """Run a generation to its end."""
    driver.submit(message)
    driver.run()
    return message


def cached(driver: Driver, generation: int) -> int:
    return driver.finish(generation).usage.cached_tokens


def test_a_running_lane_gives_all_that_is_equal() -> None:
    driver = driver_with(host_bytes=0)
    driver.submit(submit(1, [*STEM, 7], max_new=50))
    driver.turn()
    while len(driver.ids(1)) < 2:
        driver.turn()
    ended(driver, submit(2, [*STEM, 8, 7], max_new=2))
    assert CopyPrefix(0, 1, 300) in driver.ops
    assert cached(driver, 2) == 300
    assert [size for generation, _, size in driver.chunks if generation == 2] == [2]
    assert driver.scheduler.cached_tokens == 300


def test_a_replay_says_with_its_first_token_what_it_found_computed() -> None:
    """Also of the answer's own tokens, which usage leaves out."""
    driver = driver_with()
    ended(driver, submit(1, [*STEM, 7], max_new=50))
    ended(driver, submit(2, [*STEM, 8, 9], max_new=2))
    first = next(e for e in driver.emitted if e.generation == 2)
    assert (first.index, first.cached) == (0, 300)


def test_an_ended_lane_is_saved_and_gives_all_that_is_equal() -> None:
    driver = driver_with()
    ended(driver, submit(1, [*STEM, 7], max_new=50))
    assert [op for op in driver.ops if isinstance(op, SaveLane)] == [SaveLane(0, 1, 350)]
    assert driver.scheduler.kv_live_tokens == 0
    assert driver.scheduler.kv_host_bytes == 350 * TOKEN_BYTES
    ended(driver, submit(2, [*STEM, 8, 9], max_new=2))
    assert LoadLane(1, 0, 300) in driver.ops
    assert cached(driver, 2) == 300


def test_two_tokens_are_always_left_to_compute() -> None:
    driver = driver_with()
    for generation in range(3):
        ended(driver, submit(generation, STEM, max_new=2))
    assert [cached(driver, generation) for generation in range(3)] == [0, 298, 298]


def test_less_than_a_block_is_not_worth_it() -> None:
    driver = driver_with()
    ended(driver, submit(1, STEM[:70], max_new=2))
    ended(driver, submit(2, [*STEM[:60], *range(10, 90)], max_new=2))
    assert cached(driver, 2) == 0


def test_what_another_entry_has_is_not_saved_again() -> None:
    driver = driver_with()
    ended(driver, submit(1, [*STEM, 7], max_new=5))
    ended(driver, submit(2, [*STEM, 8], max_new=5))
    assert len([op for op in driver.ops if isinstance(op, SaveLane)]) == 1
    ended(driver, submit(3, [*STEM, *range(10, 110)], max_new=5))
    assert len([op for op in driver.ops if isinstance(op, SaveLane)]) == 2


def test_salts_do_not_meet() -> None:
    driver = driver_with()
    ended(driver, submit(1, [*STEM, 7], max_new=50, salt=b"one"))
    driver.submit(submit(2, [*STEM, 7, 7, 7], max_new=50, salt=b"one"))
    driver.submit(submit(3, [*STEM, 7, 7, 7], max_new=2, salt=b"two"))
    driver.run()
    assert cached(driver, 2) == 301
    assert cached(driver, 3) == 0


def test_the_next_turn_of_a_conversation_takes_over_what_was_generated() -> None:
    driver = driver_with()
    ended(driver, submit(1, STEM, max_new=100))
    context = [*STEM, *driver.ids(1), *range(10, 30)]
    # As a session's context, and rendered anew as a prompt.
    segments = (Segment(tokens=300), Segment(tokens=100, by_step=True), Segment(tokens=20))
    ended(driver, submit(2, context, max_new=2, segments=segments))
    ended(driver, submit(3, context, max_new=2))
    # The last token generated was never fed, and what is new in 2 was too little to be saved.
    assert [cached(driver, 2), cached(driver, 3)] == [399, 399]


def test_exact_takes_what_it_would_compute_itself() -> None:
    driver = driver_with()
    ended(driver, submit(1, STEM, max_new=100))
    context = [*STEM, *driver.ids(1), *range(10, 30)]
    segments = (Segment(tokens=300), Segment(tokens=100, by_step=True), Segment(tokens=20))
    ended(driver, submit(2, context, max_new=2, exact=True, segments=segments))
    assert cached(driver, 2) == 399
    ended(driver, submit(3, context, max_new=2, exact=True))
    assert cached(driver, 3) == 300


def test_what_came_from_steps_in_the_place_of_a_chunk_is_not_exact_for_others() -> None:
    driver = driver_with()
    ended(driver, submit(1, STEM, max_new=100))
    context = [*STEM, *driver.ids(1), *range(10, 120)]
    ended(driver, submit(2, context, max_new=90))
    assert cached(driver, 2) == 399
    # Generation 2's lane has all of its tokens by chunk, but on top of steps.
    ended(driver, submit(3, [*context, 7, 7], max_new=2, exact=True))
    assert cached(driver, 3) == 300
    ended(driver, submit(4, [*context, 7, 7], max_new=2))
    assert cached(driver, 4) > 500


def test_a_replay_by_step_takes_nothing_from_a_chunk() -> None:
    driver = driver_with()
    ended(driver, submit(1, [*STEM, *range(10, 110)], max_new=2))
    segments = (Segment(tokens=300), Segment(tokens=101, by_step=True))
    ended(driver, submit(2, [*STEM, *range(10, 110), 7], max_new=2, segments=segments))
    assert cached(driver, 2) == 300


def burst(driver: Driver, count: int, stem: list[int], qos: int = 0) -> None:
    for generation in range(count):
        driver.submit(submit(generation, [*stem, 10 + generation, 7, 7], max_new=9, qos=qos))


def test_32_requests_with_one_prefix_of_1000_tokens_compute_it_once() -> None:
    stem = [10 + n for n in range(1000)]
    for host_bytes in (0, ROOM):
        for qos in (0, 3):
            driver = driver_with(lanes=8, host_bytes=host_bytes)
            burst(driver, 32, stem, qos)
            driver.run()
            assert [len(driver.ids(generation)) for generation in range(32)] == [9] * 32
            of_the_prefix = driver.prefilled - 32 * 3
            assert of_the_prefix <= 1.1 * 1000


def test_followers_of_a_leader_that_is_cancelled_go_on() -> None:
    driver = driver_with(lanes=8)
    burst(driver, 5, STEM)
    driver.turn()
    assert driver.scheduler.lanes_used == 1
    driver.cancel(0)
    driver.run()
    assert [len(driver.ids(generation)) for generation in range(5)] == [0, 9, 9, 9, 9]
    # What it had computed was saved, so nothing was computed twice.
    assert driver.prefilled == 300 + 4 * 3


def test_followers_of_a_leader_that_is_paused_go_on() -> None:
    driver = driver_with(lanes=8, host_bytes=0)
    burst(driver, 3, STEM)
    driver.turn()
    driver.pause(0)
    driver.run()
    assert [len(driver.ids(generation)) for generation in range(3)] == [0, 9, 9]
    driver.resume(0)
    driver.run()
    assert len(driver.ids(0)) == 9


def test_a_leader_of_a_low_class_counts_as_of_its_followers() -> None:
    driver = driver_with(lanes=8)
    stem = [*STEM, *range(2000, 2300)]
    driver.submit(submit(0, [*stem, *range(10, 400)], qos=3, max_new=2))
    driver.turn()
    driver.submit(submit(1, [*stem, 7, 7], qos=0, max_new=2))
    driver.submit(submit(2, [7] * 200, qos=1, max_new=2))
    driver.run()
    # Its prefix until so little is left that 1 goes on by itself, then 2, then its own rest.
    assert [generation for generation, _, _ in driver.chunks] == [0] * 3 + [1] * 2 + [2] * 2 + [
        0
    ] * 5
    assert cached(driver, 1) == 384


def test_the_budget_holds_and_the_least_recently_used_goes() -> None:
    driver = driver_with(host_bytes=700 * TOKEN_BYTES)
    stems = [[token] * 300 for token in (10, 11, 12)]
    for generation, stem in enumerate(stems):
        ended(driver, submit(generation, [*stem, 7], max_new=2))
    assert driver.scheduler.kv_host_bytes == 2 * 302 * TOKEN_BYTES
    ended(driver, submit(3, [*stems[0], 8, 8], max_new=2))
    ended(driver, submit(4, [*stems[2], 8, 8], max_new=2))
    assert [cached(driver, 3), cached(driver, 4)] == [0, 300]


def test_a_context_too_large_for_host_memory_is_not_saved() -> None:
    driver = driver_with(host_bytes=100 * TOKEN_BYTES)
    ended(driver, submit(1, STEM, max_new=2))
    assert driver.scheduler.kv_host_bytes == 0


def test_digests_tell_what_is_held() -> None:
    driver = driver_with()
    assert driver.scheduler.prefix_digests() == ()
    ended(driver, submit(1, STEM, max_new=2))
    digests = driver.scheduler.prefix_digests()
    assert digests
    assert {len(digest) for digest in digests} == {16}


def test_what_goes_to_make_room_for_a_preempted_lane_is_not_taken_over() -> None:
    driver = driver_with(lanes=1, host_bytes=500 * TOKEN_BYTES)
    ended(driver, submit(1, [*STEM, 7], max_new=5))
    driver.submit(submit(2, list(range(1000, 1250)), qos=3, max_new=20))
    while len(driver.ids(2)) < 5:
        driver.turn()
    driver.submit(submit(3, [*STEM, 8, 9], qos=0, max_new=2))
    driver.run()
    assert driver.scheduler.preemptions == 1
    assert cached(driver, 3) == driver.scheduler.cached_tokens == 0
    assert [len(driver.ids(generation)) for generation in (2, 3)] == [20, 2]

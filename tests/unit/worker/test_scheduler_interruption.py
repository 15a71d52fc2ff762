"""The scheduler by itself: cancel, pause and expiry."""

from __future__ import annotations

from bus.ids import GenerationId
from bus.messages.parts import Finish, Segment, Usage
from tests.harness.scheduler_driver import NEXT, Driver, submit


def test_g2_cancel_while_waiting() -> None:
    driver = Driver(lanes=1)
    driver.submit(submit(1, max_new=2))
    driver.submit(submit(2))
    driver.turn()
    driver.cancel(2)
    driver.run()
    assert driver.finish(2) == Finish(reason="cancelled", usage=Usage(prompt_tokens=4))
    assert driver.finish(1).reason == "length"


def test_g2_cancel_between_chunks_frees_the_lane() -> None:
    driver = Driver(lanes=1)
    driver.submit(submit(1, 300))
    driver.turn()
    assert driver.scheduler.kv_live_tokens == 128
    driver.cancel(1)
    assert driver.scheduler.lanes_used == 0
    assert not driver.scheduler.idle  # the finish waits to be taken
    assert not driver.turn()
    assert driver.finish(1).reason == "cancelled"
    assert driver.scheduler.idle


def test_g2_cancel_while_decoding_counts_what_was_made() -> None:
    driver = Driver()
    driver.submit(submit(1, max_new=100))
    for _ in range(4):
        driver.turn()
    driver.cancel(1)
    driver.run()
    assert driver.ids(1) == [NEXT] * 4
    assert driver.emitted[-1].index == 4
    assert driver.finish(1).usage.completion_tokens == 4


def test_a_number_is_in_use_until_its_end_was_taken() -> None:
    """Else what is kept for it would go with the end of the one before."""
    driver = Driver()
    driver.submit(submit(1, max_new=100))
    driver.turn()
    driver.scheduler.cancel(GenerationId(1))
    assert driver.scheduler.knows(GenerationId(1))
    driver.submit(submit(1, max_new=5))
    driver.run()
    assert driver.finish(1).reason == "cancelled"
    assert not driver.scheduler.knows(GenerationId(1))


def test_cancel_of_an_unknown_generation_is_passed_over() -> None:
    driver = Driver()
    driver.cancel(7)
    driver.pause(7)
    driver.run()
    assert driver.emitted == []


def test_a_paused_lane_runs_along_and_goes_on_as_if_nothing_was() -> None:
    driver = Driver(lanes=2)
    driver.submit(submit(1, 4, max_new=6))
    driver.submit(submit(2, 4, max_new=20))
    for _ in range(5):
        driver.turn()
    driver.pause(1)
    before = len(driver.ids(1))
    for _ in range(6):
        driver.turn()
    assert len(driver.ids(1)) == before
    driver.resume(1)
    driver.run()
    assert len(driver.ids(1)) == 6
    assert len(driver.ids(2)) == 20


def test_pausing_a_prefill_lets_the_next_one_start() -> None:
    driver = Driver(lanes=2)
    driver.submit(submit(1, 300, max_new=2))
    driver.submit(submit(2, 4, max_new=2))
    driver.turn()
    driver.pause(1)
    driver.run()
    assert driver.finish(2).reason == "length"
    assert driver.ids(1) == []
    assert driver.scheduler.idle
    driver.resume(1)
    driver.run()
    assert driver.ids(1) == [NEXT] * 2


def test_a_paused_one_that_waits_is_passed_over() -> None:
    driver = Driver(lanes=1)
    driver.submit(submit(1, max_new=1))
    driver.submit(submit(2, max_new=1))
    driver.pause(1)
    driver.run()
    assert driver.ids(2) == [NEXT]
    assert driver.ids(1) == []


def test_all_lanes_paused_is_idle_though_others_wait() -> None:
    driver = Driver(lanes=1)
    driver.submit(submit(1, max_new=9))
    driver.submit(submit(2))
    driver.turn()
    driver.pause(1)
    assert driver.scheduler.idle
    assert not driver.turn()


def test_a_paused_one_still_expires_and_cancels() -> None:
    driver = Driver()
    driver.submit(submit(1, wall_ms=100))
    driver.submit(submit(2))
    driver.pause(1)
    driver.pause(2)
    driver.cancel(2)
    driver.now = 0.2
    driver.run()
    assert driver.finish(1).reason == "expired"
    assert driver.finish(2).reason == "cancelled"


def test_expiry_while_decoding() -> None:
    driver = Driver()
    driver.submit(submit(1, max_new=1000, wall_ms=1000))
    for _ in range(5):
        driver.turn()
        driver.now += 0.1
    driver.now = 1.0
    driver.run()
    assert driver.ids(1) == [NEXT] * 5
    assert driver.finish(1).reason == "expired"


def test_hundreds_of_generations_with_pauses_and_cancels_end_once_each() -> None:
    """Every turn checks that a drawing row attends to nothing but its own tokens."""
    driver = Driver(lanes=5, window=400)
    pending = list(range(200))
    state = 12345
    while pending or not driver.scheduler.idle or driver.scheduler._known:
        state = (state * 1103515245 + 12345) % 2**31  # a C library's rand(): the same every run
        dice, who = state >> 8 & 15, GenerationId(state >> 12 & 255)
        if pending and driver.scheduler.queued < 5:
            length, steps = 1 + (state >> 6) % 150, (state >> 3) % 9
            segments = (Segment(tokens=length), Segment(tokens=steps, by_step=True))
            driver.submit(
                submit(pending.pop(), length + steps, max_new=dice * 3, segments=segments)
            )
        if dice == 0:
            driver.scheduler.cancel(who)
        elif dice < 3:
            driver.pause(int(who))
        elif dice < 7 or driver.scheduler.idle:
            for generation in list(driver.scheduler._known):
                driver.scheduler.resume(generation)
        driver.turn()
    finished = sorted(int(e.generation) for e in driver.emitted if e.finish)
    assert finished == list(range(200))
    assert driver.scheduler.kv_live_tokens == 0
    assert driver.moves

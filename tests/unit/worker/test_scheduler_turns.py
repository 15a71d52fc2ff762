"""The scheduler by itself: chunks, steps and lanes, turn by turn."""

from __future__ import annotations

import pytest

from agent.worker.scheduler import (
    EXTRA_WAITING,
)
from bus.errors import QueueFull
from bus.messages.parts import Segment, Usage
from tests.harness.scheduler_driver import NEXT, Driver, submit


@pytest.mark.parametrize(
    ("prompt", "sizes"),
    [
        (1, [1]),
        (2, [2]),
        (128, [128]),
        (129, [127, 2]),
        (130, [128, 2]),
        (257, [128, 127, 2]),
        (300, [128, 128, 44]),
    ],
)
def test_chunks_have_2_to_128_tokens(prompt: int, sizes: list[int]) -> None:
    driver = Driver()
    driver.submit(submit(1, prompt, max_new=1))
    driver.run()
    assert [size for _, _, size in driver.chunks] == sizes
    assert sum(sizes) == prompt


def test_beside_decoding_a_chunk_is_what_fits_into_the_turn_target() -> None:
    driver = Driver()
    driver.submit(submit(1, 4, max_new=100, qos=1))
    driver.turn()
    driver.elapsed_s = 0.01
    driver.turn()  # a step of 10 ms
    driver.submit(submit(2, 500, max_new=1, qos=1))
    driver.elapsed_s = 0.1
    driver.turn()  # nothing is known of chunks yet: the least
    assert driver.chunks[-1] == (2, 0, 32)
    assert driver.scheduler.pacer.chunk_rate == pytest.approx(320)
    driver.elapsed_s = 0.01
    driver.turn()
    driver.elapsed_s = 0.02
    driver.turn()  # 40 ms at 320 tokens/s would be 12 tokens: the least again
    assert driver.chunks[-1] == (2, 32, 32)
    assert driver.scheduler.pacer.chunk_rate == pytest.approx(320 + (1600 - 320) / 4)
    driver.scheduler.pacer.chunk_rate = 2000.0
    driver.elapsed_s = 0.01
    driver.turn()
    driver.turn()
    assert driver.chunks[-1] == (2, 64, 80)  # 40 ms at 2000 tokens/s
    driver.scheduler.pacer.chunk_rate = 1e6
    driver.turn()
    driver.turn()
    assert driver.chunks[-2:] == [(2, 144, 128), (2, 272, 128)]  # two fit into 40 ms


def test_steps_of_a_lower_class_do_not_shorten_the_chunks_of_a_better_one() -> None:
    driver = Driver()
    driver.submit(submit(1, 4, max_new=100, qos=3))
    driver.turn()
    driver.turn()
    driver.submit(submit(2, 300, max_new=1, qos=0))
    driver.kinds.clear()
    for _ in range(5):
        driver.turn()
    assert driver.chunks[-3:] == [(2, 0, 128), (2, 128, 128), (2, 256, 44)]
    assert driver.kinds == ["chunk"] * 3 + ["step"] * 2  # all three fit into one turn


def test_slow_steps_widen_the_turn() -> None:
    driver = Driver()
    driver.submit(submit(1, 4, max_new=100))
    driver.turn()
    driver.elapsed_s = 0.1
    driver.turn()
    driver.scheduler.pacer.chunk_rate = 1000.0
    driver.submit(submit(2, 500))
    driver.turn()
    assert driver.chunks[-1] == (2, 0, 100)  # 2 * 100 ms less the step's 100 ms


def test_chunks_and_steps_alternate_while_both_wait() -> None:
    driver = Driver()
    driver.submit(submit(1, 4, max_new=100))
    driver.turn()
    driver.submit(submit(2, 700, max_new=1))
    driver.kinds.clear()
    for _ in range(6):
        driver.turn()
    assert driver.kinds == ["step", "chunk", "step", "chunk", "step", "chunk"]


def test_replayed_tokens_go_by_step_and_give_nothing_until_the_last() -> None:
    driver = Driver(tokens=[7])
    segments = (Segment(tokens=4), Segment(tokens=3, by_step=True))
    driver.submit(submit(1, 7, max_new=1, segments=segments))
    driver.run()
    assert driver.kinds == ["chunk", "step", "step", "step"]
    assert driver.ids(1) == [7]
    assert driver.finish(1).usage == Usage(prompt_tokens=7, completion_tokens=1)


def test_segments_of_several_turns_alternate() -> None:
    driver = Driver()
    segments = (
        Segment(tokens=3),
        Segment(tokens=2, by_step=True),
        Segment(tokens=0, by_step=True),
        Segment(tokens=1),
        Segment(tokens=4),
    )
    driver.submit(submit(1, 10, max_new=2, segments=segments))
    driver.run()
    assert driver.chunks == [(1, 0, 3), (1, 5, 5)]
    assert driver.kinds == ["chunk", "step", "step", "chunk", "step"]
    assert driver.ids(1) == [NEXT] * 2


def test_a_context_that_is_all_steps_needs_no_chunk() -> None:
    driver = Driver()
    driver.submit(submit(1, 3, max_new=1, segments=(Segment(tokens=3, by_step=True),)))
    driver.run()
    assert driver.kinds == ["step"] * 3
    assert driver.ids(1) == [NEXT]


def test_first_come_first_served_over_fewer_lanes() -> None:
    driver = Driver(lanes=2)
    for generation in range(1, 6):
        driver.submit(submit(generation, max_new=2))
    assert driver.scheduler.queued == 5
    driver.run()
    first_tokens = [int(e.generation) for e in driver.emitted if e.index == 0 and e.token]
    assert first_tokens == [1, 2, 3, 4, 5]
    assert [driver.ids(g) for g in range(1, 6)] == [[NEXT] * 2] * 5


def test_too_many_waiting_are_refused() -> None:
    driver = Driver(lanes=2)
    for generation in range(2 + EXTRA_WAITING):
        driver.submit(submit(generation))
    with pytest.raises(QueueFull):
        driver.submit(submit(99))
    driver.run()
    driver.submit(submit(99))


def test_a_hole_is_filled_by_the_last_lane() -> None:
    driver = Driver(lanes=4)
    driver.submit(submit(1, 4, max_new=6))
    driver.submit(submit(2, 6, max_new=30))
    driver.submit(submit(3, 8, max_new=30))
    while not driver.moves:
        driver.turn()
    # Generation 1 in lane 0 ended; 3 in lane 2 takes its place, and steps have two rows again.
    (move,) = driver.moves
    assert (move.src, move.dst) == (2, 0)
    assert driver.widths[-2:] == [3, 2]
    driver.run()
    assert driver.ids(2) == driver.ids(3) == [NEXT] * 30


def test_a_prefilling_lane_below_runs_along_unharmed() -> None:
    # A conversation goes back from steps to a chunk while a lane above it decodes.
    driver = Driver(lanes=4)
    segments = (Segment(tokens=2), Segment(tokens=4, by_step=True), Segment(tokens=90))
    driver.submit(submit(1, 96, max_new=5, segments=segments))
    driver.submit(submit(2, 4, max_new=40))
    driver.run()
    assert driver.ids(1) == [NEXT] * 5
    assert driver.ids(2) == [NEXT] * 40

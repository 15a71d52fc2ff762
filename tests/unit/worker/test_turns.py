"""The shape of turns."""

from __future__ import annotations

import pytest

from agent.worker.turns import TurnPacer


def paced(*, step_s: float, chunk_rate: float) -> TurnPacer:
    pacer = TurnPacer()
    pacer.step_s, pacer.chunk_rate = step_s, chunk_rate
    return pacer


@pytest.mark.parametrize(
    ("step_s", "rate", "beside", "tokens"),
    [
        (0.01, 2000.0, 1, 80),  # 40 ms are left of 50
        (0.04, 1000.0, 1, 40),  # 2 * 40 ms less the step's 40 ms
        (0.04, 400.0, 1, 32),  # 16 would fit
        (0.04, 400.0, 0, 16),
        (0.04, 100.0, 0, 16),  # 4 would fit
        (0.04, 1e6, 0, 128),
        (0.0, 0.0, 0, 16),  # nothing is known yet
        (0.0, 0.0, 3, 32),
        (0.04, 400.0, None, 128),  # alone
    ],
)
def test_a_chunk_is_what_fits_into_the_turn(
    step_s: float, rate: float, beside: int | None, tokens: int
) -> None:
    assert paced(step_s=step_s, chunk_rate=rate).chunk_tokens(0, 500, beside) == tokens


@pytest.mark.parametrize(
    ("rate", "lone", "grid", "tokens"),
    [
        (512.0, True, False, 256),
        (511.0, True, False, 128),  # longer than half a second
        (0.0, True, False, 128),  # nothing is known yet
        (1e6, True, False, 256),
        (1e6, False, False, 128),
        (1e6, True, True, 64),  # to the middle of the first block
    ],
)
def test_a_lone_prompt_is_read_in_long_chunks_where_they_are_short_in_time(
    rate: float, lone: bool, grid: bool, tokens: int
) -> None:
    pacer = TurnPacer(grid=grid, long_chunks=True)
    pacer.chunk_rate = rate
    assert pacer.chunk_tokens(0, 500, None, lone=lone) == tokens
    short = TurnPacer(grid=grid)
    short.chunk_rate = rate
    assert short.chunk_tokens(0, 500, None, lone=lone) <= 128


def lengths(pacer: TurnPacer, stop: int) -> list[int]:
    """Of the chunks of a prompt that is alone."""
    found: list[int] = []
    while sum(found) < stop:
        found.append(pacer.chunk_tokens(sum(found), stop, None, lone=True))
    return found


@pytest.mark.parametrize("grid", [False, True])
@pytest.mark.parametrize("long_chunks", [False, True])
def test_no_tile_of_rows_has_a_single_one(grid: bool, long_chunks: bool) -> None:
    pacer = TurnPacer(grid=grid, long_chunks=long_chunks)
    pacer.chunk_rate = 1e6
    for stop in range(2, 700):
        found = lengths(pacer, stop)
        assert sum(found) == stop
        assert all(size % 64 != 1 for size in found), (stop, found)
    assert lengths(TurnPacer(), 65) == [63, 2]
    assert lengths(TurnPacer(), 193) == [128, 63, 2]


def test_no_single_token_is_left() -> None:
    pacer = paced(step_s=0.04, chunk_rate=400.0)
    assert pacer.chunk_tokens(0, 17, 0) == 15
    assert pacer.chunk_tokens(0, 18, 0) == 16
    assert pacer.chunk_tokens(0, 1, 0) == 1


def share_of_prefill(
    pacer: TurnPacer, *, step_s: float, chunk_s: float, tokens: int = 128
) -> float:
    """What prefill gets of 100 s in which both kinds of work always wait."""
    chunks_s = steps_s = 0.0
    while chunks_s + steps_s < 100.0:
        if pacer.chunk_is_next(decoding=True):
            pacer.ran_chunk(tokens, chunk_s)
            chunks_s += chunk_s
        else:
            pacer.ran_step(step_s)
            steps_s += step_s
    return chunks_s / (chunks_s + steps_s)


def test_prefill_gets_a_quarter_at_least() -> None:
    # Chunks are short beside a step, and no second one fits into its turn.
    assert share_of_prefill(TurnPacer(), step_s=0.2, chunk_s=0.02, tokens=12) == pytest.approx(
        0.25, abs=0.01
    )
    assert share_of_prefill(TurnPacer(), step_s=0.04, chunk_s=0.04) == pytest.approx(0.5, abs=0.01)


def test_whole_chunks_go_before_a_step_while_they_fit_into_the_turn() -> None:
    # As on a GPU, and after a move of many streams: 15 chunks of 2 ms and a step make 50 ms.
    pacer = paced(step_s=0.02, chunk_rate=64_000.0)
    for _ in range(15):
        assert pacer.chunk_is_next(decoding=True)
        assert pacer.chunk_tokens(0, 500, 1) == 128
        pacer.ran_chunk(128, 0.00199)
    assert not pacer.chunk_is_next(decoding=True)
    pacer.ran_step(0.02)
    assert pacer.chunk_is_next(decoding=True)
    share = share_of_prefill(TurnPacer(), step_s=0.02, chunk_s=0.00199)
    assert share == pytest.approx(0.6, abs=0.01)


def test_a_chunk_that_would_be_cut_to_fit_leaves_the_turn_to_the_step() -> None:
    pacer = paced(step_s=0.01, chunk_rate=4_000.0)  # a whole chunk takes 32 of 40 ms
    pacer.ran_chunk(128, 0.032)
    assert not pacer.chunk_is_next(decoding=True)


def test_nothing_is_known_of_steps_before_the_first() -> None:
    pacer = paced(step_s=0.0, chunk_rate=64_000.0)
    pacer.ran_chunk(128, 0.002)
    assert not pacer.chunk_is_next(decoding=True)


def test_what_was_before_prefill_waited_does_not_count() -> None:
    pacer = TurnPacer()
    for _ in range(1000):
        pacer.ran_step(0.04)
        pacer.no_prefill()
    assert pacer.chunk_is_next(decoding=True)
    pacer.ran_chunk(32, 0.04)
    assert not pacer.chunk_is_next(decoding=True)


def test_speeds_are_smoothed() -> None:
    pacer = TurnPacer()
    pacer.ran_step(0.04)
    assert pacer.step_s == 0.04
    pacer.ran_step(0.08)
    assert pacer.step_s == pytest.approx(0.05)
    pacer.ran_chunk(100, 0.5)
    pacer.ran_chunk(4, 0.5)  # too short to tell
    assert pacer.chunk_rate == pytest.approx(200.0)


def test_a_step_in_which_the_process_was_stopped_is_not_paid_back_in_chunks() -> None:
    """An hour of SIGSTOP is no work: streams do not wait for a third of it."""
    pacer = paced(step_s=0.04, chunk_rate=400.0)
    pacer.ran_chunk(16, 0.04)
    pacer.ran_step(3600.0)
    chunks_s = 0.0
    while pacer.chunk_is_next(decoding=True):
        pacer.ran_chunk(16, 0.04)
        chunks_s += 0.04
    assert chunks_s < 2.0

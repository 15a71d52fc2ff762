"""When tokens leave."""

from __future__ import annotations

import pytest

from agent.worker.output_buffer import OutputBuffer
from agent.worker.work import Emission
from bus.ids import GenerationId, pack_ids
from bus.messages.parts import Finish
from bus.messages.worker import OutputRun

END = Finish(reason="length")


def emission(generation: int, index: int, finish: Finish | None = None) -> Emission:
    return Emission(GenerationId(generation), index, 100 + index, finish)


def test_nothing_is_never_due() -> None:
    assert OutputBuffer().due_at(0.01) is None


def test_a_first_token_and_an_end_leave_at_once() -> None:
    buffer = OutputBuffer()
    buffer.add(emission(1, 0), 5.0)
    assert buffer.due_at(0.1) == 5.0
    buffer.take()
    buffer.add(emission(1, 1, END), 6.0)
    assert buffer.due_at(0.1) == 6.0
    buffer.take()
    buffer.add(Emission(GenerationId(1), 2, None, END), 7.0)
    assert buffer.due_at(0.1) == 7.0
    (run,) = buffer.take()
    assert run == OutputRun(generation=GenerationId(1), first_index=2, finish=END)


@pytest.mark.parametrize(
    ("step_s", "due"), [(0.001, 5.025), (0.008, 5.025), (0.03, 5.09), (0.05, 5.1)]
)
def test_others_wait_for_25_ms_or_three_steps_but_for_100_ms_at_most(
    step_s: float, due: float
) -> None:
    buffer = OutputBuffer()
    buffer.add(emission(1, 3), 5.0)
    buffer.add(emission(2, 8), 5.02)
    assert buffer.due_at(step_s) == pytest.approx(due)


def test_sixteen_tokens_of_one_generation_leave_at_once_with_all_others() -> None:
    buffer = OutputBuffer()
    for index in range(1, 16):
        buffer.add(emission(1, index), 5.0)
        buffer.add(emission(2, index + 7), 5.0)
    due = buffer.due_at(0.0)
    assert due is not None
    assert due > 5.0
    buffer.add(emission(1, 16), 5.001)
    assert buffer.due_at(0.0) == 5.0
    one, two = buffer.take()
    assert one == OutputRun(
        generation=GenerationId(1), first_index=1, ids=pack_ids(range(101, 117))
    )
    assert two == OutputRun(
        generation=GenerationId(2), first_index=8, ids=pack_ids(range(108, 123))
    )
    assert buffer.due_at(0.0) is None


def test_records_of_log_probabilities_leave_with_their_tokens() -> None:
    buffer = OutputBuffer()
    for index in range(3):
        record = bytes([index]) * 12
        buffer.add(Emission(GenerationId(1), index, 100 + index, None, record), 5.0)
        buffer.add(emission(2, index), 5.0)
    one, two = buffer.take()
    assert one.logprobs == bytes([0] * 12 + [1] * 12 + [2] * 12)
    assert two.logprobs == b""
    buffer.add(Emission(GenerationId(1), 3, None, END), 6.0)
    (end,) = buffer.take()
    assert (end.ids, end.logprobs) == (b"", b"")


def test_what_was_cached_leaves_with_the_first_token_alone() -> None:
    buffer = OutputBuffer()
    for index in range(3):
        buffer.add(Emission(GenerationId(1), index, 100 + index, None, cached=40), 5.0)
    (first,) = buffer.take()
    assert (first.ids, first.cached) == (pack_ids([100, 101, 102]), 40)
    buffer.add(Emission(GenerationId(1), 3, 103, END, cached=40), 6.0)
    assert [run.cached for run in buffer.take()] == [0]

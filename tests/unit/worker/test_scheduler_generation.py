"""The scheduler by itself: what one generation gives, and how it ends."""

from __future__ import annotations

import pytest

from agent.worker.work import DecodeStep, Emission, Outcome, PrefillChunk
from bus.errors import ContextLengthExceeded, Internal, Invalid
from bus.ids import GenerationId
from bus.messages.parts import Finish, Segment, Usage
from tests.harness.scheduler_driver import EOS, NEXT, Driver, submit


def test_a_prompt_is_prefilled_and_its_first_token_comes_from_the_chunk() -> None:
    driver = Driver(tokens=[7, 8, 6])
    driver.submit(submit(1, 4, max_new=3))
    assert driver.turn()
    assert driver.emitted == [Emission(GenerationId(1), 0, 7, None)]
    driver.run()
    assert driver.kinds == ["chunk", "step", "step"]
    assert driver.ids(1) == [7, 8, 6]
    assert driver.finish(1) == Finish(
        reason="length", usage=Usage(prompt_tokens=4, completion_tokens=3)
    )
    assert driver.scheduler.lanes_used == 0
    assert driver.scheduler.kv_live_tokens == 0


@pytest.mark.parametrize("max_new", [0, 1])
def test_g9_a_budget_of_no_or_one_token(max_new: int) -> None:
    driver = Driver()
    driver.submit(submit(1, max_new=max_new))
    driver.run()
    assert driver.ids(1) == [NEXT] * max_new
    assert driver.finish(1).reason == "length"
    assert driver.kinds == ["chunk"] * max_new


def test_g9_a_wall_budget_of_a_millisecond_expires() -> None:
    driver = Driver(now=100.0)
    driver.submit(submit(1, wall_ms=1))
    assert driver.scheduler.next_deadline() == pytest.approx(100.001)
    driver.now = 100.002
    driver.run()
    assert driver.finish(1).reason == "expired"
    assert driver.ids(1) == []
    assert driver.kinds == []


def test_a_token_drawn_after_the_wall_budget_is_given_and_ends_it_as_expired_not_eos() -> None:
    driver = Driver(tokens=[NEXT, EOS])
    driver.submit(submit(1, wall_ms=1000, max_new=2))
    driver.turn()
    work = driver.scheduler.next_work(0.5)
    assert isinstance(work, DecodeStep)
    driver.scheduler.commit_step(work, [Outcome(EOS, reason="eos")], now=1.5, elapsed_s=1.0)
    (emission,) = driver.scheduler.take_emissions()
    assert emission.token == EOS
    assert emission.finish is not None
    assert emission.finish.reason == "expired"


def test_g9_an_empty_prompt_is_a_clear_error() -> None:
    with pytest.raises(Invalid, match="prompt is empty") as caught:
        Driver().submit(submit(1, 0))
    assert caught.value.param == "prompt"


def test_g6_a_prompt_that_fits_generates_up_to_the_window() -> None:
    driver = Driver(window=10)
    driver.submit(submit(1, 7, max_new=1000))
    driver.run()
    assert driver.ids(1) == [NEXT] * 3
    assert driver.finish(1).reason == "length"


def test_a_prompt_as_long_as_the_window_ends_at_once() -> None:
    driver = Driver(window=10)
    driver.submit(submit(1, 10))
    driver.run()
    assert driver.finish(1).reason == "length"
    assert driver.ids(1) == []


def test_a_prompt_over_the_window_is_refused_with_both_numbers() -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        Driver(window=10).submit(submit(1, 11))
    assert caught.value.details == {"length": 11, "max": 10}


def test_a_token_outside_the_vocabulary_is_refused_by_name() -> None:
    with pytest.raises(Invalid, match="5000"):
        Driver().submit(submit(1, [1, 5000, 2]))


def test_segments_that_do_not_cover_the_context_are_refused() -> None:
    with pytest.raises(Invalid, match="cover 3 tokens and the context has 4"):
        Driver().submit(submit(1, 4, segments=(Segment(tokens=3),)))


def test_eos_ends_and_is_given_and_goes_before_length() -> None:
    driver = Driver(tokens=[7, EOS])
    driver.submit(submit(1, max_new=2))
    driver.run()
    assert driver.ids(1) == [7, EOS]
    assert driver.finish(1).reason == "eos"


def test_ignore_eos_goes_on() -> None:
    driver = Driver(tokens=[EOS, EOS, EOS])
    driver.submit(submit(1, max_new=3, ignore_eos=True))
    driver.run()
    assert driver.ids(1) == [EOS] * 3
    assert driver.finish(1).reason == "length"


def test_logits_that_are_no_numbers_end_that_generation_alone() -> None:
    driver = Driver(tokens=[NEXT, NEXT, NEXT, None, 7])
    driver.submit(submit(1, max_new=5))
    driver.submit(submit(2, max_new=2))
    driver.run()
    assert driver.finish(1).reason == "error"
    assert driver.finish(1).error_code == "internal"
    assert driver.ids(2) == [NEXT, 7]
    assert driver.finish(2).reason == "length"


def test_a_failed_run_ends_what_was_in_it() -> None:
    driver = Driver()
    driver.submit(submit(1))
    work = driver.scheduler.next_work(0.0)
    assert isinstance(work, PrefillChunk)
    driver.scheduler.fail(work, Internal("ONNX Runtime failed"))
    driver.run()
    assert driver.finish(1).message == "ONNX Runtime failed"
    assert driver.scheduler.idle


def test_a_generation_that_is_known_already_changes_nothing() -> None:
    driver = Driver()
    driver.submit(submit(1, max_new=2))
    driver.turn()
    driver.submit(submit(1, max_new=2))
    driver.run()
    assert driver.ids(1) == [NEXT] * 2

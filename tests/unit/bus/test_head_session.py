"""What the head accepts of a session's events: the next one of its epoch, once."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from bus.context import EMPTY_DIGEST, TokenContext, context_digest
from bus.head_session import GenerationPlan, HeadSession, Verdict
from bus.ids import Epoch, GenerationId, ModelName, PackedIds, SessionId, pack_ids, unpack_ids
from bus.messages.link import AppendContent, GenerateReq, SessionAssign
from bus.messages.parts import Finish, TokenRun
from bus.messages.sampling import SamplingParams

EPOCH = Epoch(7)
GENERATION = GenerationId(70)


@pytest.fixture
def session() -> HeadSession:
    made = HeadSession(SessionId("s"), EPOCH, itertools.count(1).__next__)
    made.append(context(1, 2, 3))
    made.generate(plan(GENERATION))
    return made


def context(*ids: int) -> TokenContext:
    made = TokenContext()
    made.append(pack_ids(ids))
    return made


def plan(generation: GenerationId) -> GenerationPlan:
    return GenerationPlan(
        generation=generation,
        sampling=SamplingParams(),
        max_new_tokens=8,
        prompt_tokens=3,
        generated_tokens=0,
        wall_ms=0,
        exact=False,
    )


def run(first: int, *ids: int, finish: str = "", epoch: Epoch = EPOCH) -> TokenRun:
    return TokenRun(
        session=SessionId("s"),
        epoch=epoch,
        generation=GENERATION,
        first_seq=first,
        ids=pack_ids(ids),
        finish=Finish(reason=finish) if finish else None,
    )


def test_open_and_generate_are_three_commands_with_rising_ids() -> None:
    session = HeadSession(SessionId("s"), EPOCH, itertools.count(1).__next__)
    assign = session.assign(ModelName("toy"), lease_ms=20_000, qos=2)
    append = session.append(context(5, 6))
    generate = session.generate(plan(GENERATION))
    assert isinstance(assign, SessionAssign)
    assert isinstance(append, AppendContent)
    assert isinstance(generate, GenerateReq)
    assert (assign.command, append.command, generate.command) == (1, 2, 3)
    assert (append.base_tokens, append.base_digest) == (0, EMPTY_DIGEST)
    assert list(unpack_ids(append.ids)) == [5, 6]


def test_next_run_is_fresh_and_moves_the_watermark(session: HeadSession) -> None:
    receipt = session.accept(run(0, 10, 11))
    assert (receipt.verdict, list(unpack_ids(receipt.ids))) == (Verdict.FRESH, [10, 11])
    assert session.next_seq == 2
    receipt = session.accept(run(2, 12, finish="eos"))
    assert receipt.finish is not None
    assert session.next_seq == 4
    assert session.finished


def test_run_sent_again_is_a_duplicate(session: HeadSession) -> None:
    session.accept(run(0, 10, 11))
    assert session.accept(run(0, 10, 11)).verdict is Verdict.DUPLICATE
    assert session.next_seq == 2


def test_run_that_overlaps_gives_only_what_is_new(session: HeadSession) -> None:
    session.accept(run(0, 10, 11))
    receipt = session.accept(run(1, 11, 12, 13))
    assert (receipt.first_seq, list(unpack_ids(receipt.ids))) == (2, [12, 13])
    assert session.next_seq == 4


def test_gap_is_never_skipped(session: HeadSession) -> None:
    session.accept(run(0, 10))
    assert session.accept(run(2, 12)).verdict is Verdict.GAP
    assert session.next_seq == 1


@pytest.mark.parametrize("epoch", [Epoch(6), Epoch(8)])
def test_run_of_another_epoch_is_stale(session: HeadSession, epoch: Epoch) -> None:
    assert session.accept(run(0, 10, epoch=epoch)).verdict is Verdict.STALE
    assert session.next_seq == 0


def test_run_of_another_generation_is_stale(session: HeadSession) -> None:
    session.generate(plan(GenerationId(71)))
    assert session.accept(run(0, 10)).verdict is Verdict.STALE


def test_nothing_is_fresh_after_a_cancel(session: HeadSession) -> None:
    session.accept(run(0, 10))
    assert session.cancel() is not None
    assert session.cancel() is None
    receipt = session.accept(run(1, 11, finish="cancelled"))
    assert (receipt.verdict, receipt.ids) == (Verdict.DUPLICATE, PackedIds(b""))


def test_finish_alone_counts_as_one_event(session: HeadSession) -> None:
    receipt = session.accept(run(0, finish="length"))
    assert receipt.verdict is Verdict.FRESH
    assert session.next_seq == 1


def test_only_what_the_node_lacks_is_appended(session: HeadSession) -> None:
    delta = session.append(context(1, 2, 3, 4, 5))
    assert delta is not None
    assert (delta.base_tokens, delta.base_digest) == (3, context_digest(pack_ids([1, 2, 3])))
    assert list(unpack_ids(delta.ids)) == [4, 5]
    assert session.append(context(1, 2, 3, 4, 5)) is None


@pytest.mark.parametrize("other", [(9, 2, 3, 4), (1, 2), (9, 2, 3)])
def test_context_that_does_not_follow_what_the_node_has_goes_whole(
    session: HeadSession, other: tuple[int, ...]
) -> None:
    whole = session.append(context(*other))
    assert whole is not None
    assert (whole.base_tokens, tuple(unpack_ids(whole.ids))) == (0, other)


def test_generation_that_runs_is_asked_for_again_under_its_own_command(
    session: HeadSession,
) -> None:
    first, again = session.generate(plan(GENERATION)), session.generate(plan(GENERATION))
    assert first == again
    assert session.generate(plan(GenerationId(71))).command > first.command


def test_higher_epoch_keeps_the_context_and_forgets_the_generation(session: HeadSession) -> None:
    session.accept(run(0, 10))
    session.cancel()
    session.raise_epoch(Epoch(8))
    assert session.append(context(1, 2, 3)) is None
    assert session.accept(run(1, 11)).verdict is Verdict.STALE
    assert session.view().generations == ()
    with pytest.raises(ValueError, match="not above"):
        session.raise_epoch(Epoch(8))


def test_view_lists_the_watermark_and_whether_the_finish_came(session: HeadSession) -> None:
    session.accept(run(0, 10, 11))
    (view,) = session.view().generations
    assert (view.generation, view.committed, view.finished) == (GENERATION, 2, False)
    assert (session.view().tokens, session.view().epoch) == (3, EPOCH)
    session.accept(run(2, finish="eos"))
    (view,) = session.view().generations
    assert (view.committed, view.finished) == (3, True)


def test_view_does_not_list_a_generation_that_was_stopped(session: HeadSession) -> None:
    session.cancel()
    assert session.view().generations == ()


def test_generation_of_an_earlier_start_goes_on_from_its_watermark() -> None:
    session = HeadSession(SessionId("s"), EPOCH, itertools.count(1).__next__)
    session.resume(GENERATION, 5)
    assert session.accept(run(4, 1)).verdict is Verdict.DUPLICATE
    assert session.accept(run(5, 2)).verdict is Verdict.FRESH


def test_log_probabilities_are_cut_with_their_tokens(session: HeadSession) -> None:
    first = replace(run(0, 8, 9), logprobs=b"eightnine.")
    assert session.accept(first).logprobs == b"eightnine."
    again = session.accept(replace(run(1, 9, 10, 11), logprobs=b"nine.ten..elevn"))
    assert unpack_ids(again.ids).tolist() == [10, 11]
    assert again.logprobs == b"ten..elevn"
    assert again.first(1).logprobs == b"ten.."
    assert unpack_ids(again.first(1).ids).tolist() == [10]
    assert again.first(0).logprobs == b""
    assert again.first(2) == again


def test_a_finish_that_is_new_brings_no_log_probabilities_again(session: HeadSession) -> None:
    session.accept(replace(run(0, 8), logprobs=b"8888"))
    last = session.accept(replace(run(0, 8, finish="eos"), logprobs=b"8888"))
    assert (last.verdict, last.ids, last.logprobs) == (Verdict.FRESH, b"", b"")

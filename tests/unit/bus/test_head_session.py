"""What the head accepts of a session's events: the next one of its epoch, once."""

from __future__ import annotations

import itertools

import pytest

from bus.context import EMPTY_DIGEST
from bus.head_session import GenerationPlan, HeadSession, Verdict
from bus.ids import Epoch, GenerationId, ModelName, PackedIds, SessionId, pack_ids, unpack_ids
from bus.messages.link import (
    AppendContent,
    Finish,
    GenerateReq,
    SamplingParams,
    SessionAssign,
    TokenRun,
)

EPOCH = Epoch(7)
GENERATION = GenerationId(70)


@pytest.fixture
def session() -> HeadSession:
    made = HeadSession(SessionId("s"), ModelName("toy"), EPOCH, itertools.count(1).__next__)
    made.open(pack_ids([1, 2, 3]), (), lease_ms=20_000, qos=1)
    made.generate(plan(GENERATION))
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
    session = HeadSession(SessionId("s"), ModelName("toy"), EPOCH, itertools.count(1).__next__)
    assign, append = session.open(pack_ids([5, 6]), (), lease_ms=20_000, qos=2)
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

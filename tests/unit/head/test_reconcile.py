"""What the head lists on a new link, and what it makes of the node's answer."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest

from bus.context import context_digest
from bus.ids import CommandId, Epoch, GenerationId, NodeIdentity, SessionId, pack_ids
from bus.messages.link import (
    AppendContent,
    GenerateReq,
    Reconcile,
    ReconcileAck,
    SessionAssign,
)
from bus.messages.parts import HeldView, LeaseRef, ResendView
from head.rows import RaiseBoot, StoredAnswer
from tests.harness.head_bench import ADMITTED_ANSWER, Bench, run

HI = pack_ids(b"hi")
RUNNING_ANSWER = replace(
    ADMITTED_ANSWER,
    state="sent",
    tokens=pack_ids(b"AB"),
    generation=GenerationId(7),
    node=NodeIdentity("n1"),
    epoch=Epoch((2 << 32) | 4),
    worker=1,
)
STORED_REF = LeaseRef(session=SessionId("s"), epoch=RUNNING_ANSWER.epoch)


def held(request: GenerateReq, *first_seqs: int, context: bytes = HI) -> HeldView:
    resend = tuple(ResendView(generation=request.generation, first_seq=n) for n in first_seqs)
    return HeldView(
        session=request.session,
        epoch=request.epoch,
        tokens=len(context) // 4,
        digest=context_digest(context),
        generations=resend,
    )


def ack(*views: HeldView, page: int = 0, more: bool = False) -> ReconcileAck:
    return ReconcileAck(page=page, more=more, sessions=views)


def cut_and_back(bench: Bench, request: GenerateReq, *ids: int, worker: int = 1) -> None:
    """The link is lost after some tokens and comes back at once, as link 2."""
    if ids:
        bench.hear(1, run(request, 0, *ids))
    bench.down(1)
    bench.node(2, worker=worker)


def test_first_thing_on_a_link_is_what_the_head_has_there_also_when_that_is_nothing() -> None:
    bench = Bench()
    bench.node(1)
    (link, message), *_ = bench.sent
    assert link == 1
    assert message == Reconcile(page=0, more=False)


def test_session_is_listed_with_context_and_watermark(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    cut_and_back(bench, request, 65, 66)
    (page,) = bench.on(2)
    (view,) = page.sessions
    assert (view.session, view.epoch, view.tokens) == (request.session, request.epoch, 2)
    assert view.digest == context_digest(HI)
    (generation,) = view.generations
    assert (generation.generation, generation.committed) == (request.generation, 2)
    assert not generation.finished


def test_named_generation_goes_on_where_it_was(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    cut_and_back(bench, request, 65)
    bench.hear(2, ack(held(request, 1)))
    bench.hear(2, run(request, 1, 66, finish="eos"))
    bench.wait(60.0)
    assert bench.tokens() == [65, 66]
    assert not bench.events("moved")
    assert len(bench.on(2, GenerateReq, SessionAssign)) == 0


def test_generation_that_never_came_is_asked_for_again_with_the_same_numbers(
    bench: Bench,
) -> None:
    request = bench.ask(max_new=10)
    cut_and_back(bench, request)
    bench.hear(2, ack(held(request)))
    (again,) = bench.on(2, GenerateReq)
    assert again == request
    assert bench.on(2, AppendContent) == []


def test_context_that_never_came_goes_before_the_generation(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    cut_and_back(bench, request)
    bench.hear(2, ack(held(request, context=b"")))
    append, again = bench.on(2, AppendContent, GenerateReq)
    assert (append.base_tokens, append.ids, again) == (0, HI, request)


@pytest.mark.parametrize("ids", [(), (65,)])
def test_generation_whose_worker_died_meanwhile_goes_on_under_a_higher_epoch(
    bench: Bench, ids: tuple[int, ...]
) -> None:
    request = bench.ask(max_new=10)
    cut_and_back(bench, request, *ids, worker=2)
    bench.hear(2, ack(held(request)))
    (again,) = bench.on(2, GenerateReq)
    assert again.epoch > request.epoch
    assert again.generated_tokens == len(ids)
    (answer,) = bench.core.book
    # Nothing says what else that worker had: this is certain of nobody.
    (death,) = answer.suspicion.seen
    assert death.unclear


def test_generation_that_is_gone_with_some_of_its_tokens_goes_on_under_a_higher_epoch(
    bench: Bench,
) -> None:
    request = bench.ask(max_new=10)
    cut_and_back(bench, request, 65)
    bench.hear(2, ack(held(request)))
    (again,) = bench.on(2, GenerateReq)
    assert (again.epoch > request.epoch, again.generated_tokens) == (True, 1)
    (answer,) = bench.core.book
    assert answer.suspicion.deaths == 0


def test_session_that_is_not_held_is_assigned_again_under_a_higher_epoch(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    cut_and_back(bench, request, 65)
    bench.hear(2, ack())
    (assign,) = bench.on(2, SessionAssign)
    assert assign.epoch > request.epoch


def test_session_that_is_not_held_is_not_blamed_for_the_death_of_a_worker(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    cut_and_back(bench, request, worker=2)
    bench.hear(2, ack())
    (answer,) = bench.core.book
    assert answer.suspicion.deaths == 0


def test_answer_in_pages_counts_when_the_last_one_came(bench: Bench) -> None:
    requests = [bench.ask(name, max_new=10) for name in (b"a", b"b")]
    bench.down(1)
    bench.node(2)
    bench.hear(2, ack(held(requests[0], 0), more=True))
    assert bench.on(2, SessionAssign, GenerateReq) == []
    bench.hear(2, ack(held(requests[1], 0), page=1))
    assert bench.on(2, SessionAssign, GenerateReq) == []
    for request in requests:
        bench.hear(2, run(request, 0, 65, finish="eos"))
    assert [reply["finish"] for reply in bench.replies if reply["kind"] == "end"] == ["stop"] * 2


def test_reconciling_twice_changes_nothing(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    cut_and_back(bench, request, 65)
    bench.hear(2, ack(held(request, 1)))
    bench.down(2)
    bench.node(3)
    assert bench.on(3) == bench.on(2)
    bench.hear(3, ack(held(request, 1)))
    assert bench.on(3, SessionAssign, GenerateReq) == []
    bench.hear(3, run(request, 1, 66))
    assert bench.tokens() == [65, 66]


@pytest.mark.parametrize("page", [ack(), ack(page=1), ack(more=True, page=7)])
def test_answer_that_was_not_asked_for_ends_the_link(bench: Bench, page: ReconcileAck) -> None:
    bench.hear(1, ack())
    assert bench.closed == []
    bench.hear(1, page)
    assert [link for link, _ in bench.closed] == [1]


def test_node_that_never_answers_loses_its_link(bench: Bench) -> None:
    bench.ask(max_new=10)
    bench.wait(121.0)
    assert [link for link, _ in bench.closed] == [1]


def test_session_that_was_cancelled_between_list_and_answer_stays_so(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    cut_and_back(bench, request, 65)
    (answer,) = bench.core.book
    bench.core.runs.cancel(answer, bench.now)
    bench.settle()
    bench.hear(2, ack())
    bench.wait(1.0)
    assert bench.on(2, SessionAssign, GenerateReq) == []


def test_pages_hold_1024_sessions() -> None:
    stored = [
        replace(
            RUNNING_ANSWER,
            answer=n,
            session=SessionId(f"s{n}"),
            key=None,
            generation=GenerationId(n),
        )
        for n in range(1, 1030)
    ]
    refs = tuple(LeaseRef(session=one.session, epoch=one.epoch) for one in stored)
    bench = Bench(*stored)
    bench.node(1, held=refs)
    pages = bench.on(1, Reconcile)
    assert [(page.page, page.more, len(page.sessions)) for page in pages] == [
        (0, True, 1024),
        (1, False, 5),
    ]


# --- after a restart of the head ------------------------------------------------------------------


def restarted(*answers: StoredAnswer) -> Bench:
    return Bench(*(answers or (RUNNING_ANSWER,)))


def test_answer_that_ran_when_the_head_ended_is_taken_up_with_its_node() -> None:
    bench = restarted()
    bench.wait(3.0)
    bench.node(1, incarnation=77, held=(STORED_REF,))
    (page,) = bench.on(1)
    (view,) = page.sessions
    (generation,) = view.generations
    assert (view.epoch, generation.generation, generation.committed) == (STORED_REF.epoch, 7, 2)
    resend = ResendView(generation=GenerationId(7), first_seq=2)
    (answer,) = bench.core.book
    bench.hear(
        1,
        ack(
            HeldView(
                session=SessionId("s"),
                epoch=STORED_REF.epoch,
                tokens=2,
                digest=context_digest(HI),
                generations=(resend,),
            )
        ),
    )
    like = GenerateReq(
        command=CommandId(1),
        session=view.session,
        epoch=view.epoch,
        generation=GenerationId(7),
        sampling=answer.sampling,
        max_new_tokens=4,
        prompt_tokens=2,
    )
    bench.hear(1, run(like, 2, 67, finish="eos"))
    assert answer.finish == "stop"
    assert bytes(answer.tokens) == pack_ids(b"ABC")
    assert bench.on(1, GenerateReq, SessionAssign) == []


def test_node_that_does_not_hold_it_any_more_gets_it_under_a_higher_epoch_at_once() -> None:
    bench = restarted()
    bench.node(1)
    (again,) = bench.on(1, GenerateReq)
    assert again.epoch > STORED_REF.epoch
    assert (again.generated_tokens, again.max_new_tokens) == (2, 2)


def test_answer_moves_when_its_node_has_not_come_back_in_time() -> None:
    bench = restarted()
    bench.node(2, "n2")
    bench.wait(4.9)
    assert not bench.on(2, GenerateReq)
    bench.wait(0.2)
    (again,) = bench.on(2, GenerateReq)
    assert (again.epoch > STORED_REF.epoch, again.generated_tokens) == (True, 2)


def test_request_is_taken_up_with_all_that_it_asked_for() -> None:
    options = msgpack.unpackb(RUNNING_ANSWER.options) | {"wall_ms": 10_000, "keep_output": False}
    bench = restarted(
        replace(
            RUNNING_ANSWER, options=msgpack.packb(options), created_wall_s=1e9 - 60, used_ms=8000
        )
    )
    (answer,) = bench.core.book
    assert not answer.keep_output
    bench.node(1)
    # Eight of its ten seconds were used while a head was there.
    assert bench.last(GenerateReq).wall_ms == 2000


def test_generation_that_began_in_the_middle_goes_on_from_its_own_watermark() -> None:
    bench = restarted(replace(RUNNING_ANSWER, first_offset=1))
    bench.node(1, held=(STORED_REF,))
    (view,) = bench.on(1)[0].sessions
    assert view.generations[0].committed == 1
    assert (view.tokens, view.digest) == (3, context_digest(pack_ids(b"hiA")))


def test_node_that_has_seen_higher_epochs_raises_the_boot_number() -> None:
    bench = Bench()
    bench.node(1, highest_epoch=(8 << 32) | 5)
    assert [row.boot for row in bench.rows if isinstance(row, RaiseBoot)] == [9]
    request = bench.ask()
    assert request.epoch >> 32 == 9
    assert request.generation >> 32 == 9
    assert bench.core.boot == 9


def test_epochs_of_our_own_raise_nothing(bench: Bench) -> None:
    request = bench.ask()
    bench.node(2, "n2", highest_epoch=request.epoch)
    assert not any(isinstance(row, RaiseBoot) for row in bench.rows)


def test_epoch_above_all_that_can_be_stored_is_no_link() -> None:
    bench = Bench()
    bench.node(1, highest_epoch=2**63)
    assert [link for link, _ in bench.closed] == [1]
    assert not list(bench.core.fleet.nodes)

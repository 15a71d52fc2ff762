"""AgentSession: what a node says and keeps on a new link, hand-computed."""

from __future__ import annotations

import pytest

from bus.agent_records import SubmitToWorker, ToWorker
from bus.ids import CommandId, Epoch, GenerationId, SessionId, pack_ids
from bus.messages import link, parts, worker
from bus.messages.sampling import SamplingParams
from tests.harness.checked_session import (
    HEAD,
    MODEL,
    PROMPT,
    WORKER,
    Node,
    S,
    cancel,
    held,
    known,
    run,
    view,
)

S2 = SessionId("s2")


def acked(*sessions: parts.HeldView, dropped: tuple[parts.LeaseRef, ...] = ()) -> link.ReconcileAck:
    return link.ReconcileAck(page=0, more=False, sessions=sessions, dropped=dropped)


def ref(epoch: int = 1, session: SessionId = S) -> parts.LeaseRef:
    return parts.LeaseRef(session=session, epoch=Epoch(epoch))


def again(*runs: parts.TokenRun) -> link.TokenEvents:
    return link.TokenEvents(runs=runs)


def renew(now: float, *leases: parts.LeaseRef) -> link.LeaseRenew:
    return link.LeaseRenew(sent_at_s=now, leases=leases or (ref(),))


@pytest.fixture
def running() -> Node:
    """Generation 100 runs and made tokens 11, 12, 13; the first is acknowledged."""
    node = Node()
    node.assign()
    node.append()
    node.give(node.request())
    node.output(0, [11, 12, 13])
    node.acknowledge(1)
    return node


def test_a_lost_link_ends_nothing_and_says_nothing(running: Node) -> None:
    running.session.link_down(3.0)
    assert running.taken() == []
    # Nobody is there to be asked from 10 s on; the lease ends at 20 s.
    assert running.session.next_timeout() == 20.0
    assert running.output(3, [14, 15]) == []
    assert running.session.is_generating
    assert running.session.held() == (ref(),)


def test_what_goes_on_is_acknowledged_named_and_sent_again(running: Node) -> None:
    running.session.link_down(3.0)
    running.output(3, [14, 15])
    assert running.link_to_head(view(known(2)), now=5.0) == [
        acked(held((100, 2))),
        again(run(2, [13, 14, 15])),
        renew(5.0),
    ]
    assert running.output(5, [16]) == [again(run(5, [16]))]


@pytest.mark.parametrize(("committed", "cached"), [(0, 40), (1, 0)])
def test_what_was_cached_is_sent_again_with_the_first_token(committed: int, cached: int) -> None:
    node = Node()
    node.assign()
    node.append()
    node.give(node.request())
    made = worker.OutputRun(
        generation=GenerationId(100), first_index=0, ids=pack_ids([11, 12]), cached=40
    )
    node.session.worker_output(MODEL, WORKER, [made])
    (said,) = [s for s in node.taken() if isinstance(s, link.TokenEvents)]
    assert [run.cached for run in said.runs] == [40]
    node.acknowledge(committed)
    node.session.link_down(3.0)
    (events,) = [
        said
        for said in node.link_to_head(view(known(committed)), now=5.0)
        if isinstance(said, link.TokenEvents)
    ]
    assert [run.cached for run in events.runs] == [cached]


def test_nothing_is_said_of_sessions_before_the_last_page(running: Node) -> None:
    running.session.link_down(3.0)
    running.session.link_up(HEAD, 4.0)
    assert running.timeout(15.0) == []
    assert running.output(3, [14]) == []
    assert running.give(link.Reconcile(page=0, more=True, sessions=(view(known(3)),)), 15.0) == []
    assert running.output(4, [15], "eos") == []
    assert running.give(link.Reconcile(page=1, more=False), 16.0) == [
        acked(held((100, 3))),
        again(run(3, [14, 15], "eos")),
        renew(16.0),
    ]


def test_what_waited_for_the_old_link_is_not_said_on_the_next(running: Node) -> None:
    made = worker.OutputRun(generation=GenerationId(100), first_index=3, ids=pack_ids([14]))
    running.session.worker_output(MODEL, WORKER, [made])
    running.session.link_down(3.0)
    running.session.link_up(HEAD, 3.0)
    assert running.taken() == []
    assert again(run(1, [12, 13, 14])) in running.link_to_head(view(known(1)))


def test_what_the_head_does_not_list_is_dropped_and_named(running: Node) -> None:
    running.assign(session=S2, epoch=4)
    said = running.link_to_head(view(epoch=4, session=S2, ids=b""), now=5.0)
    assert said == [
        cancel(),
        acked(held(epoch=4, session=S2, ids=b""), dropped=(ref(),)),
        renew(5.0, ref(4, S2)),
    ]
    assert running.session.held() == (ref(4, S2),)
    (refused,) = running.append()
    assert isinstance(refused, link.Refused)
    assert refused.code == "unknown_session"


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_session_under_another_epoch_is_dropped_and_not_held(epoch: int) -> None:
    node = Node()
    node.assign(epoch=2)
    assert node.link_to_head(view(epoch=epoch, ids=b"")) == [acked(dropped=(ref(2),))]
    assert node.session.held() == ()
    assert node.session.highest_epoch == 2


def test_a_fenced_session_is_dropped_and_named(running: Node) -> None:
    running.session.link_down(3.0)
    assert running.timeout(20.0) == [cancel()]
    assert running.session.held() == ()
    assert running.link_to_head(view(known(1)), now=21.0) == [acked(dropped=(ref(),))]


def test_a_lease_that_ran_out_before_the_timer_fired_counts_as_out(running: Node) -> None:
    running.session.link_down(3.0)
    said = running.link_to_head(view(known(1)), now=20.0)
    assert said == [cancel(), acked(dropped=(ref(),))]


def test_a_session_without_a_generation_is_held_with_its_content() -> None:
    node = Node()
    node.assign()
    node.append()
    assert node.link_to_head(view(), now=2.0) == [acked(held()), renew(2.0)]
    # The head takes it for longer than it is: the answer tells it what is here.
    assert node.link_to_head(view(ids=pack_ids([5, 6, 7, 8])), now=3.0) == [
        acked(held()),
        renew(3.0),
    ]


def test_a_generation_that_the_head_does_not_list_is_ended(running: Node) -> None:
    assert running.link_to_head(view()) == [cancel(), acked(held()), renew(0.0)]
    assert running.output(3, [14]) == []
    assert not running.session.is_generating


def test_a_generation_whose_finish_the_head_has_is_forgotten(running: Node) -> None:
    running.session.link_down(3.0)
    running.output(3, [], "eos")
    assert running.link_to_head(view(known(4, finished=True))) == [acked(held()), renew(0.0)]
    assert running.session.retained_bytes == 0


def test_a_running_one_that_the_head_finished_is_ended(running: Node) -> None:
    """The head cancelled it while the link was down."""
    said = running.link_to_head(view(known(2, finished=True)))
    assert said == [cancel(), acked(held()), renew(0.0)]


def test_a_finish_that_is_durable_needs_no_naming(running: Node) -> None:
    running.output(3, [], "eos")
    assert running.link_to_head(view(known(4))) == [acked(held()), renew(0.0)]
    assert running.session.retained_bytes == 0


@pytest.mark.parametrize("committed", [0, 4])
def test_a_head_that_knows_less_or_more_than_can_be_ends_it(running: Node, committed: int) -> None:
    assert running.link_to_head(view(known(committed))) == [cancel(), acked(held()), renew(0.0)]


def test_reconciling_twice_changes_nothing(running: Node) -> None:
    first = running.link_to_head(view(known(2)), now=5.0)
    assert first == [acked(held((100, 2))), again(run(2, [13])), renew(5.0)]
    assert running.link_to_head(view(known(2)), now=5.0) == first
    page = link.Reconcile(page=0, more=False, sessions=(view(known(2)),))
    assert running.give(page, 5.0) == first


def test_a_generation_lost_without_a_link_is_revealed_and_can_be_asked_for_again() -> None:
    node = Node()
    node.assign()
    node.append()
    request = node.request()
    node.give(request)
    node.session.worker_accepted(GenerationId(100))
    node.session.link_down(1.0)
    node.session.worker_lost(MODEL, WORKER, "killed by signal 9")
    assert node.taken() == []
    assert node.link_to_head(view(known(0))) == [acked(held()), renew(0.0)]
    assert isinstance(node.give(request)[0], SubmitToWorker)


def test_a_command_that_reconcile_undid_is_not_known_any_more(running: Node) -> None:
    """Else its repeat would be taken for one that needs no answer, and nothing would run."""
    request = running.request(generation=101)
    running.output(3, [], "eos")
    running.give(request)
    running.output(0, [7], "eos", generation=101)
    running.acknowledge(2, generation=101)
    # A head of before: it has nothing of generation 101.
    said = running.link_to_head(view(known(0, generation=101)))
    assert said == [acked(held()), renew(0.0)]
    assert isinstance(running.give(request)[0], SubmitToWorker)


def test_the_repeat_of_a_finished_one_runs_nothing(running: Node) -> None:
    request = running.request(generation=101)
    running.output(3, [], "eos")
    running.give(request)
    running.output(0, [7], "eos", generation=101)
    running.acknowledge(2, generation=101)
    running.link_to_head(view(known(2, generation=101, finished=True)))
    assert running.give(request) == []


def test_the_id_of_an_ended_run_is_free_once_its_worker_let_go_of_it(running: Node) -> None:
    running.link_to_head(view())
    (declined,) = running.give(running.request())
    assert isinstance(declined, link.Declined)
    assert declined.code == "session_busy"
    assert running.output(3, [14]) == []
    assert running.output(4, [], "cancelled") == []
    assert isinstance(running.give(running.request())[0], SubmitToWorker)
    assert running.output(0, [21]) == [again(run(0, [21]))]


def test_the_ids_of_a_dead_workers_runs_are_free(running: Node) -> None:
    running.link_to_head(view())
    running.session.worker_lost(MODEL, WORKER, "killed by signal 9")
    assert running.taken() == []
    assert isinstance(running.give(running.request())[0], SubmitToWorker)


def test_an_append_that_never_matched_is_settled_by_a_head_that_agrees() -> None:
    node = Node()
    node.assign()
    node.append()
    node.append(pack_ids([9]), base=pack_ids([1]))
    node.link_to_head(view())
    assert isinstance(node.give(node.request())[0], SubmitToWorker)


def test_a_paused_generation_goes_on_when_the_head_has_its_events(running: Node) -> None:
    running.session.link_down(3.0)
    pause = ToWorker(model=MODEL, message=worker.Pause(generation=GenerationId(100)))
    assert running.output(3, list(range(766))) == [pause]
    said = running.link_to_head(view(known(769 - 511)))
    assert said[0] == ToWorker(model=MODEL, message=worker.Resume(generation=GenerationId(100)))
    assert said[1] == acked(held((100, 258)))


def test_another_head_finds_nothing_of_the_last_ones(running: Node) -> None:
    running.session.link_down(3.0)
    running.session.link_up("head-2", 4.0)
    assert running.taken() == [cancel()]
    assert running.session.held() == ()
    assert running.session.next_timeout() is None
    assert running.session.highest_epoch == 1
    page = link.Reconcile(page=0, more=False, sessions=(view(known(1)),))
    assert running.give(page) == [acked()]


def sessions(count: int) -> tuple[parts.SessionView, ...]:
    return tuple(view(session=SessionId(f"x{n}"), ids=b"") for n in range(count))


def test_the_answer_is_paged() -> None:
    node = Node()
    for listed in sessions(1025):
        node.assign(session=listed.session)
    for extra in range(3):
        node.assign(session=SessionId(f"y{extra}"), epoch=2)
    views = sessions(1025)
    node.session.link_up(HEAD, 1.0)
    assert node.give(link.Reconcile(page=0, more=True, sessions=views[:1024]), 1.0) == []
    first, second, asked = node.give(link.Reconcile(page=1, more=False, sessions=views[1024:]))
    assert isinstance(first, link.ReconcileAck)
    assert isinstance(second, link.ReconcileAck)
    assert (first.page, first.more, len(first.sessions)) == (0, True, 1024)
    assert [dropped.session for dropped in first.dropped] == ["y0", "y1", "y2"]
    assert (second.page, second.more, second.dropped) == (1, False, ())
    assert [one.session for one in second.sessions] == ["x1024"]
    assert isinstance(asked, link.LeaseRenew)


def test_events_that_are_sent_again_are_cut_into_bounded_messages() -> None:
    """Windows of 767 tokens are 3,068 bytes: 85 of them are 260,780, 86 above 256 KiB."""
    node = Node()
    listed = []
    for number in range(100):
        session, generation = SessionId(f"x{number}"), GenerationId(number)
        node.assign(session=session)
        request = link.GenerateReq(
            command=node.next_command(),
            session=session,
            epoch=Epoch(1),
            generation=generation,
            sampling=SamplingParams(),
            max_new_tokens=1000,
            prompt_tokens=0,
        )
        node.give(request)
        node.output(0, list(range(767)), generation=number)
        listed.append(view(known(0, generation=number), session=session, ids=b""))
    said = node.link_to_head(*listed)
    assert [len(e.runs) for e in said if isinstance(e, link.TokenEvents)] == [85, 15]


def refusal(said: list[object]) -> str:
    (goodbye,) = said
    assert isinstance(goodbye, link.Goodbye)
    return goodbye.reason


def test_pages_out_of_order_end_the_link() -> None:
    node = Node()
    page = link.Reconcile(page=1, more=False)
    node.session.link_up(HEAD, 0.0)
    assert refusal(node.give(page)) == "protocol: page 1 of Reconcile came when 0 was next"
    # Nothing more is taken over this link; over the next one it is.
    assert node.assign() == []
    assert node.session.held() == ()
    assert node.link_to_head() == [acked()]


def test_a_command_before_the_last_page_ends_the_link(running: Node) -> None:
    running.session.link_down(1.0)
    running.session.link_up(HEAD, 2.0)
    said = running.assign(epoch=2)
    assert refusal(said) == ("protocol: a SessionAssign came before the last page of Reconcile")
    assert running.session.held() == (ref(),)
    assert running.session.is_generating


def test_a_session_listed_twice_ends_the_link() -> None:
    node = Node()
    said = node.link_to_head(view(), view())
    assert refusal(said) == "protocol: Reconcile lists session s1 twice"


def test_a_page_that_is_empty_and_not_the_last_ends_the_link() -> None:
    node = Node()
    node.session.link_up(HEAD, 0.0)
    said = node.give(link.Reconcile(page=0, more=True))
    assert refusal(said) == "protocol: page 0 of Reconcile is empty and not the last"


def test_more_sessions_than_a_node_may_hold_end_the_link() -> None:
    node = Node()
    node.assign()
    node.session.link_up(HEAD, 0.0)
    for page in range(64):
        listed = tuple(view(session=SessionId(f"{page}/{n}"), ids=b"") for n in range(1024))
        node.session.receive(link.Reconcile(page=page, more=True, sessions=listed), 0.0)
    said = node.give(link.Reconcile(page=64, more=False, sessions=(view(),)))
    assert refusal(said) == "protocol: Reconcile lists more than 65536 sessions for one node"
    # What it holds waits for a head that makes sense.
    assert node.session.held() == (ref(),)


def test_the_next_turn_of_a_cancelled_one_runs_beside_its_late_output(running: Node) -> None:
    """Cancel, assign, append and generate in one go; the worker says its last words later."""
    stop = link.GenerateCancel(
        command=running.next_command(), session=S, epoch=Epoch(1), generation=GenerationId(100)
    )
    assert running.give(stop) == [cancel()]
    assert running.assign(epoch=2) == []
    steps = (parts.Segment(tokens=2, by_step=True), parts.Segment(tokens=1))
    assert running.append(pack_ids([11, 12, 8]), base=PROMPT, epoch=2, segments=steps) == []
    (submit,) = running.give(running.request(generation=101, epoch=2, prompt=6))
    assert isinstance(submit, SubmitToWorker)
    assert submit.submit.context == pack_ids([5, 6, 7, 11, 12, 8])
    assert running.output(3, [14]) == []
    assert running.output(4, [], "cancelled") == []
    (events,) = running.output(0, [31], generation=101)
    assert isinstance(events, link.TokenEvents)
    assert (events.runs[0].generation, events.runs[0].epoch) == (101, 2)
    assert events.runs[0].ids == pack_ids([31])


def test_a_repeated_cancel_changes_nothing(running: Node) -> None:
    stop = link.GenerateCancel(
        command=CommandId(50), session=S, epoch=Epoch(1), generation=GenerationId(100)
    )
    assert running.give(stop) == [cancel()]
    assert running.give(stop) == []

"""AgentSession: every command of docs/link-f.md "Sessions", hand-computed."""

from __future__ import annotations

import pytest

from bus.agent_records import SendToHead, SubmitToWorker, ToWorker
from bus.agent_session import AgentSession
from bus.context import EMPTY_DIGEST, context_digest
from bus.ids import (
    CommandId,
    Epoch,
    GenerationId,
    ModelName,
    PackedIds,
    SessionId,
    WorkerIncarnation,
    pack_ids,
)
from bus.messages import link, worker

MODEL = ModelName("toy")
S = SessionId("s1")
WORKER = WorkerIncarnation(77)
PROMPT = pack_ids([5, 6, 7])
LEASE_MS = 20_000


class Node:
    """An AgentSession whose invariants are checked after every event."""

    def __init__(self) -> None:
        self.session = AgentSession()
        self.session.link_up(0.0)
        self.command = 0

    def next_command(self) -> CommandId:
        self.command += 1
        return CommandId(self.command)

    def give(self, message: object, now: float = 0.0) -> list[object]:
        assert self.session.receive(message, now)
        return self.taken()

    def taken(self) -> list[object]:
        self.session.validate_state()
        return [
            action.message if isinstance(action, SendToHead) else action
            for action in self.session.actions()
        ]

    def assign(
        self, epoch: int = 1, now: float = 0.0, session: SessionId = S, qos: int = 0
    ) -> list[object]:
        return self.give(
            link.SessionAssign(
                command=self.next_command(),
                session=session,
                epoch=Epoch(epoch),
                model=MODEL,
                lease_ms=LEASE_MS,
                qos=qos,
            ),
            now,
        )

    def append(
        self, ids: PackedIds = PROMPT, base: bytes = b"", epoch: int = 1, **extra: object
    ) -> list[object]:
        message = link.AppendContent(
            command=self.next_command(),
            session=S,
            epoch=Epoch(epoch),
            base_tokens=len(base) // 4,
            base_digest=context_digest(base),
            ids=ids,
            **extra,  # type: ignore[arg-type]
        )
        return self.give(message)

    def request(
        self, generation: int = 100, epoch: int = 1, prompt: int = 3, **extra: object
    ) -> link.GenerateReq:
        return link.GenerateReq(
            command=self.next_command(),
            session=S,
            epoch=Epoch(epoch),
            generation=GenerationId(generation),
            sampling=link.SamplingParams(temperature=0.0),
            max_new_tokens=10,
            prompt_tokens=prompt,
            **extra,  # type: ignore[arg-type]
        )

    def output(
        self, first: int, ids: list[int], finish: str | None = None, generation: int = 100
    ) -> list[object]:
        run = worker.OutputRun(
            generation=GenerationId(generation),
            first_index=first,
            ids=pack_ids(ids),
            finish=None if finish is None else link.Finish(reason=finish),
        )
        self.session.worker_output(MODEL, WORKER, [run])
        return self.taken()

    def acknowledge(self, committed: int, generation: int = 100) -> list[object]:
        mark = link.Watermark(generation=GenerationId(generation), committed=committed)
        return self.give(link.WatermarkAck(watermarks=(mark,)))

    def timeout(self, now: float) -> list[object]:
        self.session.handle_timeout(now)
        return self.taken()


def run(
    first_seq: int, ids: list[int], finish: str | None = None, generation: int = 100
) -> link.TokenRun:
    return link.TokenRun(
        session=S,
        epoch=Epoch(1),
        generation=GenerationId(generation),
        first_seq=first_seq,
        ids=pack_ids(ids),
        finish=None if finish is None else link.Finish(reason=finish),
    )


def cancel(generation: int = 100) -> ToWorker:
    return ToWorker(model=MODEL, message=worker.Cancel(generation=GenerationId(generation)))


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def running(node: Node) -> Node:
    node.assign()
    node.append()
    node.give(node.request())
    return node


# --- assign -----------------------------------------------------------------------------------


def test_an_assign_is_held_without_an_answer(node: Node) -> None:
    assert node.assign(epoch=7) == []
    assert node.session.held() == (link.LeaseRef(session=S, epoch=Epoch(7)),)
    assert node.session.highest_epoch == 7


def test_a_lower_epoch_is_refused_and_the_known_one_named(node: Node) -> None:
    node.assign(epoch=7)
    (refused,) = node.assign(epoch=6)
    assert isinstance(refused, link.Refused)
    assert (refused.code, refused.epoch, refused.known_epoch) == ("stale_epoch", 6, 7)
    assert refused.command == node.command
    assert node.session.held() == (link.LeaseRef(session=S, epoch=Epoch(7)),)


def test_a_replayed_assign_changes_nothing(running: Node) -> None:
    replay = link.SessionAssign(
        command=CommandId(1), session=S, epoch=Epoch(1), model=MODEL, lease_ms=LEASE_MS
    )
    assert running.give(replay, 15.0) == []
    # Its lease was not stretched by the replay: it still ends at 20 s.
    assert running.timeout(20.0)[0] == cancel()


def test_a_higher_epoch_ends_the_generation_and_keeps_the_context(running: Node) -> None:
    running.output(0, [1, 2])
    assert running.assign(epoch=2) == [cancel()]
    assert running.output(2, [3]) == []
    (submit,) = running.give(running.request(generation=101, epoch=2))
    assert isinstance(submit, SubmitToWorker)
    assert submit.submit.context == PROMPT


def test_qos_above_three_counts_as_three(node: Node) -> None:
    node.assign(qos=200)
    node.append()
    (submit,) = node.give(node.request())
    assert isinstance(submit, SubmitToWorker)
    assert submit.submit.qos == 3


# --- append -----------------------------------------------------------------------------------


def test_appends_extend_by_length_and_digest(node: Node) -> None:
    node.assign()
    assert node.append(PROMPT) == []
    stepped = pack_ids([8, 9])
    segments = (link.Segment(tokens=2, by_step=True),)
    assert node.append(stepped, base=PROMPT, segments=segments) == []
    (submit,) = node.give(node.request(prompt=3, generated_tokens=2))
    assert submit == SubmitToWorker(
        model=MODEL,
        submit=worker.Submit(
            generation=GenerationId(100),
            context=pack_ids([5, 6, 7, 8, 9]),
            segments=(link.Segment(tokens=3), link.Segment(tokens=2, by_step=True)),
            sampling=link.SamplingParams(temperature=0.0),
            max_new_tokens=10,
            prompt_tokens=3,
            generated_tokens=2,
        ),
    )


@pytest.mark.parametrize("base", [pack_ids([5, 6, 8]), pack_ids([5, 6]), pack_ids([5, 6, 7, 8])])
def test_a_mismatch_needs_the_full_context(node: Node, base: PackedIds) -> None:
    node.assign()
    node.append(PROMPT)
    (answer,) = node.append(pack_ids([9]), base=base)
    assert answer == link.NeedFull(
        command=CommandId(node.command),
        session=S,
        epoch=Epoch(1),
        length=3,
        digest=context_digest(PROMPT),
    )
    (declined,) = node.give(node.request())
    assert isinstance(declined, link.Declined)
    assert declined.code == "context_mismatch"
    whole = pack_ids([1, 2, 3, 4])
    assert node.append(whole) == []
    (submit,) = node.give(node.request(prompt=4))
    assert isinstance(submit, SubmitToWorker)
    assert submit.submit.context == whole


def test_a_replayed_append_changes_nothing(node: Node) -> None:
    node.assign()
    message = link.AppendContent(
        command=node.next_command(),
        session=S,
        epoch=Epoch(1),
        base_tokens=0,
        base_digest=EMPTY_DIGEST,
        ids=PROMPT,
    )
    assert node.give(message) == []
    assert node.append(pack_ids([8]), base=PROMPT) == []
    assert node.give(message) == []
    (submit,) = node.give(node.request(prompt=4))
    assert isinstance(submit, SubmitToWorker)
    assert submit.submit.context == pack_ids([5, 6, 7, 8])


def test_appends_that_can_not_be_applied_are_refused_with_their_command(node: Node) -> None:
    (unknown,) = node.append()
    assert isinstance(unknown, link.Refused)
    assert (unknown.code, unknown.command, unknown.known_epoch) == ("unknown_session", 1, 0)
    node.assign(epoch=5)
    (stale,) = node.append(epoch=4)
    assert isinstance(stale, link.Refused)
    assert (stale.code, stale.command, stale.known_epoch) == ("stale_epoch", 3, 5)
    (ahead,) = node.append(epoch=6)
    assert isinstance(ahead, link.Refused)
    assert (ahead.code, ahead.known_epoch) == ("unknown_epoch", 5)
    (wrong,) = node.append(epoch=5, segments=(link.Segment(tokens=2),))
    assert isinstance(wrong, link.Refused)
    assert wrong.code == "invalid"


# --- generate ---------------------------------------------------------------------------------


def test_tokens_are_numbered_and_sent_as_runs(running: Node) -> None:
    assert running.output(0, [11]) == [link.TokenEvents(runs=(run(0, [11]),))]
    assert running.output(1, [12, 13]) == [link.TokenEvents(runs=(run(1, [12, 13]),))]
    assert running.session.is_generating
    assert running.output(3, [], "eos") == [link.TokenEvents(runs=(run(3, [], "eos"),))]
    assert not running.session.is_generating


def test_runs_of_one_flush_leave_as_one_message(running: Node) -> None:
    flush = [
        worker.OutputRun(generation=GenerationId(100), first_index=0, ids=pack_ids([1])),
        worker.OutputRun(generation=GenerationId(999), first_index=0, ids=pack_ids([2])),
        worker.OutputRun(
            generation=GenerationId(100),
            first_index=1,
            ids=pack_ids([3]),
            finish=link.Finish(reason="length"),
        ),
    ]
    running.session.worker_output(MODEL, WORKER, flush)
    assert running.taken() == [link.TokenEvents(runs=(run(0, [1]), run(1, [3], "length")))]


def test_the_same_command_again_sends_what_is_not_acknowledged(node: Node) -> None:
    node.assign()
    node.append()
    request = node.request()
    node.give(request)
    node.output(0, [11, 12, 13])
    assert node.give(request) == [link.TokenEvents(runs=(run(0, [11, 12, 13]),))]
    node.acknowledge(2)
    assert node.give(request) == [link.TokenEvents(runs=(run(2, [13]),))]
    node.output(3, [14], "length")
    assert node.give(request) == [link.TokenEvents(runs=(run(2, [13, 14], "length"),))]
    node.acknowledge(4)
    assert node.give(request) == [link.TokenEvents(runs=(run(4, [], "length"),))]
    node.acknowledge(5)
    assert node.give(request) == []


def test_what_it_can_not_take_is_declined(running: Node) -> None:
    (busy,) = running.give(running.request(generation=101))
    assert isinstance(busy, link.Declined)
    assert (busy.code, busy.generation, busy.command) == ("session_busy", 101, running.command)
    (stale,) = running.give(running.request(epoch=0))
    assert isinstance(stale, link.Declined)
    assert stale.code == "stale_epoch"
    running.output(0, [1], "eos")
    (used,) = running.give(running.request(generation=100))
    assert isinstance(used, link.Declined)
    assert used.code == "invalid"
    (unknown,) = Node().give(running.request())
    assert isinstance(unknown, link.Declined)
    assert unknown.code == "unknown_session"


def test_a_workers_rejection_becomes_declined_and_may_be_tried_again(node: Node) -> None:
    node.assign()
    node.append()
    request = node.request()
    node.give(request)
    node.session.decline(
        GenerationId(100), "context_length_exceeded", "too long", length=3, limit=2
    )
    (declined,) = node.taken()
    assert declined == link.Declined(
        command=request.command,
        session=S,
        epoch=Epoch(1),
        generation=GenerationId(100),
        code="context_length_exceeded",
        message="too long",
        length=3,
        max=2,
    )
    assert isinstance(node.give(request)[0], SubmitToWorker)


def test_a_cancel_goes_to_the_worker_and_its_finish_to_the_head(running: Node) -> None:
    running.output(0, [1])
    message = link.GenerateCancel(
        command=running.next_command(), session=S, epoch=Epoch(1), generation=GenerationId(100)
    )
    assert running.give(message) == [cancel()]
    (sent,) = running.output(1, [], "cancelled")
    assert sent == link.TokenEvents(runs=(run(1, [], "cancelled"),))
    assert running.give(message) == []


def test_the_context_stays_what_the_head_appended(running: Node) -> None:
    running.output(0, [11, 12], "eos")
    running.acknowledge(3)
    (declined,) = running.give(running.request(generation=101, prompt=5))
    assert isinstance(declined, link.Declined)
    steps = (link.Segment(tokens=2, by_step=True),)
    assert running.append(pack_ids([11, 12]), base=PROMPT, segments=steps) == []
    (submit,) = running.give(running.request(generation=102, prompt=5))
    assert isinstance(submit, SubmitToWorker)
    assert submit.submit.segments == (link.Segment(tokens=3), *steps)


# --- flow -------------------------------------------------------------------------------------


def test_a_full_window_pauses_that_generation_and_an_ack_resumes_it(running: Node) -> None:
    assert len(running.output(0, list(range(767)))) == 1
    events, pause = running.output(767, [1])
    assert events == link.TokenEvents(runs=(run(767, [1]),))
    assert pause == ToWorker(model=MODEL, message=worker.Pause(generation=GenerationId(100)))
    # What was on its way still comes, and nothing is dropped.
    assert running.output(768, [2]) == [link.TokenEvents(runs=(run(768, [2]),))]
    assert running.acknowledge(769 - 512) == []
    assert running.acknowledge(769 - 511) == [
        ToWorker(model=MODEL, message=worker.Resume(generation=GenerationId(100)))
    ]
    assert running.acknowledge(769) == []


def test_a_workers_death_is_lost_for_what_ran_and_keeps_what_finished(node: Node) -> None:
    node.assign()
    node.append()
    done = node.request(generation=100)
    node.give(done)
    node.output(0, [9], "eos")
    node.give(node.request(generation=101))
    node.session.worker_accepted(GenerationId(101))
    node.session.worker_lost(MODEL, WORKER, "killed by signal 9")
    (lost,) = node.taken()
    assert lost == link.Lost(
        session=S,
        epoch=Epoch(1),
        generation=GenerationId(101),
        worker=WORKER,
        reason="killed by signal 9",
    )
    assert node.output(0, [1], generation=101) == []
    assert node.give(done) == [link.TokenEvents(runs=(run(0, [9], "eos"),))]


def test_what_a_dead_worker_had_not_accepted_is_declined(running: Node) -> None:
    running.session.worker_lost(MODEL, WORKER, "killed by signal 9")
    (declined,) = running.taken()
    assert isinstance(declined, link.Declined)
    assert (declined.code, declined.generation) == ("worker_lost", 100)


def test_another_models_worker_concerns_nobody(running: Node) -> None:
    running.session.worker_lost(ModelName("other"), WORKER, "died")
    assert running.taken() == []
    assert running.session.is_generating


def test_a_worker_that_skips_tokens_loses_the_generation(running: Node) -> None:
    running.output(0, [1])
    to_worker, lost = running.output(2, [3])
    assert to_worker == cancel()
    assert isinstance(lost, link.Lost)
    assert lost.reason == "the worker sent token 2 when 1 was next"


# --- leases -----------------------------------------------------------------------------------


def test_all_leases_are_renewed_from_half_of_one_and_again_each_second(node: Node) -> None:
    node.assign(now=0.0)
    node.assign(now=4.0, session=SessionId("s2"), epoch=3)
    assert node.session.next_timeout() == 10.0
    assert node.timeout(9.9) == []
    refs = (
        link.LeaseRef(session=S, epoch=Epoch(1)),
        link.LeaseRef(session=SessionId("s2"), epoch=Epoch(3)),
    )
    assert node.timeout(10.0) == [link.LeaseRenew(sent_at_s=10.0, leases=refs)]
    assert node.session.next_timeout() == 11.0
    assert node.timeout(10.5) == []
    assert node.timeout(11.0) == [link.LeaseRenew(sent_at_s=11.0, leases=refs)]
    granted = link.LeaseGrant(sent_at_s=10.0, lease_ms=LEASE_MS, leases=refs)
    assert node.give(granted, 13.0) == []
    # Counted from when it was asked for: 10 + 20 / 2, not 13 + 10.
    assert node.session.next_timeout() == 20.0
    assert node.timeout(19.9) == []


def test_a_grant_counts_from_when_it_was_asked_for(running: Node) -> None:
    refs = (link.LeaseRef(session=S, epoch=Epoch(1)),)
    running.give(link.LeaseGrant(sent_at_s=10.0, lease_ms=LEASE_MS, leases=refs), 19.0)
    assert cancel() not in running.timeout(29.9)
    assert cancel() in running.timeout(30.0)


@pytest.mark.parametrize(
    "ref",
    [
        link.LeaseRef(session=S, epoch=Epoch(2)),
        link.LeaseRef(session=SessionId("other"), epoch=Epoch(1)),
    ],
)
def test_a_grant_for_something_else_stretches_nothing(running: Node, ref: link.LeaseRef) -> None:
    running.give(link.LeaseGrant(sent_at_s=10.0, lease_ms=LEASE_MS, leases=(ref,)), 11.0)
    assert cancel() in running.timeout(20.0)


def test_a_grant_from_the_future_counts_from_now(running: Node) -> None:
    refs = (link.LeaseRef(session=S, epoch=Epoch(1)),)
    running.give(link.LeaseGrant(sent_at_s=1e9, lease_ms=LEASE_MS, leases=refs), 5.0)
    assert cancel() in running.timeout(25.0)


def test_a_fenced_session_emits_nothing_until_a_higher_epoch(running: Node) -> None:
    request = running.request(generation=101)
    running.output(0, [1])
    stop, lost = running.timeout(20.0)
    assert stop == cancel()
    assert isinstance(lost, link.Lost)
    assert (lost.epoch, lost.generation, lost.worker) == (1, 100, 0)
    assert running.session.held() == ()
    assert running.session.next_timeout() is None
    assert running.output(1, [2], "eos") == []
    (append,) = running.append(pack_ids([8]), base=PROMPT)
    assert isinstance(append, link.Refused)
    assert (append.code, append.known_epoch) == ("fenced", 1)
    (declined,) = running.give(request)
    assert isinstance(declined, link.Declined)
    assert declined.code == "fenced"
    (assign,) = running.assign(epoch=1, now=21.0)
    assert isinstance(assign, link.Refused)
    assert assign.code == "fenced"
    assert running.assign(epoch=2, now=21.0) == []
    # Its context stayed as a cache.
    assert running.append(pack_ids([8]), base=PROMPT, epoch=2) == []
    (submit,) = running.give(running.request(generation=102, epoch=2, prompt=4))
    assert isinstance(submit, SubmitToWorker)


# --- ends -------------------------------------------------------------------------------------


def revoke(node: Node, epoch: int) -> list[object]:
    return node.give(
        link.SessionRevoke(
            command=node.next_command(), session=S, epoch=Epoch(epoch), reason="finish"
        )
    )


def test_a_revoke_ends_the_session_and_its_generation(running: Node) -> None:
    assert revoke(running, 1) == [cancel()]
    assert running.session.held() == ()
    assert running.output(0, [1]) == []
    (refused,) = running.append()
    assert isinstance(refused, link.Refused)
    assert refused.code == "unknown_session"
    assert revoke(running, 1) == []


def test_a_stale_revoke_is_refused(node: Node) -> None:
    node.assign(epoch=2)
    (refused,) = revoke(node, 1)
    assert isinstance(refused, link.Refused)
    assert (refused.code, refused.known_epoch) == ("stale_epoch", 2)
    assert len(node.session.held()) == 1


def test_a_link_that_goes_down_ends_every_session(running: Node) -> None:
    running.assign(session=SessionId("s2"))
    running.session.link_down(3.0)
    assert running.taken() == [cancel()]
    assert running.session.held() == ()
    assert running.session.next_timeout() is None
    assert not running.session.is_generating
    assert running.session.highest_epoch == 1


def test_messages_about_other_things_are_left_to_others(node: Node) -> None:
    assert not node.session.receive(link.Heartbeat(), 0.0)
    assert node.taken() == []

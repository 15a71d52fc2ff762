"""AgentCore: workers, status, heartbeats and what is declined."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.actions import KeepParked, Note, SendToWorker, WorkerIsReady
from agent.core import AgentCore
from agent.served_model import describe_exit
from bus.agent_records import SendToHead
from bus.context import EMPTY_DIGEST, context_digest
from bus.ids import (
    CommandId,
    Epoch,
    GenerationId,
    ModelName,
    NodeIdentity,
    NumericsId,
    SessionId,
    WorkerIncarnation,
    pack_ids,
)
from bus.messages import link, parts, worker
from bus.messages.sampling import SamplingParams

TOY, OTHER = ModelName("toy"), ModelName("other")
W1, W2 = WorkerIncarnation(1 << 32 | 1), WorkerIncarnation(1 << 32 | 2)
PROMPT = pack_ids([1, 2, 3])
HEAD = link.HeadConfirm(identity="head-1", boot=1, software="superfluid")


class Node:
    """An AgentCore whose invariants are checked after every event."""

    def __init__(self) -> None:
        self.core = AgentCore(NodeIdentity("n1"), 7, [TOY, OTHER])
        self.commands = 0

    def taken(self) -> list[object]:
        actions = self.core.actions()
        self.core.validate_state()
        return [a.message if isinstance(a, SendToHead) else a for a in actions]

    def link_up(self, *sessions: parts.SessionView, now: float = 0.0) -> list[object]:
        """A link to the head, which lists these sessions."""
        self.core.link_up(HEAD, now)
        self.core.link_message(link.Reconcile(page=0, more=False, sessions=sessions), now)
        # No parked session is named, so that no file of one is kept.
        *said, kept = self.taken()
        assert kept == KeepParked(sessions=frozenset())
        return said

    def start(self, incarnation: WorkerIncarnation = W1, now: float = 0.0) -> list[object]:
        self.core.worker_started(TOY, incarnation, now)
        return self.taken()

    def say(
        self, message: object, incarnation: WorkerIncarnation = W1, now: float = 0.0
    ) -> list[object]:
        self.core.worker_message(TOY, incarnation, message, now)
        return self.taken()

    def request(self, model: ModelName = TOY, epoch: int = 1) -> list[object]:
        """Assign, append and generate, as the head sends them."""
        self.commands += 3
        common: dict[str, Any] = {"session": SessionId("s"), "epoch": Epoch(epoch)}
        for message in (
            link.SessionAssign(
                command=CommandId(self.commands - 2), model=model, lease_ms=20_000, **common
            ),
            link.AppendContent(
                command=CommandId(self.commands - 1),
                base_tokens=0,
                base_digest=EMPTY_DIGEST,
                ids=PROMPT,
                **common,
            ),
            link.GenerateReq(
                command=CommandId(self.commands),
                generation=GenerationId(epoch),
                sampling=SamplingParams(),
                max_new_tokens=5,
                prompt_tokens=3,
                **common,
            ),
        ):
            self.core.link_message(message, 0.0)
        return self.taken()


def ready(incarnation: WorkerIncarnation = W1) -> worker.Ready:
    return worker.Ready(
        worker=incarnation,
        window_tokens=2048,
        lanes=8,
        kv_total_tokens=16_384,
        numerics=NumericsId("num"),
        tokenizer_digest=99,
        weights_digest=98,
        device="cpu",
        load_s=0.5,
    )


def output(first: int, ids: list[int], stats: worker.WorkerStats) -> worker.Output:
    run = worker.OutputRun(generation=GenerationId(1), first_index=first, ids=pack_ids(ids))
    return worker.Output(runs=(run,), stats=stats)


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def serving(node: Node) -> Node:
    node.link_up()
    node.start()
    node.say(ready())
    return node


def test_it_confirms_its_models_before_any_worker_is_ready(node: Node) -> None:
    confirm = node.core.confirm()
    assert (confirm.identity, confirm.incarnation) == ("n1", 7)
    assert [(m.name, m.phase) for m in confirm.models] == [("toy", "loading"), ("other", "loading")]


def test_a_ready_worker_is_told_at_once_and_pinged_every_5_s(node: Node) -> None:
    node.core.link_up(HEAD, 0.0)
    node.taken()
    _, status = node.start()
    assert isinstance(status, link.NodeStatus)
    assert (status.models[0].phase, status.models[0].worker) == ("loading", W1)
    is_ready, note, status = node.say(ready(), now=1.0)
    assert is_ready == WorkerIsReady(model=TOY)
    assert isinstance(note, Note)
    assert (note.event, note.pairs["model"]) == ("worker_ready", "toy")
    assert isinstance(status, link.NodeStatus)
    assert status.models[0] == parts.ModelStatus(
        name=TOY,
        phase="ready",
        window_tokens=2048,
        lanes_total=8,
        kv_total_tokens=16_384,
        tokenizer_digest=99,
        weights_digest=98,
        numerics=NumericsId("num"),
        worker=W1,
        device="cpu",
        worker_phase="idle",
    )
    node.core.handle_timeout(6.0)
    assert SendToWorker(model=TOY, message=worker.Ping(nonce=1)) in node.taken()
    node.core.handle_timeout(11.0)
    assert SendToWorker(model=TOY, message=worker.Ping(nonce=2)) in node.taken()


def test_the_status_goes_every_2_s_while_a_link_is_up(node: Node) -> None:
    assert node.core.next_timeout() is None
    node.core.link_up(HEAD, 10.0)
    assert isinstance(node.taken()[0], link.NodeStatus)
    assert node.core.next_timeout() == 12.0
    node.core.handle_timeout(11.9)
    assert node.taken() == []
    node.core.host_sampled(parts.HostStatus(load_average=1.5))
    node.core.handle_timeout(12.0)
    (status,) = node.taken()
    assert isinstance(status, link.NodeStatus)
    assert status.host.load_average == 1.5
    assert node.core.next_timeout() == 14.0
    node.core.link_down(13.0)
    assert node.core.next_timeout() is None


def test_a_request_goes_to_the_worker_and_its_tokens_to_the_head(serving: Node) -> None:
    (submit,) = serving.request()
    assert isinstance(submit, SendToWorker)
    assert isinstance(submit.message, worker.Submit)
    assert submit.message.context == PROMPT
    assert serving.core.is_busy
    assert serving.say(worker.Accepted(generation=GenerationId(1))) == []
    stats = worker.WorkerStats(steps=1, decode_tokens=1, lanes_used=1, phase="decode")
    (events,) = serving.say(output(0, [42], stats))
    assert isinstance(events, link.TokenEvents)
    assert (events.runs[0].first_seq, events.runs[0].ids) == (0, pack_ids([42]))


def test_the_status_and_the_heartbeat_carry_the_workers_counters(serving: Node) -> None:
    serving.request()
    stats = worker.WorkerStats(
        steps=25,
        decode_tokens=20,
        decode_busy_s=0.25,
        lanes_used=2,
        queued=1,
        kv_live_tokens=300,
        phase="decode",
    )
    serving.say(worker.Pong(nonce=1, stats=stats))
    status = serving.core.confirm().models[0]
    assert (status.lanes_used, status.queued, status.kv_live_tokens) == (2, 1, 300)
    assert status.decode_rate == pytest.approx(40.0)
    assert serving.core.heartbeat(12.6) == link.Heartbeat(
        loop_lag_ms=13,
        workers=(
            parts.WorkerBeat(model=TOY, worker=W1, phase="decode", steps=25),
            parts.WorkerBeat(model=OTHER, worker=WorkerIncarnation(0), phase="loading", steps=0),
        ),
    )


def test_the_head_is_told_which_prefixes_a_worker_holds(serving: Node) -> None:
    digests = (b"a" * 16, b"b" * 16)
    serving.say(worker.Pong(nonce=1, stats=worker.WorkerStats(), prefixes=digests))
    serving.say(worker.Pong(nonce=worker.UNASKED, stats=worker.WorkerStats()))
    assert serving.core.confirm().models[0].prefixes == digests
    serving.core.worker_exited(TOY, W1, -9, 0.25, 3.0)
    assert serving.core.confirm().models[0].prefixes == ()


@pytest.mark.parametrize(
    ("model", "code"), [(OTHER, "model_not_ready"), (ModelName("none"), "model_not_served")]
)
def test_what_no_worker_here_can_take_is_declined(
    serving: Node, model: ModelName, code: str
) -> None:
    (declined,) = serving.request(model)
    assert isinstance(declined, link.Declined)
    assert declined.code == code
    assert not serving.core.is_busy


def test_a_rejected_submit_is_declined_with_its_figures(serving: Node) -> None:
    serving.request()
    rejected = worker.Rejected(
        generation=GenerationId(1),
        code="context_length_exceeded",
        message="3 tokens and a window of 2",
        length=3,
        max=2,
    )
    (declined,) = serving.say(rejected)
    assert isinstance(declined, link.Declined)
    assert (declined.code, declined.length, declined.max) == ("context_length_exceeded", 3, 2)


def test_a_worker_that_takes_nothing_declines(serving: Node) -> None:
    serving.request()
    serving.core.worker_behind(GenerationId(1), TOY)
    (declined,) = serving.taken()
    assert isinstance(declined, link.Declined)
    assert declined.code == "worker_behind"


def test_a_killed_worker_loses_what_ran_and_the_next_one_serves(serving: Node) -> None:
    serving.request()
    serving.say(worker.Accepted(generation=GenerationId(1)))
    serving.core.worker_exited(TOY, W1, -9, 0.25, 3.0)
    note, died, lost, status = serving.taken()
    assert isinstance(note, Note)
    assert note.is_problem
    assert note.pairs["again_in_s"] == 0.25
    assert isinstance(died, link.WorkerDied)
    assert died.generations == (1,)
    assert isinstance(lost, link.Lost)
    assert (lost.worker, lost.generation) == (W1, 1)
    assert lost.reason == "the worker was ended by signal 9 (SIGKILL)"
    assert isinstance(status, link.NodeStatus)
    assert (status.models[0].phase, status.models[0].worker) == ("loading", 0)
    serving.start(W2, 3.25)
    (declined,) = serving.request(epoch=2)
    assert isinstance(declined, link.Declined)
    assert declined.message == (
        "toy is loading on this node: the worker was ended by signal 9 (SIGKILL)"
    )
    serving.say(ready(W2), W2, 4.0)
    (submit,) = serving.request(epoch=3)
    assert isinstance(submit, SendToWorker)
    assert serving.core.confirm().models[0].problem == ""


def test_a_workers_last_words_are_its_problem(node: Node) -> None:
    node.start()
    node.say(worker.Failed(code="model_incomplete", message="model.onnx is missing; import again"))
    node.core.worker_exited(TOY, W1, 1, 0.5, 1.0)
    status = node.core.confirm().models[0]
    assert (status.phase, status.problem) == ("failed", "model.onnx is missing; import again")


def test_a_former_incarnation_is_not_heard(serving: Node) -> None:
    serving.core.worker_exited(TOY, W1, 0, 0.25, 1.0)
    serving.start(W2)
    assert serving.say(ready(W1), W1) == []
    assert serving.core.confirm().models[0].phase == "loading"


def listed(committed: int) -> parts.SessionView:
    """The session of `request` with its generation, as the head lists it."""
    return parts.SessionView(
        session=SessionId("s"),
        epoch=Epoch(1),
        tokens=3,
        digest=context_digest(PROMPT),
        generations=(parts.GenerationView(generation=GenerationId(1), committed=committed),),
    )


def test_a_generation_runs_on_without_a_link_and_goes_on_over_the_next(serving: Node) -> None:
    serving.request()
    serving.core.link_down(5.0)
    assert serving.taken() == []
    assert serving.core.is_busy
    assert serving.core.confirm().held == (parts.LeaseRef(session=SessionId("s"), epoch=Epoch(1)),)
    assert serving.say(output(0, [41, 42], worker.WorkerStats())) == []
    status, ack, events, _ = serving.link_up(listed(1), now=6.0)
    assert isinstance(status, link.NodeStatus)
    assert isinstance(ack, link.ReconcileAck)
    assert ack.sessions[0].generations == (
        parts.ResendView(generation=GenerationId(1), first_seq=1),
    )
    assert isinstance(events, link.TokenEvents)
    assert (events.runs[0].first_seq, events.runs[0].ids) == (1, pack_ids([42]))


def test_what_waited_for_a_link_that_is_gone_never_goes_out(serving: Node) -> None:
    """Also when the next link is up before the adapter took the actions."""
    serving.request()
    serving.core.worker_message(TOY, W1, output(0, [41], worker.WorkerStats()), 1.0)
    serving.core.worker_exited(TOY, W1, -9, 0.25, 1.0)
    serving.core.link_down(1.0)
    serving.core.link_up(HEAD, 1.0)
    note, status = serving.taken()
    assert isinstance(note, Note)
    assert isinstance(status, link.NodeStatus)


def test_a_lease_that_runs_out_without_a_link_stops_the_worker(serving: Node) -> None:
    serving.request()
    serving.core.link_down(5.0)
    assert serving.core.next_timeout() == 5.0  # the ping
    serving.core.handle_timeout(20.0)
    assert SendToWorker(model=TOY, message=worker.Cancel(generation=GenerationId(1))) in (
        serving.taken()
    )
    assert not serving.core.is_busy
    assert serving.core.confirm().held == ()


def test_a_worker_that_died_without_a_link_is_found_out_on_the_next(serving: Node) -> None:
    serving.request()
    serving.say(worker.Accepted(generation=GenerationId(1)))
    serving.core.link_down(5.0)
    serving.core.worker_exited(TOY, W1, -9, 0.25, 6.0)
    assert [type(said) for said in serving.taken()] == [Note]
    status, ack, _ = serving.link_up(listed(0), now=7.0)
    assert isinstance(status, link.NodeStatus)
    assert isinstance(ack, link.ReconcileAck)
    assert ack.sessions[0].generations == ()


def test_another_head_starts_with_nothing(serving: Node) -> None:
    serving.request()
    serving.core.link_down(5.0)
    serving.core.link_up(replace(HEAD, identity="head-2"), 6.0)
    stop, status = serving.taken()
    assert stop == SendToWorker(model=TOY, message=worker.Cancel(generation=GenerationId(1)))
    assert isinstance(status, link.NodeStatus)
    assert serving.core.confirm().held == ()


def test_exits_are_described_for_a_person() -> None:
    assert describe_exit(3) == "the worker ended with exit status 3; its log says why"
    assert describe_exit(-11) == "the worker was ended by signal 11 (SIGSEGV)"
    assert describe_exit(-63) == "the worker was ended by signal 63 (unknown)"

"""AgentSession: generations and their flow, docs/link-f.md "Sessions", hand-computed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.agent_records import SubmitToWorker, ToWorker
from bus.ids import (
    CommandId,
    Epoch,
    GenerationId,
    ModelName,
    pack_ids,
)
from bus.messages import link, parts, worker
from bus.messages.sampling import SamplingParams
from tests.harness.checked_session import (
    MODEL,
    PROMPT,
    WORKER,
    Node,
    S,
    cancel,
    known,
    run,
    view,
)


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def running(node: Node) -> Node:
    node.assign()
    node.append()
    node.give(node.request())
    return node


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
            finish=parts.Finish(reason="length"),
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
    steps = (parts.Segment(tokens=2, by_step=True),)
    assert running.append(pack_ids([11, 12]), base=PROMPT, segments=steps) == []
    (submit,) = running.give(running.request(generation=102, prompt=5, exact=True))
    assert isinstance(submit, SubmitToWorker)
    assert submit.submit.segments == (parts.Segment(tokens=3), *steps)


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
    died, lost = node.taken()
    assert died == link.WorkerDied(model=MODEL, worker=WORKER, generations=(GenerationId(101),))
    assert lost == link.Lost(
        session=S,
        epoch=Epoch(1),
        generation=GenerationId(101),
        worker=WORKER,
        reason="killed by signal 9",
    )
    assert node.output(0, [1], generation=101) == []
    assert node.give(done) == [link.TokenEvents(runs=(run(0, [9], "eos"),))]


def test_g0_what_a_dead_worker_had_not_accepted_is_lost_too(running: Node) -> None:
    """It may be what the worker died of, before what it said of it had left its process."""
    running.session.worker_lost(MODEL, WORKER, "killed by signal 11")
    _, lost = running.taken()
    assert isinstance(lost, link.Lost)
    assert (lost.worker, lost.generation) == (WORKER, 100)


def test_a_worker_that_died_had_also_what_was_ended_and_had_not_left_it(running: Node) -> None:
    running.give(
        link.GenerateCancel(
            command=CommandId(90), session=S, epoch=Epoch(1), generation=GenerationId(100)
        )
    )
    running.give(link.SessionRevoke(command=CommandId(91), session=S, epoch=Epoch(1), reason=""))
    running.assign()
    running.append()
    running.give(running.request(generation=101))
    running.taken()
    running.session.worker_lost(MODEL, WORKER, "killed by signal 9")
    died, lost = running.taken()
    assert isinstance(died, link.WorkerDied)
    assert set(died.generations) == {100, 101}
    assert isinstance(lost, link.Lost)
    assert lost.generation == 101


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


@pytest.fixture
def with_logprobs(node: Node) -> Node:
    """A generation that was asked for with the chosen token's log-probability alone."""
    node.assign()
    node.append()
    request = node.request()
    node.give(replace(request, sampling=SamplingParams(logprobs=1)))
    return node


def made(first: int, ids: list[int], logprobs: bytes, finish: str = "") -> worker.OutputRun:
    return worker.OutputRun(
        generation=GenerationId(100),
        first_index=first,
        ids=pack_ids(ids),
        finish=parts.Finish(reason=finish) if finish else None,
        logprobs=logprobs,
    )


def test_log_probabilities_go_with_their_tokens_and_again_when_asked_again(
    with_logprobs: Node,
) -> None:
    node = with_logprobs
    node.session.worker_output(MODEL, WORKER, [made(0, [11, 12], b"eleventw")])
    first = replace(run(0, [11, 12]), logprobs=b"eleventw")
    assert node.taken() == [link.TokenEvents(runs=(first,))]
    node.session.worker_output(MODEL, WORKER, [made(2, [13], b"13..", "eos")])
    node.taken()
    node.acknowledge(1)
    said = node.link_to_head(view(known(1)))
    kept = replace(run(1, [12, 13], "eos"), logprobs=b"entw13..")
    assert link.TokenEvents(runs=(kept,)) in said


@pytest.mark.parametrize("logprobs", [b"", b"123", b"12345678"])
def test_log_probabilities_that_do_not_fit_lose_the_generation(
    with_logprobs: Node, logprobs: bytes
) -> None:
    with_logprobs.session.worker_output(MODEL, WORKER, [made(0, [11], logprobs)])
    notice, cancelled = sorted(with_logprobs.taken(), key=lambda one: isinstance(one, ToWorker))
    assert isinstance(notice, link.Lost)
    assert "log-probabilities" in notice.reason
    assert cancelled == cancel()


def test_log_probabilities_that_nobody_asked_for_lose_the_generation(running: Node) -> None:
    running.session.worker_output(MODEL, WORKER, [made(0, [11], b"1234")])
    assert any(isinstance(one, link.Lost) for one in running.taken())

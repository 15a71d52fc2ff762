"""AgentCore: a worker that is given up, and what the head and the next worker find."""

from __future__ import annotations

import pytest

from agent.actions import Note
from bus.ids import GenerationId, WorkerIncarnation
from bus.messages import link, parts, worker
from tests.unit.agent.test_core import TOY, W1, W2, Node, output, ready, serving

__all__ = ["serving"]

WHY = "hung: no step was made for 61 s and its process uses no CPU time"


@pytest.fixture
def node() -> Node:
    return Node()


def status_of(messages: list[object]) -> parts.ModelStatus:
    """The model in the last status among messages to the head."""
    statuses = [message for message in messages if isinstance(message, link.NodeStatus)]
    return next(model for model in statuses[-1].models if model.name == TOY)


def give_up(node: Node) -> list[object]:
    node.core.worker_hung(TOY, W1, WHY, 61.0)
    return node.taken()


def test_its_generations_are_lost_and_the_head_is_told_why_at_once(serving: Node) -> None:
    serving.request()
    serving.say(worker.Accepted(generation=GenerationId(1)))
    serving.say(output(0, [5], worker.WorkerStats(steps=1, phase="decode")))
    told = give_up(serving)
    (lost,) = [message for message in told if isinstance(message, link.Lost)]
    assert (lost.worker, lost.reason) == (W1, WHY)
    status = status_of(told)
    assert (status.phase, status.problem, status.worker) == ("loading", WHY, 0)
    assert (status.lanes_total, status.window_tokens) == (0, 0)
    (note,) = [each for each in told if isinstance(each, Note)]
    assert (note.event, note.is_problem) == ("worker_hung", True)
    assert note.pairs == {"model": TOY, "worker": W1, "reason": WHY}


def test_the_heartbeat_says_hung_until_the_next_worker_loads(serving: Node) -> None:
    give_up(serving)
    assert serving.core.heartbeat().workers[0] == parts.WorkerBeat(
        model=TOY, worker=WorkerIncarnation(0), phase="hung", steps=0
    )
    serving.start(W2)
    assert serving.core.heartbeat().workers[0].phase == "loading"
    serving.say(ready(W2), W2)
    beat = serving.core.heartbeat().workers[0]
    assert (beat.phase, beat.worker) == ("idle", W2)


def test_what_it_still_says_and_its_end_count_no_more(serving: Node) -> None:
    give_up(serving)
    assert serving.say(ready()) == []
    assert serving.say(worker.Pong(nonce=1, stats=worker.WorkerStats(steps=9))) == []
    serving.core.worker_exited(TOY, W1, -9, 0.25, 62.0)
    assert serving.taken() == []
    serving.start(W2)
    assert WHY in status_of(serving.start(W2)).problem
    assert status_of(serving.say(ready(W2), W2)).problem == ""


def test_new_work_is_declined_while_it_is_killed(serving: Node) -> None:
    give_up(serving)
    (declined,) = [m for m in serving.request() if isinstance(m, link.Declined)]
    assert declined.code == "model_not_ready"
    assert WHY in declined.message


def test_a_former_worker_can_not_hang(serving: Node) -> None:
    serving.core.worker_exited(TOY, W1, -9, 0.25, 1.0)
    serving.start(W2)
    assert give_up(serving) == []
    assert serving.core.heartbeat().workers[0].phase == "loading"


def test_a_model_that_hangs_each_time_counts_as_failed(node: Node) -> None:
    node.core.worker_started(TOY, W1, 0.0)
    for _ in range(3):
        node.core.worker_started(TOY, W1, 0.0)
        give_up(node)
    assert node.core.local_models()[0].phase == "failed"
    assert node.core.local_models()[0].problem == WHY

"""AgentCore: models that the head loads and unloads while the node runs."""

from __future__ import annotations

from typing import Any

import pytest

from agent.actions import FindModel, KnowModel, RememberModel, SendToWorker, StartWorker, StopWorker
from agent.core import AgentCore
from bus.errors import ModelIncomplete, NotFound, StartError
from bus.ids import CommandId, GenerationId, ModelName, NodeIdentity, WorkerIncarnation, pack_ids
from bus.messages import link, parts, worker
from tests.unit.agent.test_core import HEAD, OTHER, TOY, W1, W2, Node, output, ready

THIRD = ModelName("third")
STATS = worker.WorkerStats()


class Budgeted(Node):
    """A node that serves TOY and OTHER, which take 300 and 200 of its 1,000 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.core = AgentCore(
            NodeIdentity("n1"),
            7,
            [TOY, OTHER],
            needed_bytes={TOY: 300, OTHER: 200},
            budget_bytes=1000,
        )
        self.link_up()
        self.start()
        self.say(ready())

    def tell(self, message: object, now: float = 1.0) -> list[Any]:
        """A message of the head; gives all that follows but statuses."""
        self.core.link_message(message, now)
        return self.rest()

    def rest(self) -> list[Any]:
        return [each for each in self.taken() if not isinstance(each, link.NodeStatus)]

    def events(self) -> list[Any]:
        """What follows beside notes for the log."""
        kinds = (link.Lost, link.ModelAnswer, link.Declined, link.TokenEvents)
        others = (StartWorker, StopWorker, RememberModel, FindModel, KnowModel, SendToWorker)
        return [each for each in self.rest() if isinstance(each, kinds + others)]

    def phases(self) -> dict[str, str]:
        return {status.name: status.phase for status in self.core.confirm().models}


def load(model: ModelName, command: int = 50) -> link.ModelLoad:
    return link.ModelLoad(command=CommandId(command), model=model)


def unload(model: ModelName, grace_ms: int = 0, command: int = 60) -> link.ModelUnload:
    return link.ModelUnload(command=CommandId(command), model=model, grace_ms=grace_ms)


def done(model: ModelName, command: int) -> link.ModelAnswer:
    return link.ModelAnswer(command=CommandId(command), model=model)


@pytest.fixture
def node() -> Budgeted:
    return Budgeted()


# --- loading ------------------------------------------------------------------------------------


def test_a_model_is_looked_for_started_remembered_and_answered(node: Budgeted) -> None:
    assert node.tell(load(THIRD)) == [FindModel(command=CommandId(50), model=THIRD)]
    node.core.model_found(CommandId(50), THIRD, 500)
    assert node.events() == [StartWorker(model=THIRD)]
    node.core.worker_started(THIRD, W2, 1.1)
    assert node.events() == [RememberModel(model=THIRD, served=True), done(THIRD, 50)]
    assert node.phases() == {"toy": "ready", "other": "loading", "third": "loading"}
    node.core.worker_message(THIRD, W2, ready(W2), 2.0)
    assert node.phases()["third"] == "ready"


def test_a_load_of_what_is_served_changes_nothing_and_is_answered(node: Budgeted) -> None:
    assert node.tell(load(TOY)) == [done(TOY, 50)]
    assert node.tell(load(TOY)) == [done(TOY, 50)]
    assert node.tell(load(OTHER, 51)) == [done(OTHER, 51)]


def test_a_load_that_came_twice_starts_one_worker(node: Budgeted) -> None:
    node.tell(load(THIRD))
    node.tell(load(THIRD))
    node.core.model_found(CommandId(50), THIRD, 500)
    node.core.model_found(CommandId(50), THIRD, 500)
    assert node.events().count(StartWorker(model=THIRD)) == 1


def test_what_does_not_fit_is_refused_with_both_numbers_and_what_could_go(node: Budgeted) -> None:
    node.tell(load(THIRD))
    node.core.model_found(CommandId(50), THIRD, 501)
    (answer,) = node.events()
    assert (answer.code, answer.needed_bytes, answer.free_bytes) == ("no_memory", 501, 500)
    assert answer.loaded == (TOY, OTHER)
    assert "third needs 501 B" in answer.message
    assert "500 B are left; unload one of toy (300 B), other (200 B)" in answer.message
    assert "third" not in node.phases()
    # What was unloaded makes room once its worker is gone.
    node.tell(unload(TOY))
    node.core.model_found(CommandId(51), THIRD, 501)
    assert node.events()[0].code == "no_memory"
    node.core.worker_exited(TOY, W1, 0, None, 3.0)
    node.core.worker_stopped(TOY, 3.0)
    node.core.model_found(CommandId(52), THIRD, 501)
    assert node.events() == [StartWorker(model=THIRD)]


def test_unloading_is_not_advised_where_it_would_not_help(node: Budgeted) -> None:
    node.tell(load(THIRD))
    node.core.model_found(CommandId(50), THIRD, 1_000_000)
    (answer,) = node.events()
    assert answer.code == "no_memory"
    assert "unload" not in answer.message
    assert "raise memory_bytes" in answer.message


def test_without_a_budget_everything_fits() -> None:
    node = Node()
    node.link_up()
    node.core.model_found(CommandId(1), THIRD, 1 << 60)
    assert StartWorker(model=THIRD) in node.taken()


def test_a_model_that_is_not_here_or_does_not_start_is_refused_by_type(node: Budgeted) -> None:
    node.tell(load(THIRD))
    node.core.model_missing(CommandId(50), THIRD, ModelIncomplete("model.onnx is missing"))
    (answer,) = node.events()
    assert (answer.code, answer.message) == ("model_incomplete", "model.onnx is missing")
    node.core.model_found(CommandId(51), THIRD, 10)
    node.core.worker_not_started(THIRD, StartError("no more processes"), 1.0)
    started, answer = node.events()
    assert started == StartWorker(model=THIRD)
    assert (answer.command, answer.code) == (51, "start_failed")
    assert "third" not in node.phases()


def test_an_answer_that_no_link_takes_is_given_to_the_command_that_comes_again(
    node: Budgeted,
) -> None:
    node.tell(load(THIRD))
    node.core.link_down(1.0)
    node.core.model_found(CommandId(50), THIRD, 10)
    node.core.worker_started(THIRD, W2, 1.1)
    assert node.events() == [StartWorker(model=THIRD), RememberModel(model=THIRD, served=True)]
    node.link_up(now=2.0)
    assert node.tell(load(THIRD)) == [done(THIRD, 50)]


# --- unloading ----------------------------------------------------------------------------------


def test_an_idle_model_is_stopped_at_once_and_gone_with_its_worker(node: Budgeted) -> None:
    events = node.tell(unload(TOY, grace_ms=60_000))
    assert events == [
        RememberModel(model=TOY, served=False),
        done(TOY, 60),
        StopWorker(model=TOY),
    ]
    assert node.phases()["toy"] == "unloading"
    node.core.worker_exited(TOY, W1, -15, None, 1.2)
    node.core.worker_stopped(TOY, 1.2)
    statuses = [each for each in node.taken() if isinstance(each, link.NodeStatus)]
    assert [model.name for model in statuses[-1].models] == [OTHER]
    assert node.core.heartbeat().workers == (
        parts.WorkerBeat(model=OTHER, worker=WorkerIncarnation(0), phase="loading", steps=0),
    )


def test_what_runs_may_finish_and_nothing_begins_meanwhile(node: Budgeted) -> None:
    node.request()
    assert node.tell(unload(TOY, grace_ms=5000)) == [
        RememberModel(model=TOY, served=False),
        done(TOY, 60),
    ]
    finish = parts.Finish(reason="length")
    run = worker.OutputRun(
        generation=GenerationId(1), first_index=0, ids=pack_ids([42]), finish=finish
    )
    node.core.worker_message(TOY, W1, worker.Output(runs=(run,), stats=STATS), 1.5)
    tokens, stop = node.events()
    assert isinstance(tokens, link.TokenEvents)
    assert stop == StopWorker(model=TOY)


def test_a_new_generation_is_declined_while_others_run_on(node: Budgeted) -> None:
    node.request()
    node.tell(unload(TOY, grace_ms=5000))
    (declined,) = [each for each in node.request(epoch=2) if isinstance(each, link.Declined)]
    assert declined.code == "model_not_served"


def test_at_the_end_of_the_grace_what_runs_is_lost_without_a_death(node: Budgeted) -> None:
    node.request()
    node.say(output(0, [42], STATS))
    node.tell(unload(TOY, grace_ms=5000))
    node.core.handle_timeout(5.9)
    assert not [each for each in node.events() if isinstance(each, link.Lost)]
    node.core.handle_timeout(6.0)
    cancel, lost, stop = node.events()
    assert isinstance(lost, link.Lost)
    assert (lost.worker, lost.reason) == (0, "toy was unloaded from this node")
    assert cancel == SendToWorker(model=TOY, message=worker.Cancel(generation=GenerationId(1)))
    assert stop == StopWorker(model=TOY)
    # What its worker still says, and its end, are no news of that generation.
    assert node.say(output(1, [43], STATS), now=6.1) == []
    node.core.worker_exited(TOY, W1, -15, None, 6.2)
    node.core.worker_stopped(TOY, 6.2)
    assert not [each for each in node.taken() if isinstance(each, link.Lost)]
    assert node.core.next_timeout() is not None


def test_a_worker_that_dies_meanwhile_is_a_death_and_is_not_started_again(node: Budgeted) -> None:
    node.request()
    node.tell(unload(TOY, grace_ms=5000))
    node.core.worker_exited(TOY, W1, -9, 0.25, 2.0)
    lost, stop = node.events()
    assert lost.worker == W1
    assert stop == StopWorker(model=TOY)
    node.core.worker_stopped(TOY, 2.0)
    assert node.phases() == {"other": "loading"}


def test_an_unload_of_what_is_not_served_is_answered(node: Budgeted) -> None:
    assert node.tell(unload(THIRD)) == [KnowModel(command=CommandId(60), model=THIRD)]
    node.core.model_known(CommandId(60), THIRD)
    assert node.events() == [done(THIRD, 60)]


def test_an_unload_of_what_the_node_does_not_know_is_refused(node: Budgeted) -> None:
    node.tell(unload(THIRD))
    node.core.model_missing(CommandId(60), THIRD, NotFound("it knows no model 'third'"))
    (answer,) = node.events()
    assert (answer.command, answer.model, answer.code) == (60, THIRD, "not_found")


def test_a_second_unload_sets_another_limit(node: Budgeted) -> None:
    node.request()
    node.tell(unload(TOY, grace_ms=3_600_000))
    node.tell(unload(TOY, grace_ms=0, command=61), now=2.0)
    node.core.handle_timeout(2.0)
    assert StopWorker(model=TOY) in node.events()
    assert node.tell(unload(TOY, command=62)) == [done(TOY, 62)]


def test_a_load_while_the_model_is_being_unloaded_is_refused(node: Budgeted) -> None:
    node.tell(unload(TOY))
    (answer,) = node.tell(load(TOY))
    assert answer.code == "model_busy"
    node.core.worker_exited(TOY, W1, 0, None, 2.0)
    node.core.worker_stopped(TOY, 2.0)
    node.events()
    assert node.tell(load(TOY)) == [FindModel(command=CommandId(50), model=TOY)]


def test_the_grace_runs_on_without_a_link(node: Budgeted) -> None:
    node.request()
    node.tell(unload(TOY, grace_ms=5000))
    node.core.link_down(2.0)
    node.core.handle_timeout(6.0)
    assert StopWorker(model=TOY) in node.events()
    node.core.link_up(HEAD, 7.0)
    node.core.worker_exited(TOY, W1, 0, None, 7.1)
    node.core.worker_stopped(TOY, 7.1)
    assert "toy" not in node.phases()

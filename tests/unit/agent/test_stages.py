"""AgentCore with workers of stages: between the link and their pipes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.actions import Note, SendToWorker
from agent.core import AgentCore
from bus.agent_records import SendToHead
from bus.context import EMPTY_DIGEST
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
from bus.messages import link_stages as to_head
from bus.messages import worker_stages as to_worker
from bus.messages.link_jobs import JobEnd, JobStart
from bus.messages.sampling import SamplingParams

FIRST, LAST, TOY = ModelName("toy.1of2"), ModelName("toy.2of2"), ModelName("toy")
HEAD = link.HeadConfirm(identity="head-1", boot=1, software="superfluid")
W1, W2 = WorkerIncarnation(1 << 32 | 1), WorkerIncarnation(1 << 32 | 2)
CHAIN = 3 << 32 | 7
STAGES = {
    FIRST: parts.StageStatus(
        model=TOY, whole="w", index=0, stages=2, first=0, end=15, layers=30, hidden=576
    ),
    LAST: parts.StageStatus(
        model=TOY, whole="w", index=1, stages=2, first=15, end=30, layers=30, hidden=576
    ),
}


class Node:
    """An AgentCore with both stages, whose invariants are checked after every event."""

    def __init__(self, *models: ModelName) -> None:
        models = models or (FIRST, LAST)
        self.core = AgentCore(NodeIdentity("n1"), 7, models, stages=STAGES)
        self.core.link_up(HEAD, 0.0)
        self.core.link_message(link.Reconcile(page=0, more=False), 0.0)
        self.taken()

    def taken(self) -> list[Any]:
        """What is said, to the head and to workers; notes left out."""
        actions = self.core.actions()
        self.core.validate_state()
        return [
            action.message if isinstance(action, SendToHead) else action
            for action in actions
            if not isinstance(action, Note)
        ]

    def head(self, message: object) -> list[Any]:
        self.core.link_message(message, 0.0)
        return self.taken()

    def say(self, model: ModelName, message: object) -> list[Any]:
        self.core.worker_message(model, W1, message, 0.0)
        return self.taken()

    def load(self, *models: ModelName) -> None:
        for model in models:
            self.core.worker_started(model, W1, 0.0)
            self.core.worker_message(model, W1, ready(model), 0.0)
        self.taken()

    def open(self, chain: int = CHAIN) -> None:
        """Both stages are in a chain."""
        for index, model in enumerate((FIRST, TOY)):
            self.head(order(chain, model, index))
            folder = (FIRST, LAST)[index]
            self.say(folder, to_worker.StageOpened(chain=chain, window=100, lanes=4))

    def status(self, model: ModelName) -> parts.ModelStatus:
        return next(status for status in self.core.confirm().models if status.name == model)

    def generate(self, number: int = 1) -> list[Any]:
        common: dict[str, Any] = {"session": SessionId(f"s{number}"), "epoch": Epoch(number)}
        told = []
        for message in (
            link.SessionAssign(command=CommandId(3 * number), model=TOY, lease_ms=20_000, **common),
            link.AppendContent(
                command=CommandId(3 * number + 1),
                base_tokens=0,
                base_digest=EMPTY_DIGEST,
                ids=pack_ids([1, 2, 3]),
                **common,
            ),
            link.GenerateReq(
                command=CommandId(3 * number + 2),
                generation=GenerationId(number),
                sampling=SamplingParams(),
                max_new_tokens=5,
                prompt_tokens=3,
                **common,
            ),
        ):
            told += self.head(message)
        return told


def ready(model: ModelName) -> worker.Ready:
    return worker.Ready(
        worker=W1,
        window_tokens=2048,
        lanes=8,
        kv_total_tokens=16_384,
        numerics=NumericsId("own"),
        tokenizer_digest=99,
        device="cpu",
        load_s=0.5,
        stage=STAGES.get(model),
    )


def order(chain: int, model: ModelName, index: int, **fields: Any) -> to_head.StageOpen:
    return to_head.StageOpen(
        chain=chain, model=model, index=index, stages=2, groups=2, lanes=8, **fields
    )


def kinds(said: list[Any]) -> list[str]:
    return [type(each).__name__ for each in said]


@pytest.fixture
def node() -> Node:
    made = Node()
    made.load(FIRST, LAST)
    return made


@pytest.fixture
def opened(node: Node) -> Node:
    node.open()
    return node


# --- names ----------------------------------------------------------------------------------------


def test_last_stage_has_the_whole_models_name_before_it_is_loaded() -> None:
    node = Node()
    first, last = node.core.confirm().models
    assert (first.name, first.phase) == (FIRST, "loading")
    assert first.stage == replace(STAGES[FIRST], folder=FIRST)
    assert (last.name, last.phase) == (TOY, "loading")
    assert last.stage == replace(STAGES[LAST], folder=LAST)
    assert [beat.model for beat in node.core.heartbeat().workers] == [FIRST, TOY]


def test_whole_model_beside_its_last_stage_keeps_its_name() -> None:
    node = Node(LAST, TOY)
    assert [status.name for status in node.core.confirm().models] == [LAST, TOY]


def test_stage_is_ready_and_the_last_one_waits_for_its_chain(node: Node) -> None:
    first, last = node.core.confirm().models
    assert (first.phase, first.kind, first.window_tokens) == ("ready", "stage", 2048)
    assert (last.phase, last.worker_phase, last.kind) == ("loading", "stages", "")
    assert (last.window_tokens, last.lanes_total) == (2048, 8)
    assert last.problem == "it waits for the other stages of its model"
    assert [model.phase for model in node.core.local_models()] == ["ready", "ready"]


def test_head_knows_it_by_the_whole_models_name(node: Node) -> None:
    start = JobStart(job=GenerationId(5), model=TOY, kind="embed", body=b"\x81\xa6inputs\x90")
    (end,) = node.head(start)
    assert isinstance(end, JobEnd)
    assert end.message == "toy.2of2 is loading on this node: " + node.status(TOY).problem
    answer, *_ = node.head(link.ModelLoad(command=CommandId(9), model=TOY))
    assert (answer.model, answer.code) == (LAST, "")


# --- a chain --------------------------------------------------------------------------------------


def test_stages_open_and_the_driver_is_ready_with_what_the_chain_has(node: Node) -> None:
    (asked,) = node.head(order(CHAIN, TOY, 1, window=100, host_tokens=5))
    assert asked == SendToWorker(
        model=LAST,
        message=to_worker.StageOpen(chain=CHAIN, groups=2, lanes=8, window=100, host_tokens=5),
    )
    made: dict[str, Any] = {
        "window": 90,
        "lanes": 8,
        "host_tokens": 5,
        "numerics": NumericsId("both"),
    }
    told, status = node.say(LAST, to_worker.StageOpened(chain=CHAIN, **made))
    assert told == to_head.StageOpened(chain=CHAIN, index=1, **made)
    (last,) = (each for each in status.models if each.name == TOY)
    assert (last.phase, last.window_tokens, last.lanes_total) == ("ready", 90, 8)
    assert (last.numerics, last.kv_total_tokens, last.problem) == ("both", 720, "")


def test_units_of_work_go_through(opened: Node) -> None:
    run = to_head.StageRun(chain=CHAIN, hop=0, group=1, unit=b"unit")
    unit = to_worker.StageUnit(chain=CHAIN, group=1, unit=b"unit")
    assert opened.head(run) == [SendToWorker(model=FIRST, message=unit)]
    done = replace(unit, hidden=b"\1\2\3\4")
    assert opened.say(FIRST, done) == [replace(run, hop=1, hidden=b"\1\2\3\4")]
    assert opened.head(replace(run, hop=1)) == [SendToWorker(model=LAST, message=unit)]
    # The driver's next unit goes to the first stage.
    assert opened.say(LAST, unit) == [run]


def test_what_is_of_no_open_chain_is_dropped(opened: Node) -> None:
    run = to_head.StageRun(chain=CHAIN, hop=0, group=1, unit=b"unit")
    for late in (replace(run, chain=CHAIN + 1), replace(run, hop=2)):
        assert opened.head(late) == []
    unit = to_worker.StageUnit(chain=CHAIN + 1, group=1, unit=b"")
    assert opened.say(FIRST, unit) == []
    opened.head(order(CHAIN + 1, FIRST, 0))
    assert opened.say(FIRST, unit) == []
    assert opened.head(replace(run, chain=CHAIN + 1)) == []
    assert opened.head(to_head.StageClose(chain=CHAIN + 9)) == []


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (order(CHAIN, ModelName("other"), 0), "model_not_served"),
        (order(CHAIN, FIRST, 1), "invalid"),
        (order(CHAIN, TOY, 0), "invalid"),
    ],
)
def test_order_that_can_not_be_followed_is_answered_with_a_code(
    node: Node, message: to_head.StageOpen, code: str
) -> None:
    (told,) = node.head(message)
    assert isinstance(told, to_head.StageOpened)
    assert (told.chain, told.index, told.code) == (CHAIN, message.index, code)
    assert told.message


def test_worker_that_is_loading_opens_nothing() -> None:
    (told,) = Node().head(order(CHAIN, FIRST, 0))
    assert told.code == "model_not_ready"


def test_place_in_a_chain_is_given_once(opened: Node) -> None:
    (told,) = opened.head(order(CHAIN, FIRST, 0))
    assert told.code == "invalid"


def test_worker_that_can_not_open_is_asked_again_later(node: Node) -> None:
    node.head(order(CHAIN, FIRST, 0))
    refusal = to_worker.StageOpened(chain=CHAIN, code="config_invalid", message="no room")
    (told,) = node.say(FIRST, refusal)
    assert (told.code, told.message) == ("config_invalid", "no room")
    (asked,) = node.head(order(CHAIN + 1, FIRST, 0))
    assert asked.message.chain == CHAIN + 1


# --- its end --------------------------------------------------------------------------------------


def test_generations_of_a_chain_that_the_head_closes_are_lost(opened: Node) -> None:
    (submit,) = opened.generate()
    assert (submit.model, type(submit.message)) == (LAST, worker.Submit)
    close = to_head.StageClose(chain=CHAIN, reason="n2 is gone", worker=W2)
    told = opened.head(close)
    assert kinds(told) == [
        *("SendToWorker", "SendToWorker", "StageClose", "Lost", "NodeStatus"),
    ]
    for sent, model in zip(told, (FIRST, LAST), strict=False):
        ended = to_worker.StageClose(chain=CHAIN, reason="n2 is gone")
        assert sent == SendToWorker(model=model, message=ended)
    assert told[2].generations == (GenerationId(1),)
    assert (told[3].worker, told[3].reason) == (0, "n2 is gone")
    last = opened.status(TOY)
    assert (last.phase, last.worker_phase, last.problem) == ("loading", "stages", "n2 is gone")
    # What crossed that is declined, and what the worker still says counts for nothing.
    assert kinds(opened.generate(2)) == ["Declined"]
    late = worker.OutputRun(generation=GenerationId(1), first_index=0, ids=pack_ids([5]))
    assert not opened.say(LAST, worker.Output(runs=(late,), stats=worker.WorkerStats()))


def test_generations_that_were_ended_and_had_not_left_are_told(opened: Node) -> None:
    opened.generate()
    revoke = link.SessionRevoke(
        command=CommandId(50), session=SessionId("s1"), epoch=Epoch(1), reason="finish"
    )
    opened.head(revoke)
    told = opened.head(to_head.StageClose(chain=CHAIN))
    (close,) = (each for each in told if isinstance(each, to_head.StageClose))
    assert close.generations == (GenerationId(1),)
    assert "Lost" not in kinds(told)


def test_death_of_an_executor_is_told_with_what_its_driver_here_had(opened: Node) -> None:
    opened.generate()
    opened.core.worker_exited(FIRST, W1, -9, 0.25, 0.0)
    told = opened.taken()
    assert kinds(told) == [
        *("SendToWorker", "SendToWorker", "StageClose", "Lost", "NodeStatus"),
    ]
    assert (told[2].worker, told[2].generations) == (W1, (GenerationId(1),))


def test_death_of_an_executor_alone_is_told() -> None:
    node = Node(FIRST)
    node.load(FIRST)
    node.head(order(CHAIN, FIRST, 0))
    node.say(FIRST, to_worker.StageOpened(chain=CHAIN, window=100, lanes=8))
    node.core.worker_hung(FIRST, W1, "hung: no step was made for 60 s", 0.0)
    _, told, status = node.taken()
    assert told == to_head.StageClose(
        chain=CHAIN, reason="hung: no step was made for 60 s", worker=W1
    )
    assert status.models[0].worker_phase == "hung"


def test_death_of_the_driver_ends_its_generations_as_any_workers_does(opened: Node) -> None:
    opened.generate()
    opened.core.worker_exited(LAST, W1, -9, 0.25, 0.0)
    told = opened.taken()
    assert kinds(told) == [
        *("SendToWorker", "SendToWorker", "WorkerDied", "Lost", "StageClose", "NodeStatus"),
    ]
    assert (told[2].model, told[2].worker, told[3].worker) == (TOY, W1, W1)
    assert (told[4].worker, told[4].generations) == (W1, ())
    assert opened.status(TOY).worker_phase == "loading"


def test_unit_that_fails_ends_the_chain(opened: Node) -> None:
    opened.generate()
    told = opened.say(
        FIRST, to_worker.StageFailed(chain=CHAIN, code="internal", message="no such lane")
    )
    (close,) = (each for each in told if isinstance(each, to_head.StageClose))
    assert (close.reason, close.worker) == ("toy.1of2 failed: no such lane", 0)
    assert "Lost" in kinds(told)


def test_message_that_does_not_reach_a_worker_ends_the_chain(opened: Node) -> None:
    opened.core.worker_takes_no_unit(FIRST, CHAIN, 0.0)
    told = opened.taken()
    assert "StageClose" in kinds(told)
    assert opened.status(TOY).phase == "loading"
    opened.core.worker_takes_no_unit(FIRST, CHAIN, 0.0)
    assert not opened.taken()


def test_link_that_ends_ends_all_chains_and_nothing_is_told_of_them(opened: Node) -> None:
    opened.generate()
    opened.core.link_down(0.0)
    told = opened.taken()
    assert kinds(told) == ["SendToWorker", "SendToWorker"]
    assert {type(each.message) for each in told} == {to_worker.StageClose}
    assert opened.status(TOY).phase == "loading"
    opened.core.link_up(HEAD, 1.0)
    opened.core.link_message(link.Reconcile(page=0, more=False), 1.0)
    assert not {"StageClose", "Lost"} & set(kinds(opened.taken()))


def test_stage_that_is_unloaded_leaves_its_chain(opened: Node) -> None:
    told = opened.head(link.ModelUnload(command=CommandId(9), model=FIRST))
    assert "StageClose" in kinds(told)
    assert "StopWorker" in kinds(told)


def test_last_stage_is_unloaded_by_the_whole_models_name(opened: Node) -> None:
    opened.generate()
    told = opened.head(link.ModelUnload(command=CommandId(9), model=TOY, grace_ms=1000))
    assert "StageClose" not in kinds(told)
    assert opened.status(TOY).phase == "unloading"
    opened.core.handle_timeout(1.0)
    told = opened.taken()
    assert [kind for kind in kinds(told) if kind in ("StageClose", "Lost", "StopWorker")] == [
        *("StageClose", "Lost", "StopWorker")
    ]


def test_head_that_opens_another_chain_ends_the_drivers_first(opened: Node) -> None:
    told = opened.head(order(CHAIN + 1, TOY, 1))
    assert kinds(told)[:2] == ["SendToWorker", "SendToWorker"]
    (close,) = (each for each in told if isinstance(each, to_head.StageClose))
    assert close.chain == CHAIN
    assert told[-1].message.chain == CHAIN + 1

"""The head's view of nodes: claims, statuses that cross them, and why a node can not serve."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.ids import GenerationId, ModelName, NodeIdentity, WorkerIncarnation
from bus.messages.link import Heartbeat, NodeConfirm, NodeStatus
from bus.messages.parts import ModelStatus, WorkerBeat
from head import reports
from head.fleet import STATUS_CROSSING_S, Fleet
from head.snapshot import ModelView, NodeView

TOY = ModelName("toy")
NODE = NodeIdentity("n1")
READY = ModelStatus(
    name=TOY, phase="ready", window_tokens=100, lanes_total=2, lanes_used=1, tokenizer_digest=5
)


def confirm(*models: ModelStatus) -> NodeConfirm:
    return NodeConfirm(identity=NODE, incarnation=1, software="x", models=models)


def view(fleet: Fleet, now: float) -> NodeView:
    (found,) = fleet.snapshot(TOY, now).nodes
    return found


def serving(fleet: Fleet, now: float) -> ModelView:
    found = view(fleet, now).serving
    assert found is not None
    return found


@pytest.fixture
def fleet() -> Fleet:
    made = Fleet()
    made.link_up(1, confirm(READY), 10.0)
    return made


def test_status_is_shown_with_its_age(fleet: Fleet) -> None:
    model = serving(fleet, 13.0)
    assert (model.lanes_free, model.lanes_total, model.window_tokens) == (1, 2, 100)
    assert model.status_at_s == 10.0
    assert fleet.snapshot(TOY, 13.0).now_s == 13.0


def test_claim_is_unseen_until_a_status_could_count_it(fleet: Fleet) -> None:
    fleet.claim(NODE, TOY, GenerationId(1), 20.0)
    assert (serving(fleet, 20.0).unseen, serving(fleet, 20.0).in_flight) == (1, 1)
    fleet.status(1, NodeStatus(models=(READY,)), 20.0 + STATUS_CROSSING_S / 2)
    assert serving(fleet, 21.0).unseen == 1
    fleet.status(1, NodeStatus(models=(READY,)), 20.0 + 2 * STATUS_CROSSING_S)
    assert (serving(fleet, 21.0).unseen, serving(fleet, 21.0).in_flight) == (0, 1)
    fleet.release(NODE, GenerationId(1))
    assert serving(fleet, 22.0).in_flight == 0
    assert serving(fleet, 22.0).sessions_placed == 1


def test_room_ends_one_above_the_lanes(fleet: Fleet) -> None:
    for number in range(3):
        assert fleet.has_room(TOY, 20.0)
        fleet.claim(NODE, TOY, GenerationId(number), 20.0)
    assert not fleet.has_room(TOY, 20.0)


def test_link_that_ends_takes_the_claims_and_says_why(fleet: Fleet) -> None:
    fleet.claim(NODE, TOY, GenerationId(1), 20.0)
    assert fleet.link_down(1, "cut", 21.0) is fleet.get(NODE)
    down = view(fleet, 22.0)
    assert not down.up
    assert down.why_not == "cut"
    fleet.release(NODE, GenerationId(1))
    fleet.link_up(2, confirm(READY), 23.0)
    assert serving(fleet, 23.0).in_flight == 0
    assert fleet.by_link(1) is None


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (replace(READY, phase="loading"), "toy is loading there"),
        (replace(READY, phase="failed", problem="no file"), "toy failed to load there: no file"),
        (replace(READY, name=ModelName("other")), "does not serve toy"),
    ],
)
def test_node_that_can_not_serve_says_why(status: ModelStatus, words: str) -> None:
    fleet = Fleet()
    fleet.link_up(1, confirm(status), 10.0)
    found = view(fleet, 11.0)
    assert found.serving is None
    assert words in found.why_not


def test_status_of_an_unknown_link_is_passed_over(fleet: Fleet) -> None:
    fleet.status(9, NodeStatus(models=()), 11.0)
    assert view(fleet, 12.0).serving is not None


def test_a_heartbeat_brings_the_progress_of_its_worker_up_to_date(fleet: Fleet) -> None:
    def beat(worker: int, phase: str, steps: int) -> Heartbeat:
        incarnation = WorkerIncarnation(worker)
        return Heartbeat(
            workers=(WorkerBeat(model=TOY, worker=incarnation, phase=phase, steps=steps),)
        )

    def shown() -> tuple[str, int]:
        (node,) = reports.nodes(fleet, 12.0)
        (model,) = node["models"]
        return model["worker_phase"], model["steps"]

    status = replace(READY, worker=WorkerIncarnation(4), worker_phase="idle", steps=10)
    fleet.status(1, NodeStatus(models=(status,)), 11.0)
    assert shown() == ("idle", 10)
    fleet.heartbeat(1, beat(4, "prefill", 12))
    assert shown() == ("prefill", 12)
    assert serving(fleet, 12.0).status_at_s == 11.0, "it is no status"
    fleet.heartbeat(1, beat(3, "decode", 99))
    fleet.heartbeat(9, beat(4, "decode", 99))
    assert shown() == ("prefill", 12), "of a former worker, and over no link"


def test_a_node_whose_worker_hangs_is_passed_over_and_says_why(fleet: Fleet) -> None:
    why = "hung: no step was made for 61 s and its process uses no CPU time"
    status = ModelStatus(name=TOY, phase="loading", problem=why, worker_phase="hung")
    fleet.status(1, NodeStatus(models=(status,)), 11.0)
    assert view(fleet, 12.0).serving is None
    assert view(fleet, 12.0).why_not == f"toy is loading there ({why})"
    assert fleet.loading(TOY), "requests may wait for the next worker"

"""The head's view of nodes: claims, statuses that cross them, and why a node can not serve."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.ids import GenerationId, ModelName, NodeIdentity, WorkerIncarnation
from bus.messages.link import Heartbeat, NodeConfirm, NodeStatus
from bus.messages.parts import ModelStatus, WorkerBeat
from head import reports
from head.fleet import Fleet
from head.fleet_node import STATUS_CROSSING_S
from head.node_marks import NodeMark
from head.placement import place
from head.snapshot import ModelView, NodeView, PlacementRequest

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


def test_a_lane_that_became_free_since_the_status_counts_as_free(fleet: Fleet) -> None:
    fleet.claim(NODE, TOY, GenerationId(1), 20.0)
    fleet.claim(NODE, TOY, GenerationId(2), 20.0)
    fleet.status(1, NodeStatus(models=(replace(READY, lanes_used=2),)), 21.0)
    fleet.claim(NODE, TOY, GenerationId(3), 21.5)
    assert (serving(fleet, 21.5).lanes_free, serving(fleet, 21.5).unseen) == (0, 1)
    fleet.release(NODE, GenerationId(1))
    assert (serving(fleet, 21.6).lanes_free, serving(fleet, 21.6).unseen) == (1, 1)
    # The status did not count this one, so it gives no lane back.
    fleet.release(NODE, GenerationId(3))
    assert (serving(fleet, 21.7).lanes_free, serving(fleet, 21.7).unseen) == (1, 0)
    fleet.status(1, NodeStatus(models=(replace(READY, lanes_used=1),)), 22.0)
    assert serving(fleet, 22.0).lanes_free == 1


def test_room_ends_one_above_the_lanes(fleet: Fleet) -> None:
    for number in range(3):
        assert fleet.has_room(TOY, 3, 20.0)
        fleet.claim(NODE, TOY, GenerationId(number), 20.0)
    assert not fleet.has_room(TOY, 3, 20.0)


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


# --- a node that comes back ---------------------------------------------------------------------


def back_again(lanes: int) -> Fleet:
    """A fleet whose node was lost at 20 s and is back at 21 s."""
    fleet = Fleet()
    fleet.link_up(1, confirm(replace(READY, lanes_total=lanes)), 10.0)
    assert fleet.link_down(1, "silence", 20.0) is not None
    fleet.link_up(2, confirm(replace(READY, lanes_total=lanes)), 21.0)
    return fleet


def allowed(fleet: Fleet, now: float, *, lost_node: bool = False) -> int:
    """How many requests in one instant a fleet's only node takes."""
    asked = PlacementRequest(
        model=TOY, prompt_tokens=10, expected_tokens=10, lost_node=lost_node, tokenizer_digest=5
    )
    taken = 0
    while place("load-aware", fleet.snapshot(TOY, now), asked).node is not None:
        taken += 1
        fleet.claim(NODE, TOY, GenerationId(taken), now)
    for number in range(taken):
        fleet.release(NODE, GenerationId(number + 1))
    return taken


@pytest.mark.parametrize(("lanes", "half"), [(1, 1), (2, 1), (3, 1), (8, 4)])
def test_a_node_that_comes_back_has_half_its_lanes_for_ten_seconds(lanes: int, half: int) -> None:
    fleet = back_again(lanes)
    assert allowed(fleet, 21.0) == half
    assert allowed(fleet, 30.9) == half
    assert allowed(fleet, 31.0) == lanes + 1


def test_a_node_that_is_new_to_the_head_has_all_its_lanes(fleet: Fleet) -> None:
    assert allowed(fleet, 10.0) == 3


def test_streams_that_lost_their_node_get_all_lanes_of_one_that_came_back() -> None:
    assert allowed(back_again(8), 22.0, lost_node=True) == 9


def test_a_worker_that_dies_in_the_ten_seconds_begins_them_anew() -> None:
    fleet = back_again(8)
    fleet.worker_lost(NODE, TOY, WorkerIncarnation(0), 25.0)
    fleet.status(2, NodeStatus(models=(replace(READY, lanes_total=8),)), 26.0)
    assert allowed(fleet, 31.0) == 4
    assert allowed(fleet, 35.0) == 9
    fleet.worker_lost(NODE, TOY, WorkerIncarnation(0), 40.0)
    fleet.status(2, NodeStatus(models=(replace(READY, lanes_total=8),)), 41.0)
    assert allowed(fleet, 41.0) == 9, "it had stayed for long enough"


def test_the_reason_of_a_node_that_came_back_says_for_how_long() -> None:
    fleet = back_again(2)
    fleet.claim(NODE, TOY, GenerationId(1), 21.0)
    asked = PlacementRequest(model=TOY, prompt_tokens=10, expected_tokens=10)
    placed = place("load-aware", fleet.snapshot(TOY, 24.0), asked)
    assert (placed.node, placed.error) == (None, None)
    assert dict(placed.reasons) == {
        NODE: "has come back and gets half its 2 lanes for 7 s more; 1 generations are there"
    }


# --- what opens a node --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "opens"),
    [
        (replace(READY, lanes_used=2, queued=5, decode_rate=9.0), False),
        (replace(READY, lanes_total=3), True),
        (replace(READY, window_tokens=200), True),
        (replace(READY, phase="loading"), True),
        (replace(READY, tokenizer_digest=6), True),
    ],
)
def test_a_status_says_whether_it_opens_anything(
    fleet: Fleet, status: ModelStatus, opens: bool
) -> None:
    assert fleet.status(1, NodeStatus(models=(status,)), 11.0) is opens
    assert fleet.status(1, NodeStatus(models=(status,)), 12.0) is False


def test_a_status_after_a_death_and_one_after_a_return_open_a_node(fleet: Fleet) -> None:
    fleet.worker_lost(NODE, TOY, WorkerIncarnation(0), 11.0)
    assert fleet.status(1, NodeStatus(models=(READY,)), 12.0) is True
    back = back_again(2)
    assert back.status(2, NodeStatus(models=(READY,)), 30.9) is False
    assert back.status(2, NodeStatus(models=(READY,)), 31.9) is True


def test_views_follow_every_change_of_a_node(fleet: Fleet) -> None:
    """What is kept of a node for placement is what would be made anew."""
    node = fleet.get(NODE)
    assert node is not None

    def check() -> None:
        kept = view(fleet, 20.0)
        node.changed()
        assert view(fleet, 20.0) == kept

    for step in (
        lambda: fleet.claim(NODE, TOY, GenerationId(1), 20.0),
        lambda: fleet.claim(NODE, TOY, GenerationId(2), 21.0),
        lambda: fleet.release(NODE, GenerationId(1)),
        lambda: fleet.worker_lost(NODE, TOY, WorkerIncarnation(0), 22.0),
        lambda: fleet.status(1, NodeStatus(models=(READY,)), 23.0),
        lambda: fleet.heartbeat(1, Heartbeat()),
        lambda: node.changes_phase(TOY, "unloading"),
        lambda: fleet.status(1, NodeStatus(models=(READY,), draining=True), 24.0),
        lambda: setattr(node, "says_draining", False),
        lambda: setattr(node, "mark", NodeMark(drained=True)),
        lambda: fleet.link_down(1, "cut", 25.0),
        lambda: fleet.link_up(2, confirm(READY), 26.0),
    ):
        view(fleet, 20.0)
        step()
        check()

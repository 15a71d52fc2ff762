"""Nodes that an operator drains: what moves, what stays, and what outlives a restart."""

from __future__ import annotations

from typing import Any

import pytest

from bus.messages.api import MARK, encode_body
from bus.messages.link import GenerateReq, NodeStatus, SessionRevoke
from head.core import CorePolicy, HeadCore
from head.rows import PutFinish, PutGeneration, PutSetting, StoredState
from tests.harness.head_bench import CLIENT, TOY, Bench, run


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.node(1)
    return made


def operate(bench: Bench, op: str, name: str = "n1", **body: Any) -> dict[str, Any]:
    """The reply of an operation on a node."""
    asked = encode_body({"op": op, "id": b"operate", "name": name, **body})
    bench.core.client_request(CLIENT, [MARK, asked], bench.now)
    bench.settle()
    return [reply for reply in bench.replies if reply["id"] == b"operate"][-1]


def states(bench: Bench) -> dict[str, str]:
    return {node.identity: node.state for node in bench.core.fleet.nodes}


def restarted(bench: Bench) -> Bench:
    """A new start of the head with the settings that were kept."""
    settings = {row.name: row for row in bench.rows if isinstance(row, PutSetting)}
    made = Bench()
    stored = StoredState(boot=4, head_id="h", answers=(), settings=tuple(settings.values()))
    made.core = HeadCore(CorePolicy(), stored, entropy=bytes, now=0.0, wall_s=1e9)
    made.core.models_found({TOY: "/toy"}, 0.0)
    return made


# --- streams --------------------------------------------------------------------------------------


def test_stream_goes_on_at_once_on_another_node_from_what_is_kept(bench: Bench) -> None:
    request = bench.ask(max_new=10, seed=4)
    bench.hear(1, run(request, 0, 65, 66))
    bench.node(2, "n2")
    reply = operate(bench, "node.drain")
    assert (reply["state"], reply["generations"], reply["stays"]) == ("drained", 0, "")
    (again,) = bench.on(2, GenerateReq)
    assert (again.generated_tokens, again.max_new_tokens, again.epoch > request.epoch) == (
        2,
        8,
        True,
    )
    (revoke,) = bench.on(1, SessionRevoke)
    assert (revoke.session, revoke.epoch) == (request.session, request.epoch)
    (moved,) = bench.events("moved")
    assert (moved["from"], moved["to"], moved["offset"]) == ("n1", "n2", 2)
    assert moved["reason"] == "node n1 is drained"
    # What the drained node had on its way is of a past epoch.
    bench.hear(1, run(request, 2, 90))
    bench.hear(2, run(again, 0, 67, finish="eos"))
    assert bench.tokens() == [65, 66, 67]
    assert bench.replies[-1]["finish"] == "stop"


def test_no_round_passes_between_the_old_place_and_the_new_one(bench: Bench) -> None:
    request = bench.ask(max_new=10)
    bench.hear(1, run(request, 0, 65))
    bench.node(2, "n2")
    bench.rows.clear()
    body = encode_body({"op": "node.drain", "id": b"d", "name": "n1"})
    bench.core.client_request(CLIENT, [MARK, body], bench.now)
    effects = bench.core.effects()
    assert effects.persist is not None
    kinds = [type(row) for row in effects.persist.rows]
    assert kinds == [PutSetting, PutGeneration]


def test_stream_that_no_other_node_can_take_runs_on_and_the_answer_says_why(
    bench: Bench,
) -> None:
    request = bench.ask(max_new=10)
    reply = operate(bench, "node.drain")
    assert (reply["state"], reply["generations"]) == ("draining", 1)
    assert "no node can serve toy now (n1 is draining)" in reply["stays"]
    bench.wait(100.0)
    bench.hear(1, run(request, 0, 65, finish="eos"))
    assert bench.tokens() == [65]
    assert states(bench) == {"n1": "drained"}
    assert [row.finish for row in bench.rows if isinstance(row, PutFinish)] == ["stop"]


def test_node_that_gets_work_again_has_no_stream_that_has_to_move(bench: Bench) -> None:
    bench.ask(max_new=10)
    assert operate(bench, "node.drain")["stays"]
    reply = operate(bench, "node.undrain")
    assert (reply["state"], reply["generations"], reply["stays"]) == ("up", 1, "")


def test_stream_that_stays_moves_to_a_node_that_comes(bench: Bench) -> None:
    bench.ask(max_new=10)
    operate(bench, "node.drain")
    bench.node(2, "n2")
    assert len(bench.on(2, GenerateReq)) == 1
    assert states(bench) == {"n1": "drained", "n2": "up"}


def test_stream_that_stays_gets_the_next_free_lane_before_those_that_wait(bench: Bench) -> None:
    bench.node(2, "n2")
    operate(bench, "node.drain")
    others = [bench.ask(b"o%d" % number, max_new=10) for number in range(3)]
    assert {link for link, m in bench.sent if isinstance(m, GenerateReq)} == {2}
    operate(bench, "node.undrain")
    ours = bench.ask(b"ours", max_new=10)
    assert bench.on(1, GenerateReq) == [ours]
    reply = operate(bench, "node.drain")
    assert "full" in reply["stays"]
    bench.ask(b"waits", max_new=10)
    bench.hear(2, run(others[0], 0, 65, finish="eos"))
    bench.wait(0.0)
    assert bench.on(2, GenerateReq)[-1].session == ours.session
    assert states(bench)["n1"] == "drained"


def test_stream_with_all_its_tokens_is_left_to_end(bench: Bench) -> None:
    request = bench.ask(max_new=2)
    bench.hear(1, run(request, 0, 65, 66))
    bench.node(2, "n2")
    assert operate(bench, "node.drain")["state"] == "draining"
    bench.hear(1, run(request, 2, finish="eos"))
    assert bench.replies[-1]["finish"] == "stop"


def test_every_stream_of_a_burst_finds_its_own_place(bench: Bench) -> None:
    for number in range(3):
        bench.ask(b"r%d" % number, max_new=10)
    bench.node(2, "n2")
    bench.node(3, "n3")
    operate(bench, "node.drain")
    assert sorted(len(bench.on(link, GenerateReq)) for link in (2, 3)) == [1, 2]


def test_drained_stream_that_its_new_node_declines_is_tried_on(bench: Bench) -> None:
    """A drain must not turn a stream without a token into one that nothing waits for."""
    bench.ask(max_new=10)
    bench.node(2, "n2")
    operate(bench, "node.drain")
    bench.down(2)
    bench.wait(20.0)
    assert not any(reply["kind"] == "error" for reply in bench.replies)
    bench.node(3, "n3")
    bench.wait(1.1)
    assert len(bench.on(3, GenerateReq)) == 1


def test_session_without_a_turn_loses_its_place(bench: Bench) -> None:
    body = encode_body({"op": "session.create", "id": b"s", "model": TOY})
    bench.core.client_request(CLIENT, [MARK, body], bench.now)
    bench.settle()
    session = bench.replies[-1]["session"]
    for op, keys in (
        ("session.append", {"tokens": [65]}),
        ("session.generate", {"max_new": 4}),
    ):
        asked = encode_body({"op": op, "id": op.encode(), "session": session, **keys})
        bench.core.client_request(CLIENT, [MARK, asked], bench.now)
        bench.settle()
    bench.hear(1, run(bench.last(GenerateReq), 0, 66, finish="eos"))
    assert operate(bench, "node.drain")["state"] == "drained"
    assert [revoke.session for revoke in bench.on(1, SessionRevoke)] == [session]


# --- what is placed -------------------------------------------------------------------------------


def test_nothing_is_placed_on_a_drained_node_until_it_is_undrained(bench: Bench) -> None:
    operate(bench, "node.drain")
    asked = {"op": "generate", "id": b"r", "model": TOY, "prompt": "hi"}
    bench.wait(30.0)
    bench.core.client_request(CLIENT, [MARK, encode_body(asked)], bench.now)
    bench.settle()
    assert bench.replies[-1]["error"]["code"] == "no_node"
    assert operate(bench, "node.undrain")["state"] == "up"
    assert bench.ask(b"again") in bench.on(1, GenerateReq)


def test_a_drain_holds_over_a_new_link_and_a_new_start_of_the_head(bench: Bench) -> None:
    operate(bench, "node.drain")
    bench.down(1)
    bench.node(2, "n1", incarnation=2)
    assert states(bench) == {"n1": "drained"}
    after = restarted(bench)
    after.node(1)
    assert states(after) == {"n1": "drained"}
    operate(after, "node.undrain")
    assert states(restarted(after)) == {}
    later = restarted(after)
    later.node(1)
    assert states(later) == {"n1": "up"}


def test_forgetting_a_node_forgets_that_it_is_drained(bench: Bench) -> None:
    operate(bench, "node.drain")
    operate(bench, "node.label", labels={"rack": "3"})
    bench.down(1, left=True)
    assert operate(bench, "node.forget")["forgotten"] == ["n1"]
    bench.node(2, "n1", incarnation=2)
    assert states(bench) == {"n1": "up"}
    assert operate(bench, "node.label", labels={})["labels"] == {}


def test_a_node_that_has_not_come_since_the_start_can_be_undrained(bench: Bench) -> None:
    operate(bench, "node.drain")
    after = restarted(bench)
    reply = operate(after, "node.undrain")
    assert (reply["state"], reply["draining"]) == ("down", False)


def test_a_node_that_says_that_it_leaves_is_drained_until_it_says_otherwise(bench: Bench) -> None:
    bench.ask(max_new=10)
    bench.node(2, "n2")
    models = tuple(bench.core.fleet.by_link(1).models.values())  # type: ignore[union-attr]
    bench.hear(1, NodeStatus(models=models, draining=True))
    assert (len(bench.on(2, GenerateReq)), states(bench)["n1"]) == (1, "drained")
    bench.hear(1, NodeStatus(models=models))
    assert states(bench)["n1"] == "up"


def test_a_node_that_left_is_not_taken_for_one_that_was_drained(bench: Bench) -> None:
    models = tuple(bench.core.fleet.by_link(1).models.values())  # type: ignore[union-attr]
    bench.hear(1, NodeStatus(models=models, draining=True))
    bench.down(1, left=True)
    (node,) = operate(bench, "nodes")["nodes"]
    assert (node["state"], node["draining"]) == ("left", False)


@pytest.mark.parametrize("op", ["node.drain", "node.undrain"])
def test_a_node_that_is_not_known_is_not_found(op: str, bench: Bench) -> None:
    assert operate(bench, op, name="nobody")["error"]["code"] == "not_found"


# --- labels ---------------------------------------------------------------------------------------


def test_labels_are_set_changed_and_removed_and_outlive_a_restart(bench: Bench) -> None:
    operate(bench, "node.label", labels={"rack": "3", "gpu": "h200"})
    reply = operate(bench, "node.label", labels={"rack": "4", "gpu": ""})
    assert reply["labels"] == {"rack": "4"}
    after = restarted(bench)
    after.node(1)
    listed = operate(after, "nodes")["nodes"]
    assert [(node["labels"], node["state"]) for node in listed] == [({"rack": "4"}, "up")]


@pytest.mark.parametrize(
    "labels", [{"": "x"}, {"a=b": "x"}, {"a": 3}, {"a": "x" * 129}, {"a\n": "x"}]
)
def test_what_can_be_no_label_is_refused_by_name(labels: dict[str, Any], bench: Bench) -> None:
    error = operate(bench, "node.label", labels=labels)["error"]
    assert (error["code"], error["param"]) == ("invalid", "labels")


def test_a_node_has_64_labels_at_most(bench: Bench) -> None:
    for first in (0, 32):
        labels = {f"k{n}": "v" for n in range(first, first + 32)}
        assert "error" not in operate(bench, "node.label", labels=labels)
    assert operate(bench, "node.label", labels={"one": "more"})["error"]["param"] == "labels"
    assert "error" not in operate(bench, "node.label", labels={"one": "more", "k0": ""})

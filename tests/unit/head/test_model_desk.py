"""`model.load` and `model.unload` against the real core: what nodes are told, clients answered."""

from __future__ import annotations

from typing import Any

import pytest

from bus.capabilities import CAPABILITIES, MODELS
from bus.ids import GenerationId, ModelName, WorkerIncarnation
from bus.messages.api import MARK, encode_body
from bus.messages.link import GenerateReq, Lost, ModelAnswer, ModelLoad, ModelUnload, NodeStatus
from bus.messages.parts import ModelStatus
from tests.harness.head_bench import CLIENT, TOY, Bench

NEW = ModelName("new")
LINK = 1


class Desk(Bench):
    """A head with node n1 on link 1, which serves TOY."""

    def __init__(self, capabilities: tuple[str, ...] = CAPABILITIES) -> None:
        super().__init__()
        self.node(LINK, capabilities=capabilities)

    def op(self, op: str, **body: Any) -> dict[str, Any] | None:
        """Ask; gives the reply when it came at once."""
        before = len(self.replies)
        asked = encode_body({"op": op, "id": op.encode(), **body})
        self.core.client_request(CLIENT, [MARK, asked], self.now)
        self.settle()
        return self.replies[-1] if len(self.replies) > before else None

    def answer(self, link: int = LINK, **fields: Any) -> dict[str, Any]:
        """The node answers the last command; gives the client's reply."""
        command = next(m for _, m in reversed(self.sent) if isinstance(m, ModelLoad | ModelUnload))
        self.hear(link, ModelAnswer(command=command.command, model=command.model, **fields))
        return self.replies[-1]

    def models(self) -> dict[str, Any]:
        reply = self.op("models")
        assert reply is not None
        return {model["name"]: model for model in reply["models"]}

    def phases(self, name: ModelName) -> list[tuple[str, str]]:
        return [(on["node"], on["phase"]) for on in self.models()[name]["on"]]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def error_of(reply: dict[str, Any] | None) -> dict[str, Any]:
    assert reply is not None
    error: dict[str, Any] = reply["error"]
    return error


def test_a_load_ends_when_its_node_has_begun_and_is_listed_at_once(desk: Desk) -> None:
    assert desk.op("model.load", node="n1", model=NEW) is None
    (command,) = desk.on(LINK, ModelLoad)
    assert command.model == NEW
    reply = desk.answer()
    assert (reply["kind"], reply["node"], reply["model"]) == ("end", "n1", "new")
    assert reply["phase"] == "loading"
    assert desk.phases(NEW) == [("n1", "loading")]
    assert desk.models()[NEW]["nodes"] == []
    assert desk.phases(TOY) == [("n1", "ready")]


def test_a_load_of_a_model_that_is_ready_says_so(desk: Desk) -> None:
    desk.op("model.load", node="n1", model=TOY)
    assert desk.answer()["phase"] == "ready"


def test_a_refusal_names_its_node_and_keeps_code_and_figures(desk: Desk) -> None:
    desk.op("model.load", node="n1", model=NEW)
    figures: dict[str, Any] = {"needed_bytes": 9, "free_bytes": 5, "loaded": (TOY,)}
    error = error_of(desk.answer(code="no_memory", message="too large", **figures))
    assert (error["code"], error["message"]) == ("no_memory", "node n1: too large")
    assert error["details"] == {
        "node": "n1",
        "model": "new",
        "needed_bytes": 9,
        "free_bytes": 5,
        "loaded": ["toy"],
    }
    assert NEW not in desk.models()


def test_nothing_is_placed_on_a_model_from_when_its_unload_was_asked(desk: Desk) -> None:
    assert desk.op("model.unload", node="n1", model=TOY, grace_s=1.5) is None
    (command,) = desk.on(LINK, ModelUnload)
    assert command.grace_ms == 1500
    desk.op("generate", model=TOY, prompt="hi", id=b"g")
    assert desk.answer()["phase"] == "unloading"
    desk.wait(60.0)
    error = error_of(desk.replies[-1])
    assert (error["code"], desk.on(LINK, GenerateReq)) == ("no_node", [])
    assert "toy is unloading there" in error["message"]
    desk.hear(LINK, NodeStatus(models=()))
    assert TOY in desk.models(), "the head has its folder"
    assert desk.phases(TOY) == []


def test_a_stream_that_was_given_up_goes_on_elsewhere_and_nobody_is_blamed(desk: Desk) -> None:
    request = desk.ask()
    answer = desk.core.runs.sessions.get(request.session).answer  # type: ignore[union-attr]
    desk.node(2, "n2")
    desk.op("model.unload", node="n1", model=TOY, grace_s=0)
    desk.answer()
    for _ in range(3):
        lost = Lost(
            session=request.session,
            epoch=request.epoch,
            generation=GenerationId(request.generation),
            worker=WorkerIncarnation(0),
            reason="toy was unloaded from this node",
        )
        desk.hear(LINK, lost)
    moved = desk.on(2)[-1]
    assert (moved.session, moved.generation > request.generation) == (request.session, True)
    assert answer is not None
    assert (answer.suspicion.deaths, answer.suspicion.set_apart) == (0, False)


def test_a_command_whose_answer_was_lost_goes_again_over_the_next_link(desk: Desk) -> None:
    desk.op("model.load", node="n1", model=NEW)
    desk.down(LINK)
    desk.wait(5.0)
    desk.node(2)
    assert desk.on(2, ModelLoad) == desk.on(LINK, ModelLoad)
    # An answer of another node, or of the link before, is none.
    before = len(desk.replies)
    desk.node(3, "n2")
    command = desk.on(2, ModelLoad)[0].command
    desk.hear(3, ModelAnswer(command=command, model=NEW))
    assert len(desk.replies) == before
    assert desk.answer(link=2)["kind"] == "end"
    # Once is enough: the same answer again is passed over.
    desk.hear(2, ModelAnswer(command=command, model=NEW))
    assert len(desk.replies) == before + 1


def test_without_an_answer_the_head_says_what_it_knows(desk: Desk) -> None:
    desk.op("model.load", node="n1", model=NEW)
    desk.wait(9.9)
    assert desk.replies == []
    desk.wait(0.2)
    error = error_of(desk.replies[-1])
    assert error["code"] == "timed_out"
    assert "n1 did not answer within 10 s; new is not served there" in error["message"]
    assert error["details"] == {"node": "n1", "model": "new", "phase": "not served"}
    desk.op("model.unload", node="n1", model=TOY)
    desk.down(LINK)
    desk.wait(11.0)
    assert "it is down (cut), and toy was unloading there" in desk.replies[-1]["error"]["message"]
    desk.node(2)
    assert desk.on(2, ModelUnload) == []


def test_nodes_that_are_unknown_down_or_older_are_refused_by_type() -> None:
    old = Desk(capabilities=tuple(name for name in CAPABILITIES if name != MODELS))
    error = error_of(old.op("model.load", node="n1", model=NEW))
    assert error["code"] == "unsupported_on_fleet"
    assert error["details"] == {"node": "n1", "capability": "models"}
    assert error_of(old.op("model.unload", node="n1", model=TOY))["code"] == "unsupported_on_fleet"
    assert old.on(LINK, ModelLoad, ModelUnload) == []
    assert old.phases(TOY) == [("n1", "ready")]
    assert error_of(old.op("model.load", node="n9", model=NEW))["code"] == "not_found"
    old.down(LINK)
    error = error_of(old.op("model.load", node="n1", model=NEW))
    assert (error["code"], error["details"]) == ("no_node", {"nodes": {"n1": "cut"}})


def test_a_node_that_comes_back_older_is_not_told_again(desk: Desk) -> None:
    desk.op("model.load", node="n1", model=NEW)
    desk.down(LINK)
    desk.node(2, capabilities=(), incarnation=2)
    assert error_of(desk.replies[-1])["code"] == "unsupported_on_fleet"
    assert desk.on(2, ModelLoad) == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"node": "n1"}, "model"),
        ({"model": "toy"}, "node"),
        ({"node": "n1", "model": "toy", "grace_s": -1}, "grace_s"),
    ],
)
def test_what_is_wrong_with_a_request_is_named(
    desk: Desk, body: dict[str, Any], param: str
) -> None:
    error = error_of(desk.op("model.unload", **body))
    assert (error["code"], error["param"]) == ("invalid", param)


def test_a_status_that_lists_the_model_again_is_the_truth(desk: Desk) -> None:
    desk.op("model.unload", node="n1", model=TOY)
    status = ModelStatus(name=TOY, phase="ready", lanes_total=2, worker=WorkerIncarnation(1))
    desk.hear(LINK, NodeStatus(models=(status,)))
    assert desk.phases(TOY) == [("n1", "ready")]


@pytest.mark.parametrize("op", ["model.load", "model.unload"])
def test_an_empty_name_is_of_the_field_model(desk: Desk, op: str) -> None:
    error = error_of(desk.op(op, node="n1", model=""))
    assert (error["code"], error["param"]) == ("invalid", "model")
    assert desk.on(LINK, ModelLoad) == desk.on(LINK, ModelUnload) == []


def test_a_model_that_the_node_does_not_know_is_of_the_field_model(desk: Desk) -> None:
    desk.op("model.unload", node="n1", model=NEW)
    error = error_of(desk.answer(code="not_found", message="it knows no model 'new'"))
    assert (error["code"], error["param"]) == ("not_found", "model")


def test_models_of_a_node_that_is_down_are_not_listed(desk: Desk) -> None:
    desk.hear(LINK, NodeStatus(models=(ModelStatus(name=NEW, phase="ready"),)))
    assert NEW in desk.models()
    desk.core.link_down(LINK, "cut", 1.0)
    desk.settle()
    assert set(desk.models()) == {TOY}, "the head has the toy's folder"


@pytest.mark.parametrize(
    "asked",
    [
        {"op": "generate", "prompt": "x"},
        {"op": "chat", "messages": [{"role": "user"}]},
        {"op": "explain"},
    ],
)
def test_no_text_is_asked_of_an_encoder(desk: Desk, asked: dict[str, Any]) -> None:
    desk.core.models_found({TOY: "/toy", NEW: "/encoder"}, 0.0)
    desk.settle()
    assert {name: model["kind"] for name, model in desk.models().items()} == {
        TOY: "decoder",
        NEW: "encoder",
    }
    error = error_of(desk.op(**asked, model=NEW))
    assert (error["code"], error["param"]) == ("invalid", "model")
    assert error["message"].startswith("new is an encoder: it makes embeddings, not text")


def test_a_model_that_no_node_serves_names_the_command_that_loads_it(desk: Desk) -> None:
    desk.core.models_found({TOY: "/toy", NEW: "/new"}, 0.0)
    desk.settle()
    desk.op("generate", model=NEW, prompt="x")
    desk.core.handle_timeout(100.0)
    desk.settle()
    error = error_of(desk.replies[-1])
    assert error["code"] == "no_node"
    assert "have one serve it: sfctl model load new n1, or start a node" in error["message"]

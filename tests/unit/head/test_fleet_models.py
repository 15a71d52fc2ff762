"""Several models in one fleet, and tokenizers that differ: who gets what, and what is said."""

from __future__ import annotations

from typing import Any

import pytest

from bus.ids import ModelName, NodeIdentity, NumericsId, WorkerIncarnation
from bus.messages.api import MARK, encode_body
from bus.messages.link import GenerateReq, NodeConfirm
from bus.messages.parts import ModelStatus
from head.cli.nodes import node_row, problems
from tests.harness.head_bench import CLIENT, TOY, Bench, run
from tests.harness.memory_parts import DIGEST

OTHER = ModelName("other")


def status(
    model: ModelName, digest: int = DIGEST, numerics: str = "same", weights_digest: int = 0
) -> ModelStatus:
    return ModelStatus(
        name=model,
        phase="ready",
        window_tokens=64,
        lanes_total=4,
        tokenizer_digest=digest,
        worker=WorkerIncarnation(1),
        numerics=NumericsId(numerics),
        weights_digest=weights_digest,
    )


def weights_problems(bench: Bench, model: ModelName) -> dict[str, str]:
    return {
        name: each["weights_problem"]
        for name, node in nodes(bench).items()
        for each in node["models"]
        if each["name"] == model
    }


def link(bench: Bench, number: int, name: str, *models: ModelStatus) -> None:
    confirm = NodeConfirm(identity=NodeIdentity(name), incarnation=1, software="x", models=models)
    bench.core.link_up(number, confirm, bench.now)
    bench.settle()


def nodes(bench: Bench) -> dict[str, dict[str, Any]]:
    body = encode_body({"op": "nodes", "id": b"n"})
    bench.core.client_request(CLIENT, [MARK, body], bench.now)
    bench.settle()
    return {node["identity"]: node for node in bench.replies[-1]["nodes"]}


def ask(bench: Bench, request: bytes, model: ModelName) -> None:
    body = {"op": "generate", "id": request, "model": model, "tokens": [65], "max_new": 4}
    bench.core.client_request(CLIENT, [MARK, encode_body(body)], bench.now)
    bench.settle()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_each_request_goes_to_a_node_that_serves_its_model(bench: Bench) -> None:
    bench.core.models_found({TOY: "/toy", OTHER: "/other"}, 0.0)
    bench.settle()
    link(bench, 1, "n1", status(TOY))
    link(bench, 2, "n2", status(OTHER))
    link(bench, 3, "n3", status(TOY), status(OTHER))
    for number, model in enumerate((TOY, OTHER, TOY, OTHER, OTHER, TOY)):
        ask(bench, b"r%d" % number, model)
    placed = [reply["node"] for reply in bench.events("placed")]
    assert len(bench.on(1, GenerateReq)) + len(bench.on(2, GenerateReq)) >= 2
    for node, model in zip(placed, (TOY, OTHER, TOY, OTHER, OTHER, TOY), strict=True):
        assert node in (("n1", "n3") if model == TOY else ("n2", "n3"))
    # Lanes of one model are no lanes of the other.
    shown = {m["name"]: m["in_flight"] for m in nodes(bench)["n3"]["models"]}
    assert sum(shown.values()) == placed.count("n3")


def test_a_model_that_no_node_serves_is_refused_beside_one_that_is_served(bench: Bench) -> None:
    bench.core.models_found({TOY: "/toy", OTHER: "/other"}, 0.0)
    bench.settle()
    link(bench, 1, "n1", status(TOY))
    bench.wait(30.0)
    ask(bench, b"r", OTHER)
    assert bench.replies[-1]["error"]["code"] == "no_node"
    ask(bench, b"s", TOY)
    assert len(bench.on(1, GenerateReq)) == 1


# --- tokenizers -----------------------------------------------------------------------------------


def test_a_node_with_another_tokenizer_gets_nothing_and_node_ls_says_so(bench: Bench) -> None:
    link(bench, 1, "n1", status(TOY, digest=0x5EED))
    link(bench, 2, "n2", status(TOY))
    for number in range(3):
        ask(bench, b"r%d" % number, TOY)
    assert (len(bench.on(1, GenerateReq)), len(bench.on(2, GenerateReq))) == (0, 3)
    found = nodes(bench)
    problem = found["n1"]["models"][0]["problem"]
    assert "its tokenizer for toy (0000000000005eed) differs from the fleet's" in problem
    assert node_row(found["n1"], {})["problem"] == problem
    assert not found["n2"]["models"][0]["problem"]
    assert any(problem in said for said in problems({"nodes": list(found.values()), "models": []}))


def test_without_a_copy_at_the_head_the_first_node_says_what_the_fleets_tokenizer_is(
    bench: Bench,
) -> None:
    bench.core.models_found({}, 0.0)
    link(bench, 1, "n1", status(TOY, digest=0))
    link(bench, 2, "z-first", status(TOY, digest=11))
    link(bench, 3, "a-second", status(TOY, digest=12))
    digests = {name: node["models"][0]["problem"] for name, node in nodes(bench).items()}
    assert "differs from the fleet's (000000000000000b)" in digests["a-second"]
    # One that does not know its own excludes itself from nothing.
    assert (digests["n1"], digests["z-first"]) == ("", "")
    assert bench.core.texts.digest(TOY) == 11
    # The first one keeps its place over a short outage of another, and loses it by its own.
    bench.down(2)
    assert bench.core.texts.digest(TOY) == 12


def test_a_copy_at_the_head_that_no_node_has_is_named(bench: Bench) -> None:
    link(bench, 1, "n1", status(TOY, digest=7))
    problem = nodes(bench)["n1"]["models"][0]["problem"]
    assert "remove that folder, and the head fetches theirs" in problem
    assert "on the head's machine: sfctl model rm toy" in problem
    link(bench, 2, "n2", status(TOY))
    problem = nodes(bench)["n1"]["models"][0]["problem"]
    assert problem.endswith("; import the same model file there, unload it and load it again")


def test_a_node_that_does_not_know_its_digest_may_serve(bench: Bench) -> None:
    link(bench, 1, "n1", status(TOY, digest=0))
    ask(bench, b"r", TOY)
    assert len(bench.on(1, GenerateReq)) == 1


def test_a_text_that_went_by_another_tokenizer_goes_to_no_node_of_the_old_one() -> None:
    """The first request after the change is it that tells the head."""
    bench = Bench()
    link(bench, 1, "n1", status(TOY))
    first = bench.ask(b"a")
    bench.text_digest = 0x5EED
    asked = {"op": "generate", "id": b"b", "model": TOY, "prompt": "hi"}
    bench.core.client_request(CLIENT, [MARK, encode_body(asked)], bench.now)
    bench.settle()
    bench.wait(30.0)
    assert len(bench.on(1, GenerateReq)) == 1
    refusal = bench.replies[-1]["error"]
    assert refusal["code"] == "no_node"
    assert "tokenizer" in refusal["message"]
    assert "differs" in nodes(bench)["n1"]["models"][0]["problem"]
    # A node that has the new one gets it, and the answer that ran is not moved there.
    link(bench, 2, "n2", status(TOY, digest=0x5EED))
    bench.ask(b"c")
    assert len(bench.on(2, GenerateReq)) == 1
    bench.hear(1, run(first, 0, 72, 105))
    bench.down(1)
    bench.wait(60.0)
    assert len(bench.on(2, GenerateReq)) == 1
    assert "".join(each["text"] for each in bench.events("token")) == "Hi"


# --- weights --------------------------------------------------------------------------------------


def test_a_node_report_says_who_has_other_weights_under_one_name(bench: Bench) -> None:
    link(bench, 1, "n1", status(TOY, weights_digest=7), status(OTHER, weights_digest=1))
    link(bench, 2, "n2", status(TOY, weights_digest=7), status(OTHER, weights_digest=1))
    link(bench, 3, "n3", status(TOY, weights_digest=0), status(OTHER))
    for model in (TOY, OTHER):
        assert weights_problems(bench, model) == {"n1": "", "n2": "", "n3": ""}
    link(bench, 4, "n4", status(TOY, weights_digest=8))
    found = weights_problems(bench, TOY)
    assert found["n4"] == (
        "its weights of toy (0000000000000008) are others than those on n1, n2, so what a request "
        "gets depends on its node; import the same file on all, or give one of them another name"
    )
    assert "(0000000000000007) are others than those on n4, so" in found["n1"]
    assert found["n3"] == ""
    assert nodes(bench)["n4"]["models"][0]["weights_digest"] == "0000000000000008"
    bench.down(4)
    assert weights_problems(bench, TOY)["n1"] == ""


# --- numerics -------------------------------------------------------------------------------------


def test_node_reports_carry_the_numerics_of_each_model(bench: Bench) -> None:
    link(bench, 1, "n1", status(TOY, numerics="cpu-1"), status(OTHER, numerics="cpu-2"))
    shown = {m["name"]: m["numerics"] for m in nodes(bench)["n1"]["models"]}
    assert shown == {TOY: "cpu-1", OTHER: "cpu-2"}

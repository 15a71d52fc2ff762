"""What nodes offer to a plan of stages, from what the head reports of them."""

from __future__ import annotations

from typing import Any

import pytest

from bus.errors import Invalid, NotFound
from head.stage_offers import Offers, measured_models, stage_offers

Map = dict[str, Any]


def node(name: str, free: int = 1000, state: str = "up", **rates: float) -> Map:
    """A node with models that it has decoded with."""
    models = [{"name": name, "decode_rate": rate} for name, rate in rates.items()]
    host = {"memory_free_bytes": free}
    return {"identity": name, "state": state, "host": host, "models": models}


def key(name: str, host: str, state: str = "enrolled") -> Map:
    return {"identity": name, "host": host, "state": state}


def report(*nodes: Map, keys: tuple[Map, ...] = ()) -> Map:
    return {"nodes": list(nodes), "enrolment": {"keys": list(keys)}}


def memory(offers: Offers) -> dict[str, int]:
    return {node.name: node.memory_bytes for node in offers.nodes}


def rates(offers: Offers) -> dict[str, float]:
    return {node.name: node.rate for node in offers.nodes}


def test_a_share_of_what_is_free_is_offered() -> None:
    assert memory(stage_offers(report(node("b", 500), node("a")), (), {})) == {"a": 800, "b": 400}


def test_nodes_of_one_machine_share_it() -> None:
    told = report(
        *(node(name) for name in "abcd"),
        node("e", state="down"),
        keys=(
            *(key(name, "h1") for name in "abe"),
            key("c", ""),
            key("d", "h1", "revoked"),
        ),
    )
    assert memory(stage_offers(told, (), {})) == {"a": 400, "b": 400, "c": 800, "d": 800}
    # also with one that is not asked for
    assert memory(stage_offers(told, ("a",), {})) == {"a": 400}


def test_nodes_that_can_take_nothing_are_left_out_and_told_of() -> None:
    told = report(node("a"), node("b", state="drained"), node("c", 0), node("d", state="down"))
    offers = stage_offers(told, (), {})
    assert memory(offers) == {"a": 800}
    assert offers.left_out == (
        "node b is drained",
        "node c does not say what memory its machine has free",
        "node d is down",
    )


@pytest.mark.parametrize(("name", "why"), [("b", "is drained"), ("c", "does not say what memory")])
def test_those_that_are_asked_for_have_to_be_there(name: str, why: str) -> None:
    told = report(node("a"), node("b", state="drained"), node("c", 0))
    with pytest.raises(Invalid, match=f"node {name} {why}.*; leave it out"):
        stage_offers(told, ("a", name), {})
    with pytest.raises(NotFound, match="no node x is known"):
        stage_offers(told, ("a", "x"), {})
    assert stage_offers(told, ("a", "a"), {}).left_out == ()


def test_rates_are_steps_by_the_bytes_of_each() -> None:
    told = report(node("a", toy=10.0, big=2.0), node("b", big=3.0), node("c"), node("d", other=9.0))
    offers = stage_offers(told, (), {"toy": 100, "big": 1000, "none": 0})
    assert rates(offers) == {"a": 2000.0, "b": 3000.0, "c": 0.0, "d": 0.0}
    assert offers.measured
    assert measured_models(told) == {"toy", "big", "other"}


def test_without_bytes_the_model_that_most_have_says_who_is_faster() -> None:
    told = report(node("a", toy=10.0, big=2.0), node("b", big=3.0), node("c", other=9.0))
    offers = stage_offers(told, (), {"absent": 5})
    assert rates(offers) == {"a": 2.0, "b": 3.0, "c": 0.0}
    assert not offers.measured


def test_a_chain_that_a_node_drives_says_nothing_of_it() -> None:
    driver = node("a", big=2.0)
    driver["models"][0]["stage"] = {"index": 1, "stages": 2}
    offers = stage_offers(report(driver, node("b", state="down", toy=1.0)), (), {"big": 1000})
    assert rates(offers) == {"a": 0.0}
    assert not offers.measured
    assert measured_models(report(driver)) == set()

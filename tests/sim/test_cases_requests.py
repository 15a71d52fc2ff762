"""Cases from the field under virtual time: what a request may ask; by their numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from head.core import CorePolicy
from head.runs import RunPolicy
from head.waiting import WaitingPolicy
from tests.harness.fleet_checks import MORE_THAN_ROOM, check_complete, check_idle
from tests.harness.memory_fleet import MemoryFleet
from tests.harness.memory_parts import WINDOW


def test_g5_a_prompt_longer_than_every_window_is_refused_with_both_numbers() -> None:
    fleet = MemoryFleet(nodes=2, windows=(100, WINDOW))
    fleet.run(1.0)
    stream = fleet.generate("x" * (WINDOW + 1), 5)
    fleet.finish(stream)
    assert stream.error is not None
    assert stream.error["code"] == "context_length_exceeded"
    assert stream.error["details"] == {"length": WINDOW + 1, "max": WINDOW}
    assert str(WINDOW) in stream.error["message"]
    assert str(WINDOW + 1) in stream.error["message"]
    check_idle(fleet)


@pytest.mark.parametrize("policy", ["load-aware", "least-loaded", "round-robin"])
def test_g5_a_prompt_longer_than_one_window_goes_to_the_node_that_holds_it(policy: str) -> None:
    fleet = MemoryFleet(nodes=2, windows=(100, WINDOW), policy=placed_by(policy))
    fleet.run(1.0)
    prompts = [f"{i}" * 101 for i in range(6)]
    streams = [fleet.generate(prompt, 5) for prompt in prompts]
    fleet.finish(*streams)
    for stream, prompt in zip(streams, prompts, strict=True):
        check_complete(stream, prompt, 5)
        assert stream.end is not None
        assert stream.end["node"] == "node-2"
        assert stream.end["usage"]["prompt"] == 101


def placed_by(policy: str) -> CorePolicy:
    return CorePolicy(runs=RunPolicy(waiting=WaitingPolicy(placement=policy)))


def test_g9_a_wall_budget_of_a_millisecond_expires_and_leaves_nothing() -> None:
    fleet = MemoryFleet()
    fleet.run(1.0)
    blockers = [fleet.generate(f"b{i}", 100) for i in range(MORE_THAN_ROOM)]
    fleet.run(0.1)
    stream = fleet.generate("late", 50, max_wall_ms=1)
    fleet.finish(stream, limit_s=1.0)
    assert stream.error is not None
    assert stream.error["code"] == "expired"
    assert "max_wall_ms" in stream.error["message"]
    fleet.finish(*blockers)
    check_idle(fleet)


@pytest.mark.parametrize(
    "bias", [{"999999": 1.0}, {"x": 1.0}, {"1": math.inf}, {"1": math.nan}, [1], "1"]
)
def test_g10_logit_bias_is_refused_by_name_and_never_passed_over(bias: Any) -> None:
    fleet = MemoryFleet()
    fleet.run(1.0)
    stream = fleet.generate("bias", 5, logit_bias=bias)
    fleet.finish(stream)
    assert stream.error is not None
    assert (stream.error["code"], stream.error["param"]) == ("invalid", "logit_bias")
    good = fleet.generate("next", 5)
    fleet.finish(good)
    check_complete(good, "next", 5)


def test_g10_an_empty_logit_bias_is_fine() -> None:
    fleet = MemoryFleet()
    stream = fleet.generate("no bias", 5, logit_bias={})
    fleet.finish(stream)
    check_complete(stream, "no bias", 5)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        *((name, value) for name in ("temperature", "top_p", "min_p") for value in (math.nan, -1)),
        *((name, math.inf) for name in ("temperature", "top_p", "min_p")),
        ("top_k", -1),
        ("top_k", 1 << 40),
        ("max_new", -1),
        ("max_new", 1 << 40),
        ("max_new", "many"),
        ("max_wall_ms", -1),
        # Once one request of this kind ended the head.
        ("max_wall_ms", (1 << 64) - 1),
        ("seed", -1),
        ("seed", "seven"),
        ("tokens", [-1]),
        ("tokens", ["a"]),
        ("tokens", []),
    ],
)
def test_g10_a_number_out_of_its_range_is_refused_by_name(param: str, value: Any) -> None:
    fleet = MemoryFleet()
    fleet.run(1.0)
    body = {"model": "toy", "prompt": "bad", "max_new": 3, param: value}
    if param == "tokens":
        del body["prompt"]
    stream = fleet.request("generate", **body)
    fleet.finish(stream)
    assert stream.error is not None, f"{param} {value!r} was served"
    assert stream.error["code"] == "invalid"
    assert stream.error["param"].split("[")[0] == ("prompt" if value == [] else param)
    good = fleet.generate("next", 5)
    fleet.finish(good)
    check_complete(good, "next", 5)


@pytest.mark.parametrize("seed", [0, 1, (1 << 63) - 1, (1 << 64) - 1])
def test_g10_every_seed_of_64_bits_is_served(seed: int) -> None:
    fleet = MemoryFleet()
    stream = fleet.generate("seed", 3, seed=seed)
    fleet.finish(stream)
    check_complete(stream, "seed", 3)

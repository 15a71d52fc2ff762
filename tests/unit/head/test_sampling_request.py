"""Sampling parameters of a request: read, checked, and named when they are wrong."""

from __future__ import annotations

import json
import math
from typing import Any

import msgpack
import pytest

from bus.api_maps import from_map, to_map
from bus.errors import SuperfluidError
from bus.ids import ModelName, pack_ids
from bus.messages.api import MARK, GenerateRequest, decode_body, encode_body
from bus.messages.link import GenerateReq
from bus.messages.sampling import Constraint, SamplingParams
from bus.messages.text import CheckConstraint
from head.rows import PutAnswer
from head.sampling_request import check_ids, sampling_of
from tests.harness.head_bench import CLIENT, Bench
from tests.harness.memory_text import MARKED_IDS, REFUSED

OBJECT = {"type": "object"}


def asked(**body: Any) -> SamplingParams:
    """What a body asks for, as it comes over the wire."""
    read = decode_body([MARK, encode_body({"model": "m", "prompt": "hi", **body})])
    return sampling_of(from_map(GenerateRequest, read))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, SamplingParams()),
        ({"stop": "end"}, SamplingParams(stop=("end",))),
        ({"stop": ["a", "b", "a"]}, SamplingParams(stop=("a", "b"))),
        ({"stop": []}, SamplingParams()),
        ({"stop": None}, SamplingParams()),
        ({"stop_ids": [7, 3, 7]}, SamplingParams(stop_ids=pack_ids([3, 7]))),
        ({"min_tokens": 4}, SamplingParams(min_tokens=4)),
        ({"repetition_penalty": 1.2}, SamplingParams(repetition_penalty=1.2)),
        ({"presence_penalty": -1}, SamplingParams(presence_penalty=-1.0)),
        ({"frequency_penalty": 0.5}, SamplingParams(frequency_penalty=0.5)),
        ({"logprobs": True}, SamplingParams(logprobs=1)),
        ({"logprobs": 0}, SamplingParams(logprobs=1)),
        ({"logprobs": 20}, SamplingParams(logprobs=21)),
        ({"logprobs": False}, SamplingParams()),
    ],
)
def test_what_is_asked_is_what_the_node_gets(
    body: dict[str, Any], expected: SamplingParams
) -> None:
    assert asked(**body) == expected


def test_g10_an_empty_map_of_biases_is_fine() -> None:
    assert asked(logit_bias={}) == SamplingParams()


@pytest.mark.parametrize("bias", [{9: 1, 2: -0.5}, {"9": 1.0, "2": -0.5}])
def test_ids_of_biases_are_numbers_or_their_text(bias: dict[Any, float]) -> None:
    made = asked(logit_bias=bias)
    assert (made.bias_ids, made.biases) == (pack_ids([2, 9]), (-0.5, 1.0))


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"logit_bias": {"eleven": 1.0}}, "logit_bias", "has 'eleven' as a token id"),
        ({"logit_bias": {"-1": 1.0}}, "logit_bias", "has '-1' as a token id"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias", "has '-1' as a token id"),
        ({"logit_bias": {"1.0": 1.0}}, "logit_bias", "has '1.0' as a token id"),
        ({"logit_bias": {"٣": 1.0}}, "logit_bias", "as a token id"),
        ({"logit_bias": {"": 1.0}}, "logit_bias", "has '' as a token id"),
        ({"logit_bias": {b"1": 1.0}}, "logit_bias", "has b'1' as a token id"),
        ({"logit_bias": {2**32: 1.0}}, "logit_bias", "has id 4294967296, which no vocabulary"),
        ({"logit_bias": {"9" * 5000: 1.0}}, "logit_bias", "has id 9999"),
        ({"logit_bias": {"1": 1.0, "01": 2.0}}, "logit_bias", "has id 1 twice"),
        ({"logit_bias": {5: math.inf}}, "logit_bias", "of id 5 is inf"),
        ({"logit_bias": {5: -math.inf}}, "logit_bias", "of id 5 is -inf"),
        ({"logit_bias": {5: math.nan}}, "logit_bias", "of id 5 is nan"),
        ({"logit_bias": {5: 10_001}}, "logit_bias", "should be -10000 to 10000"),
        ({"logit_bias": {5: True}}, "logit_bias", "of id 5 should be a number"),
        ({"logit_bias": {5: "1"}}, "logit_bias", "of id 5 should be a number, not text"),
        ({"logit_bias": [5, 1.0]}, "logit_bias", "should be a map"),
        ({"logit_bias": dict.fromkeys(range(4097), 1.0)}, "logit_bias", "at most 4096"),
        ({"stop": ""}, "stop", "is empty"),
        ({"stop": ["a", ""]}, "stop[1]", "is empty"),
        ({"stop": ["a", 5]}, "stop[1]", "should be text"),
        ({"stop": 5}, "stop", "a text or a list of texts"),
        ({"stop": "x" * 257}, "stop", "longer than 256 bytes"),
        ({"stop": [str(n) for n in range(17)]}, "stop", "at most 16"),
        ({"stop_ids": [-1]}, "stop_ids[0]", "should be 0 to"),
        ({"min_tokens": 300}, "min_tokens", "max_new 256"),
        ({"repetition_penalty": 0}, "repetition_penalty", "should be 0.01 to 100"),
        ({"presence_penalty": math.nan}, "presence_penalty", "nan"),
        ({"frequency_penalty": math.inf}, "frequency_penalty", "inf"),
        ({"logprobs": 21}, "logprobs", "should be 0 to 20"),
        ({"logprobs": -1}, "logprobs", "should be 0 to 20"),
        ({"logprobs": 1.5}, "logprobs", "whole number or true"),
        ({"logprobs": "5"}, "logprobs", "whole number or true"),
    ],
)
def test_g10_what_is_wrong_is_named(body: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(SuperfluidError) as caught:
        asked(**body)
    assert caught.value.param == param
    assert words in caught.value.message
    assert len(caught.value.message) < 300


def test_g10_ids_outside_the_vocabulary_are_named() -> None:
    for body, param in (
        ({"logit_bias": {99: 1.0}}, "logit_bias"),
        ({"stop_ids": [99]}, "stop_ids"),
    ):
        check_ids(asked(**body), ModelName("m"), 100)
        with pytest.raises(
            SuperfluidError, match=f"{param} has id 99; m has ids 0 to 98"
        ) as caught:
            check_ids(asked(**body), ModelName("m"), 99)
        assert caught.value.param == param


# --- constraints ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {"schema": OBJECT},
        {"schema": json.dumps(OBJECT)},
        {"constraint": {"json_schema": OBJECT}},
        {"constraint": {"json_schema": json.dumps(OBJECT)}},
    ],
)
def test_a_schema_may_be_a_map_or_its_text(body: dict[str, Any]) -> None:
    made = asked(**body).constraint
    assert made is not None
    assert (made.kind, json.loads(made.source)) == ("json_schema", OBJECT)


def test_other_constraints_are_text() -> None:
    assert asked(constraint={"regex": "a+"}).constraint == Constraint(kind="regex", source="a+")
    lark = 'start: "a"'
    assert asked(constraint={"lark": lark}).constraint == Constraint(kind="lark", source=lark)


def test_a_schema_may_be_deep() -> None:
    schema: dict[str, Any] = {}
    for _ in range(20):
        schema = {"properties": {"x": schema}}
    assert asked(schema=schema).constraint is not None


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"schema": "a string"}, "schema", "is no JSON"),
        ({"schema": '"a string"'}, "schema", "not the JSON of text"),
        ({"schema": []}, "schema", "should be a map, or its JSON text, not a list"),
        ({"schema": "[1]"}, "schema", "not the JSON of a list"),
        ({"schema": 5}, "schema", "should be a map"),
        ({"schema": False}, "schema", "should be a map"),
        ({"schema": ""}, "schema", "is no JSON"),
        ({"schema": {"const": math.nan}}, "schema", "is no JSON"),
        ({"schema": {"const": b"x"}}, "schema", "is no JSON"),
        ({"schema": {}, "constraint": {"regex": "a"}}, "schema", "one of schema and constraint"),
        ({"constraint": {}}, "constraint", "one key"),
        ({"constraint": {"regex": "a", "lark": "b"}}, "constraint", "one key"),
        (
            {"constraint": {"gbnf": "a"}},
            "constraint",
            "no constraint 'gbnf'; there are json_schema",
        ),
        ({"constraint": {"json_schema": None}}, "constraint.json_schema", "not nothing"),
        ({"constraint": {"regex": ""}}, "constraint.regex", "is empty"),
        ({"constraint": {"regex": {}}}, "constraint.regex", "should be text, not a map"),
        ({"constraint": {"regex": "a" * 262_145}}, "constraint.regex", "at most 262144"),
        ({"constraint": "regex"}, "constraint", "should be a map"),
        ({"constraint": ["regex"]}, "constraint", "should be a map"),
    ],
)
def test_s1_a_constraint_that_is_none_is_refused_by_name(
    body: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(SuperfluidError) as caught:
        asked(**body)
    assert caught.value.param == param
    assert words in caught.value.message


def test_parameters_are_kept_and_read_as_they_were() -> None:
    made = asked(logit_bias={1: 2.0}, stop=["x"], schema=OBJECT, logprobs=3, min_tokens=2)
    assert from_map(SamplingParams, to_map(made)) == made


# --- at the head ----------------------------------------------------------------------------------


def refuse(bench: Bench, **body: Any) -> dict[str, Any]:
    """The error reply of a request that must not reach a node."""
    before = len(bench.sent)
    request = {"op": "generate", "id": b"r", "model": "toy", "prompt": "hi", **body}
    bench.core.client_request(CLIENT, [MARK, encode_body(request)], bench.now)
    bench.settle()
    assert len(bench.sent) == before
    error: dict[str, Any] = bench.replies[-1]["error"]
    return error


def test_g10_an_id_outside_the_vocabulary_is_refused_before_it_waits(bench: Bench) -> None:
    error = refuse(bench, logit_bias={str(MARKED_IDS): 1.0})
    assert (error["code"], error["param"]) == ("invalid", "logit_bias")
    assert str(MARKED_IDS) in error["message"]
    assert refuse(bench, stop_ids=[MARKED_IDS])["param"] == "stop_ids"


def test_s1_a_constraint_that_can_not_be_honoured_is_refused_before_it_waits(bench: Bench) -> None:
    error = refuse(bench, constraint={"regex": REFUSED})
    assert (error["code"], error["param"]) == ("constraint_invalid", "constraint")


def test_a_constraint_is_checked_and_goes_to_the_node_and_into_the_store(bench: Bench) -> None:
    jobs = []
    submit = bench.core.outbox.text_job

    def text_job(message: object, client: bytes) -> None:
        jobs.append(message)
        submit(message, client)

    bench.core.outbox.text_job = text_job  # type: ignore[method-assign]
    request = bench.ask(schema=OBJECT, key="k")
    expected = Constraint(kind="json_schema", source=json.dumps(OBJECT))
    assert [job.constraint for job in jobs if isinstance(job, CheckConstraint)] == [expected]
    assert request.sampling.constraint == expected
    (row,) = (row for row in bench.rows if isinstance(row, PutAnswer))
    kept = msgpack.unpackb(row.options)["sampling"]
    assert from_map(SamplingParams, kept) == request.sampling


def test_a_constraint_is_refused_under_the_name_that_it_was_given(bench: Bench) -> None:
    error = refuse(bench, schema={"const": REFUSED})
    assert (error["code"], error["param"]) == ("constraint_invalid", "schema")


def test_a_node_of_an_older_version_is_not_asked_for_what_it_would_pass_over() -> None:
    bench = Bench()
    bench.node(1, capabilities=())
    error = refuse(bench, stop="x")
    assert error["code"] == "unsupported_on_fleet"
    assert "sampling" in error["message"]
    assert isinstance(bench.ask(b"plain", temperature=0.0), GenerateReq)

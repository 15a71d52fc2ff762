"""Sampling parameters and log-probabilities through the client and `sfctl`, on a scripted head."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import superfluid
from bus.errors import WireError
from head.cli.command_line import cli
from tests.e2e.scripted_head import Body, ScriptedHead, end, placed, token

PARIS: Body = {"token": 7, "text": " Paris", "logprob": -0.25}
SPLIT: Body = {"token": 9, "text": "\ufffd", "logprob": -1.5, "raw": b"\xed\x95"}
LOGPROBS: list[Body] = [{**PARIS, "top": [PARIS, SPLIT]}, {**SPLIT, "top": []}]
OPTIONS: Body = {
    "stop": ["\n", "END"],
    "stop_ids": [3],
    "min_tokens": 2,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "logit_bias": {5: -100.0},
    "logprobs": 1,
    "schema": {"type": "object"},
}


def _script(body: Body) -> list[Body]:
    if body["op"] not in ("chat", "generate", "session.generate"):
        return [{"kind": "end"}]
    event = token(0, [7, 9], " Paris")
    if "logprobs" in body:
        event["logprobs"] = LOGPROBS
    return [placed(), event, {**end(2), "stop": "END"}]


@pytest.fixture
def head(tmp_path: Path) -> Iterator[ScriptedHead]:
    with ScriptedHead(f"ipc://{tmp_path / 'api'}", _script) as made:
        yield made


def test_every_parameter_travels_and_log_probabilities_come_back(head: ScriptedHead) -> None:
    with superfluid.connect(head.address) as client:
        call = client.generate("m", "The capital of France is", **OPTIONS)
        answer = call.result()
        client.chat("m", [], **OPTIONS).result()
        client.session_generate("s1", **OPTIONS).result()
    for request in head.requests[:3]:
        asked = {name: request[name] for name in OPTIONS}
        assert asked == {**OPTIONS, "logit_bias": {"5": -100.0}}
    assert (answer.finish, answer.stop) == ("stop", "END")
    paris, split = answer.logprobs
    assert (paris.token, paris.text, paris.logprob, paris.raw) == (7, " Paris", -0.25, None)
    assert [(one.token, one.logprob) for one in paris.top] == [(7, -0.25), (9, -1.5)]
    assert (split.raw, split.top) == (b"\xed\x95", ())
    assert call.logprobs == answer.logprobs
    assert json.loads(json.dumps(answer.to_dict()))["logprobs"] == [
        {
            "token": 7,
            "text": " Paris",
            "logprob": -0.25,
            "top": [PARIS, {**SPLIT, "raw": [237, 149]}],
        },
        {"token": 9, "text": "\ufffd", "logprob": -1.5, "top": [], "raw": [237, 149]},
    ]


def test_without_asking_there_are_none(head: ScriptedHead) -> None:
    with superfluid.connect(head.address) as client:
        answer = client.generate("m", "hi").result()
    assert answer.logprobs == ()
    assert "logprobs" not in answer.to_dict()
    assert not any(name in head.requests[0] for name in OPTIONS)


@pytest.mark.parametrize("change", [{"logprob": float("nan")}, {"token": -1}, {"top": [1]}])
def test_wrong_log_probabilities_are_an_error(head: ScriptedHead, change: Body) -> None:
    def script(body: Body) -> list[Body]:
        event = {**token(0, [7], "x"), "logprobs": [{**PARIS, **change}]}
        return [event, end(1)] if body["op"] == "generate" else [{"kind": "end"}]

    head._script = script
    with superfluid.connect(head.address) as client, pytest.raises(WireError, match="token event"):
        client.generate("m", "hi", logprobs=0).result()


def test_as_many_log_probabilities_as_tokens(head: ScriptedHead) -> None:
    def script(body: Body) -> list[Body]:
        event = {**token(0, [7, 8], "x"), "logprobs": [PARIS]}
        return [event, end(2)] if body["op"] == "generate" else [{"kind": "end"}]

    head._script = script
    with superfluid.connect(head.address) as client, pytest.raises(WireError, match="1 log-prob"):
        client.generate("m", "hi", logprobs=0).result()


def sfctl(head: ScriptedHead, *arguments: str) -> str:
    result = CliRunner().invoke(cli, ["--api", head.address, *arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_sfctl_run_takes_every_parameter(head: ScriptedHead, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    options = (
        *("--stop", "\n", "--stop", "END", "--min-tokens", "2", "--repetition-penalty", "1.1"),
        *("--presence-penalty", "0.5", "--frequency-penalty", "-0.5"),
        *("--logit-bias", "5=-100", "--logit-bias", "6=1", "--logprobs", "1"),
    )
    sfctl(head, "run", "toy", "hi", *options, "--schema", str(schema))
    sfctl(head, "run", "toy", "hi", "--schema", '{"type": "array"}')
    sfctl(head, "run", "toy", "hi", "--regex", "a+")
    grammar = tmp_path / "grammar.lark"
    grammar.write_text('start: "a"')
    sfctl(head, "run", "toy", "hi", "--grammar", str(grammar))
    first, *others = (request for request in head.requests if request["op"] == "chat")
    expected = {
        "stop": ["\n", "END"],
        "min_tokens": 2,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"5": -100.0, "6": 1.0},
        "logprobs": 1,
        "schema": '{"type": "object"}',
    }
    assert {name: first[name] for name in expected} == expected
    assert others[0]["schema"] == '{"type": "array"}'
    assert [chat["constraint"] for chat in others[1:]] == [{"regex": "a+"}, {"lark": 'start: "a"'}]
    assert not {"regex", "grammar", "stop", "logit_bias"} & others[1].keys()


def test_sfctl_run_tells_log_probabilities_after_the_text(head: ScriptedHead) -> None:
    assert sfctl(head, "run", "toy", "hi", "--logprobs", "1").splitlines() == [
        " Paris",
        "  -0.2500  ' Paris'          ' Paris' -0.2500  '\ufffd' -1.5000",
        "  -1.5000  '\ufffd'",
    ]
    answer = json.loads(sfctl(head, "run", "toy", "hi", "--logprobs", "1", "-o", "json"))
    assert answer["stop"] == "END"
    assert [one["token"] for one in answer["logprobs"]] == [7, 9]

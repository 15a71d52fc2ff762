"""`sfctl` commands that speak with a head, against a scripted one."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bus.errors import ConfigInvalid, NoNode, PortInUse
from head.cli import cli, preflight
from tests.e2e.scripted_head import Body, ScriptedHead, answer_of

NODE: Body = {
    "identity": "node-1-abc",
    "state": "up",
    "reason": "",
    "generations": 1,
    "models": [
        {
            "name": "toy",
            "phase": "ready",
            "problem": "",
            "lanes_used": 1,
            "lanes_total": 4,
            "decode_rate": 12.34,
        }
    ],
}
MODEL: Body = {"name": "toy", "ready": True, "nodes": ["node-1-abc"], "window_tokens": 512}
HEAD: Body = {"id": "h1", "version": "0.1.0", "uptime_s": 5.0, "placement": "load-aware"}


class _Fleet:
    """The script of a head with one node, in a state that a test sets."""

    def __init__(self) -> None:
        self.node, self.ready = dict(NODE), True

    def __call__(self, body: Body) -> list[Body]:
        model = MODEL | {"ready": self.ready}
        if body["op"] == "status":
            return [{"kind": "end", "head": HEAD, "nodes": [self.node], "models": [model]}]
        if body["op"] == "nodes":
            return [{"kind": "end", "nodes": [self.node]}]
        if body["op"] == "models":
            return [{"kind": "end", "models": [model]}]
        if body.get("model") != "toy":
            error = NoNode("no node serves it: node-1-abc has only toy", retry_after_ms=500)
            return [{"kind": "error", "error": error.to_dict()}]
        return answer_of("Hi", " there")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[_Fleet, ScriptedHead]]:
    script = _Fleet()
    with ScriptedHead(f"ipc://{tmp_path / 'api'}", script) as head:
        yield script, head


def _sfctl(head: ScriptedHead, *arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["--api", head.address, *arguments], input=stdin)


def test_run_streams_to_stdout_and_tells_the_rest_on_stderr(
    fleet: tuple[_Fleet, ScriptedHead],
) -> None:
    result = _sfctl(fleet[1], "run", "toy", "hello", "--max-new", "9", "--system", "be brief")
    assert (result.exit_code, result.stdout) == (0, "Hi there\n")
    assert result.stderr == ("[node-1-abc: 2 tokens, 50.0 tokens/s, first after 20 ms, stop]\n")
    (request,) = fleet[1].requests
    assert (request["op"], request["max_new"]) == ("chat", 9)
    assert [m["role"] for m in request["messages"]] == ["system", "user"]


def test_run_as_json_from_stdin(fleet: tuple[_Fleet, ScriptedHead]) -> None:
    result = _sfctl(fleet[1], "run", "--raw", "toy", "-o", "json", stdin="once")
    answer = json.loads(result.stdout)
    assert (answer["text"], answer["tokens"], answer["finish"]) == ("Hi there", [0, 1], "stop")
    (request,) = fleet[1].requests
    assert (request["op"], request["prompt"]) == ("generate", "once")


def test_run_of_an_unserved_model_is_3(fleet: tuple[_Fleet, ScriptedHead]) -> None:
    result = _sfctl(fleet[1], "run", "big", "hello")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "error: no node serves it: node-1-abc has only toy\n"


def test_chat_keeps_the_conversation(fleet: tuple[_Fleet, ScriptedHead]) -> None:
    result = _sfctl(fleet[1], "chat", "toy", stdin="one\n\ntwo\n")
    assert (result.exit_code, result.stdout) == (0, "Hi there\nHi there\n")
    last = fleet[1].requests[-1]["messages"]
    assert [(m["role"], m["content"]) for m in last] == [
        ("user", "one"),
        ("assistant", "Hi there"),
        ("user", "two"),
    ]


def test_status_of_a_healthy_fleet(fleet: tuple[_Fleet, ScriptedHead]) -> None:
    result = _sfctl(fleet[1], "status")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "head h1  version 0.1.0  up 5 s  placement load-aware" in result.stdout
    assert "node-1-abc  up     toy (ready)  1            1/4    12.3      -" in result.stdout


def test_status_of_a_degraded_fleet_is_3(fleet: tuple[_Fleet, ScriptedHead]) -> None:
    fleet[0].node |= {"state": "down", "reason": "silent for 30 s"}
    fleet[0].ready = False
    result = _sfctl(fleet[1], "status")
    assert result.exit_code == 3
    assert "problem: node node-1-abc is down: silent for 30 s" in result.stderr
    shown = json.loads(_sfctl(fleet[1], "status", "-o", "json").stdout)
    assert len(shown["problems"]) == 2


def test_nodes_and_models_as_json_are_the_heads_own(fleet: tuple[_Fleet, ScriptedHead]) -> None:
    assert json.loads(_sfctl(fleet[1], "node", "ls", "-o", "json").stdout) == [NODE]
    assert json.loads(_sfctl(fleet[1], "model", "ls", "--fleet", "-o", "json").stdout) == [MODEL]


@pytest.mark.parametrize("command", [["status"], ["node", "ls"], ["run", "m", "p"]])
def test_without_a_head_it_is_4_with_the_remedy(tmp_path: Path, command: list[str]) -> None:
    result = CliRunner().invoke(cli, ["--state", str(tmp_path), *command])
    assert result.exit_code == 4
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert "sfctl up" in line


def test_a_port_that_another_has() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        bind = f"tcp://127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(PortInUse, match="SUPERFLUID_FLEET_BIND"):
            preflight.check_port(bind)
    preflight.check_port(bind)


@pytest.mark.parametrize("bind", ["", "tcp://127.0.0.1:0", "ipc:///x"])
def test_what_takes_no_fixed_port(bind: str) -> None:
    preflight.check_port(bind)


def test_an_address_of_no_card_here() -> None:
    with pytest.raises(ConfigInvalid, match=r"can not listen on tcp://192\.0\.2\.1:8454"):
        preflight.check_port("tcp://192.0.2.1:8454")

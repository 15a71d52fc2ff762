"""`sfctl` commands that speak with a head, against a scripted one."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bus.agent_status import AgentLink, AgentStatus, write_agent_status
from bus.errors import (
    ConfigInvalid,
    NodeLost,
    NoNode,
    NotFound,
    PortInUse,
    SuperfluidError,
)
from head.cli import cli, preflight
from tests.e2e.scripted_head import Body, ScriptedHead, answer_of, end, token

#: Generous; nothing waits for it to pass.
LIMIT_S = 30.0
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
SESSION: Body = {
    "model": "toy",
    "state": "ended",
    "finish": "stop",
    "tokens": 3,
    "answer_tokens": 2,
    "age_s": 61.0,
}
TEXTS = ("Hi", " there")
HEAD: Body = {"id": "h1", "version": "0.1.0", "uptime_s": 5.0, "placement": "load-aware"}


class _Fleet:
    """The script of a head with one node, in a state that a test sets."""

    def __init__(self) -> None:
        self.node, self.ready = dict(NODE), True
        self.more: list[Body] = []
        self.refusal: SuperfluidError | None = None
        #: What else is told of the model.
        self.told: Body = {}
        self.others: list[Body] = []
        self.unknown_on: set[str] = set()

    def __call__(self, body: Body) -> list[Body]:
        model = MODEL | {"ready": self.ready} | self.told
        if body["op"] == "status":
            return [
                {"kind": "end", "head": HEAD, "nodes": [self.node, *self.more], "models": [model]}
            ]
        if body["op"] == "nodes":
            return [{"kind": "end", "nodes": [self.node, *self.others]}]
        if body["op"] == "model.unload":
            if body["node"] not in self.unknown_on:
                return [{"kind": "end"}]
            unknown = NotFound(f"node {body['node']}: it knows no model", param="model")
            return [{"kind": "error", "error": unknown.to_dict()}]
        if body["op"] == "models":
            return [{"kind": "end", "models": [model]}]
        if body["op"] == "session.ls":
            below = int(body.get("after", "s-99-0").split("-")[1])
            numbers = list(range(below - 1, 0, -1))[: body["limit"]]
            rows = [SESSION | {"session": f"s-{number}-0"} for number in numbers]
            return [{"kind": "end", "sessions": rows, "next": rows[-1]["session"]}]
        if body["op"] == "attach":
            first = body["offset"]
            return [*(token(i, [i], t) for i, t in enumerate(TEXTS) if i >= first), end(len(TEXTS))]
        if self.refusal is not None:
            return [{"kind": "error", "error": self.refusal.to_dict()}]
        if body.get("model") != "toy":
            error = NoNode("no node serves it: node-1-abc has only toy", retry_after_ms=500)
            return [{"kind": "error", "error": error.to_dict()}]
        return answer_of(*TEXTS)


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
    assert result.stderr == (
        "[node-1-abc: 2 tokens, 50.0 tokens/s, first after 20 ms, stop; session s1]\n"
    )
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


@pytest.mark.parametrize("goodbye", ["/exit", "/quit "])
def test_a_chat_ends_by_its_own_words(fleet: tuple[_Fleet, ScriptedHead], goodbye: str) -> None:
    result = _sfctl(fleet[1], "chat", "toy", stdin=f"one\n{goodbye}\ntwo\n")
    assert (result.exit_code, result.stdout) == (0, "Hi there\n")


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"kind": "decoder", "chat_template": False}, "run --raw toy TEXT"),
        ({"kind": "encoder", "chat_template": False}, "toy is an encoder; it makes embeddings"),
    ],
)
def test_a_model_that_can_not_be_talked_with_is_told_at_once(
    fleet: tuple[_Fleet, ScriptedHead], told: Body, says: str
) -> None:
    fleet[0].told = told
    result = _sfctl(fleet[1], "chat", "toy", stdin="one\n")
    assert result.exit_code == 2
    assert says in result.stderr
    assert [body for body in fleet[1].requests if body["op"] == "chat"] == []


def test_an_unload_of_a_name_that_one_of_two_nodes_knows_is_done(
    fleet: tuple[_Fleet, ScriptedHead],
) -> None:
    script, head = fleet
    script.others = [NODE | {"identity": "node-2-abc"}]
    script.unknown_on = {"node-2-abc"}
    asked = ("model", "unload", "new", "--all")
    assert _sfctl(head, *asked).exit_code == 0
    script.unknown_on.add("node-1-abc")
    result = _sfctl(head, *asked)
    assert result.exit_code == 5
    assert "knows no model" in result.stderr


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
    assert f"`sfctl --state {tmp_path} up`" in line


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


def test_a_node_that_left_on_purpose_is_no_problem(fleet: tuple[_Fleet, ScriptedHead]) -> None:
    fleet[0].more = [NODE | {"identity": "node-2-def", "state": "left", "reason": "stopped"}]
    result = _sfctl(fleet[1], "status")
    assert (result.exit_code, result.stderr) == (0, "")


def test_the_command_line_draws_near_the_likeliest(fleet: tuple[_Fleet, ScriptedHead]) -> None:
    _sfctl(fleet[1], "run", "toy", "hello")
    _sfctl(fleet[1], "chat", "toy", stdin="hello\n")
    _sfctl(fleet[1], "run", "toy", "hello", "--temperature", "1")
    asked = [body for body in fleet[1].requests if body["op"] == "chat"]
    assert [body["temperature"] for body in asked] == [0.2, 0.2, 1.0]


def test_a_chat_with_an_unknown_model_is_5_before_anything_is_read(
    fleet: tuple[_Fleet, ScriptedHead],
) -> None:
    result = _sfctl(fleet[1], "chat", "nosuch", stdin="")
    assert result.exit_code == 5
    assert "no model 'nosuch' (it has: toy)" in result.stderr
    assert fleet[1].ops() == ["models"]


@pytest.mark.parametrize("command", [("run", "toi", "hi"), ("chat", "toi")])
def test_an_unknown_model_is_said_alike_by_run_and_chat(
    fleet: tuple[_Fleet, ScriptedHead], command: tuple[str, ...]
) -> None:
    fleet[0].refusal = NotFound("this head has no model folder 'toi'", param="model")
    result = CliRunner().invoke(
        cli, ["--state", "/s", "--api", fleet[1].address, *command], input=""
    )
    assert (result.exit_code, result.stdout) == (5, "")
    assert result.stderr == (
        "error: the fleet has no model 'toi' (it has: toy); did you mean toy? "
        "Talk with it: sfctl --state /s chat toy\n"
    )


def test_a_model_that_only_the_head_lacks_is_said_in_its_words(
    fleet: tuple[_Fleet, ScriptedHead],
) -> None:
    fleet[0].refusal = NotFound("this head has no model folder 'toy'", param="model")
    result = _sfctl(fleet[1], "run", "toy", "hi")
    assert result.exit_code == 5
    assert result.stderr == "error: this head has no model folder 'toy'\n"


def test_attach_prints_an_answer_from_an_offset(fleet: tuple[_Fleet, ScriptedHead]) -> None:
    result = _sfctl(fleet[1], "attach", "s1", "--offset", "1")
    assert (result.exit_code, result.stdout) == (0, " there\n")
    assert result.stderr.startswith("[node-1-abc: ")
    (request,) = fleet[1].requests
    assert (request["op"], request["session"], request["offset"]) == ("attach", "s1", 1)


def test_attach_as_json(fleet: tuple[_Fleet, ScriptedHead]) -> None:
    answer = json.loads(_sfctl(fleet[1], "attach", "s1", "-o", "json").stdout)
    assert (answer["text"], answer["tokens"], answer["session"]) == ("Hi there", [0, 1], "s1")


def test_a_lost_node_names_the_command_that_reads_what_came(
    fleet: tuple[_Fleet, ScriptedHead],
) -> None:
    fleet[0].refusal = NodeLost("it is gone", details={"offset": 2, "session": "s1"})
    result = _sfctl(fleet[1], "run", "toy", "hi")
    assert result.exit_code == 1
    error, hint = result.stderr.splitlines()
    assert error == "error: it is gone"
    assert hint.endswith("sfctl attach s1")


MAIN = "from head.cli import main; main()"


def _process(head: ScriptedHead, *arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", MAIN, "--api", head.address, *arguments],
        **{"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, **streams},
    )


@pytest.mark.parametrize(("argument", "prompt"), [("sum it up", "sum it up\n\na b"), ("-", "a b")])
def test_what_is_piped_in_follows_the_prompt(
    fleet: tuple[_Fleet, ScriptedHead], argument: str, prompt: str
) -> None:
    with _process(fleet[1], "run", "--raw", "toy", argument, stdin=subprocess.PIPE) as process:
        process.communicate(b"a b", timeout=LIMIT_S)
    assert process.returncode == 0
    assert fleet[1].requests[-1]["prompt"] == prompt


def test_output_that_nothing_takes_is_one_line_and_1(fleet: tuple[_Fleet, ScriptedHead]) -> None:
    with (
        open("/dev/full", "wb") as full,
        _process(fleet[1], "run", "toy", "hi", stdin=subprocess.DEVNULL, stdout=full) as process,
    ):
        _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert said == b"error: can not write the output: No space left on device; send it elsewhere\n"


def test_a_reader_that_went_away_is_no_error(fleet: tuple[_Fleet, ScriptedHead]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with _process(fleet[1], "status", stdin=subprocess.DEVNULL, stdout=writer) as process:
        os.close(writer)
        _, said = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, said) == (1, b"")


class Terminal:
    """A pseudo terminal whose other end is a process's stdin and stdout."""

    def __init__(self) -> None:
        self._ours, self.theirs = pty.openpty()
        self.seen = b""

    def type(self, text: bytes) -> None:
        os.write(self._ours, text)

    def wait_for(self, text: bytes, times: int = 1) -> None:
        until = time.monotonic() + LIMIT_S
        while self.seen.count(text) < times:
            ready, _, _ = select.select([self._ours], [], [], max(0.0, until - time.monotonic()))
            assert ready, self.seen
            self.seen += os.read(self._ours, 4096)

    def close(self) -> None:
        os.close(self._ours)
        os.close(self.theirs)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Press Ctrl-C once it waits for the keyboard; input() misses one that comes just before."""
    until = time.monotonic() + LIMIT_S
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)


def test_ctrl_c_at_the_prompt_clears_the_line_first(
    fleet: tuple[_Fleet, ScriptedHead], terminal: Terminal
) -> None:
    ends = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.theirs)
    process = _process(fleet[1], "chat", "toy", start_new_session=True, **ends)
    try:
        terminal.wait_for(b"> ")
        terminal.type(b"half a li")
        terminal.wait_for(b"half a li")
        _interrupt(process)
        terminal.wait_for(b"once more ends the chat")
        terminal.wait_for(b"> ", times=2)
        terminal.type(b"whole\n")
        terminal.wait_for(b"Hi there")
        terminal.wait_for(b"> ", times=3)
        assert fleet[1].requests[-1]["messages"] == [{"role": "user", "content": "whole"}]
        _interrupt(process)
        terminal.wait_for(b"once more ends the chat", times=2)
        terminal.wait_for(b"> ", times=4)
        _interrupt(process)
        assert process.wait(LIMIT_S) == 130
        assert b"error" not in terminal.seen
    finally:
        process.kill()
        process.wait()


def test_a_prompt_from_the_terminal_says_how_it_ends(
    fleet: tuple[_Fleet, ScriptedHead], terminal: Terminal
) -> None:
    ends = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.theirs)
    process = _process(fleet[1], "run", "toy", start_new_session=True, **ends)
    try:
        terminal.wait_for(b"Ctrl-D")
        terminal.type(b"hello\n\x04")
        terminal.wait_for(b"Hi there")
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()


def test_following_a_log_ends_quietly(tmp_path: Path, fleet: tuple[_Fleet, ScriptedHead]) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "node-1.log").write_text("one\n")
    command = ("--state", str(tmp_path), "logs", "-f")
    with _process(fleet[1], *command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, said) == (130, b"")


def test_logs_take_the_name_of_the_fleet_too(tmp_path: Path) -> None:
    folder = tmp_path / "nodes" / "node-2"
    folder.mkdir(parents=True)
    link = AgentLink(peer="head h1", address="tcp://h:1", up=True)
    write_agent_status(folder, AgentStatus(1, "gpu-1-abc", link, ()))
    (tmp_path / "log").mkdir()
    for name in ("node-1", "node-2"):
        (tmp_path / "log" / f"{name}.log").write_text(f"of {name}\n")
    logs = ["--state", str(tmp_path), "logs"]
    assert CliRunner().invoke(cli, [*logs, "gpu-1-abc"]).stdout == "of node-2\n"
    assert CliRunner().invoke(cli, logs).stdout == "of node-1\n"
    missing = CliRunner().invoke(cli, [*logs, "nosuch"])
    assert missing.exit_code == 5
    assert "there is: node-1, node-2" in missing.stderr
    (tmp_path / "log" / "head.log").write_text("of the head\n")
    assert CliRunner().invoke(cli, logs).stdout == "of the head\n"


def test_sessions_are_listed_page_by_page_as_far_as_asked(
    fleet: tuple[_Fleet, ScriptedHead],
) -> None:
    result = _sfctl(fleet[1], "session", "ls", "-n", "2")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "SESSION  MODEL  STATE  FINISH  TOKENS  ANSWER  AGE",
        "s-98-0   toy    ended  stop    3       2       1 min",
        "s-97-0   toy    ended  stop    3       2       1 min",
    ]
    assert "show more with: " in result.stderr
    assert [body.get("limit") for body in fleet[1].requests] == [3]
    shown = json.loads(_sfctl(fleet[1], "session", "ls", "-n", "60", "-o", "json").stdout)
    assert [row["session"] for row in shown] == [f"s-{n}-0" for n in range(98, 38, -1)]

"""`sfctl run`, `chat` and `attach` against a scripted head: what they ask for and print."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from bus.errors import NodeLost, NotFound
from head.cli.command_line import cli
from tests.e2e.scripted_fleet import Served, served, sfctl
from tests.e2e.scripted_head import Body, end, placed, token


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as made:
        yield made


def test_run_streams_to_stdout_and_tells_the_rest_on_stderr(fleet: Served) -> None:
    result = sfctl(fleet[1], "run", "toy", "hello", "--max-new", "9", "--system", "be brief")
    assert (result.exit_code, result.stdout) == (0, "Hi there\n")
    assert result.stderr == (
        "[node-1-abc: 2 tokens, 50.0 tokens/s, first after 20 ms, stop; session s1]\n"
    )
    (request,) = fleet[1].requests
    assert (request["op"], request["max_new"]) == ("chat", 9)
    assert [m["role"] for m in request["messages"]] == ["system", "user"]


def test_run_as_json_from_stdin(fleet: Served) -> None:
    result = sfctl(fleet[1], "run", "--raw", "toy", "-o", "json", stdin="once")
    answer = json.loads(result.stdout)
    assert (answer["text"], answer["tokens"], answer["finish"]) == ("Hi there", [0, 1], "stop")
    (request,) = fleet[1].requests
    assert (request["op"], request["prompt"]) == ("generate", "once")


def test_run_of_an_unserved_model_is_3(fleet: Served) -> None:
    result = sfctl(fleet[1], "run", "big", "hello")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == "error: no node serves it: node-1-abc has only toy\n"


@pytest.mark.parametrize("goodbye", ["/exit", "/quit "])
def test_a_chat_ends_by_its_own_words(fleet: Served, goodbye: str) -> None:
    result = sfctl(fleet[1], "chat", "toy", stdin=f"one\n{goodbye}\ntwo\n")
    assert (result.exit_code, result.stdout) == (0, "Hi there\n")


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"kind": "decoder", "chat_template": False}, "run --raw toy TEXT"),
        ({"kind": "encoder", "chat_template": False}, "toy is an encoder: it makes embeddings"),
    ],
)
def test_a_model_that_can_not_be_talked_with_is_told_at_once(
    fleet: Served, told: Body, says: str
) -> None:
    fleet[0].told = told
    result = sfctl(fleet[1], "chat", "toy", stdin="one\n")
    assert result.exit_code == 2
    assert says in result.stderr
    assert [body for body in fleet[1].requests if body["op"] == "chat"] == []


def test_chat_keeps_the_conversation(fleet: Served) -> None:
    result = sfctl(fleet[1], "chat", "toy", stdin="one\n\ntwo\n")
    assert (result.exit_code, result.stdout) == (0, "Hi there\nHi there\n")
    last = fleet[1].requests[-1]["messages"]
    assert [(m["role"], m["content"]) for m in last] == [
        ("user", "one"),
        ("assistant", "Hi there"),
        ("user", "two"),
    ]


def test_chat_shows_calls_and_takes_their_results(fleet: Served, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text('[{"name": "weather"}, {"name": "now"}]')
    calls = [
        {"index": 0, "id": "c0", "name": "weather", "arguments": '{"city": "Troms\u00f8"}'},
        {"index": 1, "id": "c1", "name": "now", "arguments": "{}"},
    ]
    asks = {**token(0, [0], "Let me see."), "reasoning": "Hm.", "tool_calls": calls}
    fleet[0].answers = [[placed(), asks, end(1, finish="tool_calls")]]
    told = ("chat", "toy", "--tools", str(tools))
    result = sfctl(fleet[1], *told, stdin="weather?\ngrey\nnoon\nbye\n")
    assert result.exit_code == 0
    assert result.stdout == (
        'Let me see.\n-> weather({"city": "Troms\u00f8"})\n-> now()\nHi there\nHi there\n'
    )
    assert "the result of weather, in one line:" in result.stderr
    chats = [body for body in fleet[1].requests if body["op"] == "chat"]
    assert [tool["name"] for tool in chats[1]["tools"]] == ["weather", "now"]
    assert [(m["role"], m["content"]) for m in chats[1]["messages"]] == [
        ("user", "weather?"),
        ("assistant", "Let me see."),
        ("tool", "grey"),
        ("tool", "noon"),
    ]
    assert chats[1]["messages"][3]["tool_call_id"] == "c1"
    assert len(chats[2]["messages"]) == 6


@pytest.mark.parametrize("text", ["{", "5", '{"name": "x"}', "[1]"])
def test_a_file_that_holds_no_tools_is_2(fleet: Served, tmp_path: Path, text: str) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(text)
    result = sfctl(fleet[1], "chat", "toy", "--tools", str(tools), stdin="x\n")
    assert result.exit_code == 2
    assert "--tools" in result.stderr
    assert str(tools) in result.stderr.replace("\n", "")


def test_the_command_line_draws_near_the_likeliest(fleet: Served) -> None:
    sfctl(fleet[1], "run", "toy", "hello")
    sfctl(fleet[1], "chat", "toy", stdin="hello\n")
    sfctl(fleet[1], "run", "toy", "hello", "--temperature", "1")
    asked = [body for body in fleet[1].requests if body["op"] == "chat"]
    assert [body["temperature"] for body in asked] == [0.2, 0.2, 1.0]


def test_a_chat_with_an_unknown_model_is_5_before_anything_is_read(fleet: Served) -> None:
    result = sfctl(fleet[1], "chat", "nosuch", stdin="")
    assert result.exit_code == 5
    assert "no model 'nosuch' (it has: toy)" in result.stderr
    assert fleet[1].ops() == ["models"]


@pytest.mark.parametrize("command", [("run", "toi", "hi"), ("chat", "toi")])
def test_an_unknown_model_is_said_alike_by_run_and_chat(
    fleet: Served, command: tuple[str, ...]
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


def test_a_model_that_only_the_head_lacks_is_said_in_its_words(fleet: Served) -> None:
    fleet[0].refusal = NotFound("this head has no model folder 'toy'", param="model")
    result = sfctl(fleet[1], "run", "toy", "hi")
    assert result.exit_code == 5
    assert result.stderr == "error: this head has no model folder 'toy'\n"


def test_attach_prints_an_answer_from_an_offset(fleet: Served) -> None:
    result = sfctl(fleet[1], "attach", "s1", "--offset", "1")
    assert (result.exit_code, result.stdout) == (0, " there\n")
    assert result.stderr.startswith("[node-1-abc: ")
    (request,) = fleet[1].requests
    assert (request["op"], request["session"], request["offset"]) == ("attach", "s1", 1)


def test_attach_as_json(fleet: Served) -> None:
    answer = json.loads(sfctl(fleet[1], "attach", "s1", "-o", "json").stdout)
    assert (answer["text"], answer["tokens"], answer["session"]) == ("Hi there", [0, 1], "s1")


def test_a_lost_node_names_the_command_that_reads_what_came(fleet: Served) -> None:
    fleet[0].refusal = NodeLost("it is gone", details={"offset": 2, "session": "s1"})
    result = sfctl(fleet[1], "run", "toy", "hi")
    assert result.exit_code == 1
    error, hint = result.stderr.splitlines()
    assert error == "error: it is gone"
    assert hint.endswith("sfctl attach s1")

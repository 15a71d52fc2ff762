"""`client.embed` and `sfctl embed` over a real socket, against a scripted head."""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from bus.client import Client
from bus.errors import ContextLengthExceeded, Invalid, TimedOut, WireError
from head.cli.command_line import cli
from tests.e2e.scripted_head import Body, ScriptedHead

END: Body = {"kind": "end", "finish": "done", "count": 4, "usage": {"prompt": 9}, "node": "n1"}


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path / 'api'}"


def vectors(index: int, *rows: list[float]) -> Body:
    """An event with vectors of one length."""
    return {
        "kind": "event",
        "type": "embeddings",
        "index": index,
        "count": len(rows),
        "dimension": len(rows[0]),
        "vectors": np.array(rows, "<f4").tobytes(),
    }


def test_vectors_lie_where_their_texts_do(address: str) -> None:
    replies = [vectors(2, [5.0, 6.0], [7.0, 8.0]), vectors(0, [1.0, 2.0], [3.0, 4.0]), END]
    with ScriptedHead(address, lambda body: replies) as head, Client(address) as client:
        made = client.embed("m", ["a", "b", "c", "d"], pooling="cls", normalize=False, qos="agent")
        assert made.dtype == np.float32
        assert made.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
        asked = head.requests[0]
    assert {key: asked[key] for key in ("op", "model", "input", "pooling", "normalize", "qos")} == {
        "op": "embed",
        "model": "m",
        "input": ["a", "b", "c", "d"],
        "pooling": "cls",
        "normalize": False,
        "qos": "agent",
    }


def test_a_head_that_restarts_in_the_middle_is_asked_again(address: str) -> None:
    asked = threading.Event()

    def half(body: Body) -> list[Body]:
        asked.set()
        return [vectors(0, [1.0], [2.0])]

    whole = [vectors(0, [1.0], [2.0], [3.0]), END]
    with ExitStack() as stack:
        first = stack.enter_context(ScriptedHead(address, half))
        client = stack.enter_context(Client(address))

        def restart() -> None:
            assert asked.wait(10)
            first.close()
            stack.enter_context(ScriptedHead(address, lambda body: whole))

        restarting = threading.Thread(target=restart)
        restarting.start()
        assert client.embed("m", ["a", "b", "c"]).tolist() == [[1], [2], [3]]
        restarting.join()


@pytest.mark.parametrize(
    "replies",
    [
        [vectors(0, [1.0]), END],
        [END],
        [vectors(1, [1.0], [2.0]), END],
        [vectors(0, [1.0]), vectors(1, [1.0, 2.0]), END],
        [{**vectors(0, [1.0], [2.0]), "dimension": 2}, END],
        [{**vectors(0, [1.0], [2.0]), "vectors": "text"}, END],
    ],
)
def test_what_is_no_vector_of_every_text_is_a_fault(address: str, replies: list[Body]) -> None:
    with ScriptedHead(address, lambda body: replies), Client(address) as client:
        with pytest.raises(WireError):
            client.embed("m", ["a", "b"])
        assert client.ping() < 5.0


def test_one_that_takes_too_long_is_cancelled(address: str) -> None:
    with ScriptedHead(address, lambda body: []) as head, Client(address) as client:
        with pytest.raises(TimedOut):
            client.embed("m", "a", timeout_s=0.1)
        client.ping()
        assert head.ops() == ["embed", "cancel"]


def test_texts_are_texts(address: str) -> None:
    wrong = pytest.raises(Invalid, match="texts should be a list of texts, not an integer")
    with ScriptedHead(address, lambda body: []), Client(address) as client, wrong:
        client.embed("m", 5)  # type: ignore[arg-type]


# --- sfctl ------------------------------------------------------------------------------------


def lengths(body: Body) -> list[Body]:
    """The vector of a text is its length, at most five."""
    for place, text in enumerate(body["input"]):
        if len(text) > 5:
            param = f"input[{place}]"
            error = ContextLengthExceeded(f"{param} is too long", param=param)
            return [{"kind": "error", "error": error.to_dict()}]
    return [vectors(0, *([len(text) + 0.1] for text in body["input"])), END]


def test_lines_are_texts_and_vectors_lines_of_json(address: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("a\r\n\nbcd\n" * 150)
    two.write_text("ef")
    with ScriptedHead(address, lengths) as head:
        result = CliRunner().invoke(cli, ["--api", address, "embed", "m", str(one), str(two)])
        batches = [len(body["input"]) for body in head.requests if body["op"] == "embed"]
    printed = [json.loads(line) for line in result.stdout.splitlines()]
    assert batches == [256, 45]
    assert len(printed) == 301
    # As short as a float32 is told, not as the float64 that it equals.
    assert printed[:2] == [
        {"file": str(one), "line": 1, "embedding": [1.1]},
        {"file": str(one), "line": 3, "embedding": [3.1]},
    ]
    assert printed[-1] == {"file": str(two), "line": 1, "embedding": [2.1]}


def test_stdin_and_whole_files(address: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("a\nb\n")
    with ScriptedHead(address, lengths):
        piped = CliRunner().invoke(cli, ["--api", address, "embed", "m"], input="abc\n")
        whole = CliRunner().invoke(cli, ["--api", address, "embed", "m", "--whole", str(file)])
    assert json.loads(piped.stdout) == {"file": "stdin", "line": 1, "embedding": [3.1]}
    assert json.loads(whole.stdout) == {"file": str(file), "line": 1, "embedding": [4.1]}


def test_errors_name_the_line(address: str) -> None:
    with ScriptedHead(address, lengths):
        result = CliRunner().invoke(cli, ["--api", address, "embed", "m"], input="a\n\nbcdefg\n")
        broken = CliRunner().invoke(cli, ["--api", address, "embed", "m"], input=b"a\n\xff\n")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "error: input[1] is too long",
        "input[1] is line 3 of stdin",
    ]
    assert broken.stderr == "error: line 2 of stdin is no UTF-8 text; convert it first\n"

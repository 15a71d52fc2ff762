"""`client.transcribe` and `put_file` over a real socket, against a scripted head."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bus.client import Client
from bus.errors import Invalid, WireError
from tests.e2e.scripted_head import Body, ScriptedHead

END: Body = {
    "kind": "end",
    "finish": "done",
    "language": "en",
    "duration_s": 61.0,
    "node": "n1",
}


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path / 'api'}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "a.wav"
    made.write_bytes(b"sound" * 150_000)
    return made


def window(next_s: float, *texts: str) -> Body:
    """A window of segments, one second each, that end at its end."""
    first = next_s - len(texts)
    segments = [
        {"start_s": first + i, "end_s": first + i + 1, "text": text} for i, text in enumerate(texts)
    ]
    return {
        "kind": "event",
        "type": "segments",
        "segments": segments,
        "next_s": next_s,
        "language": "en",
    }


class Head:
    """Knows no file until all of it came; `transcripts` are the answers, one a request."""

    def __init__(self, *transcripts: list[Body]) -> None:
        self.received = 0
        self.transcripts = list(transcripts)

    def __call__(self, body: Body) -> list[Body]:
        match body["op"]:
            case "has_blob":
                return [{"kind": "end", "has": self.received > 0, "length": self.received}]
            case "put_blob":
                assert body["offset"] == self.received
                self.received = min(body["offset"] + 256 * 1024, body["length"])
                done = self.received == body["length"]
                return [{"kind": "end", "offset": self.received, "done": done}]
            case "transcribe":
                return self.transcripts.pop(0)
            case _:
                return [{"kind": "end"}]


def test_the_file_goes_first_and_segments_come_as_they_are(address: str, file: Path) -> None:
    script = Head([window(30.0, "a", "b"), window(60.0), window(61.0, "c"), END])
    with ScriptedHead(address, script) as head, Client(address) as client:
        heard = client.transcribe("w", file, language="en", qos="batch")
        assert [segment.text for segment in heard] == ["a", "b", "c"]
        assert (heard.language, heard.duration_s, heard.next_s, heard.node) == (
            "en",
            61.0,
            61.0,
            "n1",
        )
        assert head.ops()[:4] == ["has_blob", "put_blob", "put_blob", "put_blob"]
        asked: dict[str, Any] = head.requests[-1]
    assert script.received == 750_000
    sha256 = hashlib.sha256(file.read_bytes()).digest()
    known = {"model": "w", "sha256": sha256, "language": "en", "from_s": 0.0, "qos": "batch"}
    assert {key: asked[key] for key in known} == known


def test_a_file_that_is_there_is_not_sent(address: str, file: Path) -> None:
    script = Head([END])
    script.received = 5
    with ScriptedHead(address, script) as head, Client(address) as client:
        assert client.transcribe("w", file).text() == ""
        assert head.ops() == ["has_blob", "transcribe"]


@pytest.mark.parametrize("named", ["", "fr"])
def test_a_head_that_restarts_is_asked_for_the_rest(address: str, file: Path, named: str) -> None:
    script = Head([window(28.5, "a")], [window(61.0, "b"), END])
    with ExitStack() as stack:
        first = stack.enter_context(ScriptedHead(address, script))
        client = stack.enter_context(Client(address))
        heard = client.transcribe("w", file, language=named)
        assert next(heard).text == "a"
        sha256 = hashlib.sha256(file.read_bytes()).digest()
        file.unlink()  # The head has what it needs.
        first.close()
        second = stack.enter_context(ScriptedHead(address, script))
        assert heard.text() == "b"
        (asked,) = (body for body in second.requests if body["op"] == "transcribe")
        assert (asked["from_s"], asked["sha256"], asked["language"]) == (
            28.5,
            sha256,
            named or "en",
        )


@pytest.mark.parametrize("changed", [False, True])
def test_a_head_that_lost_the_file_gets_the_same_or_none(
    address: str, file: Path, changed: bool
) -> None:
    script = Head([window(28.5, "a")], [window(61.0, "b"), END])
    with ExitStack() as stack:
        first = stack.enter_context(ScriptedHead(address, script))
        client = stack.enter_context(Client(address))
        heard = client.transcribe("w", file)
        assert next(heard).text == "a"
        script.received = 0
        if changed:
            file.write_bytes(b"other" * 150_000)
        first.close()
        second = stack.enter_context(ScriptedHead(address, script))
        if not changed:
            assert heard.text() == "b"
            assert script.received == 750_000
            return
        with pytest.raises(Invalid, match="changed since it was put") as error:
            next(heard)
        assert error.value.param == "file"
        assert script.received == 0
        assert "transcribe" not in second.ops()


def test_leaving_early_cancels(address: str, file: Path) -> None:
    script = Head([window(30.0, "a")])
    with ScriptedHead(address, script) as head, Client(address) as client:
        heard = client.transcribe("w", file)
        assert next(heard).text == "a"
        heard.close()
        client.ping()
        assert head.ops()[-2:] == ["transcribe", "cancel"]
        assert list(heard) == []


@pytest.mark.parametrize(
    "wrong", [{"segments": 5}, {"next_s": -1.0}, {"segments": [{"start_s": 0.0}]}]
)
def test_what_is_no_transcript_is_a_fault(address: str, file: Path, wrong: Body) -> None:
    script = Head([window(30.0, "a") | wrong, END])
    with ScriptedHead(address, script), Client(address) as client:
        with pytest.raises(WireError, match="wrong transcript"):
            client.transcribe("w", file).text()
        assert client.ping() < 5.0


def test_a_file_that_is_none_is_named(address: str, tmp_path: Path) -> None:
    refused = pytest.raises(Invalid, match="can not be read")
    with ScriptedHead(address, Head()), Client(address) as client, refused as error:
        client.transcribe("w", tmp_path)
    assert error.value.param == "file"

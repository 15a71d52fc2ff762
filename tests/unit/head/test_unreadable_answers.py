"""Answers whose format's reader has a fault: the reader gets a typed error, and the head lives."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bus.messages.link import GenerateReq
from head.rows import PutFinish
from head.text import channels
from head.text.channel_grammar import Turn
from head.text.channel_reader import Steps
from tests.harness.chat_bench import HELLO, NOW, ChatBench, chat_folder
from tests.harness.head_bench import TOY

SAID = "Well, 12"


def faulty(turn: Turn, opened: str) -> Steps[None]:
    """Reads text, and fails at a digit."""
    while (yield from turn.reader.more()):
        letter = turn.reader.take(turn.reader.pos + 1)
        turn.out.text.add(letter if not letter.isdigit() else [letter][int(letter)])


def stillborn(turn: Turn, opened: str) -> Steps[None]:
    """Fails before there is an answer."""
    yield from {"": turn.reader.skip()}[f"{opened} is none"]


@pytest.fixture
def bench(tmp_path: Path) -> ChatBench:
    return ChatBench(chat_folder(tmp_path / "toy"))


def install(monkeypatch: pytest.MonkeyPatch, grammar: object) -> None:
    form = dataclasses.replace(channels.FORMATS["hermes"], grammar=grammar)  # type: ignore[arg-type]
    monkeypatch.setitem(channels.FORMATS, "hermes", form)


@pytest.mark.parametrize("grammar", [faulty, stillborn])
@pytest.mark.parametrize("stop", [[], ["STOP"]])
def test_a_fault_is_that_answers_readers_alone(
    bench: ChatBench, monkeypatch: pytest.MonkeyPatch, grammar: object, stop: list[str]
) -> None:
    install(monkeypatch, grammar)
    request = bench.chat(tools=[NOW], stop=stop, key="k", on_disconnect="keep")
    offset = 0
    for letter in SAID:
        offset = bench.say(request, offset, letter)
    error = next(r for r in bench.replies if r["id"] == b"q1" and r["kind"] == "error")["error"]
    assert (error["code"], error["param"]) == ("internal", None)
    assert "format hermes" in error["message"]
    assert "channels plain" in error["message"]
    # The answer goes on, and ends as its model ends it; who reads it again is told the same.
    bench.say(request, offset, " more", finish="eos")
    (end,) = (row for row in bench.rows if isinstance(row, PutFinish))
    assert (end.finish, end.completion_tokens) == ("stop", len(SAID) + 5)
    assert bench.refused("attach", key="k", offset=0)["code"] == "internal"
    again = bench.restarted()
    assert again.refused("attach", key="k", offset=3)["code"] == "internal"
    # Nobody else is told anything of it.
    again.answer(again.chat(channels="plain"), "12")
    told = again.pieces(again.replies[-1]["id"])
    assert (told["text"], told["finish"]) == ("12", "stop")


def test_a_session_goes_on_behind_an_answer_that_can_not_be_read(
    bench: ChatBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, faulty)
    session = bench.call("session.create", model=TOY)["session"]
    bench.send("session.chat", session=session, messages=[HELLO], tools=[NOW], max_new=100)
    bench.answer(bench.last(GenerateReq), SAID)
    before = len(bench.on(1, GenerateReq))
    result = {"role": "tool", "tool_call_id": "abcdefghi", "content": "noon"}
    bench.send("session.chat", session=session, messages=[result], channels="plain", max_new=100)
    assert len(bench.on(1, GenerateReq)) == before + 1

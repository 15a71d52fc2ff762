"""Reasoning and calls as a terminal and a pipe get them."""

from __future__ import annotations

import sys

import click
import pytest

from bus.call import Token
from bus.messages.tool_calls import ToolCall
from head.cli.channels import ChannelPrinter, call_line

CALL = ToolCall(index=0, id="c", name="weather", arguments='{"city":"Troms\\u00f8"}')
EVENTS = (
    Token(offset=0, tokens=(1,), text="", reasoning="Hm"),
    Token(offset=1, tokens=(2,), text="", reasoning=", well."),
    Token(offset=2, tokens=(3,), text="Let me"),
    Token(offset=3, tokens=(4,), text=" see.", tool_calls=(CALL,)),
)


def _printed(capsys: pytest.CaptureFixture[str], *, color: bool) -> str:
    # As on a terminal, where styles are not taken off.
    with click.Context(click.Command("chat"), color=color or None):
        printer = ChannelPrinter()
        for event in EVENTS:
            printer.print(event)
    return capsys.readouterr().out


def test_a_pipe_gets_text_and_calls(capsys: pytest.CaptureFixture[str]) -> None:
    assert _printed(capsys, color=False) == 'Let me see.\n-> weather({"city": "Troms\u00f8"})\n'


def test_a_terminal_gets_reasoning_dim(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    dim = "".join(click.style(text, dim=True) for text in ("Hm", ", well."))
    shown = _printed(capsys, color=True)
    assert shown == f'{dim}\n\nLet me see.\n-> weather({{"city": "Troms\u00f8"}})\n'


def test_without_colour_reasoning_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert _printed(capsys, color=False).startswith("thinking: Hm, well.\n\nLet me see.\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("{}", "-> f()"),
        ('{"a": "x\\ny"}', '-> f({"a": "x\\ny"})'),
        ("no\njson", "-> f(no json)"),
    ],
)
def test_a_call_is_one_line(arguments: str, line: str) -> None:
    assert call_line(ToolCall(index=0, id="c", name="f", arguments=arguments)) == line

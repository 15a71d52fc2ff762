"""What `run`, `chat` and `attach` say on stderr beside an answer's text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.answer import Answer
from bus.call import Placed, Queued, Token
from bus.client_events import OtherEvent, StreamEvent
from bus.messages.api import AnswerUsage, Timing, moved_event
from head.cli.chat import event_note, summary

ANSWER = Answer(
    text="Hi there",
    tokens=(1, 2),
    finish="stop",
    usage=AnswerUsage(prompt=3, completion=2),
    timing=Timing(first_token_ms=20.0, total_ms=40.0, tokens_per_s=50.04),
    node="n1",
    session="s-1-ab",
)


def moved(source: str, to: str, reason: str = "silent for 30 s") -> OtherEvent:
    return OtherEvent("moved", moved_event(source, to, 7, exact=True, reason=reason))


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Queued(position=2), "queued, position 2"),
        (Placed(node="n1", session="s-1-ab"), "placed on n1, session s-1-ab"),
        (moved("n1", "n2"), "moved: n1 was lost (silent for 30 s); the answer goes on on n2"),
        (moved("n1", "n1", ""), "moved: n1 was lost; the answer goes on there again"),
        (Token(offset=0, tokens=(1,), text="Hi"), ""),
        (OtherEvent("later", {}), ""),
    ],
)
def test_events(event: StreamEvent, text: str) -> None:
    assert event_note(event) == text


def test_summary_has_the_session_for_attach() -> None:
    line = "[n1: 2 tokens, 50.0 tokens/s, first after 20 ms, stop; session s-1-ab]"
    assert summary(ANSWER) == line


def test_summary_leaves_out_what_the_head_does_not_know() -> None:
    timing = Timing(total_ms=90_000.0)
    assert summary(replace(ANSWER, timing=timing)) == "[n1: 2 tokens, stop; session s-1-ab]"

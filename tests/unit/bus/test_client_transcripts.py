"""A transcription at the client: what it asks again when its head goes away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from bus.client_events import Ended, OtherEvent
from bus.client_transcripts import Transcription
from bus.errors import NoHead

AWAY = NoHead("no head answers")
FIRST = {"start_s": 0.5, "end_s": 2.0, "text": "Hello."}
SECOND = {"start_s": 30.0, "end_s": 31.0, "text": "Bye."}


def window(segment: dict[str, Any], next_s: float) -> OtherEvent:
    body = {"segments": [segment], "next_s": next_s, "language": "en"}
    return OtherEvent("segments", body)


def end() -> Ended:
    return Ended({"language": "en", "duration_s": 31.0, "node": "n-1"})


class Head:
    """Answers each request with what is next of `script`; an error alone is raised at once."""

    def __init__(self, *script: NoHead | Sequence[OtherEvent | Ended | NoHead]) -> None:
        self.script = list(script)
        self.asked: list[tuple[float, str]] = []

    def ask(self, from_s: float, heard: str) -> Iterator[OtherEvent | Ended]:
        self.asked.append((from_s, heard))
        answer = self.script.pop(0)
        if isinstance(answer, NoHead):
            raise answer
        return self.events(answer)

    @staticmethod
    def events(answer: Sequence[OtherEvent | Ended | NoHead]) -> Iterator[OtherEvent | Ended]:
        for event in answer:
            if isinstance(event, NoHead):
                raise event
            yield event


def test_a_head_that_went_away_is_asked_for_what_has_not_come() -> None:
    head = Head([window(FIRST, 28.0), AWAY], [window(SECOND, 31.0), end()])
    heard = Transcription(head.ask, 0.0)
    assert heard.text() == "Hello. Bye."
    assert head.asked == [(0.0, ""), (28.0, "en")]
    assert (heard.duration_s, heard.language, heard.node) == (31.0, "en", "n-1")


def test_a_head_that_is_still_away_when_it_is_asked_again_is_asked_three_times_in_all() -> None:
    head = Head([window(FIRST, 28.0), AWAY], AWAY, AWAY, [window(SECOND, 31.0), end()])
    assert Transcription(head.ask, 0.0).text() == "Hello. Bye."
    assert head.asked == [(0.0, ""), *[(28.0, "en")] * 3]
    heard = Transcription(Head([AWAY], AWAY, [AWAY], AWAY, [end()]).ask, 0.0)
    with pytest.raises(NoHead):
        next(heard)

"""Formats of transcripts, as players read them."""

from __future__ import annotations

import json

import pytest

from bus.messages.worker import SpokenSegment
from head.cli.transcribe import _FORMATS, clock

SAID = (
    SpokenSegment(start_s=0.0, end_s=2.5, text="Hello & bye."),
    SpokenSegment(start_s=3661.04, end_s=3662.0, text="a\n--> <b>"),
)


def shown(form: str) -> str:
    return "".join(f"{line}\n" for line in _FORMATS[form](SAID))


@pytest.mark.parametrize(
    ("seconds", "point", "text"),
    [
        (0.0, ",", "00:00:00,000"),
        (59.98, ".", "00:00:59.980"),
        (3661.04, ",", "01:01:01,040"),
        (14_399.9996, ".", "04:00:00.000"),
    ],
)
def test_times(seconds: float, point: str, text: str) -> None:
    assert clock(seconds, point) == text


def test_subrip() -> None:
    assert shown("srt") == (
        "1\n00:00:00,000 --> 00:00:02,500\nHello & bye.\n\n"
        "2\n01:01:01,040 --> 01:01:02,000\na -> <b>\n\n"
    )


def test_webvtt() -> None:
    assert shown("vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nHello &amp; bye.\n\n"
        "01:01:01.040 --> 01:01:02.000\na -&gt; &lt;b&gt;\n\n"
    )


def test_text_and_json() -> None:
    assert shown("text").splitlines()[0] == "Hello & bye."
    first, second = (json.loads(line) for line in shown("json").splitlines())
    assert first == {"start_s": 0.0, "end_s": 2.5, "text": "Hello & bye."}
    assert second["text"] == "a\n--> <b>"

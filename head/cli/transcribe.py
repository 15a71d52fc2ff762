"""`transcribe`: what is said in an audio file, as it is written down."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator

import click

from bus.client_transcripts import Transcription
from bus.messages.worker import SpokenSegment
from head.cli.context import CliContext, pass_context
from head.cli.output import note
from head.cli.prompts import text_argument


@click.command()
@click.argument("model", type=text_argument)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("-l", "--language", default="", help="Such as en. [default: the model's own]")
@click.option(
    "-f",
    "--format",
    "shown",
    type=click.Choice(("text", "json", "srt", "vtt")),
    default="text",
    show_default=True,
    help="Lines of text, a line of JSON for each segment, or subtitles.",
)
@pass_context
def transcribe(context: CliContext, model: str, file: str, language: str, shown: str) -> None:
    """Print what MODEL, a transcriber, hears in FILE: WAV, FLAC or MP3, 4 hours at most."""
    with context.client() as client:
        heard = client.transcribe(model, file, language=language)
        try:
            for line in _FORMATS[shown](heard):
                click.echo(line)
        finally:
            heard.close()
        note(_summary(heard))


def _summary(heard: Transcription) -> str:
    return f"{heard.duration_s:.1f} s of {heard.language or 'no speech'}, written by {heard.node}"


def _text(segments: Iterable[SpokenSegment]) -> Iterator[str]:
    for segment in segments:
        yield segment.text


def _json(segments: Iterable[SpokenSegment]) -> Iterator[str]:
    for segment in segments:
        shown = {"start_s": segment.start_s, "end_s": segment.end_s, "text": segment.text}
        yield json.dumps(shown, ensure_ascii=False)


def _srt(segments: Iterable[SpokenSegment]) -> Iterator[str]:
    for number, segment in enumerate(segments, start=1):
        times = f"{clock(segment.start_s, ',')} --> {clock(segment.end_s, ',')}"
        yield f"{number}\n{times}\n{_cue(segment.text)}\n"


def _vtt(segments: Iterable[SpokenSegment]) -> Iterator[str]:
    yield "WEBVTT\n"
    for segment in segments:
        times = f"{clock(segment.start_s, '.')} --> {clock(segment.end_s, '.')}"
        text = _cue(segment.text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        yield f"{times}\n{text}\n"


def _cue(text: str) -> str:
    """On one line, and without the arrow that marks times."""
    return " ".join(text.split()).replace("-->", "->")


def clock(seconds: float, point: str) -> str:
    """A time as subtitles have it: hours, minutes, seconds, milliseconds."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    minutes, second = divmod(whole, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}{point}{thousandths:03}"


_FORMATS: dict[str, Callable[[Iterable[SpokenSegment]], Iterator[str]]] = {
    "text": _text,
    "json": _json,
    "srt": _srt,
    "vtt": _vtt,
}

"""A fuzz target that takes answers of models: splitting never raises, and depends on no pieces."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from head.text.channel_values import typed, types_of
from head.text.channels import FORMATS, ChannelSplitter, Pieces, choose_format
from tests.fuzz.decoders import Case, Wrong
from tests.fuzz.generate import junk
from tests.toolcalls.answers import TOOLS, any_answer, some_text
from tests.toolcalls.judge import in_pieces

#: What no API lets through must not hurt either.
_ODD_TOOLS: Sequence[Mapping[str, Any]] = (
    {"name": "", "parameters": None},
    {"name": "now", "parameters": {"properties": []}},
    {"function": {"name": "get_weather", "parameters": {"properties": {"city": {"$ref": "#"}}}}},
    {"function": 1},
)
#: Text may become six times as long in JSON (`\\u0001`), and a name is no more than what is given.
_MOST = 6


def _given(pieces: Sequence[Pieces]) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    return (
        "".join(piece.text for piece in pieces),
        "".join(piece.reasoning for piece in pieces),
        tuple((call.name, call.arguments) for piece in pieces for call in piece.calls),
    )


def channels_case(rng: random.Random) -> None:
    """An answer with markup in it, with changes, in a format, whole and in pieces."""
    form = rng.choice(sorted(FORMATS))
    answer = any_answer(rng, rng.choice((form, form, rng.choice(sorted(FORMATS)))))
    for _ in range(rng.choice((0, 0, 1, 3))):
        at = rng.randrange(len(answer) + 1)
        odd = rng.choice(("", "\0", "\ud800", "\r\n", '"', "\\", "\\ud800", "9" * 2000, "[" * 500))
        answer = answer[:at] + odd + answer[at + rng.randrange(9) :]
    tools = rng.choice((TOOLS, TOOLS, _ODD_TOOLS, ()))
    opened, cut = rng.choice(("", "", "<think>\n", some_text(rng))), rng.random() < 0.5
    results = []
    for pieces in ([answer], in_pieces(answer, rng)):
        splitter = ChannelSplitter(
            FORMATS[form], tools, call_id=str, opened=opened, parallel=not cut
        )
        given = [splitter.push(piece) for piece in pieces]
        given.append(splitter.finish(cut=cut))
        if splitter.finish(cut=cut) or splitter.push("more").calls:
            raise Wrong("something comes after the end")
        results.append(_given(given))
    if results[0] != results[1]:
        raise Wrong(f"{form}: {results[0]!r} and in pieces {results[1]!r}")
    text, reasoning, calls = results[0]
    if len(text) + len(reasoning) + sum(len(a) for _, a in calls) > _MOST * len(answer) + 16:
        raise Wrong(f"{form}: more comes out than went in")
    for _, arguments in calls:
        if not isinstance(json.loads(arguments), dict):
            raise Wrong(f"{form}: {arguments!r} is no object")


def schema_case(rng: random.Random) -> None:
    """An argument typed by a schema that may be anything, and a format of any template."""
    text = some_text(rng)
    json.loads(typed(text, types_of(junk(rng), {"$defs": junk(rng)})))
    choose_format(any_answer(rng, "hermes") if rng.random() < 0.9 else None, (text,))


CHANNELS: Mapping[str, Case] = {"channels": channels_case, "argument": schema_case}

"""Random answers under the constraint of a tool choice: each is a call whose arguments fit."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

from bus.messages.sampling import Constraint
from bus.text.constraints import make_matcher, make_tokenizer
from bus.text.tokenizer import TextModel
from head.text.channels import FORMATS, ChannelFormat, ChannelSplitter
from tests.harness.models import toy_model_folder

#: Its tokens are bytes.
TOY = TextModel.open(toy_model_folder().path)
TOKENIZER = make_tokenizer(TOY)
CONSTRAINED = [form for form in FORMATS.values() if form.tag is not None]
WALKS = 8
MAX_BYTES = 3000
#: Beside the format's own tags: what begins or ends values, and what looks like it.
WORDS = (
    '"',
    "}",
    "]",
    "[",
    "{",
    ", ",
    "\n",
    "a",
    "</",
    "<",
    "5",
    ".5",
    "null",
    "true",
    "\\n",
    '\\"',
)
#: A number that no float holds, which a constraint does not keep out.
TOO_LARGE = re.compile(r"\d[eE]\+?\d{3,}|\d{300,}")
PROPERTIES: dict[str, Any] = {
    "city": {"type": "string"},
    "unit": {"type": "string", "enum": ["c", "f d"]},
    "days": {"type": "integer"},
    "share": {"type": "number"},
    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "mix": {"type": ["integer", "null", "boolean"]},
    "numbers": {"type": "array", "items": {"type": "number"}},
    "texts": {"type": "array", "items": {"type": "string"}},
}
INNER = {
    "type": "object",
    "properties": {"names": {"type": "array", "items": {"type": "string"}}},
    "additionalProperties": False,
}


def parameters(form: ChannelFormat) -> dict[str, Any]:
    more = {} if form.name == "gemma4" else {"inner": INNER}
    return {
        "type": "object",
        "properties": {**PROPERTIES, **more},
        "required": ["city", "days"],
        "additionalProperties": False,
    }


def words_of(tag: dict[str, Any]) -> list[bytes]:
    """The tags that a call has, and others."""
    quoted = re.findall(r'"(?:[^"\\]|\\.)*"', tag.get("lark", ""))
    own = {*re.findall(r"<[^<>]*>", tag["begin"] + tag["end"]), *map(json.loads, quoted)}
    return [word.encode() for word in sorted({*own, *WORDS} - {""})]


def walk(source: str, words: Sequence[bytes], rng: random.Random) -> str:
    """An answer that the constraint lets through; empty when it does not come to an end."""
    matcher = make_matcher(TOKENIZER, Constraint(kind="structural", source=source))
    made = b""
    while len(made) < MAX_BYTES and not matcher.is_accepting():
        tried = rng.sample(words, min(len(words), 12))
        word = next((w for w in tried if matcher.validate_tokens(list(w)) == len(w)), b"")
        if not word:
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            word = bytes([rng.choice([byte for byte in range(256) if mask >> byte & 1])])
        assert matcher.consume_tokens(list(word))
        made += word
    return made.decode() if matcher.is_accepting() else ""


@pytest.mark.parametrize("form", CONSTRAINED, ids=lambda form: form.name)
def test_what_a_constraint_lets_through_is_a_call(form: ChannelFormat) -> None:
    schema, rng, calls = parameters(form), random.Random(form.name), 0
    tools = [{"name": "get", "parameters": schema}]
    spec = form.structural(tools, "required", False)
    assert spec is not None
    words, source = words_of(spec["tags"][0]), json.dumps({**spec, "at_start": True})
    for _ in range(WALKS):
        said = walk(source, words, rng)
        if not said or TOO_LARGE.search(said):
            continue
        splitter = ChannelSplitter(form, tools, call_id=str, calls_first=True)
        pieces = [splitter.push(said), splitter.finish(cut=False)]
        (call,) = (call for piece in pieces for call in piece.calls)
        assert "".join(piece.text + piece.reasoning for piece in pieces) == "", said
        jsonschema.validate(json.loads(call.arguments), schema)
        calls += 1
        cut = ChannelSplitter(form, tools, call_id=str, calls_first=True)
        pieces = [cut.push(said[: rng.randrange(len(said))]), cut.finish(cut=True)]
        assert "".join(piece.text + piece.reasoning for piece in pieces) == "", said
    assert calls

"""Random answers under the constraint of a tool choice: each is calls of it that fit."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema
import pytest

from bus.messages.sampling import Constraint
from bus.text.constraints import make_matcher, make_tokenizer
from bus.text.tokenizer import TextModel
from head.text.channel_grammar import Marked
from head.text.channels import FORMATS, ChannelFormat, ChannelSplitter, Pieces
from tests.harness.models import toy_model_folder

#: Its tokens are bytes.
TOY = TextModel.open(toy_model_folder().path)
TOKENIZER = make_tokenizer(TOY)
CONSTRAINED = [form for form in FORMATS.values() if form.tag is not None]
WALKS = 3
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


def tools_of(form: ChannelFormat) -> list[dict[str, Any]]:
    """One with all kinds of arguments, and ones whose names begin like it and end like it."""
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    other = {**nothing, "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    return [
        {"name": "get", "parameters": parameters(form)},
        {"name": "get_time", "parameters": nothing},
        {"name": "forget", "parameters": other},
    ]


def words_of(spec: dict[str, Any]) -> list[bytes]:
    """The tags that calls have, what is around them, and others."""
    own = {spec.get(key, "") for key in ("open", "between", "close", "before")}
    for tag in spec["tags"]:
        quoted = re.findall(r'"(?:[^"\\]|\\.)*"', tag.get("lark", ""))
        own |= {tag["begin"], tag["end"], *re.findall(r"<[^<>]*>", tag["begin"] + tag["end"])}
        own |= set(map(json.loads, quoted))
    return [word.encode() for word in sorted({*own, *WORDS} - {""})]


def walk(spec: dict[str, Any], rng: random.Random) -> str:
    """An answer that the constraint lets through; empty when it does not come to an end."""
    matcher = make_matcher(TOKENIZER, Constraint(kind="structural", source=json.dumps(spec)))
    words, made, most = words_of(spec), b"", rng.choice((1, 2, 3))
    while len(made) < MAX_BYTES:
        if matcher.is_accepting():
            most -= 1
            if not most or matcher.is_stopped():
                return made.decode()
        tried = rng.sample(words, min(len(words), 12))
        if rng.random() < 0.3:
            tried.insert(0, (spec.get("between") or "\n").encode())
        word = next((w for w in tried if matcher.validate_tokens(list(w)) == len(w)), b"")
        if not word:
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            left = [byte for byte in range(256) if mask >> byte & 1]
            if not left:
                return made.decode()
            word = bytes([rng.choice(left)])
        assert matcher.consume_tokens(list(word))
        made += word
    return ""


def split(
    form: ChannelFormat, parts: Sequence[str], opened: str, *, parallel: bool, cut: bool = False
) -> Pieces:
    """What a splitter gives of an answer in parts."""
    splitter = ChannelSplitter(
        form, tools_of(form), call_id=str, opened=opened, parallel=parallel, only_calls=True
    )
    pieces = [*map(splitter.push, parts), splitter.finish(cut=cut)]
    return Pieces(
        "".join(piece.text for piece in pieces),
        "".join(piece.reasoning for piece in pieces),
        tuple(call for piece in pieces for call in piece.calls),
    )


def thinking(form: ChannelFormat) -> Iterator[str]:
    """What a prompt may end with: nothing, or the beginning of reasoning."""
    yield ""
    pairs = form.grammar.reasoning if isinstance(form.grammar, Marked) else form.thinking
    for begin, end in pairs:
        yield begin if begin.endswith("\n") else f"{begin}\n"
        yield f"{begin}\n\n{end}\n\n"


CASES = [(form, opened) for form in CONSTRAINED for opened in thinking(form)]


@pytest.mark.parametrize(("form", "opened"), CASES, ids=[f"{f.name}-{o}" for f, o in CASES])
def test_what_a_tool_choice_lets_through_is_calls_and_nothing_else(
    form: ChannelFormat, opened: str
) -> None:
    rng, made, most = random.Random(form.name + opened), 0, 0
    tools = tools_of(form)
    schemas = {tool["name"]: tool["parameters"] for tool in tools}
    for choice, parallel in itertools.product(("required", "get", "forget"), (True, False)):
        spec = form.structural(tools, choice, parallel, opened)
        assert spec is not None
        chosen = set(schemas) if choice == "required" else {choice}
        for _ in range(WALKS):
            said = walk(spec, rng)
            if not said or TOO_LARGE.search(said):
                continue
            pieces = split(form, [said], opened, parallel=parallel)
            assert pieces == split(form, said, opened, parallel=parallel), said
            thought, end, _ = said.partition(spec.get("before", "\0"))
            assert pieces.text == "", said
            assert pieces.reasoning.strip("\n") == (thought.strip("\n") if end else ""), said
            assert 0 < len(pieces.calls) <= (99 if parallel else 1), said
            assert {call.name for call in pieces.calls} <= chosen, said
            for call in pieces.calls:
                jsonschema.validate(json.loads(call.arguments), schemas[call.name])
            made, most = made + 1, max(most, len(pieces.calls))
            start = len(thought + end) if end else 0
            place = rng.randrange(start, len(said))
            cut = split(form, [said[:place]], opened, parallel=parallel, cut=True)
            assert (cut.text, cut.reasoning) == ("", pieces.reasoning), said[:place]
            assert cut.calls == pieces.calls[: len(cut.calls)]
    assert made
    assert most > 1 or form.calls.one


@pytest.mark.parametrize("form", CONSTRAINED, ids=lambda form: form.name)
def test_reasoning_that_tells_of_calls_has_none(form: ChannelFormat) -> None:
    tools = tools_of(form)
    for opened in thinking(form):
        spec = form.structural(tools, "get_time", True, opened)
        assert spec is not None
        if "before" not in spec:
            continue
        body = "" if "lark" in spec["tags"][0] else "{}"
        call = spec["tags"][0]["begin"] + body + spec["tags"][0]["end"]
        whole = spec.get("open", "") + call + spec.get("close", "")
        for thought in (f"I could say {whole}", whole, whole[:-1], f"a {whole[: len(whole) // 2]}"):
            said = f"{thought}{spec['before']}\n{whole}"
            matcher = make_matcher(
                TOKENIZER, Constraint(kind="structural", source=json.dumps(spec))
            )
            ids = list(said.encode())
            assert matcher.validate_tokens(list(thought.encode())) == len(thought.encode())
            assert not matcher.is_accepting()
            assert matcher.try_consume_tokens(ids) == len(ids)
            assert matcher.is_accepting()
            for parts in ([said], said):
                pieces = split(form, parts, opened, parallel=True)
                assert [call.name for call in pieces.calls] == ["get_time"], said
                assert (pieces.text, pieces.reasoning) == ("", thought.strip("\n")), said

"""Structural tags: free text in which some tags may open, and what stands in a tag must match.

The source of such a constraint is a JSON object:

    {"tags": [{"begin": "<tool>", "schema": {...}, "end": "</tool>"},
              {"begin": "<sum>", "regex": "[0-9]+", "end": "</sum>"},
              {"begin": "<code>", "lark": "start: ...", "end": "</code>"}],
     "at_least_one": false, "stop_after_first": false, "at_start": false}

- The text is free until it has the `begin` of a tag; from there it matches that tag's schema,
  regular expression or grammar and then its `end`, and is free again.
- `at_least_one`: the answer can not end before a tag was closed.
- `stop_after_first`: the answer ends with the first tag's end.
- `at_start`: the answer begins with a tag.
- `begin` and `end` are text, also where they look like control tokens; no `begin` is inside
  another, since a tag would open before the other could.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bus.text.constraint_errors import refused
from bus.text.patterns import exact_character
from bus.text.schema_limits import SchemaRefused

#: As many as a request may have tools.
MAX_TAGS = 256
MAX_TEXT = 256
_FLAGS = ("at_least_one", "stop_after_first", "at_start")
_KEYS = {"tags", *_FLAGS}
_TAG_KEYS = {"begin", "end"}
_BODIES = ("schema", "regex", "lark")

Json = Any
Schema = dict[str, Any]


def structural_grammar(
    spec: Json, schema: Callable[[Json], Schema], regex: Callable[[str], str]
) -> list[dict[str, Any]]:
    """Grammars of the engine; the first is the one to start with.

    Args:
        spec: the source, parsed.
        schema: makes the engine's schema of a tag's.
        regex: makes a Lark regular expression, slashes included, of a tag's.

    Raises:
        ConstraintInvalid: it is no such object.
    """
    flags, tags = _checked(spec)
    lines: list[str] = []
    grammars: list[dict[str, Any]] = []
    begins = "|".join(_exact(tag["begin"]) for tag in tags)
    for number, tag in enumerate(tags):
        lines.append(f"head_{number}[lazy]: TEXT {json.dumps(tag['begin'])}")
        with in_tag(number):
            body = _body(tag, number, lines, grammars, schema, regex)
        lines.append(f"inside_{number}: {body}")
        lines.append(f"tag_{number}: head_{number} inside_{number}")
        if flags["at_start"]:
            lines.append(f"first_{number}: {json.dumps(tag['begin'])} inside_{number}")
    lines += [
        f"FREE: /(?s:.*)/ & ~/(?s:.*)(?:{begins})(?s:.*)/",
        "TEXT: /(?s:.*)/",
        "rest: FREE",
        f"any_tag: {' | '.join(f'tag_{number}' for number in range(len(tags)))}",
        f"start: {_start(flags)}",
    ]
    if flags["at_start"]:
        lines.append(f"first: {' | '.join(f'first_{number}' for number in range(len(tags)))}")
    return [{"name": "structural", "lark_grammar": "\n".join(lines)}, *grammars]


def tags_alone(source: str) -> Iterator[tuple[int, str]]:
    """The number of each tag of a source, with a source that has no other tag."""
    try:
        spec = json.loads(source)
    except (ValueError, RecursionError):
        return
    tags = spec.get("tags") if isinstance(spec, dict) else None
    for number, tag in enumerate(tags if isinstance(tags, list) else ()):
        yield number, json.dumps({**spec, "tags": [tag]})


@contextmanager
def in_tag(number: int, *, places: bool = True) -> Iterator[None]:
    """What is refused inside is refused with the tag that it is in.

    Args:
        places: where in a schema it is, is where in the tag's schema it is.

    Raises:
        ConstraintInvalid: a part of the tag can not be honoured.
    """
    try:
        yield
    except SchemaRefused as error:
        tag = f"structural.tags[{number}]"
        raise (
            refused(f"{tag}{error.where or ''}", error.why) if places else refused(tag, str(error))
        ) from None


def _start(flags: Mapping[str, bool]) -> str:
    if flags["at_start"]:
        return "first" if flags["stop_after_first"] else "first any_tag* rest"
    if flags["stop_after_first"]:
        return "any_tag" if flags["at_least_one"] else "any_tag | rest"
    return "any_tag+ rest" if flags["at_least_one"] else "any_tag* rest"


def _body(
    tag: Mapping[str, Json],
    number: int,
    lines: list[str],
    grammars: list[dict[str, Any]],
    schema: Callable[[Json], Schema],
    regex: Callable[[str], str],
) -> str:
    end = json.dumps(tag["end"]) if tag["end"] else ""
    if "regex" in tag:
        # One terminal, so that a regular expression may also match what begins the end.
        lines.append(f"BODY_{number}: {regex(tag['regex'])} {end}")
        return f"BODY_{number}"
    if "schema" in tag:
        return f"%json {json.dumps(schema(tag['schema']))} {end}"
    grammars.append({"name": f"body_{number}", "lark_grammar": tag["lark"]})
    return f"@body_{number} {end}"


def _exact(text: str) -> str:
    """A text as a regular expression of Rust's syntax, between slashes."""
    return "".join(exact_character(ord(character)) for character in text)


def _checked(spec: Json) -> tuple[dict[str, bool], list[Mapping[str, Json]]]:
    if not isinstance(spec, dict):
        raise refused("structural", "it should be a JSON object with tags")
    unknown = sorted(spec.keys() - _KEYS)
    if unknown:
        raise refused("structural", f"{unknown[0]!r} is not known; known: tags, flags by name")
    flags = {name: spec.get(name, False) for name in _FLAGS}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise refused(f"structural.{name}", "it should be true or false")
    tags = spec.get("tags")
    if not isinstance(tags, list) or not 0 < len(tags) <= MAX_TAGS:
        raise refused("structural.tags", f"it should be a list of 1 to {MAX_TAGS} tags")
    for number, tag in enumerate(tags):
        _check_tag(tag, f"structural.tags[{number}]")
    _check_begins([tag["begin"] for tag in tags])
    return flags, tags


def _check_tag(tag: Json, where: str) -> None:
    if not isinstance(tag, dict):
        raise refused(
            where, "it should be an object with begin, end and one of schema, regex, lark"
        )
    bodies = [key for key in _BODIES if key in tag]
    unknown = sorted(tag.keys() - _TAG_KEYS - set(_BODIES))
    if unknown or len(bodies) != 1:
        shown = f"{unknown[0]!r} is not known" if unknown else f"it has {len(bodies)} of them"
        raise refused(where, f"it should have begin, end and one of schema, regex, lark; {shown}")
    for key in ("begin", "end"):
        text = tag.get(key)
        if not isinstance(text, str) or len(text) > MAX_TEXT or _unfit(text):
            raise refused(f"{where}.{key}", f"it should be text of at most {MAX_TEXT} characters")
    if not tag["begin"]:
        raise refused(f"{where}.begin", "it is empty, so the tag would always be open")
    body = bodies[0]
    if body != "schema" and not (isinstance(tag[body], str) and tag[body].strip()):
        raise refused(f"{where}.{body}", "it should be text with something in it")


def _unfit(text: str) -> bool:
    """Whether a text has half characters or NUL, which no grammar text can hold."""
    return bool(re.search("[\ud800-\udfff\x00]", text))


def _check_begins(begins: list[str]) -> None:
    for place, begin in enumerate(begins):
        for other in begins[:place] + begins[place + 1 :]:
            if begin in other:
                raise refused(
                    "structural.tags",
                    f"begin {begin[:40]!r} is inside begin {other[:40]!r}; make them differ",
                )

"""Structural tags: free text in which some tags may open, and what stands in a tag must match.

The source of such a constraint is a JSON object:

    {"tags": [{"begin": "<tool>", "schema": {...}, "end": "</tool>"},
              {"begin": "<sum>", "regex": "[0-9]+", "end": "</sum>"},
              {"begin": "<code>", "lark": "start: ...", "end": "</code>"}],
     "at_least_one": false, "stop_after_first": false, "at_start": false,
     "only_tags": false, "before": "</think>"}

- The text is free until it has the `begin` of a tag; from there it matches that tag's schema,
  regular expression or grammar and then its `end`, and is free again.
- `at_least_one`: the answer can not end before a tag was closed.
- `stop_after_first`: the answer ends with the first tag's end.
- `at_start`: the answer begins with a tag.
- `only_tags`: there is no free text. Between two tags is `between`, and the first and the last have
  `open` before them and `close` behind them; these are empty where they are not given, and neither
  of `between` and `close` begins with the other. Without `between` there are up to two line ends,
  also behind the last tag. A tag ends where no more of it can come, so what follows must not be
  what it may go on with; see bus/text/tag_ends.py.
- `before`: free text comes first, up to this text, which is not in it; all else is said of what
  follows. Under `only_tags` up to two line ends may follow it. As many as come are taken there
  and between tags, so that an `open` or a `begin` that begins with one may find too few left.
- `begin` and `end` are text, also where they look like control tokens; no `begin` is inside
  another, since a tag would open before the other could; under `only_tags` none begins with
  another.
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
_FLAGS = ("at_least_one", "stop_after_first", "at_start", "only_tags")
#: Texts around tags that are all of an answer.
_AROUND = ("open", "between", "close")
_KEYS = {"tags", "before", *_FLAGS, *_AROUND}
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
    for number, tag in enumerate(tags):
        with in_tag(number):
            body = _body(tag, number, lines, grammars, schema, regex)
        lines.append(f"inside_{number}: {body}")
        if flags["at_start"] or flags["only_tags"]:
            lines.append(f"first_{number}: {json.dumps(tag['begin'])} inside_{number}")
        if not flags["only_tags"]:
            lines.append(f"head_{number}[lazy]: TEXT {json.dumps(tag['begin'])}")
            lines.append(f"tag_{number}: head_{number} inside_{number}")
    lines += _around_tags(spec, flags, [tag["begin"] for tag in tags])
    return [{"name": "structural", "lark_grammar": "\n".join(lines)}, *grammars]


def _around_tags(spec: Json, flags: Mapping[str, bool], begins: list[str]) -> Iterator[str]:
    """Rules for what is around the tags, and for all of it."""
    before, line_ends = "", ""
    yield "TEXT: /(?s:.*)/"
    if "before" in spec:
        before = "before "
        yield f"before[lazy]: TEXT {json.dumps(spec['before'])}"
    if flags["at_start"] or flags["only_tags"]:
        yield f"first: {' | '.join(f'first_{number}' for number in range(len(begins)))}"
    if flags["only_tags"]:
        yield r"LINE_ENDS: /\n{1,2}/"
        line_ends = "LINE_ENDS? " if before else ""
        rest = _only_tags(spec, flags)
    else:
        inside = "|".join(map(_exact, begins))
        yield f"FREE: /(?s:.*)/ & ~/(?s:.*)(?:{inside})(?s:.*)/"
        yield "rest: FREE"
        yield f"any_tag: {' | '.join(f'tag_{number}' for number in range(len(begins)))}"
        rest = _start(flags)
    yield f"all: {rest}"
    yield f"start: {before}{line_ends}all"


def tags_alone(source: str) -> Iterator[tuple[int, str]]:
    """The number of each tag of a source, with a source that has no other tag."""
    spec = _parsed(source)
    tags = spec.get("tags")
    for number, tag in enumerate(tags if isinstance(tags, list) else ()):
        yield number, json.dumps({**spec, "tags": [tag]})


def texts_alone(source: str) -> Iterator[tuple[str, str]]:
    """Each key of a text around the tags of a source, with a source that has no other fault."""
    spec = _parsed(source)
    for key in ("before", *_AROUND):
        if key in spec:
            tag = {"begin": "a", "regex": "a", "end": "a"}
            yield key, json.dumps({"tags": [tag], "only_tags": True, key: spec[key]})


def _parsed(source: str) -> Mapping[str, Json]:
    """The object of a source; an empty one where it is none."""
    try:
        spec = json.loads(source)
    except (ValueError, RecursionError):
        return {}
    return spec if isinstance(spec, dict) else {}


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


def _only_tags(spec: Json, flags: Mapping[str, bool]) -> str:
    """What is all of an answer that is nothing but tags."""
    begin, end = (json.dumps(spec.get(key, "")) for key in ("open", "close"))
    if flags["stop_after_first"]:
        tags = f"{begin} first {end}"
    elif "between" in spec:
        tags = f"{begin} first ({json.dumps(spec['between'])} first)* {end}"
    else:
        tags = f"{begin} first (LINE_ENDS? first)* {end} LINE_ENDS?"
    return tags if flags["at_least_one"] else f'({tags}) | ""'


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
        known = ", ".join(sorted(_KEYS))
        raise refused("structural", f"{unknown[0][:60]!r} is not known; known are {known}")
    flags = {name: spec.get(name, False) for name in _FLAGS}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise refused(f"structural.{name}", "it should be true or false")
    tags = spec.get("tags")
    if not isinstance(tags, list) or not 0 < len(tags) <= MAX_TAGS:
        raise refused("structural.tags", f"it should be a list of 1 to {MAX_TAGS} tags")
    for number, tag in enumerate(tags):
        _check_tag(tag, f"structural.tags[{number}]")
    _check_texts(spec, only_tags=flags["only_tags"])
    _check_begins([tag["begin"] for tag in tags], only_tags=flags["only_tags"])
    return flags, tags


def _check_texts(spec: Mapping[str, Json], *, only_tags: bool) -> None:
    for key in ("before", *_AROUND):
        if key not in spec:
            continue
        if not _is_text(spec[key]):
            raise refused(
                f"structural.{key}", f"it should be text of at most {MAX_TEXT} characters"
            )
        if key != "before" and not only_tags:
            raise refused(f"structural.{key}", "it goes with only_tags; set that, or leave it out")
    between, close = spec.get("between"), spec.get("close")
    if between and close and (between.startswith(close) or close.startswith(between)):
        raise refused(
            "structural.close", "it begins with between, or is its beginning; make them differ"
        )
    if spec.get("before") == "":
        raise refused("structural.before", "it is empty; leave it out")


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
        if not _is_text(text):
            raise refused(f"{where}.{key}", f"it should be text of at most {MAX_TEXT} characters")
    if not tag["begin"]:
        raise refused(f"{where}.begin", "it is empty, so the tag would always be open")
    body = bodies[0]
    if body != "schema" and not (isinstance(tag[body], str) and tag[body].strip()):
        raise refused(f"{where}.{body}", "it should be text with something in it")


def _is_text(text: Json) -> bool:
    """Whether it is a text that a grammar can hold: one without half characters and NUL."""
    fits = isinstance(text, str) and len(text) <= MAX_TEXT
    return fits and not re.search("[\ud800-\udfff\x00]", text)


def _check_begins(begins: list[str], *, only_tags: bool) -> None:
    for place, begin in enumerate(begins):
        for other in begins[:place] + begins[place + 1 :]:
            if other.startswith(begin) if only_tags else begin in other:
                where = "at the start of" if only_tags else "inside"
                raise refused(
                    "structural.tags",
                    f"begin {begin[:40]!r} is {where} begin {other[:40]!r}; make them differ",
                )

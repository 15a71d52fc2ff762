"""Constraints of calls that are written argument by argument: a grammar for each tool.

The arguments come in the order of the schema. What the grammar lets through is what the format's
reader takes for a call, with values that fit the schema; a schema that can not be held to in a
format makes no tag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from head.text.channel_structural import HELD, SILENT
from head.text.channel_without import without

#: Types whose values are JSON, also where text is written bare.
_SCALARS = ("integer", "number", "boolean", "null")
_TYPES = (*_SCALARS, "object", "array")
#: A key that means the same in every tag.
_KEY = re.compile(r"[^<>\n\"&]+")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_GEMMA_KEY = re.compile(r"[^:{}\[\]<>,\n\"]+")
_ANY_TEXT = "/(?s:.*)/"


class ArgumentGrammar(Protocol):
    """How a format writes one argument, and what holds for all of its values."""

    @property
    def keys(self) -> re.Pattern[str]:
        """Names that an argument can have."""
        ...

    @property
    def between(self) -> str:
        """What stands between two arguments."""
        ...

    def rules(self) -> Sequence[str]:
        """Rules of a Lark grammar that make `bare`: any text, and what ends it."""
        ...

    def argument(self, key: str, schema: Mapping[str, Any]) -> str | None:
        """An argument as a part of a Lark rule; None when it can not be held to its schema."""
        ...


@dataclass(frozen=True)
class ByArgument:
    """A tag for calls whose arguments are written one by one; `{name}` stands for the tool."""

    begin: str
    arguments: ArgumentGrammar
    end: str

    def __call__(self, name: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
        """The tag of one tool; None for a schema that asks for more than can be held to."""
        properties = schema.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        required = schema.get("required")
        needed = set(required) if isinstance(required, list) else set()
        if schema.keys() - HELD or not needed <= set(properties):
            return None
        lines = []
        for number, (key, part) in enumerate(properties.items()):
            fits = isinstance(part, Mapping) and _is_key(key, self.arguments.keys)
            written = self.arguments.argument(key, part) if fits else None
            if written is None:
                return None
            lines.append(f"part_{number}: {written}")
        if any("bare" in line for line in lines):
            lines = [*self.arguments.rules(), *lines]
        lines += _in_order([key in needed for key in properties], self.arguments.between)
        return {
            "begin": self.begin.replace("{name}", name),
            "lark": "\n".join(lines),
            "end": self.end,
        }


def _is_key(key: Any, keys: re.Pattern[str]) -> bool:
    return isinstance(key, str) and key == key.strip() and keys.fullmatch(key) is not None


def _in_order(needed: Sequence[bool], between: str) -> Iterator[str]:
    """Rules for arguments in their order, of which those that are not needed may be missing.

    `first_n` has none before argument n, `more_n` has one.
    """
    count = len(needed)
    if not between or not count:
        parts = (f"part_{n}" if needed[n] else f"part_{n}?" for n in range(count))
        yield f"start: {' '.join(parts) or _quoted('')}"
        return
    yield "start: first_0"
    for n in range(count):
        rest = f" more_{n + 1}" if n + 1 < count else ""
        other = f"first_{n + 1}" if n + 1 < count else _quoted("")
        yield f"first_{n}: part_{n}{rest}" + ("" if needed[n] else f" | {other}")
        if needed[n]:
            break
    for n in range(1, count):
        one = f"{_quoted(between)} part_{n}"
        rest = f" more_{n + 1}" if n + 1 < count else ""
        yield f"more_{n}: {one if needed[n] else f'({one})?'}{rest}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps(schema, ensure_ascii=False)}"


# --- what a schema asks for ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Wanted:
    """What an argument may be.

    Attributes:
        choices: the texts that it may be, and nothing else then.
        text: it may be any text.
        others: schema of what it may be beside text, if there is something.
    """

    choices: tuple[str, ...] = ()
    text: bool = False
    others: Mapping[str, Any] | None = None


def _wanted(schema: Mapping[str, Any]) -> _Wanted | None:
    """None when a text is held to more than to be one of some."""
    named, choices = schema.get("type"), schema.get("enum")
    if named in (None, "string") and isinstance(choices, list):
        if schema.keys() - SILENT - {"enum"} or not choices or not all(map(_is_choice, choices)):
            return None
        return _Wanted(choices=tuple(choices))
    parts = schema.get("anyOf", [schema] if isinstance(named, str) else None)
    if isinstance(named, list) and "anyOf" not in schema:
        if len(named) > len(_TYPES) + 1:
            return None
        parts = [{**schema, "type": name} for name in named]
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        return None
    types = [part.get("type") for part in parts]
    if not types or any(name not in (*_TYPES, "string") for name in types):
        return None
    if "string" not in types:
        return _Wanted(others=schema)
    # Text is of one of these types, if they ask for nothing else.
    beside = schema.keys() - SILENT - {"anyOf"} if "anyOf" in schema else ()
    if beside or any(part.keys() - SILENT for part in parts):
        return None
    rest = [{"type": name} for name in types if name != "string"]
    return _Wanted(text=True, others={"anyOf": rest} if rest else None)


def _is_choice(text: Any) -> bool:
    """Whether bare text can be held to be this, and is then taken for it."""
    return isinstance(text, str) and bool(text.strip()) and not text.startswith("\n")


# --- values between tags -------------------------------------------------------------------------


@dataclass(frozen=True)
class Tagged:
    """Arguments between tags, text bare and other values as JSON; `{key}` stands for the name.

    Attributes:
        begin: what is before a value.
        close: what ends a value.
        after: what follows that.
        json_begin: what is before a value that is no text, `{type}` in it for what it is; empty:
            the same, and its type is that of the tool's schema.
        free: a regular expression of text that is not taken for anything else.
        never: what a choice may not have in it, a line's end before it.
        apart: what text inside of JSON may not have in it; each begins with the one `<` in it.
    """

    begin: str
    close: str
    after: str = ""
    json_begin: str = ""
    free: str = _ANY_TEXT
    never: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    between: str = ""
    keys: re.Pattern[str] = _KEY

    def rules(self) -> Sequence[str]:
        """See `ArgumentGrammar`."""
        return (f"FREE: {self.free}", f"bare[lazy]: FREE {_quoted(self.close)}")

    def argument(self, key: str, schema: Mapping[str, Any]) -> str | None:
        """See `ArgumentGrammar`."""
        wanted = _wanted(schema)
        if wanted is None:
            return None
        begin, close = _quoted(self.begin.replace("{key}", key)), _quoted(self.close)
        after = f" {_quoted(self.after)}" if self.after else ""
        if wanted.choices:
            if any(end in f"\n{text}" for end in self.never for text in wanted.choices):
                return None
            return f"{begin} ({' | '.join(map(_quoted, wanted.choices))}) {close}{after}"
        if wanted.text and (wanted.others is None or not self.json_begin):
            # Any text is of one of the types that are allowed.
            return f"{begin} bare{after}"
        others = without(wanted.others, self.apart) if wanted.others is not None else None
        if others is None:
            return f"{begin} bare{after}" if wanted.text else None
        if self.json_begin:
            tag = self.json_begin.replace("{type}", _type_of(others)).replace("{key}", key)
            written = f"{_quoted(tag)} {_json(others)} {close}"
            return f"({begin} bare | {written}){after}" if wanted.text else f"{written}{after}"
        return f"{begin} {_json(others)} {close}{after}"


def _type_of(schema: Mapping[str, Any]) -> str:
    """What Kimi K3 calls the type of a value."""
    named = schema.get("type")
    return {"integer": "number"}.get(named, named) if isinstance(named, str) else "object"


# --- values that are literals --------------------------------------------------------------------


@dataclass(frozen=True)
class Literals:
    """Arguments of a call in Python, `a=1, b="x"`, whose values are JSON."""

    between: str = ", "
    keys: re.Pattern[str] = _IDENTIFIER

    def rules(self) -> Sequence[str]:
        """See `ArgumentGrammar`."""
        return ()

    def argument(self, key: str, schema: Mapping[str, Any]) -> str | None:
        """See `ArgumentGrammar`."""
        return f"{_quoted(f'{key}=')} {_json(schema)}"


@dataclass(frozen=True)
class GemmaArguments:
    """Gemma's `a:1,b:<|"|>text<|"|>`. Objects, and lists of more than one kind, can not be held."""

    quote: str = '<|"|>'
    between: str = ","
    keys: re.Pattern[str] = _GEMMA_KEY

    def rules(self) -> Sequence[str]:
        """See `ArgumentGrammar`."""
        quote = _quoted(self.quote)
        return (f"FREE: {_ANY_TEXT}", f"closed[lazy]: FREE {quote}", f"bare: {quote} closed")

    def argument(self, key: str, schema: Mapping[str, Any]) -> str | None:
        """See `ArgumentGrammar`."""
        value = self._value(schema)
        return None if value is None else f"{_quoted(f'{key}:')} {value}"

    def _value(self, schema: Mapping[str, Any]) -> str | None:
        if _is_text_list(schema):
            return '"[" (bare ("," bare)*)? "]"'
        wanted = _wanted(schema)
        if wanted is None:
            return None
        if wanted.choices:
            if any(self.quote in text for text in wanted.choices):
                return None
            quoted = (_quoted(f"{self.quote}{text}{self.quote}") for text in wanted.choices)
            return f"({' | '.join(quoted)})"
        if wanted.others is not None and not _has_no_text(wanted.others):
            return None
        if wanted.text:
            return "bare" if wanted.others is None else f"(bare | {_json(wanted.others)})"
        return None if wanted.others is None else _json(wanted.others)


def _is_text_list(schema: Mapping[str, Any]) -> bool:
    items = schema.get("items")
    return (
        schema.get("type") == "array"
        and isinstance(items, Mapping)
        and items.get("type") == "string"
        and not items.keys() - SILENT
        and not schema.keys() - SILENT - {"items"}
    )


def _has_no_text(schema: Mapping[str, Any]) -> bool:
    """Whether a schema asks for numbers, truth or nothing, or lists of them."""
    parts = schema.get("anyOf")
    if isinstance(parts, list):
        return all(isinstance(part, Mapping) and _has_no_text(part) for part in parts)
    if schema.get("type") == "array":
        items = schema.get("items")
        return isinstance(items, Mapping) and _has_no_text(items)
    named = schema.get("type")
    kinds: Iterable[Any] = named if isinstance(named, list) else [named]
    return all(kind in _SCALARS for kind in kinds)

"""Arguments that a format writes as bare text, typed by the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from head.text.channel_json import MAX_DEPTH, NotJson, is_scalar, parse_json, whole_characters

_ALL = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
_UNIONS = ("anyOf", "oneOf", "allOf")
#: Schemas, choices and steps of references that one argument's type is looked for in.
MAX_LOOKED_AT = 1024
#: Of one argument: all of them are one object more.
INNER_DEPTH = MAX_DEPTH - 1
#: The type of an argument whose schema says it at greater length: text stays as it was written.
_UNKNOWN = frozenset({"string"})


def typed(text: str, allowed: frozenset[str]) -> str:
    """The JSON of an argument that was written as bare text.

    Of the types that the schema allows the first that fits it counts, string last: `5` is a number
    where the schema allows numbers, else a string. What fits none of them is a string, so nothing
    is lost and the tool can say what is wrong.

    Args:
        text: as the model wrote it.
        allowed: types of this argument, from `types_of`.
    """
    bare = text.strip()
    if allowed != {"string"}:
        made = _not_string(bare, allowed)
        if made is not None:
            return made
    return json.dumps(text, ensure_ascii=False)


def _not_string(text: str, allowed: frozenset[str]) -> str | None:
    if "boolean" in allowed and text in ("true", "false", "True", "False"):
        return text.lower()
    if "null" in allowed and (text == "null" or (text == "None" and "string" not in allowed)):
        return "null"
    numbers = allowed & {"number", "integer"}
    if numbers and is_scalar(text) and text not in ("true", "false", "null"):
        whole = text.lstrip("-").isdigit()
        if "number" in allowed or whole or "string" not in allowed:
            return text
    if text[:1] in ("{", "[") and allowed & {"object", "array"}:
        text = whole_characters(text)
        try:
            value = parse_json(text, INNER_DEPTH)
        except NotJson:
            return None
        if ("object" if isinstance(value, dict) else "array") in allowed:
            return text
    return None


def types_of(schema: Any, root: Mapping[str, Any], budget: Budget | None = None) -> frozenset[str]:
    """The types of the values that a schema allows; all when it does not say.

    Only text when it takes more than the budget to find out.

    Args:
        schema: of an argument.
        root: the tool's whole schema, where `$ref` points into.
        budget: `MAX_LOOKED_AT` unless given.
    """
    found: set[str] = set()
    budget = budget or Budget()
    try:
        for part in _parts(schema, root, budget):
            named = _named_types(part, budget)
            if named is None:
                return _ALL
            found |= named
    except _TooMuch:
        return _UNKNOWN
    return frozenset(found & _ALL) or _ALL


def _named_types(part: Mapping[str, Any], budget: Budget) -> set[str] | None:
    """The types that one schema names itself; None when it allows all."""
    named, choices = part.get("type"), part.get("enum")
    found = {"null"} if part.get("nullable") is True else set()
    if isinstance(named, str):
        return found | {named}
    if isinstance(named, list):
        budget.spend(len(named))
        return found | {name for name in named if isinstance(name, str)}
    if isinstance(choices, list):
        budget.spend(len(choices))
        return found | set(map(_type, choices))
    if "const" in part:
        return found | {_type(part["const"])}
    if isinstance(part.get("properties"), Mapping):
        return found | {"object"}
    unions = any(isinstance(part.get(key), list) for key in _UNIONS)
    return found if unions or "$ref" in part else None


def _parts(schema: Any, root: Mapping[str, Any], budget: Budget) -> Iterator[Mapping[str, Any]]:
    """A schema and those that it is put together of, each once."""
    waiting = [schema]
    followed: set[str] = set()
    while waiting:
        budget.spend(1)
        part = waiting.pop()
        if not isinstance(part, Mapping):
            continue
        yield part
        for key in _UNIONS:
            union = part.get(key)
            if isinstance(union, list):
                budget.spend(len(union))
                waiting += union
        reference = part.get("$ref")
        if isinstance(reference, str) and reference not in followed:
            followed.add(reference)
            budget.spend(reference.count("/") + len(reference) // 100)
            waiting.append(_target(reference, root))


class _TooMuch(Exception):
    """There is more to look at than a type is worth."""


class Budget:
    """How much may be looked at still."""

    __slots__ = ("left",)

    def __init__(self, left: int = MAX_LOOKED_AT) -> None:
        self.left = left

    def spend(self, count: int) -> None:
        """Take so much of it.

        Raises:
            _TooMuch: there is not so much left.
        """
        self.left -= count
        if self.left < 0:
            self.left = 0
            raise _TooMuch


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    if not reference.startswith("#"):
        return {}
    found: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        if step:
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


class Arguments:
    """The arguments of one call, as they are read."""

    __slots__ = ("_json",)

    def __init__(self) -> None:
        self._json: dict[str, str] = {}

    def add(self, name: str, value: str) -> bool:
        """One more, as JSON; False when it was there."""
        if name in self._json:
            return False
        self._json[name] = value
        return True

    def text(self) -> str:
        """All of them as a JSON object."""
        pairs = (f"{json.dumps(k, ensure_ascii=False)}: {v}" for k, v in self._json.items())
        return "{" + ", ".join(pairs) + "}"

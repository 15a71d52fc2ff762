"""Arguments that a format writes as bare text, typed by the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from head.text.channel_json import NotJson, Number, is_scalar, parse_json

_ALL = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
_UNIONS = ("anyOf", "oneOf", "allOf")
_MAX_STEPS = 256


def typed(text: str, schema: Any, root: Mapping[str, Any]) -> str:
    """The JSON of an argument that was written as bare text.

    Of the types that the schema allows the first that fits it counts, string last: `5` is a number
    where the schema allows numbers, else a string. What fits none of them is a string, so nothing
    is lost and the tool can say what is wrong.

    Args:
        text: as the model wrote it.
        schema: of this argument.
        root: the tool's whole schema, where `$ref` points into.
    """
    allowed = types_of(schema, root)
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
        try:
            value = parse_json(text)
        except NotJson:
            return None
        if ("object" if isinstance(value, dict) else "array") in allowed:
            return text
    return None


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The types of the values that a schema allows; all when it does not say."""
    found: set[str] = set()
    for part in _parts(schema, root):
        named = part.get("type")
        if isinstance(named, str):
            found.add(named)
        elif isinstance(named, list):
            found.update(name for name in named if isinstance(name, str))
        elif isinstance(part.get("enum"), list):
            found.update(map(_type, part["enum"]))
        elif "const" in part:
            found.add(_type(part["const"]))
        elif isinstance(part.get("properties"), Mapping):
            found.add("object")
        elif not any(isinstance(part.get(key), list) for key in _UNIONS) and "$ref" not in part:
            return _ALL
        if part.get("nullable") is True:
            found.add("null")
    return frozenset(found & _ALL) or _ALL


def _parts(schema: Any, root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A schema and those that it is put together of."""
    waiting = [schema]
    for _ in range(_MAX_STEPS):
        if not waiting:
            return
        part = waiting.pop()
        if not isinstance(part, Mapping):
            continue
        yield part
        for key in _UNIONS:
            if isinstance(part.get(key), list):
                waiting += part[key]
        if isinstance(part.get("$ref"), str):
            waiting.append(_target(part["$ref"], root))


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
    if isinstance(value, (int, float, Number)):
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

"""Schemas drawn at random, with keywords beside and inside each other as suites rarely have."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from tests.constraints.suite import ALL_DRAFTS, Case

Schema = dict[str, Any]

_NAMES = ("a", "b", "ab", "c d", "\u00e9", 'q"', "a/b")
_GROUPED = ("^(a$|b)b$", "(a|b$)a?", "(^a|b)", "^(?:a|(^b))$", "(a$|^b$)", "x(a|b$)|^b", "(a)(b$)")
_PATTERNS = (
    *_GROUPED,
    "^a",
    "b$",
    "^[ab]+$",
    "a.b",
    r"^\d{2,4}$",
    "",
    "^(a|b)?$",
    "x|^y$",
    r"\S",
    "^[^a]*$",
)
_NAME_PATTERNS = ("^a", "^b", "^[0-9]+$", "d$", r"^\W$", "^.$", "^(a$|b)b", "^(c|d$)")
_FORMATS = ("date", "time", "email", "ipv4", "uuid", "uri", "hostname", "duration")
_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -3,
    2.5,
    100,
    "",
    "a",
    "ab",
    'x"y',
    "\u00e9",
    [],
    [1],
    {},
    {"a": 1},
)
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")


def random_cases(count: int, seed: int) -> Iterator[Case]:
    """Cases without instances."""
    for number in range(count):
        choice = random.Random(f"{seed} {number}")
        draft = choice.choice(("draft2020-12", *ALL_DRAFTS))
        schema = {"$schema": ALL_DRAFTS[draft], **_schema(choice, choice.randrange(1, 4))}
        if choice.random() < 0.3:
            schema["$defs"] = {"d": _schema(choice, 1), "e": _schema(choice, 1)}
        yield Case(
            name=f"random {seed}/{number}",
            draft=draft,
            source=json.dumps(_without_dangling(schema, "$defs" in schema)),
            instances=(),
            asserts_format=True,
        )


def _without_dangling(node: Any, kept: bool) -> Any:
    """References to definitions taken out of a schema that has none."""
    if isinstance(node, dict):
        return {
            key: _without_dangling(value, kept)
            for key, value in node.items()
            if kept or key != "$ref"
        }
    if isinstance(node, list):
        return [_without_dangling(item, kept) for item in node]
    return node


def _schema(choice: random.Random, depth: int) -> Schema:
    makers = [_typed, _typed, _typed, _enum, _mixed]
    if depth > 0:
        makers += [_any_of, _any_of, _all_of, _one_of, _ref]
    made = choice.choice(makers)(choice, depth)
    items = list(made.items())
    choice.shuffle(items)
    return dict(items)


def _typed(choice: random.Random, depth: int) -> Schema:
    kind = choice.choice(_TYPES if depth > 0 else _TYPES[:5])
    made: Schema = {"type": kind}
    if choice.random() < 0.15:
        made["type"] = choice.sample(_TYPES, 2)
    if kind in _KEYWORDS:
        made.update(_KEYWORDS[kind](choice, depth))
    return made


def _mixed(choice: random.Random, depth: int) -> Schema:
    """Keywords of several types without a type."""
    made: Schema = {}
    for keywords in choice.sample(list(_KEYWORDS.values()), 2):
        made.update(keywords(choice, depth))
    return made


def _numbers(choice: random.Random, _depth: int) -> Schema:
    made: Schema = {}
    for key in ("minimum", "exclusiveMinimum"):
        if choice.random() < 0.3:
            made[key] = choice.choice((-10, -1.5, -0.5, 0, 0, 0.25, 0.5, 1, 3, 10, 1e-3))
    for key in ("maximum", "exclusiveMaximum"):
        if choice.random() < 0.3:
            made[key] = choice.choice((0, 0.5, 0.75, 1, 1.5, 5, 7.75, 10.5, 12, 1000, 1e17))
    if choice.random() < 0.25:
        made["multipleOf"] = choice.choice((1, 2, 3, 0.5, 0.01, 1.5))
    return made


def _strings(choice: random.Random, _depth: int) -> Schema:
    made: Schema = {}
    if choice.random() < 0.35:
        made["pattern"] = choice.choice(_PATTERNS)
    if choice.random() < 0.3:
        made["minLength"] = choice.randrange(4)
    if choice.random() < 0.3:
        made["maxLength"] = choice.randrange(2, 8)
    if choice.random() < 0.15:
        made["format"] = choice.choice(_FORMATS)
    return made


def _arrays(choice: random.Random, depth: int) -> Schema:
    made: Schema = {}
    if choice.random() < 0.1:
        made["items"] = [_inner(choice, depth) for _ in range(choice.randrange(1, 3))]
        made["additionalItems"] = _inner(choice, depth)
        return made
    if choice.random() < 0.4:
        made["prefixItems"] = [_inner(choice, depth) for _ in range(choice.randrange(1, 3))]
    if choice.random() < 0.6:
        made["items"] = _inner(choice, depth)
    if choice.random() < 0.3:
        made["minItems"] = choice.randrange(4)
    if choice.random() < 0.4:
        made["maxItems"] = choice.randrange(1, 5)
    return made


def _objects(choice: random.Random, depth: int) -> Schema:
    made: Schema = {}
    names = choice.sample(_NAMES, choice.randrange(4))
    if choice.random() < 0.8:
        made["properties"] = {name: _inner(choice, depth) for name in names}
    if choice.random() < 0.4:
        made["required"] = choice.sample(_NAMES, choice.randrange(3))
    if choice.random() < 0.3:
        found = choice.sample(_NAME_PATTERNS, choice.randrange(1, 3))
        made["patternProperties"] = {pattern: _inner(choice, depth) for pattern in found}
    if choice.random() < 0.5:
        made["additionalProperties"] = choice.choice((False, True, _inner(choice, depth)))
    if choice.random() < 0.2:
        made["minProperties"] = choice.randrange(3)
    if choice.random() < 0.2:
        made["maxProperties"] = choice.randrange(1, 4)
    return made


_KEYWORDS = {
    "integer": _numbers,
    "number": _numbers,
    "string": _strings,
    "array": _arrays,
    "object": _objects,
}


def _inner(choice: random.Random, depth: int) -> Any:
    if choice.random() < 0.05:
        return choice.random() < 0.5
    return _schema(choice, depth - 1)


def _enum(choice: random.Random, _depth: int) -> Schema:
    if choice.random() < 0.4:
        return {"const": choice.choice(_VALUES)}
    return {"enum": choice.sample(_VALUES, choice.randrange(1, 5))}


def _sides(choice: random.Random, depth: int) -> list[Any]:
    return [_inner(choice, depth) for _ in range(choice.randrange(1, 4))]


def _any_of(choice: random.Random, depth: int) -> Schema:
    return {"anyOf": _sides(choice, depth), **_beside(choice, depth)}


def _one_of(choice: random.Random, depth: int) -> Schema:
    return {"oneOf": _sides(choice, depth), **_beside(choice, depth)}


def _all_of(choice: random.Random, depth: int) -> Schema:
    return {"allOf": _sides(choice, depth), **_beside(choice, depth)}


def _ref(choice: random.Random, depth: int) -> Schema:
    return {"$ref": choice.choice(("#/$defs/d", "#/$defs/e", "#")), **_beside(choice, depth)}


def _beside(choice: random.Random, depth: int) -> Schema:
    return _typed(choice, depth - 1) if choice.random() < 0.4 else {}

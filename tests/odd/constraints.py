"""Constraints of every kind, broken in every way."""

from __future__ import annotations

import random
from typing import Any

KINDS = ("json_schema", "regex", "lark", "structural")

SOUND = {
    "json_schema": (
        '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}',
        '{"type": "array", "items": {"enum": ["x", 1, null]}, "maxItems": 3}',
        '{"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 5}]}',
    ),
    "regex": ("[a-z]{3,9}", "(yes|no)", "\\d+\\.\\d{2}", "a*"),
    "lark": ('start: "a" | "b" start', "start: /[0-9]+/ NEWLINE\nNEWLINE: /\\n/"),
    "structural": (
        '{"tags": [{"begin": "<t>", "regex": "[a-z]+", "end": "</t>"}]}',
        '{"tags": [{"begin": "a", "schema": {"type": "integer"}, "end": "b"}],'
        ' "at_least_one": true}',
    ),
}

BROKEN: dict[str, tuple[str, ...]] = {
    "json_schema": (
        *("", "{", "[", "nul", "0", '"x"', '{"type": "nope"}', '{"type": 5}', "false"),
        *('{"$ref": "#"}', '{"$ref": "#/nowhere"}', '{"$ref": "https://example.invalid/s"}'),
        *('{"allOf": [{"type": "string"}, {"type": "integer"}]}', '{"minLength": -1}'),
        *('{"pattern": "("}', '{"pattern": "(?=a)"}', '{"minimum": 1e999}', '{"multipleOf": 0}'),
        '{"type": "string", "maxLength": 1000000}',
        '{"items": ' * 300 + "{}" + "}" * 300,
        "[" * 5000,
        '{"enum": [' + ", ".join(f'"{number}"' for number in range(3000)) + "]}",
        '{"const": "' + "x" * 60_000 + '"}',
    ),
    "regex": (
        *("(", ")", "[", "[a-", "[z-a]", "*", "a**", "\\", "\\9", "(?=a)", "\\b", "(?P<n>a)(?P=n)"),
        *(
            "a{1000000}",
            "a{2,1}",
            "a{99999}",
            "(a{999}){999}",
            "((a|b)*){50}",
            "[^\\x00-\\x{10FFFF}]",
        ),
        *("(" * 90 + "a" + ")" * 90, "(" * 5000, "(a|aa|aaa)*" * 40, "\0", "\x7f", ".*.*.*.*=.*"),
    ),
    "lark": (
        *("start", "start:", "start: start", "start: other", "start: /(/", 'start: "', "%%%"),
        *('start: start start | ""', "other: /a/", "start: a\na: b\nb: a", 'start: "a"~1..1000000'),
        *("%import common.NOTHING\nstart: NOTHING", "start: %json {", "start: /a/\nstart: /b/"),
        "start: " + "(" * 3000 + '"a"' + ")" * 3000,
        "start: " + " ".join(f"r{n}" for n in range(2000)),
    ),
    "structural": (
        *(
            "",
            "{}",
            "[]",
            '{"tags": []}',
            '{"tags": [{}]}',
            '{"tags": 5}',
            '{"tags": [{"begin": ""}]}',
        ),
        *('{"tags": [{"begin": "<t>", "end": "", "regex": "("}]}', '{"tags": null, "x": 1}'),
        '{"tags": [{"begin": "<t>", "schema": {"type": "nope"}, "end": "</t>"}]}',
        '{"tags": ['
        + ", ".join(f'{{"begin": "t{n}", "regex": "a", "end": "e"}}' for n in range(300))
        + "]}",
    ),
}


def odd_constraint(rng: random.Random) -> Any:
    """A constraint as it is packed: kind and source, or something else."""
    how = rng.randrange(12)
    kind = rng.choice(KINDS)
    if how < 3:
        return [kind, rng.choice(SOUND[kind])]
    if how < 6:
        return [kind, rng.choice(BROKEN[kind])]
    if how < 9:
        return [kind, changed(rng, rng.choice(SOUND[kind]))]
    if how == 9:
        return [kind, rng.choice(BROKEN[rng.choice(KINDS)])]
    if how == 10:
        return [kind, rng.choice(("\ud800", "a\udfffb", "\0" * 9, "é" * 131_072, "a" * 262_145))]
    return rng.choice(([], [kind], ["grammar", "a"], [kind, b"a"], [kind, None], "regex", 5, [[]]))


def changed(rng: random.Random, source: str) -> str:
    """A source with one to four characters removed, added or doubled."""
    text = source
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(text) + 1)
        how = rng.randrange(3)
        if how == 0:
            text = text[:at] + text[at + rng.randrange(1, 4) :]
        elif how == 1:
            text = text[:at] + rng.choice('{}[]()"\\*+?|/:,~.\0é\U0001f600<>%\n09a') + text[at:]
        else:
            text = text[:at] + text[max(0, at - 8) :]
    return text

"""A JSON Schema made into one that the grammar engine honours in full, or refused.

The engine ignores what it does not know, is wrong about some of what it knows, and reads patterns
in a syntax of its own. So a schema is written anew here from what is known to hold: every keyword
is checked, translated or refused by name, with its place. What comes out may allow less than the
schema does (one order of properties, one spelling of a value), never more.

What is reached by `$ref` becomes a definition of its own; nothing else of `$defs` is looked at.

Source: JSON Schema 2020-12 core and validation; draft 7, section 8.3, for siblings of `$ref`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from bus.text.formats import FORMATS
from bus.text.patterns import PatternRefused, translate
from bus.text.schema_limits import (
    ANNOTATIONS,
    DIALECTS,
    IGNORED,
    MAX_COUNT,
    MAX_DEPTH,
    MAX_NAME_PATTERNS,
    MAX_OPTIONAL,
    MAX_PROPERTIES,
    PREFIX_ITEMS,
    REF_ALONE,
    TYPES,
    UNSUPPORTED,
    SchemaRefused,
)
from bus.text.schema_names import check_free_names, check_name_patterns
from bus.text.schema_numbers import count, literal, lower_bound, step, upper_bound
from bus.text.schema_oneof import check_one_of
from bus.text.schema_references import References, escaped
from bus.text.schema_steps import check_steps

Json = Any
Schema = dict[str, Any] | bool
Out = dict[str, Any]


def translate_schema(root: Json) -> Out:
    """The schema as the engine honours it.

    Args:
        root: from `bus.text.schema_source.parse_json`.

    Raises:
        SchemaRefused: something in it can not be honoured, or nothing can match it.
    """
    return _Translation(root).run()


class _Translation:
    """One schema on its way."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self._dialect = _dialect_of(root)
        self._alone = self._dialect in REF_ALONE
        self._references = References(root, anchors=not self._alone)

    def run(self) -> Out:
        made = self._schema(self._root, "#", 0, is_root=True)
        definitions: dict[str, Out] = {}
        while (waiting := self._references.next_waiting()) is not None:
            name, where, node = waiting
            definitions[name] = self._schema(node, where, 0, is_root=where == "#")
        if definitions:
            made = {"$defs": definitions, **made}
        check_steps(made)
        check_one_of(made)
        check_free_names(made)
        return made

    def _schema(self, node: Json, where: str, depth: int, *, is_root: bool = False) -> Out:
        if node is True:
            return {}
        if node is False:
            # `false` as an object, so that everything is one.
            return {"anyOf": []}
        if not isinstance(node, dict):
            raise SchemaRefused(where, f"a schema should be an object, not {_kind(node)}")
        if depth > MAX_DEPTH:
            raise SchemaRefused(where, f"it is nested more than {MAX_DEPTH} deep")
        if self._alone and "$ref" in node:
            node = {"$ref": node["$ref"]}
        if is_root:
            node = {key: value for key, value in node.items() if key not in ("$schema", "$id")}
        out: Out = {}
        for key, value in node.items():
            self._keyword(key, value, node, f"{where}/{escaped(key)}", depth, out)
        return out

    def _keyword(
        self, key: str, value: Json, node: dict[str, Json], where: str, depth: int, out: Out
    ) -> None:
        if key in ANNOTATIONS or (key in IGNORED and value == IGNORED[key]):
            return
        handler = _HANDLERS.get(key)
        if handler is None:
            raise SchemaRefused(
                where, UNSUPPORTED.get(key, "this keyword is not known, so it would not hold")
            )
        for name, made in handler(self, value, node, where, depth).items():
            if name in out:
                # The same keyword from two: what is not merged here the engine intersects.
                out.setdefault("allOf", []).append({name: made})
            else:
                out[name] = made

    # --- any type -------------------------------------------------------------------------

    def _ref(self, value: Json, _node: Json, where: str, _depth: int) -> Out:
        if not isinstance(value, str):
            raise SchemaRefused(where, f"it should be text, not {_kind(value)}")
        return {"$ref": f"#/$defs/{self._references.name(value, where)}"}

    def _type(self, value: Json, _node: Json, where: str, _depth: int) -> Out:
        names = value if isinstance(value, list) else [value]
        wrong = [name for name in names if not isinstance(name, str) or name not in TYPES]
        if wrong or not names:
            shown = json.dumps(wrong[0], default=str)[:60] if wrong else "an empty list"
            raise SchemaRefused(where, f"{shown} is no type; types are {', '.join(TYPES)}")
        return {"type": value}

    def _const(self, value: Json, _node: Json, where: str, depth: int) -> Out:
        return {"const": literal(value, where, depth)}

    def _enum(self, value: Json, _node: Json, where: str, depth: int) -> Out:
        items = _list(value, where)
        return {"enum": [literal(item, f"{where}/{n}", depth) for n, item in enumerate(items)]}

    def _some(self, value: Json, _node: Json, where: str, depth: int) -> Out:
        items = _list(value, where)
        made = [self._schema(item, f"{where}/{n}", depth + 1) for n, item in enumerate(items)]
        return {where.rsplit("/", 1)[1]: made}

    # --- arrays ---------------------------------------------------------------------------

    def _items(self, value: Json, node: Json, where: str, depth: int) -> Out:
        if not isinstance(value, list):
            return {"items": self._below(value, where, depth)}
        if self._dialect == PREFIX_ITEMS:
            raise SchemaRefused(where, "draft 2020-12 has no list of items; use prefixItems")
        if "prefixItems" in node:
            raise SchemaRefused(where, "items is a list beside prefixItems; keep one of them")
        made: Out = {"prefixItems": self._some(value, node, where, depth)["items"]}
        if "additionalItems" in node:
            below = where.rsplit("/", 1)[0] + "/additionalItems"
            made["items"] = self._below(node["additionalItems"], below, depth)
        return made

    def _prefix_items(self, value: Json, node: Json, where: str, depth: int) -> Out:
        if self._dialect not in ("", PREFIX_ITEMS):
            # There it says nothing, and `items` is for all items.
            raise SchemaRefused(
                where, "only draft 2020-12 has prefixItems; use a list of items or that $schema"
            )
        return self._some(value, node, where, depth)

    def _additional_items(self, value: Json, node: Json, where: str, _depth: int) -> Out:
        # Of meaning beside a list of items only, where `items` takes it.
        if not isinstance(value, dict | bool):
            raise SchemaRefused(where, f"a schema should be an object, not {_kind(value)}")
        return {}

    # --- objects --------------------------------------------------------------------------

    def _properties(self, value: Json, node: Json, where: str, depth: int) -> Out:
        if isinstance(value, dict):
            optional = len(value.keys() - set(_names(node.get("required", []), where)))
            if len(value) > MAX_PROPERTIES or optional > MAX_OPTIONAL:
                raise SchemaRefused(
                    where,
                    f"it has {len(value)} properties, {optional} of them not required; at most "
                    f"{MAX_PROPERTIES} and {MAX_OPTIONAL} are possible: put some into objects of "
                    "their own",
                )
        made = self._named(value, where, depth)
        for name in made:
            _check_name(name, where)
        return {"properties": made}

    def _pattern_properties(self, value: Json, node: Json, where: str, depth: int) -> Out:
        if isinstance(value, dict) and len(value) > MAX_NAME_PATTERNS:
            raise SchemaRefused(
                where, f"it has {len(value)} patterns; at most {MAX_NAME_PATTERNS} are possible"
            )
        made = self._named(value, where, depth)
        patterns = {
            _pattern(name, f"{where}/{escaped(name)}"): schema for name, schema in made.items()
        }
        check_name_patterns(made.keys(), node, where)
        return {"patternProperties": patterns}

    def _named(self, value: Json, where: str, depth: int) -> dict[str, Out]:
        if not isinstance(value, dict):
            raise SchemaRefused(where, f"it should be an object, not {_kind(value)}")
        return {
            name: self._schema(schema, f"{where}/{escaped(name)}", depth + 1)
            for name, schema in value.items()
        }

    def _additional(self, value: Json, _node: Json, where: str, depth: int) -> Out:
        return {"additionalProperties": self._below(value, where, depth)}

    def _required(self, value: Json, _node: Json, where: str, _depth: int) -> Out:
        names = _names(value, where)
        for name in names:
            _check_name(name, where)
        return {"required": names} if names else {}

    def _min_properties(self, value: Json, node: Json, where: str, _depth: int) -> Out:
        least = _count(value, where)
        required = set(_names(node.get("required", []), where))
        if least <= len(required):
            return {}
        if least > len(required) + 1:
            # The engine may write one free name twice, which is one property.
            raise SchemaRefused(
                where, "more than one property beyond the required ones can not be made sure of"
            )
        return {"minProperties": least}

    def _below(self, value: Json, where: str, depth: int) -> Out:
        return self._schema(value, where, depth + 1)


def _plain_text(_self: _Translation, value: Json, node: Json, where: str, _depth: int) -> Out:
    if not isinstance(value, str):
        raise SchemaRefused(where, f"it should be text, not {_kind(value)}")
    if where.endswith("/pattern"):
        return {"pattern": _pattern(value, where)}
    if value not in FORMATS:
        raise SchemaRefused(
            where,
            f"format {value[:60]!r} is not supported; supported are {', '.join(sorted(FORMATS))}. "
            "Use a pattern instead",
        )
    return {"pattern": FORMATS[value]}


def _least(_self: _Translation, value: Json, node: Json, where: str, _depth: int) -> Out:
    least = _count(value, where)
    if least > MAX_COUNT:
        raise SchemaRefused(where, f"no answer is that long; ask for at most {MAX_COUNT}")
    return {where.rsplit("/", 1)[1]: least}


def _most(_self: _Translation, value: Json, node: Json, where: str, _depth: int) -> Out:
    most = _count(value, where)
    # No answer reaches more, so it holds by itself.
    return {where.rsplit("/", 1)[1]: most} if most <= MAX_COUNT else {}


def _minimum(_self: _Translation, value: Json, node: Json, where: str, _depth: int) -> Out:
    return lower_bound(where.rsplit("/", 1)[1], value, where)


def _maximum(_self: _Translation, value: Json, node: Json, where: str, _depth: int) -> Out:
    return upper_bound(where.rsplit("/", 1)[1], value, where)


def _multiple_of(_self: _Translation, value: Json, node: Json, where: str, _depth: int) -> Out:
    return {"multipleOf": step(value, where)}


_Handler = Callable[[_Translation, Json, Any, str, int], Out]
_HANDLERS: Mapping[str, _Handler] = {
    "$ref": _Translation._ref,
    "type": _Translation._type,
    "const": _Translation._const,
    "enum": _Translation._enum,
    "anyOf": _Translation._some,
    "oneOf": _Translation._some,
    "allOf": _Translation._some,
    "items": _Translation._items,
    "additionalItems": _Translation._additional_items,
    "prefixItems": _Translation._prefix_items,
    "minItems": _least,
    "maxItems": _most,
    "properties": _Translation._properties,
    "patternProperties": _Translation._pattern_properties,
    "additionalProperties": _Translation._additional,
    "required": _Translation._required,
    "minProperties": _Translation._min_properties,
    "maxProperties": _most,
    "minLength": _least,
    "maxLength": _most,
    "pattern": _plain_text,
    "format": _plain_text,
    "minimum": _minimum,
    "maximum": _maximum,
    "exclusiveMinimum": _minimum,
    "exclusiveMaximum": _maximum,
    "multipleOf": _multiple_of,
}


def _dialect_of(root: Json) -> str:
    """The `$schema` of a schema without scheme and end; empty where it has none."""
    if not isinstance(root, dict | bool):
        raise SchemaRefused("", f"it should be a JSON object, not {_kind(root)}")
    named = None if isinstance(root, bool) else root.get("$schema")
    if named is None:
        return ""
    text = named if isinstance(named, str) else ""
    dialect = text.removeprefix("https://").removeprefix("http://").rstrip("#")
    if dialect not in DIALECTS:
        raise SchemaRefused(
            "#/$schema", "the dialect is not supported; use draft 2020-12, 2019-09, 7 or 6"
        )
    return dialect


def _pattern(value: str, where: str) -> str:
    try:
        return translate(value)
    except PatternRefused as error:
        raise SchemaRefused(where, str(error)) from None


def _check_name(name: str, where: str) -> None:
    if any(character < " " or character == "\x7f" for character in name):
        raise SchemaRefused(where, "a property's name has a control character")


def _count(value: Json, where: str) -> int:
    """A count, cut to one more than any answer has."""
    return count(value, where, MAX_COUNT)


def _list(value: Json, where: str) -> list[Json]:
    if not isinstance(value, list) or not value:
        raise SchemaRefused(where, "it should be a list with something in it")
    return value


def _names(value: Json, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise SchemaRefused(where, "it should be a list of names")
    return list(dict.fromkeys(value))


def _kind(value: Json) -> str:
    kinds = {str: "text", list: "a list", dict: "an object", bool: "a boolean", type(None): "null"}
    return kinds.get(type(value), "a number")

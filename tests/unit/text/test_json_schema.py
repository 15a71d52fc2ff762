"""Schemas made into what the engine honours: refusals by place and name, numbers, references."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bus.text.json_schema import parse_json, translate_schema
from bus.text.schema_ends import has_value
from bus.text.schema_limits import MAX_COUNT, SchemaRefused


def translated(schema: Any) -> Any:
    source = schema if isinstance(schema, str) else json.dumps(schema)
    return translate_schema(parse_json(source))


@pytest.mark.parametrize(
    ("schema", "where", "why"),
    [
        ('"x"', "", "object, not text"),
        ("[]", "", "object, not a list"),
        ("null", "", "object, not null"),
        ("{", "", "not JSON"),
        ('{"type": "string", "type": "null"}', "", "'type' is there twice"),
        ('{"minimum": NaN}', "", "NaN is no JSON"),
        ('{"const": ' + "9" * 5000 + "}", "", "not JSON"),
        ({"not": {}}, "#/not", "not is not supported"),
        ({"typ": "string"}, "#/typ", "not known"),
        ({"properties": {"a/b": {"uniqueItems": True}}}, "#/properties/a~1b/uniqueItems", "leave"),
        ({"type": "text"}, "#/type", '"text" is no type'),
        ({"type": []}, "#/type", "no type"),
        ({"type": ["string", 1]}, "#/type", "1 is no type"),
        ({"format": "zip"}, "#/format", "'zip' is not supported; supported are date,"),
        ({"format": 1}, "#/format", "text, not a number"),
        ({"pattern": "(?=a)"}, "#/pattern", "lookaround"),
        ({"patternProperties": {"(": {}}}, "#/patternProperties/(", "not closed"),
        ({"enum": []}, "#/enum", "something in it"),
        ('{"enum": [1, 1.00000000000000000001]}', "#/enum/1", "15 digits"),
        ('{"const": 0.1234567890123456789}', "#/const", "15 digits"),
        ({"const": 2**53 + 1}, "#/const", "digits"),
        ({"const": {"a": ["x\x00"]}}, "#/const", "control character"),
        ({"const": {"\x01": 1}}, "#/const", "control character"),
        ({"properties": {"a\x7f": {}}}, "#/properties", "control character"),
        ({"minimum": "1"}, "#/minimum", "a number"),
        ({"minimum": True}, "#/minimum", "a number"),
        ({"minimum": 2**53 + 1}, "#/minimum", "digits"),
        ({"maximum": -(2**60)}, "#/maximum", "digits"),
        ({"exclusiveMinimum": True}, "#/exclusiveMinimum", "a number"),
        ({"multipleOf": 0}, "#/multipleOf", "above 0"),
        ({"minItems": -1}, "#/minItems", "at least 0"),
        ({"minLength": 1.5}, "#/minLength", "at least 0"),
        ({"minLength": 2**64}, "#/minLength", "no answer is that long"),
        ({"minProperties": 2}, "#/minProperties", "beyond the required ones"),
        ({"required": "a"}, "#/required", "a list of names"),
        ({"properties": []}, "#/properties", "an object, not a list"),
        ({"items": 1}, "#/items", "an object, not a number"),
        ({"items": [{}], "prefixItems": [{}]}, "#/items", "keep one"),
        ({"$ref": "http://a.b/c"}, "#/$ref", "leads out"),
        ({"$ref": "#/$defs/none"}, "#/$ref", "there is no '$defs'"),
        ({"$ref": "#none"}, "#/$ref", "no $anchor 'none'"),
        ({"$ref": 1}, "#/$ref", "text, not a number"),
        ({"$defs": {"a": {"foo": 1}}, "$ref": "#/$defs/a"}, "#/$defs/a/foo", "not known"),
        ({"$defs": {"a": {"$id": "x"}}, "$ref": "#/$defs/a"}, "#/$ref", "$id of its own"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "#/$schema", "dialect"),
        ({"x-guidance": {"lenient": True}}, "#/x-guidance", "can not be set"),
    ],
)
def test_what_can_not_be_held_is_refused_by_place(schema: Any, where: str, why: str) -> None:
    with pytest.raises(SchemaRefused) as caught:
        translated(schema)
    assert caught.value.where == where
    assert why in caught.value.why


def test_what_says_nothing_is_left_out() -> None:
    schema = {"title": "T", "description": "d", "examples": [1], "$comment": "c", "default": 1}
    assert translated({**schema, "type": "integer", "uniqueItems": False}) == {"type": "integer"}
    assert translated(True) == {}


def test_a_format_beside_a_pattern_holds_too() -> None:
    made = translated({"pattern": "^a$", "format": "ipv4", "type": "string"})
    assert made["pattern"] == "^(?:a)$"
    assert list(made["allOf"][0]) == ["pattern"]


def test_bounds_beyond_what_is_exact_are_drawn_in() -> None:
    int64 = {"minimum": -(2**63), "exclusiveMaximum": 2**63}
    assert translated(int64) == {"minimum": -(2**53), "maximum": 2**53}
    assert translated({"maxItems": 2**64 - 1, "maxLength": MAX_COUNT}) == {"maxLength": MAX_COUNT}
    assert translated('{"minItems": 2.0, "enum": [1.0, -0.0]}') == {"minItems": 2, "enum": [1, 0]}


def test_properties_that_are_required_anyway_count_for_min_properties() -> None:
    assert translated({"required": ["a", "b"], "minProperties": 2}) == {"required": ["a", "b"]}
    made = translated({"required": ["a", "b", "a"], "minProperties": 3})
    assert made == {"required": ["a", "b"], "minProperties": 3}


def test_a_list_of_items_is_what_it_was_in_draft_7() -> None:
    made = translated({"items": [{"type": "null"}], "additionalItems": False})
    assert made == {"prefixItems": [{"type": "null"}], "items": {"anyOf": []}}
    assert translated({"items": {}, "additionalItems": False}) == {"items": {}}


def test_references_become_definitions_once() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/a~1b"}}}
    made = translated({"$defs": {"a/b": node, "unused": {"foo": 1}}, "$ref": "#/$defs/a~1b"})
    inner = {"type": "object", "properties": {"next": {"$ref": "#/$defs/r0"}}}
    assert made == {"$defs": {"r0": inner}, "$ref": "#/$defs/r0"}


def test_references_by_anchor_and_into_the_schema() -> None:
    made = translated({"properties": {"a": {"$anchor": "here"}, "b": {"$ref": "#here"}}})
    assert made["properties"]["b"] == {"$ref": "#/$defs/r0"}
    made = translated({"prefixItems": [{"type": "null"}, {"$ref": "#/prefixItems/0"}]})
    assert made["$defs"] == {"r0": {"type": "null"}}


def test_beside_a_reference_counts_what_the_dialect_says() -> None:
    schema = {"$defs": {"a": {}}, "$ref": "#/$defs/a", "minimum": 1}
    assert translated(schema)["minimum"] == 1
    draft7 = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    assert translated(draft7) == {"$defs": {"r0": {}}, "$ref": "#/$defs/r0"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"$ref": "#"}, False),
        ({"allOf": [{"$ref": "#"}]}, False),
        (False, False),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, True),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, True),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, False),
        ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, True),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, False),
        ({"type": "array", "prefixItems": [{"$ref": "#"}]}, True),
        ({"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 1}, False),
        ({"type": "object", "required": ["b"], "additionalProperties": False}, False),
        (
            {
                "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                "$ref": "#/$defs/a",
            },
            False,
        ),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"const": 1}}, "$ref": "#/$defs/a"}, True),
    ],
)
def test_whether_a_finite_value_exists(schema: Any, expected: bool) -> None:
    assert has_value(translated(schema)) is expected

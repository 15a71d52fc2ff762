"""Schemas made into what the engine honours: refusals by place and name, numbers, references."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bus.text.json_schema import translate_schema
from bus.text.schema_ends import has_value
from bus.text.schema_limits import MAX_COUNT, SchemaRefused
from bus.text.schema_source import parse_json

DRAFT6, DRAFT7 = (f"http://json-schema.org/draft-0{n}/schema#" for n in (6, 7))
DRAFT2019, DRAFT2020 = (f"https://json-schema.org/draft/{n}/schema" for n in ("2019-09", "2020-12"))


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
        ({"allOf": [{}], "$ref": "#/allOf/" + "9" * 5000}, "#/$ref", "leads to nothing"),
        ({"allOf": [{}], "$ref": "#/allOf/00"}, "#/$ref", "leads to nothing"),
        ({"$defs": {"a": {"foo": 1}}, "$ref": "#/$defs/a"}, "#/$defs/a/foo", "not known"),
        ({"$defs": {"a": {"$id": "x"}}, "$ref": "#/$defs/a"}, "#/$ref", "$id of its own"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "#/$schema", "dialect"),
        ({"$schema": DRAFT7, "prefixItems": [{}]}, "#/prefixItems", "only draft 2020-12"),
        ({"$schema": DRAFT6, "prefixItems": [{}]}, "#/prefixItems", "only draft 2020-12"),
        ({"$schema": DRAFT2019, "prefixItems": [{}]}, "#/prefixItems", "only draft 2020-12"),
        ({"$schema": DRAFT2020, "items": [{}]}, "#/items", "no list of items"),
        ({"$schema": DRAFT7, "$ref": "#a", "$defs": {"a": {"$anchor": "a"}}}, "#/$ref", "$anchor"),
        ('{"minimum": 1e9999999}', "#/minimum", "too large or too small"),
        ('{"minimum": 1e99999999999999999999}', "#/minimum", "too large or too small"),
        ('{"exclusiveMinimum": 1e-9999999}', "#/exclusiveMinimum", "too large or too small"),
        ('{"exclusiveMaximum": -1e9999999}', "#/exclusiveMaximum", "too large or too small"),
        ('{"multipleOf": 1e9999999}', "#/multipleOf", "too large or too small"),
        ('{"multipleOf": 1e-9999999}', "#/multipleOf", "too large or too small"),
        ('{"const": 1e9999999}', "#/const", "too large or too small"),
        ('{"enum": [{"a": [-1e9999999]}]}', "#/enum/0", "too large or too small"),
        ('{"minLength": 1e9999999}', "#/minLength", "no answer is that long"),
        ('{"minItems": 1e99999999999999999999}', "#/minItems", "too large or too small"),
        ('{"minProperties": 1e9999999}', "#/minProperties", "beyond the required ones"),
        ('{"maxLength": -1e9999999}', "#/maxLength", "too large or too small"),
        ({"multipleOf": 100_003}, "", "multiples of 100003"),
        ({"patternProperties": {f"^{n}-": {} for n in range(65)}}, "#/patternProperties", "64"),
        ({"properties": {str(n): {} for n in range(1001)}}, "#/properties", "1001 of them not"),
        ({"patternProperties": {r"^\W$": {}}}, "#/patternProperties", "validators differ"),
        ({"patternProperties": {"^.$": {}}}, "#/patternProperties", "validators differ"),
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


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"exclusiveMinimum": 0}, {"minimum": 1e-9}),
        ({"exclusiveMaximum": 0}, {"maximum": -1e-9}),
        ({"exclusiveMinimum": 5}, {"minimum": 5.000000001}),
        ({"exclusiveMaximum": 0.75}, {"maximum": 0.749999999}),
        ({"exclusiveMinimum": 1e-12}, {"minimum": 1.001e-12}),
        ({"exclusiveMinimum": 0.123456789012345}, {"minimum": 0.123456789012346}),
        ({"exclusiveMinimum": 2**53 - 2}, {"minimum": 2**53 - 1}),
        ({"exclusiveMaximum": 2**53}, {"maximum": 2**53 - 1}),
        ({"exclusiveMinimum": -(2**53)}, {"minimum": -(2**53) + 1}),
        ('{"exclusiveMaximum": 1e9}', {"maximum": 999999999.99999}),
    ],
)
def test_exclusive_bounds_become_inclusive_ones_inside(schema: Any, expected: Any) -> None:
    assert translated(schema) == expected


def of_primes(*primes: int) -> list[dict[str, Any]]:
    return [{"type": "integer", "multipleOf": prime} for prime in primes]


@pytest.mark.parametrize(
    ("schema", "step"),
    [
        ({"allOf": of_primes(7, 11, 13, 17, 19, 23)}, "7436429"),
        ({"allOf": [{"multipleOf": n / 100} for n in (7, 11, 13, 17, 19, 23)]}, "74364.29"),
        ({"multipleOf": 401, "anyOf": of_primes(2, 397)}, "159197"),
        ({"$defs": {"a": {"multipleOf": 401}}, "$ref": "#/$defs/a", "multipleOf": 397}, "159197"),
        ({"items": {"allOf": of_primes(401, 397)}}, "159197"),
        ({"properties": {"multipleOf": {"allOf": of_primes(401, 397)}}}, "159197"),
        ({"allOf": of_primes(7, 11, 13, 17)}, ""),
        ({"anyOf": of_primes(401, 397, 389)}, ""),
        ({"properties": {str(n): {"multipleOf": n} for n in (401, 397, 389)}}, ""),
        ({"multipleOf": 1_000_000, "items": {"multipleOf": 1e-7}}, ""),
        ({"const": {"multipleOf": 100_003}}, ""),
        ({"anyOf": [{"$ref": "#"}, {"multipleOf": 3}], "multipleOf": 401}, ""),
    ],
)
def test_steps_that_hold_together_have_a_bound(schema: Any, step: str) -> None:
    if not step:
        translated(schema)
        return
    with pytest.raises(SchemaRefused, match=f"^multipleOf: .* multiples of {step},"):
        translated(schema)


def test_name_patterns_may_be_narrower_where_no_other_name_is_allowed() -> None:
    closed = {"additionalProperties": False}
    assert translated({"patternProperties": {r"^\d$": {}}, **closed})
    for more in (
        {"properties": {"\u00e9": {}}, **closed},
        {"patternProperties": {r"^\d$": {}, "^a": {}}, **closed},
        {"additionalProperties": {"type": "null"}},
    ):
        with pytest.raises(SchemaRefused, match="validators differ"):
            translated({"patternProperties": {r"^\d$": {}}, **more})


def kinds(*values: Any, **more: Any) -> list[dict[str, Any]]:
    return [
        {"type": "object", "required": ["k"], "properties": {"k": {"const": value}, **more}}
        for value in values
    ]


EMAIL = {"type": "string", "format": "email"}
#: Empty as it is read here, and not in truth.
TINY = {"type": "number", "exclusiveMinimum": 0, "maximum": 1e-10}


@pytest.mark.parametrize(
    ("schema", "taken"),
    [
        ({"oneOf": [EMAIL, {"type": "integer", "minimum": 1}]}, True),
        ({"oneOf": kinds("a", "b", to=EMAIL)}, True),
        ({"$defs": {"e": {"oneOf": kinds(1, 2, to=EMAIL)}}, "$ref": "#/$defs/e"}, True),
        ({"oneOf": [{"anyOf": [EMAIL, {"type": "null"}]}, {"type": "integer"}]}, True),
        ({"oneOf": [{"$ref": "#/$defs/e"}, {"const": 1}], "$defs": {"e": EMAIL}}, True),
        ({"oneOf": [{"const": 1}, {"const": 2}]}, True),
        ({"oneOf": [TINY, {"type": "number"}]}, False),
        ({"oneOf": [{"$ref": "#/$defs/e"}, {"type": "number"}], "$defs": {"e": TINY}}, False),
        ({"oneOf": [EMAIL, {"type": "string"}]}, False),
        ({"oneOf": kinds("a", "a", to=EMAIL)}, False),
        ({"oneOf": kinds(1, 1.0, to=TINY)}, False),
        ({"type": "array", "items": {"oneOf": [TINY, {"type": "integer"}]}}, False),
    ],
)
def test_sides_of_one_of_exclude_each_other_also_as_they_are_meant(
    schema: Any, taken: bool
) -> None:
    if taken:
        translated(schema)
        return
    with pytest.raises(SchemaRefused, match="oneOf"):
        translated(schema)


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


NAMED: Any = {"type": "object", "required": ["bb"]}


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
        # A required property that only a pattern knows.
        ({**NAMED, "patternProperties": {"^b": True}, "additionalProperties": False}, True),
        ({**NAMED, "patternProperties": {"^a": True}, "additionalProperties": False}, False),
        ({**NAMED, "patternProperties": {"^b": {"$ref": "#"}}}, False),
        ({**NAMED, "patternProperties": {"^a": {"$ref": "#"}}}, True),
        ({**NAMED, "patternProperties": {"^(b|b)*c": {"$ref": "#"}}}, True),
        ({**NAMED, "properties": {"b": True}, "patternProperties": {"^b": {"$ref": "#"}}}, False),
        ({**NAMED, "properties": {"b": True}, "patternProperties": {"^x": {"$ref": "#"}}}, True),
    ],
)
def test_whether_a_finite_value_exists(schema: Any, expected: bool) -> None:
    assert has_value(translated(schema)) is expected


# After a comma the engine would find that no name is left.
@pytest.mark.parametrize(
    ("schema", "taken"),
    [
        ({"required": ["ab"], "patternProperties": {"^ab$": {}}}, False),
        ({"properties": {"a": {}, "b": {}}, "patternProperties": {"^[ab]$": {}}}, False),
        ({"properties": {"a": {}, "b": {}}, "patternProperties": {"^a$": {}, "^b$": {}}}, False),
        ({"properties": {'a"/': {}}, "patternProperties": {'^a"/$': {}}}, False),
        ({"allOf": [{"required": ["a"]}], "patternProperties": {"^a$": {}}}, False),
        ({"properties": {"a": {}}, "patternProperties": {"^[ab]$": {}}}, True),
        ({"properties": {"a": {}}, "patternProperties": {"^a": {}}}, True),
        ({"properties": {"a": {}}, "patternProperties": {"^a$": {}, "^b$": {}}}, True),
        ({"patternProperties": {"^a$": {}}}, True),
        ({"properties": {"x": {"required": ["a"]}}, "patternProperties": {"^a$": {}}}, True),
    ],
)
def test_patterns_of_names_leave_a_name_to_go_on_with(schema: Any, taken: bool) -> None:
    whole = {"type": "object", **schema, "additionalProperties": False}
    if taken:
        translated(whole)
    else:
        with pytest.raises(SchemaRefused, match="matches names of properties only"):
            translated(whole)
    assert translated({"type": "object", **schema})

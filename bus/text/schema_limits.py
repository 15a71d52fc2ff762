"""What of JSON Schema is honoured, what is refused and why, and the limits of a schema."""

from __future__ import annotations

from collections.abc import Mapping

#: Schemas inside schemas.
MAX_DEPTH = 64
#: Definitions that $ref leads to. The engine recurses through them.
MAX_DEFINITIONS = 500
#: Items, properties or characters that a bound may speak of; no answer is longer.
MAX_COUNT = 1_000_000
#: Properties of one object; those that may be missing, which the parser tries at once; patterns of
#: names, which are compared with each other.
MAX_PROPERTIES = 5000
MAX_OPTIONAL = 1000
MAX_NAME_PATTERNS = 64

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

#: `$schema` without scheme and end.
DIALECTS = frozenset(
    {
        "json-schema.org/draft/2020-12/schema",
        "json-schema.org/draft/2019-09/schema",
        "json-schema.org/draft-07/schema",
        "json-schema.org/draft-06/schema",
    }
)
#: Of these, dialects in which nothing beside a `$ref` counts.
REF_ALONE = frozenset({"json-schema.org/draft-07/schema", "json-schema.org/draft-06/schema"})
#: The dialect with `prefixItems`. The others have a list of `items`; what names no dialect may
#: have either.
PREFIX_ITEMS = "json-schema.org/draft/2020-12/schema"

#: Keywords that say nothing about what is valid. `$defs` counts where a `$ref` leads into it.
ANNOTATIONS = frozenset(
    {
        "$anchor",
        "$comment",
        "$defs",
        "definitions",
        "default",
        "deprecated",
        "description",
        "discriminator",
        "examples",
        "readOnly",
        "title",
        "writeOnly",
    }
)
#: Values with which a keyword says nothing.
IGNORED: Mapping[str, object] = {"uniqueItems": False, "propertyNames": True}

_LATER = "the engine has no way to hold it"
#: Keywords that are known and not honoured.
UNSUPPORTED: Mapping[str, str] = {
    "$id": "an $id below the root is not supported",
    "$schema": "a $schema below the root is not supported",
    "$dynamicRef": "it is not supported; use $ref",
    "$dynamicAnchor": "it is not supported; use $ref and $defs",
    "$recursiveRef": "it is not supported; use $ref",
    "$recursiveAnchor": "it is not supported; use $ref and $defs",
    "$vocabulary": "vocabularies are not supported",
    "contains": f"contains is not supported: {_LATER}",
    "maxContains": f"maxContains is not supported: {_LATER}",
    "minContains": f"minContains is not supported: {_LATER}",
    "contentEncoding": f"contentEncoding is not supported: {_LATER}",
    "contentMediaType": f"contentMediaType is not supported: {_LATER}",
    "contentSchema": f"contentSchema is not supported: {_LATER}",
    "dependencies": f"dependencies is not supported: {_LATER}; use anyOf",
    "dependentRequired": f"dependentRequired is not supported: {_LATER}; use anyOf",
    "dependentSchemas": f"dependentSchemas is not supported: {_LATER}; use anyOf",
    "if": f"if is not supported: {_LATER}; use anyOf",
    "then": f"then is not supported: {_LATER}; use anyOf",
    "else": f"else is not supported: {_LATER}; use anyOf",
    "not": f"not is not supported: {_LATER}; say what is allowed instead",
    "propertyNames": f"propertyNames is not supported: {_LATER}; use patternProperties",
    "unevaluatedItems": f"unevaluatedItems is not supported: {_LATER}; use items: false",
    "unevaluatedProperties": (
        f"unevaluatedProperties is not supported: {_LATER}; use additionalProperties: false"
    ),
    "uniqueItems": f"uniqueItems is not supported: {_LATER}; leave it out and check the answer",
    "nullable": 'nullable is no JSON Schema; use "type": ["...", "null"]',
    "x-guidance": "options of the engine can not be set here",
}


class SchemaRefused(ValueError):
    """A schema that can not be honoured.

    Attributes:
        where: JSON pointer to the place, empty for the whole.
        why: the fact and the remedy.
    """

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}" if where else why)
        self.where = where
        self.why = why

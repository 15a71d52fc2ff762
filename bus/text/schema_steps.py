"""How large the multiples are that a schema asks for: the engine has a state for each remainder.

Steps that hold for one value together are as one step, their least common multiple. Six small
primes are a step of seven millions, and the engine's search takes time and memory in proportion.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from math import gcd, lcm
from typing import Any

from bus.text.schema_limits import SchemaRefused

Schema = Mapping[str, Any]

#: In units of the last decimal place of the schema's steps.
MAX_STEP = 100_000
#: Of a step of few digits and zeros behind them, which costs no more.
_MAX_HEAD, _MAX_ZEROS = 99, 9
#: Ways to choose the sides of alternatives; more are taken together.
_MAX_WAYS = 64
_NONE = Fraction(0)


def check_steps(schema: Schema) -> None:
    """Make sure that the steps of a schema are small enough to work with.

    Args:
        schema: from `bus.text.json_schema.translate_schema`.

    Raises:
        SchemaRefused: values have to be multiples of too large a number.
    """
    definitions = schema.get("$defs", {})
    steps = _Steps(definitions)
    for node in (schema, *definitions.values()):
        steps.check(node)


def _has_schemas(key: str) -> bool:
    return key not in ("const", "enum")


class _Steps:
    """The steps of nodes; 0 is none."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        self._known: dict[str, frozenset[Fraction]] = {}

    def check(self, node: Any) -> None:
        """Check a node and all inside it.

        Raises:
            SchemaRefused: a step is too large.
        """
        if isinstance(node, list):
            for item in node:
                self.check(item)
        if not isinstance(node, dict):
            return
        largest = max(self.of(node), key=_cost)
        if _cost(largest) > MAX_STEP:
            raise SchemaRefused(
                "",
                f"multipleOf: values would have to be multiples of {_shown(largest)}, and working "
                "with that takes too long; use steps whose least common multiple is at most "
                f"{MAX_STEP} of their last decimal places",
            )
        for key, item in node.items():
            if _has_schemas(key):
                self.check(item)

    def of(self, node: Schema) -> frozenset[Fraction]:
        """The step of each way to choose among a node's alternatives."""
        own = node.get("multipleOf")
        # A property may have that name; then its schema is an object.
        found = frozenset([Fraction(repr(own)) if isinstance(own, int | float) else _NONE])
        for part in _list(node, "allOf"):
            found = _together(found, self.of(part))
        for key in ("anyOf", "oneOf"):
            sides = [step for part in _list(node, key) for step in self.of(part)]
            found = _together(found, frozenset(sides or [_NONE]))
        if isinstance(node.get("$ref"), str):
            found = _together(found, self._definition(node["$ref"].removeprefix("#/$defs/")))
        return found

    def _definition(self, name: str) -> frozenset[Fraction]:
        if name not in self._known:
            # What leads to itself adds nothing to itself.
            self._known[name] = frozenset([_NONE])
            self._known[name] = self.of(self._definitions.get(name, {}))
        return self._known[name]


def _list(node: Schema, key: str) -> list[Schema]:
    found = node.get(key, [])
    return found if isinstance(found, list) else []


def _together(first: frozenset[Fraction], second: frozenset[Fraction]) -> frozenset[Fraction]:
    found = frozenset(_lcm(a, b) for a in first for b in second)
    return found if len(found) <= _MAX_WAYS else frozenset([reduce(_lcm, found)])


def _lcm(a: Fraction, b: Fraction) -> Fraction:
    if not (a and b):
        return a or b
    return Fraction(lcm(a.numerator, b.numerator), gcd(a.denominator, b.denominator))


def _cost(step: Fraction) -> int:
    whole, zeros = step, 0
    while whole.denominator > 1:
        whole *= 10
    head = whole.numerator
    while head and head % 10 == 0 and zeros < _MAX_ZEROS:
        head, zeros = head // 10, zeros + 1
    return head if head <= _MAX_HEAD else whole.numerator


def _shown(step: Fraction) -> str:
    return f"{Decimal(step.numerator) / step.denominator:.15g}"

"""Python functions become the tools that a model is told of."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import pytest

from bus.errors import Invalid
from bus.tool_functions import checked_tools, describe_function, tool_name


class Unit(enum.Enum):
    METRIC = "metric"
    IMPERIAL = "imperial"


def weather(
    city: str,
    days: int = 1,
    unit: Unit = Unit.METRIC,
    where: Literal["inside", "outside"] | None = None,
    tags: Sequence[str] = (),
) -> str:
    """The weather of a city,
    told shortly.

    Args:
        city: its name,
            as people write it.
        days (int): how many days ahead.

    Returns:
        some text.
    """
    return f"{city} {days} {unit} {where} {tags}"


def test_a_function_is_told_by_its_signature_and_docstring() -> None:
    assert describe_function(weather) == {
        "name": "weather",
        "description": "The weather of a city, told shortly.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "its name, as people write it."},
                "days": {"type": "integer", "description": "how many days ahead."},
                "unit": {"enum": ["metric", "imperial"]},
                "where": {"anyOf": [{"enum": ["inside", "outside"]}, {"type": "null"}]},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city"],
        },
    }


def test_t6_a_function_without_arguments_or_docstring() -> None:
    def now() -> str:
        return "noon"

    parameters = {"type": "object", "properties": {}}
    assert describe_function(now) == {"name": "now", "description": "", "parameters": parameters}


def test_maps_and_anything() -> None:
    def store(sizes: dict[str, float], other: Any, rest) -> None:  # type: ignore[no-untyped-def]
        """Keep it."""

    made = describe_function(store)["parameters"]["properties"]
    sizes = {"type": "object", "additionalProperties": {"type": "number"}}
    assert made == {"sizes": sizes, "other": {}, "rest": {}}


class _Shout(str):
    """Text of a kind of its own."""


def test_types_that_are_said_at_greater_length() -> None:
    def place(
        port: Annotated[int, {"le": 65535}],
        name: _Shout,
        point: tuple[float, float],
        pair: tuple[int, str],
        many: tuple[int, ...],
    ) -> None:
        """Notes what Args: are."""

    made = describe_function(place)
    assert made["description"] == "Notes what Args: are."
    assert made["parameters"]["properties"] == {
        "port": {"type": "integer"},
        "name": {"type": "string"},
        "point": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
        "pair": {
            "type": "array",
            "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "minItems": 2,
            "maxItems": 2,
        },
        "many": {"type": "array", "items": {"type": "integer"}},
    }


@pytest.mark.parametrize("hint", ["enum.Missing", "int |", "Missing"])
def test_types_that_can_not_be_looked_up_take_anything(hint: str) -> None:
    def look(what): ...  # type: ignore[no-untyped-def]

    look.__annotations__["what"] = hint
    assert describe_function(look)["parameters"]["properties"] == {"what": {}}


def test_maps_go_as_they_are_beside_functions() -> None:
    given = {"type": "function", "function": {"name": "look", "parameters": {}}}
    made, functions = checked_tools([given, weather])
    assert made[0] == given
    assert [tool_name(tool) for tool in made] == ["look", "weather"]
    assert tool_name({"name": "inner"}) == "inner"
    assert functions == {"weather": weather}


def _any_number(*numbers: int) -> None: ...


def _of_a_type(callback: Callable[[], None]) -> None: ...


def _of_bytes(raw: bytes) -> None: ...


def _one_of_bytes(raw: Literal["a", b"x"]) -> None: ...


class _Odd(enum.Enum):
    ONE = 1
    OTHER = object()


def _one_odd(odd: _Odd) -> None: ...


def _infinite(number: _Number) -> None: ...


class _Number(enum.Enum):
    MOST = float("inf")


async def _later() -> None: ...


class _Later:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("tools", "param", "says"),
    [
        ("weather", "tools", "should be a list"),
        ({"name": "x"}, "tools", "should be a list"),
        ([3], "tools[0]", "a map or a Python function"),
        ([{"name": "a"}, lambda city: city], "tools[1]", "'<lambda>'"),
        ([_any_number], "tools[0]", "*numbers"),
        ([_of_a_type], "tools[0].callback", "none of JSON's"),
        ([_of_bytes], "tools[0].raw", "none of JSON's"),
        ([_one_of_bytes], "tools[0].raw", "may be b'x'"),
        ([_one_odd], "tools[0].odd", "may be <object"),
        ([_infinite], "tools[0].number", "may be inf"),
        ([_later], "tools[0]", "async"),
        ([_Later()], "tools[0]", "async"),
    ],
)
def test_what_can_not_be_told_is_named(tools: Any, param: str, says: str) -> None:
    with pytest.raises(Invalid) as refused:
        checked_tools(tools)
    assert refused.value.param == param
    assert says in refused.value.message

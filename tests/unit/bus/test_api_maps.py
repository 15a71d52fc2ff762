"""Structs as the API's maps: there and back, and errors that name the parameter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from bus.api_maps import from_map, to_map
from bus.errors import Invalid
from bus.fields import OneOf, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    number: Annotated[int, Range(0, 9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    one: Inner | None = None
    more: tuple[Inner, ...] = ()
    anything: Any = None


def test_structs_inside_api_maps_are_maps_there_and_back() -> None:
    made = Outer(one=Inner(number=1), more=(Inner(number=2), Inner(number=3)), anything={"x": [1]})
    assert to_map(made) == {
        "one": {"number": 1},
        "more": [{"number": 2}, {"number": 3}],
        "anything": {"x": [1]},
    }
    assert from_map(Outer, to_map(made)) == made
    for values, param in (({"one": [1]}, "one"), ({"more": [{"number": 1}, {}]}, "more[1].number")):
        with pytest.raises(Invalid) as caught:
            from_map(Outer, values)
        assert caught.value.param == param


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    must: Annotated[str, OneOf(frozenset({"b", "a"}))] = "a"
    may: Annotated[str, OneOf(frozenset({"", "mean", "cls"}))] = ""


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("must", "must should be one of a, b"),
        ("may", 'may should be one of cls, mean, or "" for the default'),
    ],
)
def test_what_may_be_chosen_is_named_and_the_empty_word_too(field: str, says: str) -> None:
    for wrong in ("max", 5):
        with pytest.raises(Invalid) as caught:
            from_map(Chosen, {field: wrong})
        assert (caught.value.message, caught.value.param) == (says, field)


def test_what_is_none_is_left_out_and_what_is_false_is_not() -> None:
    assert to_map(Outer(more=(Inner(number=0),), anything=0)) == {
        "more": [{"number": 0}],
        "anything": 0,
    }
    assert to_map(Outer(anything=("a", b"b"))) == {"more": [], "anything": ["a", b"b"]}

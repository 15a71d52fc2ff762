"""Wrong usage of the client is named before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from bus.client_request import (
    checked_messages,
    checked_options,
    checked_template,
    pack_request,
    prompt_keys,
)
from bus.errors import Invalid

HELLO = {"role": "user", "content": "Hello"}


def test_a_beginning_is_text_or_ids_in_either_place() -> None:
    assert prompt_keys("x", None) == {"prompt": "x"}
    assert prompt_keys([1, 2], None) == {"tokens": [1, 2]}
    assert prompt_keys(None, (1, 2)) == {"tokens": [1, 2]}


@pytest.mark.parametrize(
    ("prompt", "tokens", "param"),
    [
        (None, None, "prompt"),
        ("x", [1], "prompt"),
        (None, "x", "tokens"),
        (5, None, "prompt"),
        ({}, None, "prompt"),
    ],
)
def test_what_is_no_beginning(prompt: Any, tokens: Any, param: str) -> None:
    with pytest.raises(Invalid) as refused:
        prompt_keys(prompt, tokens)
    assert refused.value.param == param


def test_messages_are_taken_as_maps() -> None:
    assert checked_messages([HELLO]) == [HELLO]
    assert checked_messages(iter([HELLO])) == [HELLO]
    assert checked_messages([]) == []


@pytest.mark.parametrize(
    ("messages", "param", "says"),
    [
        ("Hello", "messages", "messages should be a list of maps, not text; such as"),
        (HELLO, "messages", "not a map"),
        (None, "messages", "not nothing"),
        (["Hello"], "messages[0]", "messages[0] should be a map, not text; such as"),
        ([HELLO, "Hello"], "messages[1]", "messages[1] should be a map, not text"),
    ],
)
def test_messages_of_another_kind_are_named(messages: Any, param: str, says: str) -> None:
    with pytest.raises(Invalid) as refused:
        checked_messages(messages)
    assert refused.value.param == param
    assert says in refused.value.message


def test_options_without_those_that_are_not_given() -> None:
    assert checked_options({"seed": 0, "stop": None, "n": 1}) == {"seed": 0}
    assert checked_options({"logit_bias": {5: 1.0, "6": 2.0}}) == {"logit_bias": {5: 1.0, "6": 2.0}}


@pytest.mark.parametrize(
    ("options", "param", "says"),
    [
        ({"n": 2}, "n", "n is served for 1 only"),
        ({"temprature": 1}, "temprature", "did you mean temperature?"),
        ({"max_tokens": 5}, "max_tokens", "did you mean max_new?"),
        ({"logit_bias": {1.5: 1.0}}, "logit_bias", "logit_bias has 1.5 as a token id"),
        ({"logit_bias": {True: 1.0}}, "logit_bias", "logit_bias has True as a token id"),
        ({"logit_bias": {65: 1.0, "65": 2.0}}, "logit_bias", "logit_bias has id 65 twice"),
        ({"logit_bias": [5]}, "logit_bias", "should be a map from token id to number"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(Invalid) as refused:
        checked_options(options)
    assert refused.value.param == param
    assert says in refused.value.message


def test_variables_of_a_template_are_a_map() -> None:
    assert checked_template(None) is None
    assert checked_template({"enable_thinking": False}) == {"enable_thinking": False}
    wrong: Any
    for wrong in ([], "x", 5):
        with pytest.raises(Invalid, match="template should be a map, not") as refused:
            checked_template(wrong)
        assert refused.value.param == "template"


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"messages": [{"content": "a"}, {"content": "b\ud800"}]}, "messages[1].content"),
        ({"messages": ({"content": ["x", "\udc00"]},)}, "messages[0].content[1]"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"template": {"a": {"\ud800": 1}}}, "template.a"),
    ],
)
def test_half_a_character_is_named_by_its_place(body: dict[str, Any], place: str) -> None:
    with pytest.raises(Invalid, match="half of a surrogate pair") as refused:
        pack_request(body)
    assert refused.value.param == place
    assert refused.value.message.startswith(f"{place} has text")

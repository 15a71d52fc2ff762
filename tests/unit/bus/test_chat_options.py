"""Options of chats that are false, as 0 and an empty text are, are not taken for left out."""

from __future__ import annotations

from typing import Any

import pytest

from bus.errors import Invalid
from tests.harness.scripted_chats import ScriptedClient, answered

HELLO = {"role": "user", "content": "Hello"}


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"template": []}, "template"),
        ({"template": ""}, "template"),
        ({"template": 0}, "template"),
        ({"tools": {}}, "tools"),
        ({"tools": ""}, "tools"),
        ({"tools": 0}, "tools"),
        ({"temprature": 0}, "temprature"),
    ],
)
def test_what_is_of_a_wrong_kind_is_refused_though_it_is_false(
    options: dict[str, Any], param: str
) -> None:
    client = ScriptedClient(answered())
    for ask in (
        lambda: client.chat("m", [HELLO], **options),
        lambda: client.session_chat("s", [HELLO], **options),
        lambda: client.new_chat("m", **options),
        lambda: client.open_chat("s", **options),
    ):
        with pytest.raises(Invalid) as refused:
            ask()
        assert refused.value.param == param
    assert client.asked == []


@pytest.mark.parametrize("system", [0, [], False, b""])
def test_a_system_message_is_text(system: Any) -> None:
    client = ScriptedClient(answered())
    with pytest.raises(Invalid) as refused:
        client.new_chat("m", system=system)
    assert refused.value.param == "system"
    assert client.asked == []


def test_what_is_false_travels() -> None:
    client = ScriptedClient(answered(), answered())
    given: dict[str, Any] = {
        "tool_choice": {},
        "channels": "",
        "template": {},
        "parallel_tool_calls": False,
        "continue_final": False,
        "seed": 0,
        "stop": [],
        "max_new": 0,
    }
    client.chat("m", [HELLO], **given)
    (body,) = client.asked
    assert {name: body[name] for name in given} == given
    chat = client.new_chat("m", system="")
    chat.say("Hi")
    assert client.asked[-1]["messages"] == [
        {"role": "system", "content": ""},
        {"role": "user", "content": "Hi"},
    ]


def test_tools_that_are_none_are_left_out() -> None:
    client = ScriptedClient(answered())
    client.chat("m", [HELLO], tools=[])
    assert "tools" not in client.asked[0]

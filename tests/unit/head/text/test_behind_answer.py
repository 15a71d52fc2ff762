"""New messages that a template does not write behind an answer are not lost without a word."""

from __future__ import annotations

from typing import Any

import pytest

from bus.errors import Invalid
from bus.text.escaping import Escaper
from head.chat_turns import messages_behind
from head.text.prompts import ChatPrompt
from head.text.templates import ChatTemplate

SPECIAL = ("<|im_start|>", "<|im_end|>", "mexovarty", "t")
ONE = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function }}</call>{% endfor %}"
IN_ORDER = f"{{% for m in messages %}}{ONE}{{% endfor %}}"
#: It writes each message once, behind what was said before.
TAKES = {
    "in order": IN_ORDER,
    "trimmed": IN_ORDER.replace("m.content", "m.content | trim"),
    "as JSON": IN_ORDER.replace("m.content", "m.content | tojson"),
    "great": IN_ORDER.replace("m.content", "m.content | upper"),
    "parts": IN_ORDER.replace("{{ m.content }}", "{{ m.content[0].text }}"),
}
BACKWARDS = f"{{% for m in messages | reverse %}}{ONE}{{% endfor %}}"
FIRST_USER = (
    "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}A {{ m.content }}<|im_end|>{% endif %}"
    "{% endfor %}<|im_start|>{{ users[0].content }}"
)
NOT_TWO = (
    "{% for m in messages %}{% if m.role == 'assistant' %}A {{ m.content }}<|im_end|>"
    "{% elif loop.first or messages[loop.index0 - 1].role != 'user' %}U {{ m.content }}{% endif %}"
    "{% endfor %}"
)
LAST_TWO = f"{{% for m in messages[-2:] %}}{ONE}{{% endfor %}}"
TWICE = IN_ORDER + "{% for m in messages %}{% if m.role == 'assistant' %}again {{ m.content }}"
TWICE += "{% endif %}{% endfor %}"
FIRST_AGAIN = IN_ORDER + "about {{ messages[0].content }}"
LENGTH = IN_ORDER + "{{ messages[0].content | length }}"
SMALL_AGAIN = IN_ORDER + "{{ messages[0].content | lower }}"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def behind(source: str, *messages: dict[str, Any]) -> str:
    escaper = Escaper(SPECIAL)
    prompt = ChatPrompt(ChatTemplate("m", source, {}), escaper, messages_behind(messages))
    return escaper.restore(prompt.after_answer(SPECIAL, ["<|im_end|>"]).text)


@pytest.mark.parametrize("source", TAKES.values(), ids=TAKES)
def test_messages_behind_an_answer_are_taken(source: str) -> None:
    found = behind(source, user("Second"), user(" "), user("third"))
    assert "second" in found.casefold()
    assert "third" in found.casefold()
    assert "hello" not in found.casefold()


def test_a_user_may_say_what_stands_for_the_rest() -> None:
    assert behind(IN_ORDER, user("Hello Quarvem")).endswith("Hello Quarvem<|im_end|>\n")


@pytest.mark.parametrize(
    ("source", "messages", "param"),
    [
        (BACKWARDS, [user("Second")], "messages[2]"),
        (FIRST_USER, [user("Second")], "messages[2]"),
        (NOT_TWO, [user("Second"), user("Third")], "messages[3]"),
        (LAST_TWO, [user("S1"), user("S2")], "messages"),
        (TWICE, [user("Second")], "messages[2]"),
        (FIRST_AGAIN, [user("Second")], "messages"),
        (LENGTH, [user("Second")], "messages"),
        (SMALL_AGAIN, [user("Second")], "messages"),
    ],
    ids=["back", "first user", "not two", "last two", "twice", "again", "length", "small"],
)
def test_what_would_be_lost_or_said_twice_is_refused(
    source: str, messages: list[dict[str, Any]], param: str
) -> None:
    with pytest.raises(Invalid, match="send the whole conversation") as refused:
        behind(source, *messages)
    assert refused.value.param == param


RESULT = {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "Grey"}
WITH_CALLS = IN_ORDER.replace("{{ m.content }}", "{{ m.content }}" + CALLS)


def test_results_behind_a_call_are_taken() -> None:
    found = behind(WITH_CALLS, RESULT, user("And?"))
    assert found.count("Grey") == 1
    assert found.endswith("And?<|im_end|>\n")


@pytest.mark.parametrize(
    ("source", "param"),
    [
        (WITH_CALLS.replace("messages %}", "messages if m.role != 'user' %}", 1), 3),
        (WITH_CALLS + "{{ messages[0].content }}", None),
    ],
    ids=["no question", "again"],
)
def test_what_would_be_lost_behind_a_call_is_refused(source: str, param: int | None) -> None:
    with pytest.raises(Invalid, match="send the whole conversation") as refused:
        behind(source, RESULT, user("And?"))
    assert refused.value.param == ("messages" if param is None else f"messages[{param}]")

"""Messages that are small to send cost little to read: each input here took minutes once.

What was quadratic is given four times the size that a request may have, or more.
"""

from __future__ import annotations

from typing import Any

import pytest

from bus.errors import TooLarge
from bus.text.escaping import Escaper
from head.text.fitting import fit
from head.text.messages import normalise
from head.text.opened import unclosed
from head.text.prompts import ChatPrompt
from head.text.template_look import TemplateLook
from head.text.templates import ChatTemplate
from head.text.tool_results import Called, OpenCalls, name_results

PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: Of several calls in one message it shows the first.
ONE_CALL = (
    "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}"
    "{{ m.tool_calls[0].function.name }}{{ m.tool_calls[0].function.arguments }}{% endif %}"
    "{% endfor %}{{ tools }}"
)
SPECIAL = ("<|im_start|>", "<|im_end|>")
#: More than any request has.
OPENERS = 600_000


def test_openers_of_one_name() -> None:
    text = "<a>" * OPENERS
    assert unclosed(text, "", 0) == "<a>"
    assert unclosed(f"{text}</a>", "", 0) is None
    assert unclosed(text, text, len(text)) is None


def test_openers_of_many_names() -> None:
    names = [f"x{number}" for number in range(200_000)]
    text = "".join(f"<{name}>" for name in names)
    closed = "".join(f"</{name}>" for name in names[1:])
    assert unclosed(text + closed, "", 0) == text + closed
    assert unclosed(f"{text}{closed}</x0>", "", 0) is None


def test_an_answer_that_goes_on_after_many_openers() -> None:
    said = "<a>" * 400_000
    template = ChatTemplate("m", PLAIN, {})
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": said}]
    prompt = ChatPrompt(template, Escaper(SPECIAL), messages).open_ended()
    assert prompt.tail == "<a>"
    assert prompt.text.endswith(f"assistant\n{said}")


def test_private_use_characters_in_many_messages() -> None:
    escaper = Escaper(SPECIAL)
    letters = "".join(map(chr, range(0x100000, 0x100000 + 60_000)))
    escaped = escaper.escape(letters)
    assert len(escaped) == len(letters)
    # Each stretch between control tokens is turned back by itself.
    pieces = [escaped[start : start + 15] for start in range(0, 60_000, 15)] * 16
    assert "".join(map(escaper.restore, pieces)) == letters * 16


def test_more_private_use_characters_than_there_is_room_for() -> None:
    letters = "".join(map(chr, range(0xF0000, 0x10FFFE)))
    messages = [{"role": "user", "content": letters}]
    with pytest.raises(TooLarge, match="private-use") as refused:
        ChatPrompt(ChatTemplate("m", PLAIN, {}), Escaper(SPECIAL), messages).whole()
    assert refused.value.param == "messages"


def test_short_texts_among_many_control_tokens() -> None:
    escaper = Escaper([f"<|reserved_{number}|>" for number in range(4000)])
    texts = ["e", "x", "served_12"] * 30_000
    assert [escaper.escape(text) == text for text in texts] == [False, True, False] * 30_000


def calls(count: int, name: str = "f") -> list[dict[str, Any]]:
    return [{"id": f"c{n}", "function": {"name": name, "arguments": {}}} for n in range(count)]


@pytest.mark.parametrize(
    ("result", "found"),
    [
        ({"name": "g"}, {"name": "g"}),
        ({"tool_call_id": "c99999"}, {"tool_call_id": "c99999", "name": "f"}),
        ({"tool_call_id": "none"}, {"tool_call_id": "none"}),
    ],
)
def test_many_results_of_many_calls(result: dict[str, str], found: dict[str, str]) -> None:
    asked = {"role": "assistant", "content": "", "tool_calls": calls(100_000)}
    told = {"role": "tool", "content": "r", **result}
    named = name_results([asked, *[told] * 10_000])
    assert named[1:] == [{"role": "tool", "content": "r", **found}] * 10_000


def test_results_without_identifiers_are_of_the_calls_in_their_order() -> None:
    many = 100_000
    open_calls = OpenCalls(Called(f"n{n % 2}", f"c{n}") for n in range(many))
    open_calls.answer("c2")
    odd = [open_calls.take_first("n1") for _ in range(many // 2)]
    assert odd == [Called("n1", f"c{n}") for n in range(1, many, 2)]
    assert open_calls.take_first("n1") is None
    assert open_calls.take_first(None) == Called("n0", "c0")
    assert open_calls.take_first(None) == Called("n0", "c4")


def test_calls_one_by_one_with_their_results() -> None:
    look = TemplateLook(ChatTemplate("m", ONE_CALL, {}).pick(())._try)
    assert not look.takes_parallel_calls
    count, results = 40_000, 4000
    messages = normalise(
        [
            {"role": "user", "content": "x", "extra": dict.fromkeys(map(str, range(1000)), 0)},
            {
                "role": "assistant",
                "content": "So.",
                "reasoning_content": "Hm.",
                "tool_calls": calls(count),
                **{f"k{n}": n for n in range(1000)},
            },
            *({"role": "tool", "tool_call_id": f"c{count - n}"} for n in range(1, results)),
        ]
    )
    found = fit(messages, (), look, knows_developer=False)
    asked = [message for message in found if message["role"] == "assistant"]
    assert [len(message["tool_calls"]) for message in asked] == [1] * count
    # What else is in the message is said once.
    assert (asked[0]["content"], asked[0]["thinking"], asked[0]["k999"]) == ("So.", "Hm.", 999)
    assert {tuple(message) for message in asked[1:]} == {("role", "content", "tool_calls")}
    assert [found[-1]["tool_call_id"], found[-3]["tool_call_id"]] == ["c39999", "c39998"]
    assert len(found) == 1 + count + results - 1

"""What follows an answer in a conversation that is kept: the same as in the whole of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from bus.errors import Invalid
from bus.text.escaping import Escaper
from head.chat_turns import messages_behind
from head.text.after_calls import CalledChat, after_calls
from head.text.prompts import ChatPrompt
from head.text.templates import ChatTemplate
from head.tool_definitions import Tool, read_tools
from tests.harness.chat_templates import AXOLOTL, LLAMA_CPP, TRL, TemplatePackage, templates_of

NOW = datetime(2026, 12, 1, 9, 30)
NAMED = {"bos_token": "<s>", "eos_token": "</s>"}
#: Control tokens that end answers of the templates here, and others beside them.
ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "</s>", "<|call|>", "<|return|>", "<turn|>"),
    *("<|END_OF_TURN_TOKEN|>", "<|end|>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|user|>"),
    *("<|observation|>", "<end_of_turn>", "[e~[", "<|end_of_msg|>", "<|eot|>", "<|tool_response>"),
)
SPECIAL = ("<s>", "<|im_start|>", "<|turn>", "<|start|>", *ENDS)
CITY = {"type": "string", "description": "Which city."}
TOOLS = read_tools([{"name": "get_weather", "parameters": {"properties": {"city": CITY}}}])
IDENT = "Ab1Cd2Ef3"
CALL = {"id": IDENT, "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": IDENT, "name": "get_weather", "content": "Frimzogat."}
ANSWERED = {"role": "assistant", "content": "Mexovarty."}
#: Fails on every chat: it wants a variable of its own.
ODD = {"fireworks-ai-llama-3-firefunction-v2"}
#: What ends a call; a model has written it before.
CLOSERS = (
    *("</tool_call>", "tool_call_end", "</function>", "<tool_call|>", "tool\u2581call\u2581end"),
    *("python_end", "END_ACTION", "</invoke>", "</TOOLCALL>", "tool_calls_section_end"),
)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def whole(template: ChatTemplate, messages: list[dict[str, Any]], tools: tuple[Tool, ...]) -> str:
    return ChatPrompt(template, Escaper(SPECIAL), messages, tools).whole().text


def behind(template: ChatTemplate, messages: list[dict[str, Any]], tools: tuple[Tool, ...]) -> str:
    prompt = ChatPrompt(template, Escaper(SPECIAL), messages_behind(messages), tools)
    return prompt.after_answer(SPECIAL, ENDS).text


def _templates(package: TemplatePackage) -> dict[str, ChatTemplate]:
    found = templates_of(package).items()
    return {
        name: ChatTemplate(name, source, NAMED, lambda: NOW)
        for name, source in found
        if name not in ODD
    }


@pytest.mark.model
@pytest.mark.parametrize("package", [LLAMA_CPP, TRL, AXOLOTL], ids=["llama.cpp", "trl", "axolotl"])
@pytest.mark.parametrize("tools", [(), TOOLS], ids=["plain", "tools"])
def test_a_question_after_an_answer_of_real_templates(
    package: TemplatePackage, tools: tuple[Tool, ...]
) -> None:
    for name, template in _templates(package).items():
        said = [user("First"), ANSWERED, user("Second")]
        follows = whole(template, said, tools).rpartition("Mexovarty.")[2]
        assert behind(template, [user("Second")], tools) == follows, name


@pytest.mark.model
@pytest.mark.parametrize("package", [LLAMA_CPP, TRL, AXOLOTL], ids=["llama.cpp", "trl", "axolotl"])
@pytest.mark.parametrize("more", [[], [user("And tomorrow?")]], ids=["result", "and question"])
def test_a_result_after_a_call_of_real_templates(
    package: TemplatePackage, more: list[dict[str, Any]]
) -> None:
    for name, template in _templates(package).items():
        try:
            everything = whole(template, [user("First"), CALLED, RESULT, *more], TOOLS)
        except Invalid:
            continue  # Its roles have to alternate.
        follows = behind(template, [RESULT, *more], TOOLS)
        assert everything.endswith(follows), name
        # Pixtral's tools are told in the last message.
        told = follows.partition("You can call functions.")[0]
        assert "Frimzogat." in follows, name
        assert not any(closer in told for closer in CLOSERS), name


def test_what_follows_a_call_begins_with_the_end_of_the_answer() -> None:
    chat = CalledChat(
        whole="A<call>x</call><end>\n<tool>r<end>\n",
        before="A<call>x</call><end>\n",
        other_calls="A<call>y</call><end>\n<tool>r<end>\n",
        other_results="A<call>x</call><end>\n<tool>q<end>\n",
    )
    assert after_calls(chat, ["<end>", "<tool>"], ["<end>"]) == "<end>\n<tool>r<end>\n"
    # Of an end that is none of the model's, nothing is known.
    assert after_calls(chat, ["<end>", "<tool>"], []) == "<tool>r<end>\n"


def test_a_control_token_is_not_cut() -> None:
    chat = CalledChat(
        whole="<call>x</call><|tool>r",
        before="<call>x</call><|turn>",
        other_calls="<call>y</call><|tool>r",
        other_results="<call>x</call><|tool>q",
    )
    assert after_calls(chat, ["<|tool>", "<|turn>"], ["<|turn>"]) == "<|tool>r"


def test_an_answer_that_is_written_in_another_way_as_the_last() -> None:
    chat = CalledChat(
        whole="A<call>x</call><end>\n<tool>r<end>\n",
        before="A<think></think><call>x</call><end>\n",
        other_calls="A<call>y</call><end>\n<tool>r<end>\n",
        other_results="A<call>x</call><end>\n<tool>q<end>\n",
    )
    assert after_calls(chat, ["<end>"], ["<end>"]) == "<end>\n<tool>r<end>\n"
    assert after_calls(chat, ["<end>"], ["<stop>"]) is None
    assert after_calls(chat, ["<end>"], []) is None

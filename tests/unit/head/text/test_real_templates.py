"""Templates of real models, rendered as their makers do, and without loss where those lose."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
import pytest

from bus.errors import Invalid
from bus.text.escaping import Escaper
from head.text.prompts import ChatPrompt
from head.text.templates import ChatTemplate
from head.tool_definitions import read_tools
from tests.harness.chat_templates import (
    AXOLOTL,
    LLAMA_CPP,
    TRL,
    TemplatePackage,
    reference,
    templates_of,
)
from tests.harness.models import smollm2_folder

pytestmark = pytest.mark.model

NOW = datetime(2026, 12, 1, 9, 30)
NAMED = {"bos_token": "<s>", "eos_token": "</s>"}
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "\u83b7\u53d6\u5929\u6c14",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Which city."},
                    "days": {"type": "integer", "description": "How many."},
                },
                "required": ["city"],
            },
        },
    }
]


@dataclass(frozen=True)
class Chat:
    """A conversation, and words of it that no prompt may lack."""

    messages: list[dict[str, Any]]
    words: tuple[str, ...]
    tools: bool = False


def said(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def calling(*cities: str) -> list[dict[str, Any]]:
    """Calls and their results; nine letters, as some templates demand."""
    ids = [f"A1b2C3d{place:02}" for place in range(len(cities))]
    calls = [
        {
            "id": one,
            "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": city, "days": 2}},
        }
        for one, city in zip(ids, cities, strict=True)
    ]
    results = [
        said("tool", f"Rain of kind {place}.", tool_call_id=one, name="get_weather")
        for place, one in enumerate(ids)
    ]
    return [{"role": "assistant", "content": "", "tool_calls": calls}, *results]


BRIEF, ASKS, WEATHER = said("system", "Be brief."), said("user", "Hi <there>"), "Weather?"
NAME, ABOUT = "get_weather", "\u83b7\u53d6\u5929\u6c14"
CHATS = {
    "user": Chat([ASKS], ("Hi <there>",)),
    "system": Chat([BRIEF, ASKS], ("Be brief.", "Hi <there>")),
    "turns": Chat(
        [BRIEF, ASKS, said("assistant", "Hello!"), said("user", "More? \u65e5\u672c")],
        ("Be brief.", "Hello!", "More? \u65e5\u672c"),
    ),
    "tools": Chat([BRIEF, said("user", WEATHER)], ("Be brief.", NAME, ABOUT), tools=True),
    "call": Chat(
        [said("user", WEATHER), *calling("K\u00f6ln")],
        (ABOUT, NAME, "K\u00f6ln", "Rain of kind 0."),
        tools=True,
    ),
    "called": Chat(
        [said("user", WEATHER), *calling("K\u00f6ln"), said("assistant", "Rainy."), ASKS],
        (ABOUT, "K\u00f6ln", "Rain of kind 0.", "Rainy.", "Hi <there>"),
        tools=True,
    ),
    "two calls": Chat(
        [said("user", WEATHER), *calling("K\u00f6ln", "Rom")],
        (ABOUT, "K\u00f6ln", "Rom", "Rain of kind 0.", "Rain of kind 1."),
        tools=True,
    ),
}  # fmt: skip


def ours(template: ChatTemplate, chat: Chat) -> str | None:
    messages = copy.deepcopy(chat.messages)
    for message in messages:
        for call in message.get("tool_calls", ()):
            # As clients send them.
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    escaper = Escaper(SPECIAL)
    tools = read_tools(TOOLS if chat.tools else None)
    try:
        return escaper.restore(ChatPrompt(template, escaper, messages, tools).whole().text)
    except Invalid:
        return None


def theirs(render: Callable[..., str], chat: Chat) -> str | None:
    try:
        return render(
            messages=copy.deepcopy(chat.messages),
            tools=TOOLS if chat.tools else None,
            documents=None,
            add_generation_prompt=True,
            **NAMED,
        )
    except (jinja2.TemplateError, TypeError, AttributeError):
        return None


def lacks(text: str, chat: Chat) -> bool:
    """Whether a word is missing, also where a template writes its characters as JSON's ASCII."""
    return any(word not in text and json.dumps(word)[1:-1] not in text for word in chat.words)


def compare(templates: Mapping[str, str]) -> tuple[Counter[str], list[str]]:
    """How many prompts are equal or why not; and those that lack something, or differ for none of
    the reasons that there are."""
    count: Counter[str] = Counter()
    odd = []
    for name, source in templates.items():
        template = ChatTemplate(name, source, NAMED, lambda: NOW)
        render = reference(source, NOW)
        for kind, chat in CHATS.items():
            mine, other = ours(template, chat), theirs(render, chat)
            if mine is None:
                what = "both refuse" if other is None else "only ours refuses"
            elif mine == other:
                what = "equal"
            elif other is None:
                what = "only the reference refuses"
            elif lacks(other, chat):
                what = "only the reference loses words"
            else:
                what = "differs"
            count[what] += 1
            if what == "differs" or (mine is not None and lacks(mine, chat)):
                odd.append(f"{name}, {kind}")
    return count, odd


LOSES, REFUSES = "only the reference loses words", "only the reference refuses"
#: Append to lists of their own, which the sandbox allows as little as Hugging Face's does.
APPEND = [
    f"Kimi-K2-{kind}, {chat}"
    for kind in ("Instruct", "Thinking")
    for chat in ("call", "called", "two calls")
]


@pytest.mark.parametrize(
    ("package", "templates", "figures", "odd"),
    [
        (
            LLAMA_CPP,
            70,
            {"equal": 416, LOSES: 36, REFUSES: 25, "both refuse": 7, "differs": 6},
            APPEND,
        ),
        (TRL, 72, {"equal": 368, LOSES: 81, REFUSES: 55}, []),
        (AXOLOTL, 36, {"equal": 154, LOSES: 64, REFUSES: 34}, []),
    ],
    ids=["llama.cpp", "trl", "axolotl"],
)
def test_prompts_are_equal_or_hold_what_the_reference_loses(
    package: TemplatePackage, templates: int, figures: dict[str, int], odd: list[str]
) -> None:
    found = templates_of(package)
    assert len(found) == templates
    count, left = compare(found)
    assert (dict(count), left) == (figures, odd)


#: How the models of these templates may end an answer.
ENDS = (
    *("</s>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|call|>"),
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)


@pytest.mark.parametrize("package", [LLAMA_CPP, TRL, AXOLOTL], ids=["llama.cpp", "trl", "axolotl"])
def test_what_follows_an_answer_is_the_end_of_the_whole_prompt(package: TemplatePackage) -> None:
    odd = []
    for name, source in templates_of(package).items():
        template = ChatTemplate(name, source, NAMED, lambda: NOW)
        for kind in ("turns", "call"):
            chat, escaper = CHATS[kind], Escaper((*SPECIAL, *ENDS))
            tools = read_tools(TOOLS if chat.tools else None)
            prompt = ChatPrompt(template, escaper, copy.deepcopy(chat.messages), tools)
            try:
                whole = prompt.whole().text
            except Invalid:
                continue  # It needs a variable of its own.
            after = prompt.after_answer((*SPECIAL, *ENDS), ENDS).text
            if not after or not whole.endswith(after):
                odd.append(f"{name}, {kind}")
    assert odd == []


@pytest.mark.parametrize("package", [LLAMA_CPP, TRL, AXOLOTL], ids=["llama.cpp", "trl", "axolotl"])
def test_an_open_end_is_where_the_last_answer_stops(package: TemplatePackage) -> None:
    odd = []
    for name, source in templates_of(package).items():
        template = ChatTemplate(name, source, NAMED, lambda: NOW)
        messages = [BRIEF, ASKS, said("assistant", "Once upon ")]
        prompt = ChatPrompt(template, Escaper((*SPECIAL, *ENDS)), messages)
        try:
            text = prompt.open_ended().text
        except Invalid:
            continue
        if not text.endswith("Once upon ") or "Hi <there>" not in text:
            odd.append(name)
    assert odd == []


def test_smollm2_has_tools_told_in_words() -> None:
    template = smollm2_folder().chat_template
    assert template is not None
    count, odd = compare({"smollm2": template.read_text("utf-8")})
    assert (dict(count), odd) == ({"equal": 3, "only the reference loses words": 4}, [])

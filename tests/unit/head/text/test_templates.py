"""Chat templates: what they get, what they may, and how they fail."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from bus.errors import Invalid
from bus.text.escaping import Escaper
from head.text.prompts import ChatPrompt
from head.text.templates import ChatTemplate

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|im_start|>", "<|im_end|>", "<s>")
NAMED = {"bos_token": "<s>", "eos_token": "<|im_end|>"}


def render(source: str, *messages: Any, special: tuple[str, ...] = SPECIAL, **options: Any) -> str:
    template = ChatTemplate("m", source, NAMED, lambda: datetime(2026, 12, 1))
    escaper = Escaper(special)
    prompt = options.pop("add_generation_prompt", True)
    chat = ChatPrompt(template, escaper, list(messages), options=options)
    return escaper.restore(chat.whole(add_generation_prompt=prompt).text)


def said(content: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": content}


def test_a_chat() -> None:
    assert render(CHATML, said("Hi", "system"), said("1+1?")) == (
        "<|im_start|>system\nHi<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert render(CHATML, said("Hi"), add_generation_prompt=False) == (
        "<|im_start|>user\nHi<|im_end|>\n"
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("", ""),
        ([], ""),
        (["a"], "a"),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ("\ud55c\U0001f600", "\ud55c\U0001f600"),
    ],
)
def test_content_is_made_into_text(content: Any, text: str) -> None:
    assert render("{{ messages[0]['content'] }}|", said(content)) == f"{text}|"


def test_absent_content_is_empty() -> None:
    assert render("{{ messages[0]['content'] }}|", {"role": "assistant"}) == "|"


def test_two_system_messages_stay_two() -> None:
    text = render(CHATML, said("one", "system"), said("two", "system"), said("x"))
    assert text.count("<|im_start|>system\n") == 2


@pytest.mark.parametrize(
    ("messages", "param", "sentence"),
    [
        ([], "messages", "send at least one"),
        ("hi", "messages", "should be a list"),
        (["hi"], "messages[0]", "a map with role and content"),
        ([said("a", "bot")], "messages[0].role", "'bot'; it should be one of system"),
        ([said("a", "im_end")], "messages[0].role", "should be one of"),
        ([{"content": "a"}], "messages[0].role", "missing"),
        ([said("a"), said(7)], "messages[1].content", "not an integer"),
        ([said({"a": 1})], "messages[0].content", "not a map"),
        ([said([{"type": "image_url"}])], "messages[0].content[0]", "text only"),
        ([said([{"type": "text"}])], "messages[0].content[0].text", "missing"),
        ([said([7])], "messages[0].content[0]", "text only"),
    ],
)
def test_what_is_wrong_is_refused_by_name(messages: Any, param: str, sentence: str) -> None:
    template = ChatTemplate("m", CHATML, NAMED)
    with pytest.raises(Invalid) as caught:
        ChatPrompt(template, Escaper(SPECIAL), messages)
    assert caught.value.param == param
    assert sentence in caught.value.message
    assert "\n" not in caught.value.message


def test_developer_is_system_to_templates_that_do_not_know_it() -> None:
    assert render("{{ messages[0].role }}", said("a", "developer")) == "system"
    knows = "{% if messages[0].role == 'developer' %}yes{% endif %}"
    assert render(knows, said("a", "developer")) == "yes"


# --- what templates may -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ eos_token }}{{ pad_token }}", "<s><|im_end|>"),
        ("{{ strftime_now('%d %b %Y') }}", "01 Dec 2026"),
        ("{{ extra | tojson }}", '[{"a": "\u65e5\u672c <&>"}]'),
        ("{{ extra | tojson(indent=1) }}", '[\n {\n  "a": "\u65e5\u672c <&>"\n }\n]'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% for i in 'abc' %}{% if i == 'b' %}{% continue %}{% endif %}{{ i }}{% endfor %}", "ac"),
        ("  {% if true %}\n x\n  {% endif %}\ny", " x\ny"),
        ("{% generation %}a{{ 1 }}{% endgeneration %}b", "a1b"),
        ("{{ messages[0].content.split('-')[1] | trim }}", "b"),
        ("{% set ns = namespace(n=0) %}{% set ns.n = 2 %}{{ ns.n }}", "2"),
    ],
)  # fmt: skip
def test_what_templates_are_written_for(source: str, text: str) -> None:
    assert render(source, said("a- b "), extra=[{"a": "\u65e5\u672c <&>"}]) == text


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{{ raise_exception('Roles must be two.') }}", "refuses these messages: Roles must be"),
        ("{{ messages[0].content.nothing.more }}", "fails on these messages"),
        ("{{ 1 / 0 }}", "fails on these messages (ZeroDivisionError)"),
        ("{{ ''.__class__.__mro__ }}", "fails on these messages"),
        ("{{ messages.append(1) }}", "fails on these messages (SecurityError)"),
        ("{% for i in range(10**9) %}{% endfor %}", "fails on these messages (OverflowError)"),
        ("{% include 'x' %}", "fails on these messages"),
    ],
)  # fmt: skip
def test_a_failing_template_is_one_sentence(source: str, sentence: str) -> None:
    with pytest.raises(Invalid) as caught:
        render(source, said("secret"))
    assert sentence in caught.value.message
    assert "secret" not in caught.value.message
    assert "Traceback" not in caught.value.message
    assert "\n" not in caught.value.message


def test_no_template_and_a_broken_one_name_the_model_and_the_remedy() -> None:
    with pytest.raises(Invalid, match=r"has no chat template.*run --raw m TEXT.*chat_template"):
        ChatTemplate("m", None, NAMED)
    with pytest.raises(Invalid, match=r"model m can not be read: .* in line 2"):
        ChatTemplate("m", "a\n{% if %}", NAMED)


def test_what_the_head_sets_can_not_be_overridden() -> None:
    with pytest.raises(Invalid, match=r"template\.messages is set by the head"):
        ChatPrompt(
            ChatTemplate("m", CHATML, NAMED), Escaper(SPECIAL), [said("a")], (), {"messages": []}
        )


# --- users' texts -----------------------------------------------------------------------------


def test_users_control_tokens_are_escaped_wherever_they_are() -> None:
    source = (
        "<s>{{ messages[0].content | trim }}{{ messages[0].name }}{{ messages[0].calls | tojson }}"
        "{{ extra | tojson }}<|im_end|>"
    )
    escaper = Escaper(SPECIAL)
    message = {
        **said(" <s> <|im_end|> "),
        "name": "<s>",
        "calls": [{"<s>": ["<|im_start|>", 1, None, True]}],
    }
    template = ChatTemplate("m", source, NAMED)
    text = ChatPrompt(template, escaper, [message], (), {"extra": {"k": "<s>"}}).whole().text
    assert text.startswith("<s>")
    assert text.endswith("<|im_end|>")
    inside = text.removeprefix("<s>").removesuffix("<|im_end|>")
    assert not any(special in inside for special in SPECIAL)
    assert escaper.restore(text) == (
        '<s><s> <|im_end|><s>[{"<s>": ["<|im_start|>", 1, null, true]}]{"k": "<s>"}<|im_end|>'
    )

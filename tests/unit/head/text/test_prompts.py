"""Prompts of chats: tools, which template, what a template does not take, ends, and tails."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from bus.errors import Invalid, TooLarge
from bus.text.escaping import Escaper
from head.text.opened import opened
from head.text.prompts import ChatPrompt, Prompt
from head.text.templates import ChatTemplate
from head.tool_definitions import read_tools

SPECIAL = ("<|im_start|>", "<|im_end|>", "<s>")
#: Shows content of every role, and nothing else.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
#: Shows tools, calls and results.
TOOLS = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls %}[{{ c.id }} {{ c.function.name }} {{ c.function.arguments }}]"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WEATHER = {
    "name": "get_weather",
    "description": "\u5929\u6c14 <|im_end|>",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
USER = {"role": "user", "content": "Hi"}


def chat(
    source: str,
    *messages: Any,
    tools: Any = None,
    named: Mapping[str, str] | None = None,
    **more: Any,
) -> tuple[ChatPrompt, Escaper]:
    escaper = Escaper(SPECIAL)
    template = ChatTemplate("m", source, {"bos_token": "<s>"}, named=named)
    return ChatPrompt(template, escaper, list(messages), read_tools(tools), more), escaper


def whole(source: str, *messages: Any, **more: Any) -> str:
    prompt, escaper = chat(source, *messages, **more)
    return escaper.restore(prompt.whole().text)


def said(role: str, content: str = "x", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def called(*names: str, arguments: Any = "{}") -> dict[str, Any]:
    calls = [
        {"id": f"call_{name}", "function": {"name": name, "arguments": arguments}} for name in names
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


# --- tools ------------------------------------------------------------------------------------


def test_t6_tools_are_shown_as_they_are_and_hold_no_control_tokens() -> None:
    prompt, escaper = chat(TOOLS, USER, tools=[WEATHER])
    text = prompt.whole().text
    assert text.count("<|im_end|>") == 2
    shown = json.dumps([{"type": "function", "function": WEATHER}], ensure_ascii=False)
    assert escaper.restore(text).startswith(f"<|im_start|>tools\n{shown}<|im_end|>\n")
    assert "\\u" not in escaper.restore(text)


def test_no_tools_are_none_to_a_template_and_a_list_to_one_that_needs_it() -> None:
    say = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert whole("{{ tools is none }}" + say, USER) == "TrueHi"
    assert whole("{% for tool in tools %}{% endfor %}" + say, USER) == "Hi"


def test_words_of_schemas_stay_words_where_a_control_token_has_them_inside() -> None:
    source = "{% for t in tools %}{{ t.function.parameters.type == 'object' }}{% endfor %}"
    escaper = Escaper(["<|object_ref_start|>"])
    template = ChatTemplate("m", source + "{{ messages[0].content }}", {})
    prompt = ChatPrompt(template, escaper, [USER], read_tools([WEATHER]))
    assert prompt.whole().text.startswith("True")


def test_names_make_no_control_tokens_with_the_signs_that_a_template_writes_around_them() -> None:
    source = (
        "{% for t in tools %}</{{ t.function.name }}>"
        "{% for key in t.function.parameters.properties %}<{{ key }}>{% endfor %}{% endfor %}"
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}</{{ c.function.name }}>"
        "{% for key in c.function.arguments %}<{{ key }}></{{ key }}>{% endfor %}{% endfor %}"
        "{% for key in m %}<{{ key }}>{% endfor %}{% endfor %}<{{ mood }}>"
    )
    schema = {"type": "object", "properties": {"s": {}, "a<|im_end|": {}}}
    call = {"name": "s", "arguments": {"s": 1, "b<|im_end|": 2}}
    messages = [{**USER, "s": 1}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    escaper = Escaper(["<s>", "</s>", "<|im_end|>"])
    chat = ChatPrompt(
        ChatTemplate("m", source, {}),
        escaper,
        messages,
        read_tools([{"name": "s", "parameters": schema}]),
        {"mood": "s"},
    )
    text = chat.whole().text
    assert [special for special in ("<s>", "</s>", "<|im_end|>") if special in text] == []
    shown = escaper.restore(text)
    assert shown.startswith("</s><s><a<|im_end|>Hi")
    assert "</s><s></s><b<|im_end|></b<|im_end|>" in shown
    assert shown.endswith("<s>")


def test_names_of_calls_and_arguments_hold_no_control_tokens() -> None:
    call = {
        "id": "<s>",
        "function": {"name": "<|im_end|>", "arguments": '{"<s>": "<|im_start|>", "b": 1}'},
    }
    messages = (
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        said("tool", "<|im_end|>", tool_call_id="<s>", name="<s>"),
    )
    source = TOOLS.replace("{{ c.function.arguments }}", "{{ c.function.arguments | tojson }}")
    for template in (TOOLS, source):
        prompt, escaper = chat(template, *messages)
        text = prompt.whole(add_generation_prompt=False).text
        assert (text.count("<|im_start|>"), text.count("<|im_end|>"), text.count("<s>")) == (
            3,
            3,
            0,
        )
        assert '[<s> <|im_end|> {"<s>": "<|im_start|>", "b": 1}]' in escaper.restore(text)


@pytest.mark.parametrize(
    ("given", "options", "word"),
    [
        ([], {}, "default"),
        ([WEATHER], {}, "tool_use"),
        ([], {"documents": [{"title": "a"}]}, "rag"),
        ([WEATHER], {"documents": [{"title": "a"}]}, "tool_use"),
        ([], {"documents": []}, "default"),
    ],
)
def test_a_template_is_taken_by_its_name(given: Any, options: Any, word: str) -> None:
    named = {name: f"{name} {{{{ messages[0].content }}}}" for name in ("tool_use", "rag", "x")}
    source = "default {{ messages[0].content }}"
    prompt, _ = chat(source, USER, tools=given, named=named, **options)
    # None of them shows tools, which are then told in words before the message.
    assert prompt.whole().text.split()[0] == word


def test_documents_reach_the_template_and_hold_no_control_tokens() -> None:
    source = "{% for d in documents %}{{ d.text }}{% endfor %}{{ messages[0].content }}"
    prompt, escaper = chat(source, USER, documents=[{"title": "a", "text": "b<s>"}])
    assert "<s>" not in prompt.whole().text
    assert escaper.restore(prompt.whole().text) == "b<s>Hi"
    for wrong in ("a", ["a"], {"a": 1}):
        with pytest.raises(Invalid, match="list of maps") as caught:
            chat(source, USER, documents=wrong)
        assert caught.value.param == "template.documents"


# --- what a template does not take ------------------------------------------------------------


def test_a_template_that_shows_no_tools_has_them_told_in_words() -> None:
    prompt, escaper = chat(CHATML, said("system", "Be kind."), USER, tools=[WEATHER])
    text = escaper.restore(prompt.whole().text)
    assert text.startswith("<|im_start|>system\nYou can call functions.")
    assert json.dumps(WEATHER, ensure_ascii=False) in text
    assert "<tool_call>" in text
    assert "Be kind." in text
    assert "<tool_call>" in prompt.format_source
    plain, _ = chat(CHATML, USER)
    assert plain.format_source == CHATML


def test_calls_and_results_that_a_template_drops_become_text() -> None:
    source = CHATML.replace(
        "{% for message in messages %}",
        "{% for message in messages if message.role in ('system', 'user', 'assistant') %}",
    )
    messages = (
        USER,
        called("f", arguments={"a": "\u5929"}),
        said("tool", "20"),
        said("tool", "30"),
    )
    assert whole(source, *messages) == (
        "<|im_start|>user\nHi<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "f", "arguments": {"a": "\u5929"}}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n20\n</tool_response>\n"
        "<tool_response>\n30\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_for_one_call_at_a_time_gets_one_after_the_other() -> None:
    single = TOOLS.replace("in m.tool_calls", "in (m.tool_calls or [])[:1]")
    refuses = "{% for m in messages if (m.tool_calls or []) | length > 1 %}"
    refuses += "{{ raise_exception('one call') }}{% endfor %}" + TOOLS
    messages = (
        USER,
        {**called("f", "g"), "content": "Both."},
        said("tool", "20", tool_call_id="call_g"),
        said("tool", "30", tool_call_id="call_f"),
        USER,
    )
    for source in (single, refuses):
        text = whole(source, *messages, tools=[{"name": "f"}, {"name": "g"}])
        found = text.split("<|im_start|>")[3:-2]
        assert found == [
            "assistant\nBoth.[call_f f {}]<|im_end|>\n",
            "tool\n30<|im_end|>\n",
            "assistant\n[call_g g {}]<|im_end|>\n",
            "tool\n20<|im_end|>\n",
        ]


def test_identifiers_are_made_short_for_templates_that_refuse_others() -> None:
    picky = (
        "{% for m in messages %}{% for c in m.tool_calls %}{% if c.id | length != 9 %}"
        "{{ raise_exception('nine') }}{% endif %}{% endfor %}"
        "{% if m.role == 'tool' %}({{ m.tool_call_id }}){% endif %}{% endfor %}" + TOOLS
    )
    messages = (USER, called("f"), said("tool", "20", tool_call_id="call_f"))
    text = whole(picky, *messages, tools=[{"name": "f"}])
    short = text[1:10]
    assert short.isalnum()
    assert f"[{short} f {{}}]" in text
    nine = [{"id": "A1b2C3d4E", "function": {"name": "f"}}]
    kept = {"role": "assistant", "content": "", "tool_calls": nine}
    assert "[A1b2C3d4E f {}]" in whole(picky, USER, kept, said("tool", "20"), tools=[{"name": "f"}])
    assert "[call_f f {}]" in whole(TOOLS, *messages, tools=[{"name": "f"}])
    nameless = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}
    text = whole(picky, USER, nameless, said("tool"), nameless, said("tool"), tools=[{"name": "f"}])
    one, two = re.findall(r"\[(\w{9}) f", text)
    assert one != two
    assert text.startswith(f"({one})({two})")


def test_calls_without_identifiers_get_them_where_the_template_writes_them() -> None:
    strict = (
        "{% for m in messages %}{% for c in m.tool_calls %}<{{ c.id + '' }}>{% endfor %}"
        "{% if m.role == 'tool' %}({{ m.tool_call_id + '' }}){% endif %}{% endfor %}" + TOOLS
    )
    calls = [{"function": {"name": "f"}}, {"function": {"name": "g"}}]
    chat = (USER, {"role": "assistant", "content": "", "tool_calls": calls}, said("tool"))
    text = whole(strict, *chat, said("tool"), tools=[{"name": "f"}, {"name": "g"}])
    one, two = re.findall(r"<([0-9.]+)>", text)
    assert one != two
    assert f"({one})({two})" in text


ONE_SYSTEM = (
    "{% if messages[0].role == 'system' %}S {{ messages[0].content }}\n"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('late') }}{% endif %}"
    "{{ m.role }} {{ m.content }}\n{% endfor %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('none') }}{% endif %}"
    "{{ m.role }} {{ m.content }}\n{% endfor %}"
)
#: Drops without a word all but a first one.
DROPS_SYSTEM = ONE_SYSTEM.replace("{{ raise_exception('late') }}", "{% continue %}")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (ONE_SYSTEM, "S one\n\ntwo\n\nthree\nuser Hi\nassistant x\nuser Hi\n"),
        (DROPS_SYSTEM, "S one\n\ntwo\n\nthree\nuser Hi\nassistant x\nuser Hi\n"),
        (NO_SYSTEM, "user one\n\ntwo\n\nthree\n\nHi\nassistant x\nuser Hi\n"),
    ],
)
def test_t4_system_messages_are_merged_where_a_template_takes_one_only(
    source: str, text: str
) -> None:
    systems = (said("system", "one"), said("developer", "two"))
    messages = (*systems, USER, said("assistant"), said("system", "three"), USER)
    assert whole(source, *messages) == text
    assert whole(source, USER) == "user Hi\n"


def test_system_messages_alone_become_one_of_the_user() -> None:
    assert whole(NO_SYSTEM, said("system", "one")) == "user one\n"


def test_a_template_for_lists_of_parts_gets_them() -> None:
    parts = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}|{% endfor %}"
    refuses = "{% if messages[0].content is string %}{{ raise_exception('parts') }}{% endif %}"
    for source in (parts, refuses + parts):
        assert whole(source, USER, said("assistant", "yes")) == "Hi|yes|"


# --- ends -------------------------------------------------------------------------------------

THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if quick %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}{% endif %}"
)


def test_the_tail_is_what_the_end_opened() -> None:
    prompt, _ = chat(THINKING, USER)
    assert prompt.whole().tail == "<think>\n"
    assert prompt.whole(add_generation_prompt=False).tail == ""
    quick, _ = chat(THINKING, USER, quick=True)
    assert quick.whole().text.endswith("</think>\n\n")
    assert quick.whole().tail == ""
    assert chat(CHATML, USER)[0].whole().tail == ""


@pytest.mark.parametrize(
    ("generation", "header", "tail"),
    [
        ("<|im_start|>assistant\n", "<|im_start|>assistant\n", ""),
        ("<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n", "<think>\n"),
        ("<|assistant|>\n<think>", "<|assistant|>\n<think></think>\n", "<think>"),
        ("<|assistant|>", "<|assistant|>\n<think></think>\n", ""),
        ("<|A|><think></think>", "<|A|></think>", ""),
        ("<start_of_turn>model\n", "<start_of_turn>model\n", ""),
        ("<start_of_turn>model\n", None, ""),
        ("<start_of_turn>model\n<think>\n", None, "<think>\n"),
        ("<|C|><|START_THINKING|>", "<|C|><|START_RESPONSE|>", "<|START_THINKING|>"),
        ("[THINK]", "", "[THINK]"),
        ("A\nLet me think:\n", "A\n", "Let me think:\n"),
        ("<|turn>model\n<|channel>thought\n<channel|>", "<|turn>model\n", ""),
        ("<|start|>assistant", "<|start|>assistant<|channel|>final<|message|>", ""),
        ("", "", ""),
    ],
)
def test_what_is_open(generation: str, header: str | None, tail: str) -> None:
    assert opened(generation, header) == tail


def test_an_open_end_is_where_the_last_answer_stops() -> None:
    for content in ("Once upon", "Once upon ", "a\U0010ffffb", "<|im_end|>"):
        prompt, escaper = chat(THINKING, USER, said("assistant", content))
        found = prompt.open_ended()
        text = f"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{content}"
        assert escaper.restore(found.text) == text
        assert (found.text.count("<|im_end|>"), found.tail) == (1, "")
    prompt, _ = chat(CHATML, USER, said("assistant", "<think>\nHm"))
    assert prompt.open_ended().tail == "<think>\nHm"


@pytest.mark.parametrize(
    "last", [USER, said("assistant", ""), called("f"), said("tool", "20")], ids=repr
)
def test_what_is_no_text_of_the_assistant_has_no_open_end(last: Any) -> None:
    prompt, _ = chat(CHATML, USER, last)
    with pytest.raises(Invalid, match="end the messages with one of role assistant") as caught:
        prompt.open_ended()
    assert caught.value.param == "messages[1]"


def test_what_follows_an_answer() -> None:
    messages = (USER, said("assistant", "one"), USER, said("assistant", "two"))
    end = "<|im_end|>\n"
    begin = "<|im_start|>assistant\n"

    def after(*more: Any) -> str:
        prompt, escaper = chat(CHATML, *messages, *more)
        found = prompt.after_answer()
        assert isinstance(found, Prompt)
        assert not found.begins
        return escaper.restore(found.text)

    assert after() == end
    again = said("user", "a\U0010ffff<|im_end|>")
    assert after(again) == f"{end}<|im_start|>user\na\U0010ffff<|im_end|>{end}{begin}"
    tool, escaper = chat(TOOLS, USER, called("f"), said("tool", "20"), tools=[{"name": "f"}])
    after_call = tool.after_answer(("<|im_start|>", "<|im_end|>"), ("<|im_end|>",))
    assert escaper.restore(after_call.text) == f"{end}<|im_start|>tool\n20{end}{begin}"
    thinking, _ = chat(THINKING, *messages, USER)
    assert thinking.after_answer().tail == "<think>\n"


def test_nothing_follows_where_there_is_no_answer_or_it_is_left_out() -> None:
    with pytest.raises(Invalid, match="has no answer") as caught:
        chat(CHATML, USER)[0].after_answer()
    assert caught.value.param == "messages"
    only = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    with pytest.raises(Invalid, match="leaves the last answer out"):
        chat(only, USER, said("assistant"), USER)[0].after_answer()
    with pytest.raises(Invalid, match="leaves the last answer out"):
        chat(only, USER, said("assistant"))[0].open_ended()


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
def test_options_do_not_set_what_the_head_sets(name: str) -> None:
    with pytest.raises(Invalid, match=f"{name} is set by the head") as caught:
        ChatPrompt(ChatTemplate("m", CHATML, {}), Escaper([]), [USER], (), {name: []})
    assert caught.value.param == "template"


def test_options_are_checked_by_their_place() -> None:
    with pytest.raises(Invalid, match="lone surrogate") as caught:
        chat(CHATML, USER, mood=["\ud800"])
    assert caught.value.param == "template.mood[0]"


def test_more_text_than_a_prompt_may_have_is_refused() -> None:
    with pytest.raises(TooLarge, match="the prompt has more than 8388608 bytes") as caught:
        chat("{{ messages[0].content * 9000000 }}", said("user", "x"))[0].whole()
    assert caught.value.param == "messages"

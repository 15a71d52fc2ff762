"""Splitting answers: text, reasoning and calls, whatever the pieces are."""

from __future__ import annotations

import json

from head.text.channels import FORMATS, ChannelSplitter, ToolCall, choose_format

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def split(
    form: str, text: str, step: int = 0, *, cut: bool = False, opened: str = ""
) -> tuple[str, str, list[ToolCall]]:
    """Text, reasoning and calls of an answer that comes in pieces of so many characters."""
    splitter = ChannelSplitter(FORMATS[form], TOOLS, call_id="call-{}".format, opened=opened)
    size = step or max(len(text), 1)
    pieces = [splitter.push(text[at : at + size]) for at in range(0, len(text), size)]
    pieces.append(splitter.finish(cut=cut))
    return (
        "".join(piece.text for piece in pieces),
        "".join(piece.reasoning for piece in pieces),
        [call for piece in pieces for call in piece.calls],
    )


def test_plain_text_is_text() -> None:
    assert split("plain", "a <think>b</think>\n") == ("a <think>b</think>\n", "", [])


def test_reasoning_loses_the_line_ends_around_its_markers() -> None:
    for step in range(4):
        assert split("think", "<think>\nhm\n\n</think>\n\nYes\n", step) == ("Yes\n", "hm", [])
        assert split("think", "hm\n</think>\n\nYes", step, opened="<think>\n") == ("Yes", "hm", [])
        assert split("think", "Yes", step, opened="<think>\n\n</think>\n\n") == ("Yes", "", [])


def test_a_marker_in_the_middle_of_text_is_text() -> None:
    told = "Use <think> and </think>.\n<think>"
    assert split("think", told, 1) == (told, "", [])


def test_two_calls_have_their_own_ids() -> None:
    answer = (
        'Two.\n<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>"}}\n</tool_call>\n'
        '<tool_call>{"name": "f"}</tool_call>\n'
    )
    calls = [ToolCall(0, "call-0", "f", '{"a": "</tool_call>"}'), ToolCall(1, "call-1", "f", "{}")]
    for step in range(9):
        assert split("hermes", answer, step) == ("Two.", "", calls)


def test_a_call_that_is_cut_is_neither_call_nor_text() -> None:
    for end in range(1, len('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>') - 1):
        answer = "Yes\n" + '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'[:end]
        text, _, calls = split("hermes", answer, 3, cut=True)
        assert not calls
        assert text == ("Yes" if end > 2 else answer)


def test_what_is_no_call_is_text_byte_by_byte() -> None:
    for broken in (
        "<tool_call>no</tool_call>",
        '\n\n<tool_call>\n{"name": "f", "arguments": {"a": }}\n</tool_call>\n',
        '<tool_call>{"name": "g", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 1, "a": 2}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}',
    ):
        for step in range(5):
            assert split("hermes", broken, step) == (broken, "", [])


def test_a_whole_call_behind_a_broken_one_is_found() -> None:
    answer = '<tool_call><tool_call>{"name": "f"}</tool_call>'
    assert split("hermes", answer, 1) == ("<tool_call>", "", [ToolCall(0, "call-0", "f", "{}")])


def test_without_tools_their_markup_is_text() -> None:
    answer = '<tool_call>{"name": "f"}</tool_call>'
    splitter = ChannelSplitter(FORMATS["hermes"], call_id=str)
    assert splitter.push(answer).text + splitter.finish(cut=False).text == answer


def test_nothing_known_is_plain() -> None:
    assert choose_format(None, ()).name == "plain"
    assert choose_format("{{ messages }}", ["<|im_end|>"]).name == "plain"
    assert choose_format("{{ messages }}", (), "think").name == "think"


def test_names_with_digits_do_not_depend_on_the_pieces() -> None:
    """A piece that begins with a digit goes on with a name of Python, as with all others."""
    tools = [{"name": name} for name in ("get2", "2get", "f-3.1")]
    for form, said in (
        ("llama4", "[get2(a1=5), 2get(), f-3.1(x_2_3=[7])]"),
        ("lfm2", "<|tool_call_start|>[get2(a1=5), 2get(), f-3.1(x_2_3=[7])]<|tool_call_end|>"),
    ):
        for step in range(1, len(said)):
            splitter = ChannelSplitter(FORMATS[form], tools, call_id=str)
            pieces = [splitter.push(said[at : at + step]) for at in range(0, len(said), step)]
            pieces.append(splitter.finish(cut=False))
            assert "".join(piece.text for piece in pieces) == ""
            assert [(c.name, c.arguments) for piece in pieces for c in piece.calls] == [
                ("get2", '{"a1": 5}'),
                ("2get", "{}"),
                ("f-3.1", '{"x_2_3": [7]}'),
            ]
    for step in range(1, 6):
        for said in ("[f(2=1)]", "[f(5)]", "[12, 13]", "[f(=1)]"):
            assert split("llama4", said, step) == (said, "", [])


def test_t6_line_ends_behind_a_call_belong_to_it() -> None:
    call = '<tool_call>{"name": "f"}</tool_call>'
    for step in range(4):
        for form, said, told in (
            ("hermes", f"{call}\n\nThe weather\n", "The weather\n"),
            # Between text and text they are kept.
            ("hermes", f"Yes\n{call}\n\nThe weather\n", "Yes\n\nThe weather\n"),
            ("hermes", f"{call}\n{call}\n\n", ""),
            ("hermes", f"{call}\n  a\n\nb", "  a\n\nb"),
            ("mistral", "[TOOL_CALLS]f[ARGS]{}\n\nIt", "It"),
            (
                "kimi-k2",
                "<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>{}"
                "<|tool_call_end|>\n<|tool_calls_section_end|>\n\nIt",
                "It",
            ),
            ("glm", "<tool_call>f\n</tool_call>\n\nIt", "It"),
        ):
            text, _, calls = split(form, said, step)
            assert (text, {call.name for call in calls}) == (told, {"f"})


def test_t6_no_arguments_are_an_empty_object() -> None:
    for written in ("{ }", "{\n    }", "null", '""', '"{ }"', "{}"):
        (call,) = split("hermes", f'<tool_call>{{"name": "f", "arguments": {written}}}')[2]
        assert call.arguments == "{}"


def test_the_end_of_a_message_that_the_prompt_began_is_no_text() -> None:
    """As where an answer goes on with the last message."""
    for form, said, told in (
        ("harmony", " world.<|end|>", " world."),
        ("harmony", "to=you it is.<|return|>", "to=you it is."),
        ("harmony", "World<|end|><|start|>assistant<|channel|>final<|message|>x<|end|>", "Worldx"),
        ("kimi-k3", " world.<|close|>response<|sep|><|close|>message<|sep|>", " world."),
        ("cohere", " world.<|END_RESPONSE|>", " world."),
        ("solar", " world.<|end|>", " world."),
        ("apriel", " world.\n[END FINAL RESPONSE]", " world."),
    ):
        for step in range(5):
            assert split(form, said, step) == (told, "", [])
    # What is no call is text to the letter.
    broken = "<|channel|>commentary to=functions.g<|message|>{}<|end|>"
    assert split("harmony", broken, 1) == (broken, "", [])
    for end in range(3):
        assert split("harmony", "to you"[:end], cut=True) == ("to you"[:end], "", [])


def test_a_quoted_value_is_what_is_quoted() -> None:
    """As MiniCPM writes texts with `<`, `&` or line ends in them."""
    for value in ("a < b", "</param>", "two\nlines </param></function>", "]] >"):
        said = f'<function name="f"><param name="a"><![CDATA[{value}]]></param></function>'
        for step in range(4):
            (call,) = split("minicpm", said, step)[2]
            assert json.loads(call.arguments) == {"a": value}

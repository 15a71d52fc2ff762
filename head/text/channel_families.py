"""The formats of answers: one for each way in which families of models write."""

from __future__ import annotations

from collections.abc import Iterable

from head.text.channel_calls import (
    bare_calls,
    deepseek_call,
    keyed_calls,
    kimi_call,
    listed_calls,
    mistral_calls,
    object_call,
    solar_call,
    tagged_call,
)
from head.text.channel_format import ChannelFormat
from head.text.channel_grammar import Marked, Section, plain
from head.text.channel_literals import PythonCalls, gemma_call, list_or_objects
from head.text.channel_messages import KIMI3_THINKING, harmony, kimi3
from head.text.channel_structural import Around, Calls
from head.text.channel_tags import (
    DSML_CALL,
    GEMMA_CALL,
    GLM_CALL,
    HARMONY_CALL,
    KIMI3_CALL,
    LINES_CALL,
    MINICPM_CALL,
    MINIMAX_CALL,
    PYTHON_CALL,
    SEED_CALL,
)
from head.text.channel_xml import FunctionCall, Invoke, glm_call

_THINK = (("<think>", "</think>"),)
_CALLED = ("<tool_call>", "</tool_call>")
_HERMES = Around('<tool_call>\n{"name": "{name}", "arguments": ', "}\n</tool_call>")
_OBJECT = Around('{"name": "{name}", "arguments": ', "}")
_FUNCTION = FunctionCall()
_TAGGED = tagged_call("</tool_call>", {"<function=": _FUNCTION})

_DEEPSEEK = Section(
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", deepseek_call
)
_KIMI = Section(
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    kimi_call,
)
_DEEPSEEK_TEXTS = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
)


def _list(before: str, behind: str = "") -> Calls:
    """Calls in a list, with the tags around it."""
    return Calls(f"{before}[", f"]{behind}", between=", ")


def _dsml(space: str, calls: str) -> Section:
    mark = f"｜DSML｜{space}"
    invoke = Invoke(f"</{mark}invoke>", f'<{mark}parameter name="', f"</{mark}parameter>")
    return Section(f"<{mark}{calls}>", f"</{mark}{calls}>", f'<{mark}invoke name="', invoke)


_SOLAR_TEXTS = ("<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>")
_SOLAR_WRAPPERS = ("<|begin|>assistant", "<|content|>", "<|end|>")
_SOLAR = Section("<|tool_calls|>", "<|calls|>", "<|tool_call:begin|>", solar_call)
_COHERE_THINK = ("<|START_THINKING|>", "<|END_THINKING|>")
_COHERE_WRAPPERS = (
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "<|START_TEXT|>",
    "<|END_TEXT|>",
)
_DSML = (_dsml("", "function_calls"), _dsml("", "tool_calls"), _dsml(" ", "calls"))
_MINIMAX = Section(
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    '<invoke name="',
    Invoke("</invoke>", '<parameter name="', "</parameter>"),
)
_SEED = FunctionCall("</seed:tool_call>")
_MISTRAL_TEXTS = (
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "[THINK]",
    "[/THINK]",
    "<think>",
    "</think>",
)
_MISTRAL = Marked(
    reasoning=(("[THINK]", "[/THINK]"), *_THINK), calls={"[TOOL_CALLS]": mistral_calls}
)


def formats() -> Iterable[ChannelFormat]:
    """All of them."""
    think = ("<think>", "</think>")
    yield ChannelFormat("plain", (), False, False, plain)
    yield ChannelFormat("think", think, False, True, Marked(reasoning=_THINK))
    yield ChannelFormat(
        "hermes",
        (*think, *_CALLED),
        True,
        True,
        Marked(reasoning=_THINK, calls={"<tool_call>": _TAGGED}),
        _HERMES,
    )
    yield ChannelFormat(
        "qwen3-coder",
        (*think, *_CALLED, "<function=", "</function>", "<parameter=", "</parameter>"),
        True,
        True,
        Marked(
            reasoning=_THINK,
            calls={"<tool_call>": _TAGGED, "<function=": _FUNCTION},
        ),
        LINES_CALL,
    )
    yield ChannelFormat(
        "llama3",
        ("<|python_tag|>",),
        True,
        False,
        Marked(calls={"<|python_tag|>": bare_calls}, first=bare_calls),
        Around('{"name": "{name}", "parameters": ', "}"),
        Calls("<|python_tag|>", between="; "),
    )
    yield ChannelFormat(
        "llama4",
        ("<|python_start|>", "<|python_end|>"),
        True,
        False,
        Marked(calls={"<|python_start|>": PythonCalls("<|python_end|>")}, first=list_or_objects),
        PYTHON_CALL,
        _list("<|python_start|>", "<|python_end|>"),
    )
    yield ChannelFormat(
        "mistral",
        _MISTRAL_TEXTS,
        True,
        True,
        _MISTRAL,
        Around("[TOOL_CALLS]{name}[ARGS]", ""),
        Calls(between=""),
    )
    yield ChannelFormat(
        "mistral-list",
        _MISTRAL_TEXTS,
        True,
        True,
        _MISTRAL,
        _OBJECT,
        _list("[TOOL_CALLS] "),
    )
    yield ChannelFormat(
        "glm",
        (*think, *_CALLED, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        True,
        True,
        Marked(reasoning=_THINK, calls={"<tool_call>": glm_call}),
        GLM_CALL,
    )
    yield ChannelFormat(
        "gemma4",
        ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'),
        True,
        True,
        Marked(
            reasoning=(("<|channel>thought", "<channel|>"),), calls={"<|tool_call>": gemma_call}
        ),
        GEMMA_CALL,
        Calls(between=""),
    )
    yield ChannelFormat(
        "harmony",
        (
            "<|start|>",
            "<|end|>",
            "<|message|>",
            "<|channel|>",
            "<|constrain|>",
            "<|return|>",
            "<|call|>",
        ),
        True,
        True,
        harmony,
        HARMONY_CALL,
        Calls(one=True),
        alone=True,
    )
    yield from _deepseek_and_kimi(think)
    yield from _lists(think)
    yield from _tags(think)


def _deepseek_and_kimi(think: tuple[str, str]) -> Iterable[ChannelFormat]:
    yield ChannelFormat(
        "deepseek",
        (*think, *_DEEPSEEK_TEXTS),
        True,
        True,
        Marked(reasoning=_THINK, calls=_DEEPSEEK.calls()),
        Around(
            f"{_DEEPSEEK.open}{{name}}<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
        ),
        Calls(_DEEPSEEK.begin, _DEEPSEEK.end, between=""),
    )
    yield ChannelFormat(
        "deepseek-v3",
        (*think, *_DEEPSEEK_TEXTS),
        True,
        True,
        Marked(reasoning=_THINK, calls=_DEEPSEEK.calls()),
        Around(
            f"{_DEEPSEEK.open}function<｜tool▁sep｜>{{name}}\n```json\n",
            "\n```<｜tool▁call▁end｜>",
        ),
        Calls(_DEEPSEEK.begin, _DEEPSEEK.end, between="\n"),
    )
    yield ChannelFormat(
        "deepseek-dsml",
        (*think, "｜DSML｜", *(text for section in _DSML for text in (section.begin, section.end))),
        True,
        True,
        Marked(
            reasoning=_THINK,
            calls={section.begin: section.read_all for section in _DSML},
        ),
        DSML_CALL,
        Calls("<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>", between=""),
    )
    yield ChannelFormat(
        "kimi-k2",
        (*think, *_KIMI.calls(), _KIMI.end, "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        True,
        True,
        Marked(reasoning=_THINK, calls=_KIMI.calls()),
        Around(
            f"{_KIMI.open}functions.{{name}}:0<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
        ),
        Calls(_KIMI.begin, _KIMI.end, between=""),
    )
    yield ChannelFormat(
        "kimi-k3",
        ("<|open|>", "<|close|>", "<|sep|>"),
        True,
        True,
        kimi3,
        KIMI3_CALL,
        Calls("<|open|>tools<|sep|>", "<|close|>tools<|sep|>", between=""),
        KIMI3_THINKING,
    )


def _lists(think: tuple[str, str]) -> Iterable[ChannelFormat]:
    yield ChannelFormat(
        "granite",
        (*think, "<|tool_call|>"),
        True,
        True,
        Marked(reasoning=_THINK, calls={"<|tool_call|>": listed_calls()}),
        _OBJECT,
        _list("<|tool_call|>"),
    )
    yield ChannelFormat(
        "phi4",
        (*think, "<|tool_call|>", "<|/tool_call|>"),
        True,
        True,
        Marked(reasoning=_THINK, calls={"<|tool_call|>": listed_calls("<|/tool_call|>")}),
        _OBJECT,
        _list("<|tool_call|>", "<|/tool_call|>"),
    )
    yield ChannelFormat(
        "nemotron",
        (*think, "<TOOLCALL>", "</TOOLCALL>"),
        True,
        True,
        Marked(reasoning=_THINK, calls={"<TOOLCALL>": listed_calls("</TOOLCALL>")}),
        _OBJECT,
        _list("<TOOLCALL>", "</TOOLCALL>"),
    )
    yield ChannelFormat(
        "lfm2",
        (*think, "<|tool_call_start|>", "<|tool_call_end|>"),
        True,
        True,
        Marked(reasoning=_THINK, calls={"<|tool_call_start|>": PythonCalls("<|tool_call_end|>")}),
        PYTHON_CALL,
        _list("<|tool_call_start|>", "<|tool_call_end|>"),
    )
    yield ChannelFormat(
        "tool-calls",
        (*think, "<tool_calls>", "</tool_calls>"),
        True,
        True,
        Marked(reasoning=_THINK, calls={"<tool_calls>": listed_calls("</tool_calls>")}),
        _OBJECT,
        _list("<tool_calls>", "</tool_calls>"),
    )
    yield ChannelFormat(
        "cohere",
        (
            *_COHERE_THINK,
            *_COHERE_WRAPPERS,
            "<|START_ACTION|>",
            "<|END_ACTION|>",
        ),
        True,
        True,
        Marked(
            reasoning=(_COHERE_THINK,),
            calls={"<|START_ACTION|>": listed_calls("<|END_ACTION|>")},
            wrappers=_COHERE_WRAPPERS,
        ),
        Around(
            '{"tool_call_id": "0", "tool_name": "{name}", "parameters": ',
            "}",
        ),
        _list("<|START_ACTION|>", "<|END_ACTION|>"),
    )
    yield ChannelFormat(
        "apertus",
        ("<|inner_prefix|>", "<|inner_suffix|>", "<|tools_prefix|>", "<|tools_suffix|>"),
        True,
        True,
        Marked(
            reasoning=(("<|inner_prefix|>", "<|inner_suffix|>"),),
            calls={"<|tools_prefix|>": keyed_calls("<|tools_suffix|>")},
        ),
        Around('{"{name}": ', "}"),
        _list("<|tools_prefix|>", "<|tools_suffix|>"),
    )
    yield ChannelFormat(
        "gigachat",
        ("<|function_call|>",),
        True,
        False,
        Marked(calls={"<|function_call|>": object_call}),
        Around('<|function_call|>{"name": "{name}", "arguments": ', "}"),
        Calls(one=True),
    )
    yield ChannelFormat(
        "solar",
        ("<|think|>", "<|begin|>", *_SOLAR_WRAPPERS, *_SOLAR.calls(), _SOLAR.end, *_SOLAR_TEXTS),
        True,
        True,
        Marked(
            reasoning=(("<|think|>", "<|end|>"),), calls=_SOLAR.calls(), wrappers=_SOLAR_WRAPPERS
        ),
        Around(
            f"{_SOLAR.open}0<|tool_call:name|>{{name}}<|tool_call:args|>",
            "<|tool_call:end|>",
        ),
        Calls(_SOLAR.begin, _SOLAR.end, between=""),
    )
    yield ChannelFormat(
        "apriel",
        ("<tool_calls>", "</tool_calls>", "[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"),
        True,
        True,
        Marked(
            reasoning=(("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),),
            calls={"<tool_calls>": listed_calls("</tool_calls>")},
            wrappers=("[END FINAL RESPONSE]",),
        ),
        _OBJECT,
        _list("<tool_calls>", "</tool_calls>"),
    )
    yield ChannelFormat(
        "functools",
        (),
        True,
        False,
        Marked(calls={"functools": listed_calls()}),
        _OBJECT,
        _list("functools"),
    )


def _tags(think: tuple[str, str]) -> Iterable[ChannelFormat]:
    yield ChannelFormat(
        "functionary",
        ("<function=", "</function>"),
        True,
        False,
        Marked(calls={"<function=": FunctionCall("")}),
        Around("<function={name}>", "</function>"),
        Calls(between=""),
    )
    yield ChannelFormat(
        "minicpm",
        (*think, "<function", "</function>"),
        True,
        True,
        Marked(
            reasoning=_THINK,
            calls={
                '<function name="': Invoke("</function>", '<param name="', "</param>", quoted=True)
            },
        ),
        MINICPM_CALL,
    )
    yield ChannelFormat(
        "minimax",
        (*think, _MINIMAX.begin, _MINIMAX.end),
        True,
        True,
        Marked(reasoning=_THINK, calls={_MINIMAX.begin: _MINIMAX.read_all}),
        MINIMAX_CALL,
        Calls(f"{_MINIMAX.begin}\n", _MINIMAX.end, between=""),
    )
    yield ChannelFormat(
        "seed",
        ("<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>"),
        True,
        True,
        Marked(
            reasoning=(("<seed:think>", "</seed:think>"),),
            calls={"<seed:tool_call>": tagged_call("</seed:tool_call>", {"<function=": _SEED})},
        ),
        SEED_CALL,
    )

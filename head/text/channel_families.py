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
from head.text.channel_messages import harmony, kimi3
from head.text.channel_structural import Around
from head.text.channel_tags import (
    DSML_CALL,
    GEMMA_CALL,
    GLM_CALL,
    HARMONY_CALL,
    KIMI3_CALL,
    LFM2_CALL,
    LINES_CALL,
    LLAMA4_CALL,
    MINICPM_CALL,
    MINIMAX_CALL,
    SEED_CALL,
)
from head.text.channel_xml import FunctionCall, Invoke, glm_call

_THINK = (("<think>", "</think>"),)
_CALLED = ("<tool_call>", "</tool_call>")
_HERMES = Around('<tool_call>\n{"name": "{name}", "arguments": ', "}\n</tool_call>")
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
        Around('<|python_tag|>{"name": "{name}", "parameters": ', "}"),
    )
    yield ChannelFormat(
        "llama4",
        ("<|python_start|>", "<|python_end|>"),
        True,
        False,
        Marked(calls={"<|python_start|>": PythonCalls("<|python_end|>")}, first=list_or_objects),
        LLAMA4_CALL,
    )
    yield ChannelFormat(
        "mistral", _MISTRAL_TEXTS, True, True, _MISTRAL, Around("[TOOL_CALLS]{name}[ARGS]", "")
    )
    yield ChannelFormat(
        "mistral-list",
        _MISTRAL_TEXTS,
        True,
        True,
        _MISTRAL,
        Around('[TOOL_CALLS] [{"name": "{name}", "arguments": ', "}]"),
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
            f"{_DEEPSEEK.begin}{_DEEPSEEK.open}{{name}}<｜tool▁sep｜>",
            f"<｜tool▁call▁end｜>{_DEEPSEEK.end}",
        ),
    )
    yield ChannelFormat(
        "deepseek-v3",
        (*think, *_DEEPSEEK_TEXTS),
        True,
        True,
        Marked(reasoning=_THINK, calls=_DEEPSEEK.calls()),
        Around(
            f"{_DEEPSEEK.begin}{_DEEPSEEK.open}function<｜tool▁sep｜>{{name}}\n```json\n",
            f"\n```<｜tool▁call▁end｜>{_DEEPSEEK.end}",
        ),
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
    )
    yield ChannelFormat(
        "kimi-k2",
        (*think, *_KIMI.calls(), _KIMI.end, "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        True,
        True,
        Marked(reasoning=_THINK, calls=_KIMI.calls()),
        Around(
            f"{_KIMI.begin}{_KIMI.open}functions.{{name}}:0<|tool_call_argument_begin|>",
            f"<|tool_call_end|>{_KIMI.end}",
        ),
    )
    yield ChannelFormat(
        "kimi-k3", ("<|open|>", "<|close|>", "<|sep|>"), True, True, kimi3, KIMI3_CALL
    )


def _lists(think: tuple[str, str]) -> Iterable[ChannelFormat]:
    yield ChannelFormat(
        "granite",
        (*think, "<|tool_call|>"),
        True,
        True,
        Marked(reasoning=_THINK, calls={"<|tool_call|>": listed_calls()}),
        Around('<|tool_call|>[{"name": "{name}", "arguments": ', "}]"),
    )
    yield ChannelFormat(
        "phi4",
        (*think, "<|tool_call|>", "<|/tool_call|>"),
        True,
        True,
        Marked(reasoning=_THINK, calls={"<|tool_call|>": listed_calls("<|/tool_call|>")}),
        Around('<|tool_call|>[{"name": "{name}", "arguments": ', "}]<|/tool_call|>"),
    )
    yield ChannelFormat(
        "nemotron",
        (*think, "<TOOLCALL>", "</TOOLCALL>"),
        True,
        True,
        Marked(reasoning=_THINK, calls={"<TOOLCALL>": listed_calls("</TOOLCALL>")}),
        Around('<TOOLCALL>[{"name": "{name}", "arguments": ', "}]</TOOLCALL>"),
    )
    yield ChannelFormat(
        "lfm2",
        (*think, "<|tool_call_start|>", "<|tool_call_end|>"),
        True,
        True,
        Marked(reasoning=_THINK, calls={"<|tool_call_start|>": PythonCalls("<|tool_call_end|>")}),
        LFM2_CALL,
    )
    yield ChannelFormat(
        "tool-calls",
        (*think, "<tool_calls>", "</tool_calls>"),
        True,
        True,
        Marked(reasoning=_THINK, calls={"<tool_calls>": listed_calls("</tool_calls>")}),
        Around('<tool_calls>[{"name": "{name}", "arguments": ', "}]</tool_calls>"),
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
            '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "{name}", "parameters": ',
            "}]<|END_ACTION|>",
        ),
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
        Around('<|tools_prefix|>[{"{name}": ', "}]<|tools_suffix|>"),
    )
    yield ChannelFormat(
        "gigachat",
        ("<|function_call|>",),
        True,
        False,
        Marked(calls={"<|function_call|>": object_call}),
        Around('<|function_call|>{"name": "{name}", "arguments": ', "}"),
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
            f"{_SOLAR.begin}{_SOLAR.open}0<|tool_call:name|>{{name}}<|tool_call:args|>",
            f"<|tool_call:end|>{_SOLAR.end}",
        ),
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
        Around('<tool_calls>[{"name": "{name}", "arguments": ', "}]</tool_calls>"),
    )
    yield ChannelFormat(
        "functools",
        (),
        True,
        False,
        Marked(calls={"functools": listed_calls()}),
        Around('functools[{"name": "{name}", "arguments": ', "}]"),
    )


def _tags(think: tuple[str, str]) -> Iterable[ChannelFormat]:
    yield ChannelFormat(
        "functionary",
        ("<function=", "</function>"),
        True,
        False,
        Marked(calls={"<function=": FunctionCall("")}),
        Around("<function={name}>", "</function>"),
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

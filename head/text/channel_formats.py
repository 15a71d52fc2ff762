"""The formats of answers, by name, and which of them a model's template is written for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bus.errors import Invalid
from head.text.channel_calls import (
    bare_calls,
    deepseek_call,
    kimi_call,
    listed_calls,
    mistral_calls,
    tagged_call,
)
from head.text.channel_grammar import Grammar, Marked, Section, plain
from head.text.channel_literals import PythonCalls, gemma_call
from head.text.channel_messages import harmony, kimi3
from head.text.channel_structural import Around, MakeTag, constraint, function_tag
from head.text.channel_xml import FunctionCall, Invoke, glm_call
from head.text.tool_calls import Tools


@dataclass(frozen=True, slots=True)
class ChannelFormat:
    """How a family of models marks reasoning and tool calls.

    Attributes:
        name: what `channels` of a request calls it.
        markers: texts that a splitter has to see, also where the model writes them as control
            tokens.
        tools: whether it has calls.
        reasoning: whether it has reasoning.
        grammar: reads an answer.
        tag: makes a tag of a constraint under which a tool is called.
    """

    name: str
    markers: tuple[str, ...]
    tools: bool
    reasoning: bool
    grammar: Grammar = field(repr=False, compare=False)
    tag: MakeTag | None = field(default=None, repr=False, compare=False)

    def structural(
        self,
        tools: Sequence[Mapping[str, Any]],
        choice: str,
        parallel: bool,
    ) -> dict[str, Any] | None:
        """The source of a constraint of kind `structural` under which an answer calls tools.

        Args:
            tools: those of the request.
            choice: `required`, or the name of the one that has to be called.
            parallel: whether more than one call may follow.

        Returns:
            None when calls of this format, or of these tools in it, can not be constrained.

        Raises:
            Invalid: there is no tool of that name.
        """
        known = Tools(tools).schemas()
        if choice != "required":
            if choice not in known:
                raise Invalid(
                    f"there is no tool {choice[:60]!r}; name one of tools", param="tool_choice"
                )
            known = {choice: known[choice]}
        return None if self.tag is None else constraint(known, self.tag, parallel=parallel)


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


def _formats() -> Iterable[ChannelFormat]:
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
        function_tag,
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
        Marked(calls={"<|python_start|>": PythonCalls("<|python_end|>")}, first=PythonCalls("")),
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
    )
    yield ChannelFormat(
        "gemma4",
        ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'),
        True,
        True,
        Marked(
            reasoning=(("<|channel>thought", "<channel|>"),), calls={"<|tool_call>": gemma_call}
        ),
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
    )
    yield from _more_formats(think)


def _more_formats(think: tuple[str, str]) -> Iterable[ChannelFormat]:
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
    yield ChannelFormat("kimi-k3", ("<|open|>", "<|close|>", "<|sep|>"), True, True, kimi3)
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
    )
    yield ChannelFormat(
        "minimax",
        (*think, _MINIMAX.begin, _MINIMAX.end),
        True,
        True,
        Marked(reasoning=_THINK, calls={_MINIMAX.begin: _MINIMAX.read_all}),
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
    )


#: Every format by its name.
FORMATS: Mapping[str, ChannelFormat] = {form.name: form for form in _formats()}

#: Formats by what is in a template of theirs, the telling ones first.
_SIGNS: Sequence[tuple[str, Callable[[str], bool]]] = (
    ("harmony", lambda text: "<|channel|>" in text and "<|message|>" in text),
    ("kimi-k3", lambda text: "<|open|>" in text and "<|sep|>" in text),
    ("kimi-k2", lambda text: "<|tool_calls_section_begin|>" in text),
    ("deepseek-dsml", lambda text: "｜DSML｜" in text),
    ("deepseek-v3", lambda text: "<｜tool▁sep｜>" in text and "```json" in text),
    ("deepseek", lambda text: "<｜tool▁sep｜>" in text),
    ("gemma4", lambda text: "<|tool_call>" in text and "<tool_call|>" in text),
    ("glm", lambda text: "<arg_key>" in text),
    ("minimax", lambda text: "<minimax:tool_call>" in text),
    ("seed", lambda text: "<seed:tool_call>" in text),
    ("mistral", lambda text: "[TOOL_CALLS]" in text and "[ARGS]" in text),
    ("mistral-list", lambda text: "[TOOL_CALLS]" in text),
    ("qwen3-coder", lambda text: "<function=" in text and "<parameter=" in text),
    ("phi4", lambda text: "<|/tool_call|>" in text),
    ("granite", lambda text: "<|tool_call|>" in text),
    ("nemotron", lambda text: "<TOOLCALL>" in text),
    ("lfm2", lambda text: "<|tool_call_start|>" in text),
    ("hermes", lambda text: "<tool_call>" in text),
    ("llama4", lambda text: "<|python_start|>" in text),
    ("llama3", lambda text: "<|start_header_id|>" in text and '"parameters"' in text),
    ("llama3", lambda text: "<|python_tag|>" in text),
    ("think", lambda text: "</think>" in text),
)


def choose_format(
    template: str | None, special_texts: Iterable[str], override: str = ""
) -> ChannelFormat:
    """The format that a model writes its answers in.

    Args:
        template: text of its chat template.
        special_texts: its control tokens, which count where the template tells nothing.
        override: name of a format, which then is it.

    Returns:
        `plain` when nothing is known of it.

    Raises:
        Invalid: there is no format of that name.
    """
    if override:
        if override not in FORMATS:
            raise Invalid(
                f"there is no format {override[:40]!r}; use one of {', '.join(FORMATS)}",
                param="channels",
            )
        return FORMATS[override]
    for text in (template or "", "\n".join(special_texts)):
        for name, is_in in _SIGNS:
            if is_in(text):
                return FORMATS[name]
    return FORMATS["plain"]

"""The formats of answers, by name, and which of them a model's template is written for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from bus.errors import Invalid
from head.text.channel_families import formats
from head.text.channel_format import ChannelFormat

#: Every format by its name.
FORMATS: Mapping[str, ChannelFormat] = {form.name: form for form in formats()}

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
    # Its tags have nothing in common with those that they are named after.
    ("plain", lambda text: "]<]minimax[>[" in text),
    ("cohere", lambda text: "<|START_ACTION|>" in text),
    ("apertus", lambda text: "<|tools_prefix|>" in text),
    ("gigachat", lambda text: "<|function_call|>" in text),
    ("solar", lambda text: "<|tool_call:begin|>" in text),
    ("functools", lambda text: "functools[" in text),
    ("minicpm", lambda text: '<function name="' in text and '<param name="' in text),
    ("apriel", lambda text: "[BEGIN FINAL RESPONSE]" in text and "<tool_calls>" in text),
    ("tool-calls", lambda text: "<tool_calls>" in text and "</tool_calls>" in text),
    ("qwen3-coder", lambda text: "<function=" in text and "<parameter=" in text),
    ("functionary", lambda text: "<function=" in text and "</function>" in text),
    ("phi4", lambda text: "<|/tool_call|>" in text),
    ("granite", lambda text: "<|tool_call|>" in text),
    ("nemotron", lambda text: "<TOOLCALL>" in text),
    ("lfm2", lambda text: "<|tool_call_start|>" in text or "<|tool_list_start|>" in text),
    ("lfm2", lambda text: '"List of tools: ["' in text),
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

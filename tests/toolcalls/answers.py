"""Random answers: well-formed ones from what is in them, and any text with markup in it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from head.text.channels import FORMATS

TOOLS: Sequence[Mapping[str, Any]] = (
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "share": {"type": "number"},
                    "wet": {"type": "boolean"},
                    "gone": {"type": "null"},
                    "where": {"type": "object"},
                    "list": {"type": "array"},
                },
            },
        },
    },
    {"name": "now", "parameters": {"type": "object"}},
)
_TEXTS = (
    *(
        "a",
        "Zürich",
        "日本語",
        "🌸👩\u200d💻",
        "two words",
        'say "hi"',
        "C:\\x\\n",
        "a < b && c > d",
    ),
    *(
        "{",
        "}",
        "]",
        "'",
        ", ",
        "\t",
        "007",
        "true",
        "null",
        "<tool",
        "</",
        "<|",
        "[TOOL",
        "\u2028",
    ),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is in an answer."""

    reasoning: str
    text: str
    calls: tuple[tuple[str, Mapping[str, Any]], ...]


def some_text(rng: random.Random) -> str:
    """Words without line ends at their ends, and without a whole marker."""
    return "".join(rng.choices((*_TEXTS, " ", "\n"), k=rng.randrange(1, 12))).strip("\n") or "x"


def _some_json(rng: random.Random, depth: int = 2) -> Any:
    kind = rng.randrange(7 if depth else 5)
    if kind == 5:
        return [_some_json(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        keys = rng.sample(("a", "b c", "é", "name", "arguments"), k=rng.randrange(4))
        return {key: _some_json(rng, depth - 1) for key in keys}
    return rng.choice((None, True, -3, 0.5, 1e21, some_text(rng), ""))


def some_answer(rng: random.Random) -> Answer:
    """Reasoning, text and calls, or some of them."""
    calls = []
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        if rng.random() < 0.3:
            calls.append(("now", dict[str, Any]()))
            continue
        arguments: dict[str, Any] = {"city": some_text(rng)}
        if rng.random() < 0.5:
            arguments |= {"days": rng.randrange(-9, 99), "share": 0.25, "gone": None, "wet": True}
        if rng.random() < 0.5:
            arguments |= {"where": {"a": _some_json(rng)}, "list": [_some_json(rng)]}
        calls.append(("get_weather", arguments))
    text = some_text(rng) if rng.random() < 0.6 or not calls else ""
    # Text that begins with a bracket may be a call where calls have no marker.
    return Answer(some_text(rng) if rng.random() < 0.5 else "", text and f"T{text}", tuple(calls))


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _gemma(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_gemma(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_gemma, value)) + "]"
    return json.dumps(value)


def _thought(answer: Answer, begin: str = "<think>\n", end: str = "\n</think>\n\n") -> str:
    return f"{begin}{answer.reasoning}{end}" if answer.reasoning else ""


def _hermes(answer: Answer) -> str:
    calls = (
        "\n<tool_call>\n"
        + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        + "\n</tool_call>"
        for name, arguments in answer.calls
    )
    return _thought(answer) + answer.text + "".join(calls)


def _function(answer: Answer) -> str:
    made = _thought(answer) + answer.text
    for name, arguments in answer.calls:
        made += f"\n\n<tool_call>\n<function={name}>\n"
        for key, value in arguments.items():
            made += f"<parameter={key}>\n{_bare(value)}\n</parameter>\n"
        made += "</function>\n</tool_call>"
    return made


def _glm(answer: Answer) -> str:
    made = _thought(answer, "\n<think>", "</think>\n") + answer.text
    for name, arguments in answer.calls:
        made += f"\n<tool_call>{name}\n"
        for key, value in arguments.items():
            made += f"<arg_key>{key}</arg_key>\n<arg_value>{_bare(value)}</arg_value>\n"
        made += "</tool_call>"
    return made


def _mistral(answer: Answer) -> str:
    calls = (f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}" for name, arguments in answer.calls)
    return _thought(answer, "[THINK]", "[/THINK]") + answer.text + "".join(calls)


def _gemma_answer(answer: Answer) -> str:
    calls = (
        f"<|tool_call>call:{name}{_gemma(arguments)}<tool_call|>"
        for name, arguments in answer.calls
    )
    return _thought(answer, "<|channel>thought\n", "\n<channel|>") + answer.text + "".join(calls)


def _harmony(answer: Answer) -> str:
    messages = []
    if answer.reasoning:
        messages.append(f"<|channel|>analysis<|message|>{answer.reasoning}<|end|>")
    if answer.text:
        messages.append(f"<|channel|>final<|message|>{answer.text}<|end|>")
    for name, arguments in answer.calls:
        head = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        messages.append(f"{head}{json.dumps(arguments, ensure_ascii=False)}<|call|>")
    return "<|start|>assistant".join(messages)


def _deepseek(answer: Answer) -> str:
    calls = (
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(arguments)}<｜tool▁call▁end｜>"
        for name, arguments in answer.calls
    )
    made = _thought(answer) + answer.text
    if answer.calls:
        made += f"<｜tool▁calls▁begin｜>{''.join(calls)}<｜tool▁calls▁end｜>"
    return made


def _dsml(answer: Answer) -> str:
    made = _thought(answer) + answer.text + ("\n\n<｜DSML｜tool_calls>\n" if answer.calls else "")
    for name, arguments in answer.calls:
        made += f'<｜DSML｜invoke name="{name}">\n'
        for key, value in arguments.items():
            kind = "true" if isinstance(value, str) else "false"
            begin = f'<｜DSML｜parameter name="{key}" string="{kind}">'
            made += f"{begin}{_bare(value)}</｜DSML｜parameter>\n"
        made += "</｜DSML｜invoke>\n"
    return made + ("</｜DSML｜tool_calls>" if answer.calls else "")


def _kimi(answer: Answer) -> str:
    made = _thought(answer) + answer.text
    if answer.calls:
        made += "<|tool_calls_section_begin|>"
    for index, (name, arguments) in enumerate(answer.calls):
        made += f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>"
        made += f"{json.dumps(arguments)}<|tool_call_end|>"
    return made + ("<|tool_calls_section_end|>" if answer.calls else "")


def _kimi3(answer: Answer) -> str:
    def element(name: str, content: str, attributes: str = "") -> str:
        return f"<|open|>{name}{attributes}<|sep|>{content}<|close|>{name}<|sep|>"

    calls = ""
    for index, (name, arguments) in enumerate(answer.calls):
        inner = "".join(
            element(
                "argument",
                _bare(value),
                f' key="{key}" type="{"string" if isinstance(value, str) else "json"}"',
            )
            for key, value in arguments.items()
        )
        calls += element("call", inner, f' tool="{name}" index="{index + 1}"')
    made = element("think", answer.reasoning) + element("response", answer.text)
    return made + (element("tools", calls) if calls else "") + "<|close|>message<|sep|>"


def _python(value: Any) -> str:
    return repr(value)


def _lfm2(answer: Answer) -> str:
    calls = (
        f"{name}({', '.join(f'{key}={_python(value)}' for key, value in arguments.items())})"
        for name, arguments in answer.calls
    )
    made = _thought(answer) + answer.text
    return made + (
        f"<|tool_call_start|>[{', '.join(calls)}]<|tool_call_end|>" if answer.calls else ""
    )


def _phi(answer: Answer) -> str:
    calls = [{"name": name, "arguments": arguments} for name, arguments in answer.calls]
    tail = f"<|tool_call|>{json.dumps(calls)}<|/tool_call|>" if calls else ""
    return _thought(answer) + answer.text + tail


#: Writes an answer as a model of a format would.
WRITERS: Mapping[str, Callable[[Answer], str]] = {
    "hermes": _hermes,
    "qwen3-coder": _function,
    "glm": _glm,
    "mistral": _mistral,
    "gemma4": _gemma_answer,
    "harmony": _harmony,
    "deepseek": _deepseek,
    "deepseek-dsml": _dsml,
    "kimi-k2": _kimi,
    "kimi-k3": _kimi3,
    "lfm2": _lfm2,
    "phi4": _phi,
}

_SCRAPS = (
    *('{"name": "now"', '{"name": "now", "arguments": {}}', '"arguments": {"a": [1, {"b": "', '"'),
    *("get_weather", "now", "functions.now:0", "call:now{", "}", "{", "[now()", "]", ":", ",", "="),
    *("\n", "\n\n", " ", "```json\n", "function", "assistant", " to=functions.now", "final"),
    *("<parameter=city>", "</parameter>", "<function=now>", '<invoke name="now">', "</invoke>"),
    *('<｜DSML｜invoke name="now">', "</｜DSML｜invoke>", "<arg_value>", '<|"|>', "string", "true"),
)


def any_answer(rng: random.Random, form: str) -> str:
    """Text with a format's markup in it, of which little is well-formed."""
    kind = rng.randrange(3)
    if kind == 0 and form in WRITERS:
        written = WRITERS[form](some_answer(rng))
        at, length = rng.randrange(len(written) + 1), rng.randrange(6)
        return written[:at] + rng.choice((*FORMATS[form].markers, "")) + written[at + length :]
    choices = (*FORMATS[form].markers, *FORMATS[form].markers, *_SCRAPS, *_TEXTS)
    return "".join(rng.choices(choices, k=rng.randrange(1, 25)))

"""The format that is chosen for a real template reads the calls which that template writes."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import jinja2
import pytest

from head.text.channels import ChannelFormat, ChannelSplitter, choose_format
from tests.harness.chat_templates import LLAMA_CPP, TRL, reference, templates_of

NOON = datetime(2026, 11, 30, 12)
ARGUMENTS = {"city": 'Zürich "x"', "days": 3}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]
#: Templates that have tools and answers that are not read; they are told of in docs/toolcalls.md.
UNREAD = {
    *("CohereForAI-c4ai-command-r-plus-tool_use", "GigaChat3-10B-A1.8B", "MiniMax-M3"),
    *("meetkai-functionary-medium-v3.2", "muse-glimmer", "muse_glimmer", "muse_glimmer_training"),
    "tencent-Hy3",
}
#: Templates that show no calls of earlier turns, or take other variables.
SILENT = {
    *("HuggingFaceTB-SmolLM3-3B", "LFM2-8B-A1B", "LFM2.5-Instruct", "lfm2", "lfm2_training"),
    *("ibm-granite-granite-3.3-2B-Instruct", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B"),
    *("fireworks-ai-llama-3-firefunction-v2", "llama-cpp-deepseek-r1", "deepseek_r1_distill"),
    *("deepseek_r1_distill_training", "llama-cpp-rwkv-world"),
}


def called(arguments: Any) -> dict[str, Any]:
    call = {"name": "get_weather", "arguments": arguments}
    calls = [{"id": "abcdefgh0", "type": "function", "function": call}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def answers_of(source: str) -> tuple[str, str]:
    """What a prompt ends with, and what the template has of an answer that is a call."""
    render = reference(source, NOON)
    variables = {"tools": TOOLS, "bos_token": "<BOS>", "eos_token": "<EOS>", "unk_token": ""}
    asked = [{"role": "user", "content": "How is it?"}]

    def text(*more: dict[str, Any], add: bool = False) -> str:
        return render(messages=[*asked, *more], add_generation_prompt=add, **variables)

    prompt, told = text(add=True), text({"role": "assistant", "content": "Fine."})
    try:
        whole = text(called(ARGUMENTS))
    except (jinja2.TemplateError, TypeError):
        whole = text(called(json.dumps(ARGUMENTS)))
    end = told.rpartition("Fine.")[2]
    same = next((n for n, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), None)
    if same is None:
        return prompt[-200:], whole[len(prompt) :].removesuffix(end)
    # The prompt opens what such an answer has not.
    same = 1 + max(whole.rfind(mark, 0, same) for mark in ">\n]:")
    answer = whole[same:].removesuffix(end)
    return "<think>" if answer.lstrip().startswith("</think>") else "", answer


def read(form: ChannelFormat, opened: str, answer: str) -> list[tuple[str, Any]]:
    splitter = ChannelSplitter(form, TOOLS, call_id=str, opened=opened)
    pieces = [*map(splitter.push, answer), splitter.finish(cut=False)]
    return [(call.name, json.loads(call.arguments)) for piece in pieces for call in piece.calls]


@pytest.mark.parametrize("package", [LLAMA_CPP, TRL], ids=lambda package: package.requirement)
def test_calls_that_a_template_writes_are_read(package: Any) -> None:
    wrong = {}
    for name, source in templates_of(package).items():
        if name in UNREAD | SILENT or "tool" not in source:
            continue
        form = choose_format(source, ())
        opened, answer = answers_of(source)
        if read(form, opened, answer) != [("get_weather", ARGUMENTS)]:
            wrong[name] = (form.name, opened, answer)
    assert wrong == {}


def test_no_template_that_is_not_read_is_taken_for_another() -> None:
    found = {name: choose_format(source, ()) for name, source in templates_of(LLAMA_CPP).items()}
    assert {name: found[name].name for name in UNREAD & found.keys() if found[name].tools} == {}

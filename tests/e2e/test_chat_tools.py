"""Tools, cursors and conversations with a real model: SmolLM2, which has no place for tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import Cluster
from bus.call import Token
from tests.harness.models import smollm2_folder

pytestmark = pytest.mark.model

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "days": {"type": "integer", "minimum": 1, "maximum": 7},
            "unit": {"enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "days", "unit"],
        "additionalProperties": False,
    },
}
ASKED = [{"role": "user", "content": "What will the weather in Paris be over three days?"}]


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Cluster]:
    with Cluster(smollm2_folder().path, threads=1, lanes=2) as made:
        yield made


def _ask(cluster: Cluster, **options: Any) -> Any:
    asked = {"tools": [WEATHER], "temperature": 0.0, "max_new": 120, **options}
    return cluster.client.chat(cluster.model, ASKED, **asked)


@pytest.mark.parametrize("choice", ["required", {"name": "get_weather"}])
def test_a_tool_that_must_be_called_is_called_as_its_schema_says(
    smollm2: Cluster, choice: Any
) -> None:
    answer = _ask(smollm2, tool_choice=choice, parallel_tool_calls=False).result()
    assert answer.finish == "tool_calls"
    (call,) = answer.tool_calls
    arguments = json.loads(call.arguments)
    assert (call.name, arguments.keys()) == ("get_weather", {"city", "days", "unit"})
    assert isinstance(arguments["city"], str)
    assert 1 <= arguments["days"] <= 7
    assert arguments["unit"] in ("celsius", "fahrenheit")
    assert "tool_call" not in answer.text


def test_an_answer_attached_to_in_the_middle_gives_the_same_call(smollm2: Cluster) -> None:
    whole = _ask(smollm2, tool_choice="required", parallel_tool_calls=False, key="middle").result()
    size = len(whole.tokens)
    assert size > 10
    for offset in (0, 1, size // 2, size - 1, size):
        rest = smollm2.client.attach(key="middle", offset=offset).result()
        assert rest.tokens == whole.tokens[offset:]
        # The call is given with the token that completes it, which all these readers get but one.
        got = rest.tool_calls if offset < size else whole.tool_calls
        assert got == whole.tool_calls


def test_pieces_before_and_after_a_cursor_are_the_answer(smollm2: Cluster) -> None:
    whole = _ask(smollm2, tool_choice="required", key="pieces", max_new=150).result()
    assert whole.tool_calls
    before: list[tuple[int, str, int]] = [(0, "", 0)]
    with smollm2.client.attach(key="pieces").stream() as stream:
        text, calls = "", 0
        for event in stream:
            if isinstance(event, Token) and event.tokens:
                text, calls = text + event.text, calls + len(event.tool_calls)
                before.append((event.offset + len(event.tokens), text, calls))
    for offset, text, calls in before:
        rest = smollm2.client.attach(key="pieces", offset=offset).result()
        assert text + rest.text == whole.text
        assert whole.tool_calls[calls:] == rest.tool_calls


def test_a_call_and_a_conversation_outlive_a_killed_head() -> None:
    with Cluster(smollm2_folder().path, threads=1, lanes=2) as cluster:
        _outlive_a_killed_head(cluster)


def _outlive_a_killed_head(smollm2: Cluster) -> None:
    asked: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
    whole = _ask(smollm2, **asked).result()
    chat = smollm2.client.new_chat(smollm2.model, tools=[WEATHER], temperature=0.0, max_new=120)
    chat.say(ASKED[0]["content"], **asked).result()
    before = chat.tokens()
    call = _ask(smollm2, **asked)
    with call.stream() as stream:
        for event in stream:
            if isinstance(event, Token) and event.offset > 2:
                break
        smollm2.kill("head")
        smollm2.start_head()
        answer = stream.result()
    assert (answer.text, answer.finish, answer.tokens) == (whole.text, "tool_calls", whole.tokens)
    told = [(one.name, one.arguments) for one in answer.tool_calls]
    assert told == [(one.name, one.arguments) for one in whole.tool_calls]
    result = {"role": "tool", "name": "get_weather", "content": "Rain on all three days."}
    chat.send([result], tool_choice="none", max_new=20).result()
    after = chat.tokens()
    assert after[: len(before)] == before
    assert len(after) > len(before)


def test_a_function_is_run_and_its_result_answered(smollm2: Cluster) -> None:
    asked: list[str] = []

    def population(city: str) -> int:
        """The number of people in a city.

        Args:
            city: its name.
        """
        asked.append(city)
        return 123_456

    call = smollm2.client.chat(
        smollm2.model,
        [{"role": "user", "content": "How many people live in Oslo?"}],
        tools=[population],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0.0,
        max_new=60,
    )
    run = call.run_tools(max_rounds=1)
    assert (len(asked), run.rounds) == (1, 1)
    (result,) = run.results
    assert (result.content, result.error) == ("123456", None)
    roles = [message["role"] for message in run.messages]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert run.answer.finish in ("stop", "length", "tool_calls")


def test_the_example(smollm2: Cluster) -> None:
    example = Path(__file__).parents[2] / "examples" / "tools.py"
    done = subprocess.run(
        [sys.executable, "-P", str(example), smollm2.model, "What time is it in Oslo?"],
        env=os.environ | {"SUPERFLUID_STATE": str(smollm2.state)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_a_conversation_keeps_its_tokens_and_computes_what_is_new(smollm2: Cluster) -> None:
    # Nodes keep what was computed of contexts that are not very short.
    system = "Answer in one short sentence. " + "Be kind, and say what you know. " * 40
    chat = smollm2.client.new_chat(smollm2.model, system=system, temperature=0.0, max_new=24)
    first = chat.say("My name is Ada. Say hello.").result()
    before = chat.tokens()
    assert tuple(before[-len(first.tokens) :]) == first.tokens
    second = chat.say("What is my name?").result()
    after = chat.tokens()
    assert after[: len(before)] == before
    assert second.usage.prompt == len(after) - len(second.tokens)
    assert second.usage.cached >= len(before) - len(first.tokens) - 1 > 256
    text = smollm2.client.detokenize(smollm2.model, after, skip_special=False)
    assert text.count("<|im_start|>") == 5
    assert "<|im_end|><|im_end|>" not in text
    assert text.count("<|im_start|>user\nWhat is my name?<|im_end|>\n<|im_start|>assistant\n") == 1
    chat.finish()

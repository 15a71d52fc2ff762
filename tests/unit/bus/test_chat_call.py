"""Chats at the client: what is sent, what comes back, and the loop that runs tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bus.answer import Answer
from bus.errors import ContextLengthExceeded, Invalid, TooLarge
from bus.messages.tool_calls import ToolCall
from bus.tool_results import ToolResult
from tests.harness.scripted_chats import ScriptedClient, answered

HELLO = {"role": "user", "content": "Weather in Oslo?"}


def weather(city: str) -> dict[str, Any]:
    """The weather of a city."""
    if city == "Atlantis":
        raise LookupError("no such city")
    return {"city": city, "sky": "grå"}


def test_reasoning_and_calls_come_beside_the_text() -> None:
    client = ScriptedClient(answered("Let me see.", [("weather", "{}")], reasoning="Hm."))
    call = client.chat("m", [HELLO], tools=[weather])
    (event,) = call.stream()
    assert event.reasoning == "Hm."  # type: ignore[union-attr]
    answer = call.result()
    assert (answer.text, answer.reasoning, answer.finish) == ("Let me see.", "Hm.", "tool_calls")
    assert answer.tool_calls == (ToolCall(index=0, id="call0", name="weather", arguments="{}"),)
    assert answer.message() == {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [
            {
                "id": "call0",
                "type": "function",
                "function": {"name": "weather", "arguments": "{}"},
            }
        ],
    }
    told = json.loads(json.dumps(answer.to_dict()))
    assert told["tool_calls"][0]["name"] == "weather"
    assert "logprobs" not in told


def test_the_end_completes_reasoning_and_calls_too() -> None:
    event, end = answered("a")
    call_map = {"index": 0, "id": "c", "name": "f", "arguments": "{}"}
    end |= {"text": "b", "reasoning": "r", "tool_calls": [call_map], "finish": "tool_calls"}
    call = ScriptedClient([event, end]).chat("m", [HELLO])
    first, tail = call.stream()
    assert (first.text, tail.text, tail.tokens) == ("a", "b", ())  # type: ignore[union-attr]
    assert (call.text, call.reasoning, call.result().tool_calls[0].name) == ("ab", "r", "f")


def test_an_answer_without_calls_says_nothing_of_them() -> None:
    answer = ScriptedClient(answered("Hi")).chat("m", [HELLO]).result()
    assert answer.message() == {"role": "assistant", "content": "Hi"}
    assert not {"tool_calls", "reasoning"} & answer.to_dict().keys()


def test_what_is_asked() -> None:
    client = ScriptedClient(answered())
    choice = {"name": "weather"}
    client.chat(
        "m", [HELLO], tools=[weather], tool_choice=choice, parallel_tool_calls=False, max_new=5
    )
    (body,) = client.asked
    assert body["tools"][0]["function"]["name"] == "weather"
    assert (body["tool_choice"], body["parallel_tool_calls"]) == (choice, False)
    assert not {"channels", "template", "timeout_s", "continue_final"} & body.keys()
    with pytest.raises(Invalid) as refused:
        client.chat("m", [HELLO], tool_choise="auto")
    assert refused.value.param == "tool_choise"


def test_tools_are_run_until_the_model_answers() -> None:
    client = ScriptedClient(
        answered("", [("weather", '{"city": "Oslo"}'), ("weather", '{"city": "Bergen"}')]),
        answered("Grey."),
    )
    run = client.chat("m", [HELLO], tools=[weather], tool_choice="required", key="k").run_tools()
    assert (run.text, run.rounds) == ("Grey.", 1)
    first, second = client.asked
    oslo, bergen = second["messages"][2:]
    assert second["messages"][:2] == [HELLO, run.messages[1]]
    assert oslo == {
        "role": "tool",
        "tool_call_id": "call0",
        "name": "weather",
        "content": '{"city": "Oslo", "sky": "grå"}',
    }
    assert (bergen["tool_call_id"], second["tools"]) == ("call1", first["tools"])
    assert (first["tool_choice"], second.get("tool_choice")) == ("required", None)
    assert (first["key"], second["key"]) == ("k", "k/1")
    assert [result.error for result in run.results] == [None, None]
    assert run.messages[-1] == {"role": "assistant", "content": "Grey."}


def test_what_a_tool_raises_is_told_to_the_model_and_the_caller() -> None:
    client = ScriptedClient(answered("", [("weather", '{"city": "Atlantis"}')]), answered("Sorry."))
    seen: list[ToolResult] = []
    run = client.chat("m", [HELLO], tools=[weather]).run_tools(on_result=seen.append)
    (result,) = run.results
    assert isinstance(result.error, LookupError)
    assert result.content == "error: LookupError: no such city"
    assert client.asked[1]["messages"][-1]["content"] == result.content
    assert seen == [result]


class _Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def _raiser(error: Exception) -> Any:
    def give() -> None:
        raise error

    return give


def _giver(result: object) -> Any:
    def give() -> object:
        return result

    return give


_ROUND: list[object] = []
_ROUND.append(_ROUND)


@pytest.mark.parametrize(
    ("give", "told"),
    [
        # Names of files that are no UTF-8, as os.fsdecode gives them; and halves that are a pair.
        (_giver("caf\udce9"), "caf\ufffd"),
        (_giver({"\udcff": ["a\ud83d\ude00"]}), '{"\ufffd": ["a\U0001f600"]}'),
        (_raiser(OSError("caf\udce9")), "error: OSError: caf\ufffd"),
        (_raiser(_Silent()), "error: _Silent: (what it says can not be had)"),
        (_giver(_Silent()), "error: RuntimeError: no words"),
        (_giver(float("nan")), "nan"),
        (_giver({(1, 2): "a"}), "{(1, 2): 'a'}"),
        (_giver(_ROUND), "[[...]]"),
        (_giver(None), "null"),
        (_giver(b"\xff"), "\"b'\\\\xff'\""),
    ],
)
def test_whatever_a_function_gives_or_raises_the_run_goes_on(give: Any, told: str) -> None:
    client = ScriptedClient(
        answered("", [("give", "{}"), ("weather", '{"city": "Oslo"}')]), answered("Hm.")
    )
    run = client.chat("m", [HELLO], tools=[give, weather]).run_tools()
    assert run.text == "Hm."
    assert [result.content for result in run.results] == [told, '{"city": "Oslo", "sky": "grå"}']
    sent = [message["content"] for message in client.asked[1]["messages"][2:]]
    assert sent == [result.content for result in run.results]


def test_a_result_that_no_request_can_have_is_told_as_its_length() -> None:
    client = ScriptedClient(
        answered("", [("give", "{}"), ("weather", '{"city": "Oslo"}')]), answered("Hm.")
    )
    run = client.chat("m", [HELLO], tools=[_giver("x" * 9_000_000), weather]).run_tools()
    long, other = run.results
    assert long.content == (
        "error: the result has 9000000 bytes, too many for this conversation; ask for less"
    )
    assert isinstance(long.error, TooLarge)
    assert (other.error, "Oslo" in other.content, run.text) == (None, True, "Hm.")
    assert [message["content"] for message in run.messages[2:4]] == [long.content, other.content]


def test_a_result_that_no_window_holds_is_told_as_its_length_under_a_key_of_its_own() -> None:
    refusal = {"code": "context_length_exceeded", "message": "9000 tokens of 8192"}
    client = ScriptedClient(
        answered("", [("weather", '{"city": "Oslo"}'), ("give", "{}")]),
        [{"kind": "error", "error": refusal}],
        answered("Hm."),
    )
    call = client.chat("m", [HELLO], tools=[_giver("x" * 30_000), weather], key="k")
    run = call.run_tools()
    assert [body["key"] for body in client.asked] == ["k", "k/1", "k/1.1"]
    assert "the result has 30000 bytes" in run.results[1].content
    assert "Oslo" in run.results[0].content
    assert (run.text, run.rounds) == ("Hm.", 1)


def test_a_conversation_that_is_too_long_without_results_ends_the_run() -> None:
    refusal = {"code": "context_length_exceeded", "message": "9000 tokens of 8192"}
    client = ScriptedClient(
        answered("", [("weather", '{"city": "Oslo"}')]), [{"kind": "error", "error": refusal}]
    )
    with pytest.raises(ContextLengthExceeded):
        client.chat("m", [HELLO], tools=[weather]).run_tools()


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("rm_rf", "{}", "there is no tool rm_rf; there are: weather"),
        ("weather", '{"town": "Oslo"}', "TypeError"),
        ("weather", "{}", "TypeError"),
    ],
)
def test_calls_of_no_tool_and_with_wrong_arguments(name: str, arguments: str, says: str) -> None:
    client = ScriptedClient(answered("", [(name, arguments)]), answered("Hm."))
    run = client.chat("m", [HELLO], tools=[weather]).run_tools()
    assert says in run.results[0].content
    assert run.results[0].error is not None
    assert run.text == "Hm."


def test_rounds_end() -> None:
    calls = [answered("", [("weather", '{"city": "Oslo"}')]) for _ in range(3)]
    run = ScriptedClient(*calls).chat("m", [HELLO], tools=[weather]).run_tools(max_rounds=2)
    assert (run.rounds, len(run.results), len(run.answer.tool_calls)) == (2, 2, 1)
    with pytest.raises(Invalid) as refused:
        ScriptedClient(answered()).chat("m", [HELLO]).run_tools(max_rounds=-1)
    assert refused.value.param == "max_rounds"


def test_calls_of_tools_that_are_no_functions_are_the_callers() -> None:
    look = {"name": "look", "description": "", "parameters": {}}
    client = ScriptedClient(answered("", [("look", "{}")]))
    run = client.chat("m", [HELLO], tools=[weather, look]).run_tools()
    assert (run.rounds, run.results, run.answer.tool_calls[0].name) == (0, (), "look")


def test_calls_of_an_answer_that_was_cut_are_not_run() -> None:
    client = ScriptedClient(answered("", [("weather", "{}")], finish="length"))
    run = client.chat("m", [HELLO], tools=[weather]).run_tools()
    assert (run.results, run.answer.finish) == ((), "length")


def test_a_chat_at_the_head_sends_only_what_is_new() -> None:
    client = ScriptedClient(
        answered("", [("weather", '{"city": "Oslo"}')]), answered("Grey."), answered("Bye.")
    )
    chat = client.new_chat("m", system="Be brief.", tools=[weather], temperature=0.0)
    run = chat.say("Weather?", max_new=9).run_tools()
    client.replies["session.get"] = {"tokens": 12}
    answer: Answer = chat.say("Bye").result()
    assert (run.text, answer.text, chat.id) == ("Grey.", "Bye.", "s-1")
    asked = [body for body in client.asked if body["op"] == "session.chat"]
    roles = [[message["role"] for message in body["messages"]] for body in asked]
    assert roles == [["system", "user"], ["tool"], ["user"]]
    assert [body["session"] for body in asked] == ["s-1"] * 3
    assert [body.get("max_new") for body in asked] == [9, 9, None]
    assert all(body["tools"] and body["temperature"] == 0.0 for body in asked)


def test_a_fork_without_the_first_turn_has_the_system_message() -> None:
    client = ScriptedClient(answered("Hi."), answered("Hi."), answered("Hi."))
    client.replies["session.fork"] = {"session": "s-2"}
    chat = client.new_chat("m", system="Be brief.")
    chat.fork().say("Hello")
    chat.say("Hello")
    client.replies["session.get"] = {"tokens": 12}
    chat.fork().say("Hello")
    asked = [body for body in client.asked if body["op"] == "session.chat"]
    assert [body["session"] for body in asked] == ["s-2", "s-1", "s-2"]
    assert [len(body["messages"]) for body in asked] == [2, 2, 1]


def test_keys_of_many_rounds_stay_short_and_differ() -> None:
    rounds = 120
    calls = [answered("", [("weather", '{"city": "Oslo"}')]) for _ in range(rounds + 1)]
    client = ScriptedClient(*calls)
    client.chat("m", [HELLO], tools=[weather], key="k").run_tools(max_rounds=rounds)
    keys = [body["key"] for body in client.asked]
    assert keys[:3] == ["k", "k/1", "k/1/2"]
    assert len(set(keys)) == rounds + 1
    assert max(map(len, keys)) <= 256


def test_the_system_message_goes_again_when_the_first_turn_was_refused() -> None:
    client = ScriptedClient(
        [{"kind": "error", "error": {"code": "queue_full", "message": "later"}}], answered("Hi.")
    )
    chat = client.new_chat("m", system="Be brief.")
    client.replies["session.get"] = {"tokens": 0}
    chat.say("Hello")
    chat.say("Hello")
    asked = [body for body in client.asked if body["op"] == "session.chat"]
    assert [len(body["messages"]) for body in asked] == [2, 2]


def test_options_of_a_chat_are_checked_at_its_beginning() -> None:
    client = ScriptedClient()
    for wrong in ({"temprature": 1.0}, {"key": "k"}, {"tools": [3]}):
        with pytest.raises(Invalid):
            client.new_chat("m", **wrong)
    assert client.asked == []

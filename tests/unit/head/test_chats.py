"""Chats through the head's core: tools, reasoning, stops, cursors and what is refused.

The templates and the tokenizer are real; the tokens of the toy model are bytes.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgpack
import pytest

from bus.capabilities import CAPABILITIES, ONLY_TAGS
from bus.messages.link import GenerateCancel, GenerateReq, SessionRevoke
from bus.messages.text import CheckConstraint
from head.answer_pieces import Channels, call_id
from head.rows import PutAnswer, PutFinish
from tests.harness.chat_bench import (
    CHATML,
    END,
    HELLO,
    NOW,
    THINKING,
    WEATHER,
    ChatBench,
    chat_folder,
)
from tests.harness.head_bench import TOY

TOOLS = [WEATHER, NOW]
OSLO = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
NO_ARGUMENTS = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
BROKEN = '<tool_call>\n{"name": "weather", "arg'


@pytest.fixture
def bench(tmp_path: Path) -> ChatBench:
    return ChatBench(chat_folder(tmp_path / "toy"))


@pytest.fixture
def thinking(tmp_path: Path) -> ChatBench:
    return ChatBench(chat_folder(tmp_path / "toy", THINKING))


def test_t6_two_calls_of_which_one_has_no_arguments(bench: ChatBench) -> None:
    request = bench.chat(tools=TOOLS)
    bench.answer(request, f"Let me see.\n{OSLO}\n{NO_ARGUMENTS}")
    told = bench.pieces()
    assert (told["text"], told["finish"]) == ("Let me see.", "tool_calls")
    first, second = told["calls"]
    assert (first["index"], first["name"]) == (0, "weather")
    assert json.loads(first["arguments"]) == {"city": "Oslo", "days": 2}
    assert (second["index"], second["name"], second["arguments"]) == (1, "now", "{}")
    assert len({first["id"], second["id"]}) == 2
    (end,) = (row for row in bench.rows if isinstance(row, PutFinish))
    assert end.finish == "tool_calls"


def test_t6_a_description_in_chinese_is_not_escaped(bench: ChatBench) -> None:
    bench.chat(tools=TOOLS)
    prompt = bench.appended()
    assert "\u5929\u6c14" in prompt
    assert "\\u" not in prompt


@pytest.mark.parametrize("cut", range(1, len(OSLO)))
def test_t6_a_call_cut_by_max_new_is_no_call_and_no_text(bench: ChatBench, cut: int) -> None:
    said = f"Let me.\n{OSLO}"[: len("Let me.\n") + cut]
    request = bench.chat(tools=TOOLS, max_new=len(said))
    bench.say(request, 0, said, "length")
    told = bench.pieces()
    assert (told["finish"], told["calls"]) == ("length", [])
    # What is no markup yet may be text: two characters of it are no sure sign.
    assert told["text"].removeprefix("Let me.").lstrip("\n") in {"", "<", "<t"}


@pytest.mark.parametrize("cut", [1, 2, 5, 20, len(NO_ARGUMENTS) - 1])
def test_t6_a_call_that_has_to_come_is_no_text_when_it_is_cut(bench: ChatBench, cut: int) -> None:
    request = bench.chat(tools=TOOLS, tool_choice={"name": "now"}, max_new=cut, key="k")
    bench.say(request, 0, NO_ARGUMENTS[:cut], "length")
    told = bench.pieces()
    assert (told["finish"], told["calls"], told["text"]) == ("length", [], "")
    again = bench.restarted()
    assert again.pieces(again.send("attach", key="k", offset=0)) == told


def test_t6_a_call_is_the_same_with_and_without_stops(bench: ChatBench) -> None:
    said = f"It is.\n{OSLO}"
    bench.answer(bench.chat(tools=TOOLS), said)
    request = bench.chat(tools=TOOLS, stop=["Oslo", "</tool_call>", "city"])
    assert request.sampling.stop == ()
    bench.answer(request, said)
    plain, stopped = bench.pieces(b"q1"), bench.pieces(b"q2")
    assert [call["arguments"] for call in plain["calls"]] == [
        call["arguments"] for call in stopped["calls"]
    ]
    assert (plain["text"], plain["finish"]) == (stopped["text"], stopped["finish"])
    assert stopped["finish"] == "tool_calls"


def test_t2_a_stop_in_a_chats_text_ends_it(bench: ChatBench) -> None:
    request = bench.chat(tools=TOOLS, stop="DEFGHIJ")
    for place, letter in enumerate("ABCDEFGHIJKL"):
        bench.say(request, place, letter)
    told = bench.pieces()
    assert (told["text"], told["finish"]) == ("ABC", "stop")
    end = next(r for r in bench.replies if r["kind"] == "end" and r["id"] == b"q1")
    assert (end["stop"], end["offset"]) == ("DEFGHIJ", 10)


def test_a_stop_in_what_only_the_end_shows_to_be_text(bench: ChatBench) -> None:
    request = bench.chat(tools=TOOLS, stop="weather")
    bench.answer(request, f"So: {BROKEN}")
    told = bench.pieces()
    end = next(r for r in bench.replies if r["kind"] == "end" and r["id"] == b"q1")
    assert (told["text"], told["finish"]) == ('So: <tool_call>\n{"name": "', "stop")
    assert end["stop"] == "weather"


def test_stops_are_not_looked_for_in_reasoning(thinking: ChatBench) -> None:
    request = thinking.chat(stop="no")
    thinking.answer(request, "I do not know.\n</think>\n\nYes, no.")
    told = thinking.pieces()
    assert (told["reasoning"], told["text"]) == ("I do not know.", "Yes, ")
    assert told["finish"] == "stop"


def test_reasoning_that_the_prompt_opened(thinking: ChatBench) -> None:
    request = thinking.chat()
    assert thinking.appended().endswith("<|im_start|>assistant\n<think>\n")
    thinking.answer(request, "Hm, well.\n</think>\n\nYes.")
    told = thinking.pieces()
    assert (told["reasoning"], told["text"], told["finish"]) == ("Hm, well.", "Yes.", "stop")


def test_malformed_calls_come_back_as_text_byte_by_byte(bench: ChatBench) -> None:
    said = '<tool_call>\n{"name": "weather" "city"}\n</tool_call>'
    bench.answer(bench.chat(tools=TOOLS), f"So: {said}")
    assert bench.pieces() == {
        "text": f"So: {said}",
        "reasoning": "",
        "calls": [],
        "finish": "stop",
    }


def test_calls_of_tools_that_were_not_given_are_text(bench: ChatBench) -> None:
    said = '<tool_call>\n{"name": "rm", "arguments": {}}\n</tool_call>'
    bench.answer(bench.chat(tools=TOOLS), said)
    assert bench.pieces()["text"] == said
    bench.answer(bench.chat(), OSLO)
    assert (bench.pieces(b"q2")["text"], bench.pieces(b"q2")["finish"]) == (OSLO, "stop")


def test_without_parallel_calls_there_is_one(bench: ChatBench) -> None:
    request = bench.chat(tools=TOOLS, parallel_tool_calls=False)
    bench.answer(request, f"{OSLO}\n{NO_ARGUMENTS}")
    told = bench.pieces()
    assert [call["name"] for call in told["calls"]] == ["weather"]
    assert told["finish"] == "tool_calls"
    # It ends with the call, and the node is told so.
    end = next(r for r in bench.replies if r["kind"] == "end")
    assert end["offset"] == len(OSLO)
    assert bench.on(1, GenerateCancel, SessionRevoke)


def test_an_answer_may_go_on_with_the_last_message(bench: ChatBench) -> None:
    said = [HELLO, {"role": "assistant", "content": "<think>Hm, "}]
    request = bench.chat(messages=said, tools=TOOLS, continue_final=True)
    assert bench.appended().endswith("<|im_start|>assistant\n<think>Hm, ")
    bench.answer(request, f"well.</think>Yes.\n{OSLO}")
    told = bench.pieces()
    assert (told["reasoning"], told["text"]) == ("well.", "Yes.")
    assert told["calls"][0]["name"] == "weather"
    error = bench.refused(messages=[HELLO], continue_final=True)
    assert (error["code"], error["param"]) == ("invalid", "messages[0]")


def test_plain_channels_leave_all_in_the_text(bench: ChatBench) -> None:
    request = bench.chat(tools=TOOLS, channels="plain", stop="zz")
    assert request.sampling.stop == ("zz",)
    bench.answer(request, OSLO)
    assert (bench.pieces()["text"], bench.pieces()["finish"]) == (OSLO, "stop")


def test_tool_choice_none_tells_the_model_of_no_tools(bench: ChatBench) -> None:
    request = bench.chat(tools=TOOLS, tool_choice="none", schema={"type": "object"})
    assert "weather" not in bench.appended()
    assert request.sampling.constraint is not None
    assert request.sampling.constraint.kind == "json_schema"


def test_an_answer_under_a_schema_is_all_text(thinking: ChatBench) -> None:
    request = thinking.chat(schema={"type": "object"})
    thinking.answer(request, '{"a": 1}')
    assert thinking.pieces()["text"] == '{"a": 1}'


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", ["weather", "now"]),
        ({"name": "now"}, ["now"]),
        ({"type": "function", "function": {"name": "weather"}}, ["weather"]),
    ],
)
def test_a_tool_choice_is_a_constraint(bench: ChatBench, choice: Any, names: list[str]) -> None:
    request = bench.chat(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    assert request.sampling.constraint is not None
    assert request.sampling.constraint.kind == "structural"
    spec = json.loads(request.sampling.constraint.source)
    assert [name for tag in spec["tags"] for name in names if name in tag["begin"]] == names
    assert (spec["at_least_one"], spec["stop_after_first"], spec["only_tags"]) == (True, True, True)
    (job,) = (job for job in bench.jobs if isinstance(job, CheckConstraint))
    assert job.constraint == request.sampling.constraint
    # What follows it is read as calls.
    bench.answer(request, NO_ARGUMENTS)
    assert bench.pieces()["calls"][0]["name"] == "now"


def test_a_tool_choice_leaves_room_for_reasoning_that_was_opened(thinking: ChatBench) -> None:
    request = thinking.chat(tools=TOOLS, tool_choice="required")
    assert request.sampling.constraint is not None
    assert json.loads(request.sampling.constraint.source)["before"] == "</think>"


def test_a_tool_choice_goes_to_nodes_that_know_it(bench: ChatBench) -> None:
    bench.down(1)
    older = tuple(name for name in CAPABILITIES if name != ONLY_TAGS)
    bench.node(2, "n2", window=100_000, capabilities=older)
    error = bench.refused(tools=TOOLS, tool_choice="required")
    assert error["code"] == "unsupported_on_fleet"
    assert ONLY_TAGS in error["message"]
    bench.send(tools=TOOLS)
    assert bench.on(2, GenerateReq)


def test_tools_of_a_template_whose_calls_are_unknown(tmp_path: Path) -> None:
    template = CHATML.replace("<tool_call>", "CALL ").replace("</tool_call>", "")
    bench = ChatBench(chat_folder(tmp_path / "toy", template))
    error = bench.refused(tools=TOOLS)
    assert (error["code"], error["param"]) == ("invalid", "tools")
    assert "channels" in error["message"]
    request = bench.chat(tools=TOOLS, channels="hermes")
    bench.answer(request, OSLO)
    assert bench.pieces(b"q2")["finish"] == "tool_calls"


# --- cursors ----------------------------------------------------------------------------------

#: Text, reasoning, calls, odd bytes and half-made markup.
SAID = (
    f"<think>Wie sp\u00e4t \U0001f600?</think>\n\nHi \ud55c\uae00 <tool_ no\n{OSLO}\n"
    f"{NO_ARGUMENTS}\n{BROKEN}"
)
SHORT = f"<think>Hm</think>So {NO_ARGUMENTS}"


@pytest.mark.parametrize("seed", range(30))
def test_what_is_told_does_not_depend_on_how_tokens_came(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    bench = ChatBench(chat_folder(tmp_path / "toy"))
    data = SAID.encode()
    whole = bench.chat(tools=TOOLS, stop=["zzz", "{{"])
    bench.answer(whole, SAID)
    pieced = bench.chat(tools=TOOLS, stop=["zzz", "{{"])
    place = 0
    while place < len(data):
        size = rng.choice((1, 1, 2, 5, 40))
        part = data[place : place + size]
        place = bench.say(pieced, place, part)
    bench.say(pieced, place, [END], "eos")
    one, other = bench.pieces(b"q1"), bench.pieces(b"q2")
    for call in (*one["calls"], *other["calls"]):
        call.pop("id")
    assert one == other
    assert one["reasoning"] == "Wie sp\u00e4t \U0001f600?"
    assert [call["name"] for call in one["calls"]] == ["weather", "now"]
    assert "\ufffd" not in one["text"]


@pytest.mark.parametrize("seed", range(4))
def test_a_continuation_from_any_cursor_gives_the_same_bytes(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    bench = ChatBench(chat_folder(tmp_path / "toy"))
    data = [*SAID.encode(), END]
    request = bench.chat(tools=TOOLS, stop="zzz")
    session = bench.events("placed")[-1]["session"]
    place, so_far = 0, []
    while place < len(data):
        # What the first reader had of the first tokens, after each event.
        so_far.append((place, bench.pieces(b"q1")))
        part = data[place : place + rng.choice((1, 2, 3, 7, 19))]
        is_last = place + len(part) == len(data)
        place = bench.say(request, place, part, "eos" if is_last else "")
    whole = bench.pieces(b"q1")
    for cursor, before in so_far:
        after = bench.pieces(bench.attach(session, cursor))
        joined = {name: before[name] + after[name] for name in ("text", "reasoning", "calls")}
        assert {**joined, "finish": after["finish"]} == whole


@pytest.mark.parametrize("said", [SAID, SHORT])
def test_a_head_that_restarts_tells_the_same(tmp_path: Path, said: str) -> None:
    bench = ChatBench(chat_folder(tmp_path / "toy"))
    request = bench.chat(tools=TOOLS, key="k", stop="zzz", max_new=4000)
    data = [*said.encode(), END]
    half = len(data) // 2
    bench.say(request, 0, data[:half])
    before = bench.pieces(b"q1")
    bench.say(request, half, data[half:], "eos")
    whole = bench.pieces(b"q1")
    again = bench.restarted()
    after = again.pieces(again.send("attach", key="k", offset=half))
    joined = {name: before[name] + after[name] for name in ("text", "reasoning", "calls")}
    assert {**joined, "finish": after["finish"]} == whole
    assert again.pieces(again.send("attach", key="k", offset=0)) == whole


def test_an_answer_that_runs_on_after_a_restart_ends_with_its_calls(tmp_path: Path) -> None:
    """The rest comes from a node after the head has come back."""
    bench = ChatBench(chat_folder(tmp_path / "toy"))
    bench.chat(tools=TOOLS, key="k", tool_choice="required")
    again = bench.restarted()
    again.wait(60.0)
    reader = again.send("attach", key="k", offset=0)
    again.answer(again.last(GenerateReq), OSLO)
    told = again.pieces(reader)
    assert (told["finish"], told["calls"][0]["name"]) == ("tool_calls", "weather")
    assert again.last(GenerateReq).sampling.constraint.kind == "structural"


@pytest.mark.parametrize(
    ("said", "finish", "end", "text"),
    [
        (OSLO, "eos", ("tool_calls", None), ""),
        ("No STOP here", "eos", ("stop", "STOP"), "No "),
        ("No STOP here", "length", ("stop", "STOP"), "No "),
        ("No call", "eos", ("stop", None), "No call"),
        (OSLO, "length", ("length", None), ""),
    ],
)
def test_an_end_that_comes_before_the_tokenizer_is_known(
    tmp_path: Path, said: str, finish: str, end: tuple[str, str | None], text: str
) -> None:
    """A head that has just begun again is told the rest while its text processes still start."""
    bench = ChatBench(chat_folder(tmp_path / "toy"))
    bench.chat(tools=TOOLS, key="k", stop="STOP", max_new=len(said) + (finish == "eos"))
    bench.down(1)
    again = bench.restarted(knows_model=False)
    again.wait(60.0)
    again.answer(again.last(GenerateReq), said, finish)
    again.learn_model()
    reader = again.send("attach", key="k", offset=0)
    told = next(r for r in again.replies if r["kind"] == "end" and r["id"] == reader)
    assert (told["finish"], told.get("stop")) == end
    assert again.pieces(reader)["text"] == text


def test_ids_of_calls_are_what_the_strictest_templates_take() -> None:
    made = [call_id(f"s-{n}/1", index) for n in range(200) for index in range(3)]
    assert len(set(made)) == len(made)
    assert all((len(one) == 9 and one.isalnum() and one.islower()) or one.isdigit() for one in made)
    assert call_id("s-1/1", 0) == call_id("s-1/1", 0)


def test_how_an_answer_is_read_is_kept(bench: ChatBench) -> None:
    bench.chat(tools=TOOLS, key="k", stop=["a", "b"], parallel_tool_calls=False)
    (row,) = (row for row in bench.rows if isinstance(row, PutAnswer))
    kept = Channels.from_map(msgpack.unpackb(row.options)["channels"])
    assert (kept.form, kept.stops, kept.parallel) == ("hermes", ("a", "b"), False)
    assert [tool["name"] for tool in kept.tools] == ["weather", "now"]
    assert Channels.from_map({**kept.to_map(), "form": "of a later version"}).form == "plain"
    # What is equal is kept once, however many answers have it.
    assert kept.tools is Channels.from_map(kept.to_map()).tools


def test_plain_requests_get_no_new_keys(bench: ChatBench) -> None:
    bench.send("generate", model=TOY, prompt="hi", max_new=9)
    bench.answer(bench.last(GenerateReq), OSLO[:4])
    (event,) = bench.events("token")
    assert not {"reasoning", "tool_calls"} & event.keys()
    end = next(r for r in bench.replies if r["kind"] == "end")
    assert not {"reasoning", "tool_calls"} & end.keys()

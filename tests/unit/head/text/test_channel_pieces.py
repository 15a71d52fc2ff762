"""Answers in random pieces: nothing of what a splitter gives depends on them, and nothing is lost.

`SUPERFLUID_TEST_CHUNKINGS` sets how many are tried; `make report-toolcalls` tries 10,000.
"""

from __future__ import annotations

import json
import os
import random
import re
import time

import pytest

from bus.text.detokenizer import Detokenizer
from head.text.channel_grammar import Marked
from head.text.channel_json import NotJson, parse_json
from head.text.channels import FORMATS, ChannelSplitter, ToolCall
from tests.toolcalls.answers import TOOLS, WRITERS, any_answer, some_answer
from tests.toolcalls.judge import in_pieces

CHUNKINGS = int(os.environ.get("SUPERFLUID_TEST_CHUNKINGS", "2000"))
BYTES = [bytes([value]) for value in range(256)]
Result = tuple[str, str, tuple[ToolCall, ...]]


def split(form: str, pieces: list[str], *, cut: bool = False) -> Result:
    splitter = ChannelSplitter(FORMATS[form], TOOLS, call_id="c{}".format)
    given = [splitter.push(piece) for piece in pieces]
    given.append(splitter.finish(cut=cut))
    return (
        "".join(each.text for each in given),
        "".join(each.reasoning for each in given),
        tuple(call for each in given for call in each.calls),
    )


def test_pieces_joined_are_the_whole_answer() -> None:
    rng, formats = random.Random(1), sorted(FORMATS)
    for number in range(CHUNKINGS // 10):
        form = formats[number % len(formats)]
        answer, cut = any_answer(rng, form), rng.random() < 0.3
        whole = split(form, [answer], cut=cut)
        for _ in range(10):
            pieces = in_pieces(answer, rng)
            assert split(form, pieces, cut=cut) == whole, (form, pieces)


@pytest.mark.parametrize("form", WRITERS)
def test_what_is_in_an_answer_comes_out_and_no_markup(form: str) -> None:
    rng = random.Random(form)
    for _ in range(CHUNKINGS // 100):
        answer = some_answer(rng)
        # Tokens of one byte each, so most pieces end within a character.
        detokenizer = Detokenizer(BYTES)
        raw = WRITERS[form](answer).encode()
        pieces = [detokenizer.push([value]) for value in raw]
        text, reasoning, calls = split(form, [*pieces, detokenizer.finish()])
        assert (text, reasoning) == (answer.text, answer.reasoning), raw.decode()
        given = tuple((call.name, json.loads(call.arguments)) for call in calls)
        assert given == answer.calls, raw.decode()
        assert [call.index for call in calls] == list(range(len(calls)))


@pytest.mark.parametrize("form", WRITERS)
def test_an_answer_that_is_cut_gives_a_beginning_of_the_whole(form: str) -> None:
    rng = random.Random(form)
    for _ in range(CHUNKINGS // 200):
        answer = some_answer(rng)
        raw = WRITERS[form](answer)
        end = rng.randrange(len(raw) + 1)
        text, reasoning, calls = split(form, in_pieces(raw[:end], rng), cut=True)
        given = tuple((call.name, json.loads(call.arguments)) for call in calls)
        assert given == answer.calls[: len(given)]
        # Of a marker that was cut one or two characters may be left, which may be text as well.
        for got, wanted in ((text, answer.text), (reasoning, answer.reasoning)):
            assert wanted.startswith((got, re.sub(r"\n*[<\[]?.?\Z", "", got)))


#: A list of calls without calls is markup, however it stands in the answer.
EMPTY_LIST = re.compile(
    r"<\|tool_calls_section_begin\|>\s*<\|tool_calls_section_end|<\|tool_calls\|>\s*<\|calls\|>"
    r"|<｜tool▁calls▁begin｜>\s*<｜tool▁calls▁end｜>|<minimax:tool_call>\s*</minimax|｜DSML｜"
)


def test_without_a_call_of_a_tool_that_was_given_the_text_is_the_answer() -> None:
    rng = random.Random(3)
    marked = {name: f.grammar for name, f in FORMATS.items() if isinstance(f.grammar, Marked)}
    for _ in range(CHUNKINGS // 20):
        form = rng.choice(sorted(marked))
        answer = any_answer(rng, form)
        for marker in (*(begin for begin, _ in marked[form].reasoning), *marked[form].wrappers):
            answer = answer.replace(marker, "")
        splitter = ChannelSplitter(FORMATS[form], [{"name": "other"}], call_id=str)
        given = [splitter.push(piece) for piece in in_pieces(answer, rng)]
        given.append(splitter.finish(cut=False))
        if not EMPTY_LIST.search(answer):
            assert "".join(each.text for each in given) == answer, form


HARD = {
    "text": "Hello world. ",
    "line ends": "\n",
    "openers": "<tool_call>",
    "unfinished": "<tool_call>{",
    "one long string": '<tool_call>{"name": "now", "arguments": {"a": "',
    "calls": '<tool_call>{"name": "now"}</tool_call>',
    "values": "<tool_call>now<arg_key>k</arg_key><arg_value>",
    "parameters": "<function=now>\n<parameter=k>\n",
    "headers": "<|start|>assistant<|channel|>commentary to=functions.now<|message|>{",
}


@pytest.mark.parametrize("form", ["hermes", "glm", "qwen3-coder", "harmony", "llama3"])
@pytest.mark.parametrize("kind", HARD)
def test_a_character_of_a_long_answer_takes_no_longer_than_one_of_a_short(
    form: str, kind: str
) -> None:
    def seconds(size: int, step: int) -> float:
        answer = (HARD[kind] * (size // len(HARD[kind]) + 1))[:size]
        splitter = ChannelSplitter(FORMATS[form], TOOLS, call_id=str)
        start = time.thread_time()
        for at in range(0, size, step):
            splitter.push(answer[at : at + step])
        splitter.finish(cut=False)
        return time.thread_time() - start

    # Quadratic work would be 256 times as much.
    assert seconds(1 << 18, 16) < 64 * max(min(seconds(1 << 14, 16) for _ in range(3)), 0.001)
    assert seconds(1 << 18, 1 << 18) < 64 * max(seconds(1 << 14, 1 << 14), 0.001)


def test_a_value_that_is_no_json_takes_no_longer_than_one_that_is() -> None:
    def seconds(count: int) -> float:
        # A string that the end cuts, full of quotes.
        value = '{"' + '\\"' * count + "\\"
        start = time.thread_time()
        with pytest.raises(NotJson):
            parse_json(value)
        return time.thread_time() - start

    assert seconds(1 << 16) < 64 * max(min(seconds(1 << 12) for _ in range(3)), 0.001)

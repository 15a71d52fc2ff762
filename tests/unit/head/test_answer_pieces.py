"""The pieces of an answer are a function of its tokens: however they come, from any cursor."""

from __future__ import annotations

import json
import random
import re
from itertools import pairwise
from typing import Any

import pytest

from bus.client_events import end_tail, read_event
from bus.errors import Invalid
from bus.messages.api import MAX_BODY_BYTES, TokenEvent, encode_body
from bus.messages.text import Described
from head.answer_pieces import AnswerPieces, Channels, pieces_map
from head.text import channel_grammar, channel_literals
from head.text.channels import FORMATS, Pieces
from head.text.tool_messages import read_calls

TOOLS: tuple[dict[str, Any], ...] = (
    {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
    {"name": "now", "parameters": {"type": "object", "properties": {}}},
)
#: Parts of what models write: calls of several formats, text, and characters of many bytes.
PARTS = (
    *("Hello", " world", "\n", "\n\n", "{", "}", '"', "<", "</", "[", "STOP", "ST", "OP", "\u00e9"),
    *("\U0001f600", "\ud55c\uae00", '{"name": "f", "arguments": {"a": "\u00fc"}}', "f", "now"),
    *('{"name": "now"}', "functions.now:0", "<function=now>", "</function>", "commentary"),
    *("<parameter=a>\nx\n</parameter>", '{"a": "STOP"}', "[f(a='1'), now()]", " to=functions.f "),
)
STOPS = ("STOP", "ld\n")
#: A whole call where no constraint tells how it is written.
CALLS = {
    "qwen3-coder": "<tool_call>\n<function=f>\n<parameter=a>\nSTOP\n</parameter>\n</function>\n"
    "</tool_call>",
    "llama4": '<|python_start|>[f(a="\u00fc")]<|python_end|>',
    "glm": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>STOP</arg_value>\n</tool_call>",
    "gemma4": '<|tool_call>call:f{a:<|"|>\u00fc<|"|>}<tool_call|>',
    "harmony": "<|channel|>analysis<|message|>hm \ud55c<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "STOP"}<|call|>',
    "lfm2": '<|tool_call_start|>[f(a="STOP")]<|tool_call_end|>',
    "minimax": '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">\u00fc</parameter>\n'
    "</invoke>\n</minimax:tool_call>",
    "seed": "<seed:tool_call>\n<function=f>\n<parameter=a>STOP</parameter>\n</function>\n"
    "</seed:tool_call>",
}


class Model:
    """Tokens of one format: bytes, some pieces, and its markers as control tokens."""

    def __init__(self, form: str, rng: random.Random) -> None:
        self.form = FORMATS[form]
        words = ["Hel", "lo", " wor", "\u00e9", '"name"', "OP\n"]
        markers = [m for m in self.form.markers if rng.random() < 0.7]
        self.first_marker = 256 + len(words)
        self.marker_ids = {m: self.first_marker + n for n, m in enumerate(markers)}
        self.words = {word: 256 + n for n, word in enumerate(words)}
        self.end = self.first_marker + len(markers)
        self.whole = [call] if (call := whole_call(form)) else []
        think = next((m for m in self.form.markers if m.endswith("think>") and "/" not in m), "")
        if think:
            self.whole.append(f"{think}\nhm \ud55c STOP\n{think.replace('<', '</')}\n\n")
        self.known = Described(
            job=0,
            vocabulary=(
                *(bytes([byte]) for byte in range(256)),
                *(word.encode() for word in words),
                *(b"" for _ in range(len(markers) + 1)),
            ),
            special=(*self.marker_ids.values(), self.end),
            special_texts=(*markers, "<|the_end|>"),
            bos=None,
            eos=(self.end,),
            digest=1,
            has_template=True,
        )

    def answer(self, rng: random.Random) -> list[int]:
        """Ids of something that such a model might write, ended or not."""
        ids: list[int] = []
        for _ in range(rng.randint(1, 14)):
            if self.whole and rng.random() < 0.15:
                ids += self.ids(rng.choice(self.whole))
            else:
                ids += self.ids(rng.choice((*PARTS, *self.form.markers)))
        return [*ids, self.end] if rng.random() < 0.5 else ids

    def ids(self, text: str) -> list[int]:
        """A text as this tokenizer has it, its markers as control tokens."""
        if text in self.words:
            return [self.words[text]]
        known = sorted(self.marker_ids, key=len, reverse=True)
        found = re.split(f"({'|'.join(map(re.escape, known))})", text) if known else [text]
        ids: list[int] = []
        for part in found:
            ids += [self.marker_ids[part]] if part in self.marker_ids else part.encode()
        return ids

    def reader(self, channels: Channels, min_tokens: int = 0) -> AnswerPieces:
        return AnswerPieces(self.known, channels, "s-1/1", min_tokens)


def whole_call(form: str) -> str:
    """A call of the tool f, as the format writes it; empty where that is not known here."""
    spec = FORMATS[form].structural(TOOLS, "f", True)
    if form in CALLS or spec is None or "lark" in spec["tags"][0]:
        return CALLS.get(form, "")
    (tag,) = spec["tags"]
    call = f'{tag["begin"]}{{"a": "\u00fc STOP"}}{tag["end"]}'
    return f"{spec.get('open', '')}{call}{spec.get('close', '')}"


def joined(pieces: list[Pieces]) -> Pieces:
    return Pieces(
        "".join(one.text for one in pieces),
        "".join(one.reasoning for one in pieces),
        tuple(call for one in pieces for call in one.calls),
    )


def cuts(rng: random.Random, size: int) -> list[int]:
    places = sorted(rng.randint(0, size) for _ in range(rng.randint(0, 6)))
    return [0, *places, size]


@pytest.mark.parametrize("form", FORMATS)
def test_ten_thousand_chunkings_give_the_same_pieces(form: str) -> None:
    """About 420 random chunkings of each of two dozen formats."""
    rng = random.Random(form)
    for _ in range(20):
        model = Model(form, rng)
        ids = model.answer(rng)
        channels = Channels(
            form=form,
            tools=TOOLS if rng.random() < 0.8 else (),
            opened=rng.choice(("", "", "<think>\n")),
            parallel=rng.random() < 0.8,
            stops=STOPS if rng.random() < 0.5 else (),
        )
        cut, least = rng.random() < 0.3, rng.choice((0, 0, 3))
        one_by_one = model.reader(channels, least)
        steps = [one_by_one.push((token,)) for token in ids]
        last = one_by_one.finish(cut=cut)
        whole = joined([*steps, last])
        end = until_stop(model, channels, ids, least)
        for _ in range(21):
            reader = model.reader(channels, least)
            places = cuts(rng, end)
            pieces = [reader.push(ids[a:b]) for a, b in pairwise(places)]
            # What a reader that comes in the middle is given, is what follows.
            for n, place in enumerate(places[1:]):
                assert joined(pieces[: n + 1]) == joined(steps[:place])
            if end == len(ids) and not one_by_one.stop:
                assert joined([*pieces, reader.finish(cut=cut)]) == whole
        assert not channels.stops or not any(stop in _matched(whole, least) for stop in STOPS)
        assert "\ufffd" not in whole.text + whole.reasoning
        assert [call.index for call in whole.calls] == list(range(len(whole.calls)))


@pytest.mark.parametrize("form", [form for form in FORMATS if whole_call(form)])
def test_t6_a_call_is_the_same_with_and_without_stops(form: str) -> None:
    rng = random.Random(form)
    for _ in range(20):
        model = Model(form, rng)
        ids = model.ids(f"{whole_call(form)}")
        plain = model.reader(Channels(form=form, tools=TOOLS))
        stopped = model.reader(Channels(form=form, tools=TOOLS, stops=STOPS))
        assert stopped.until_stop(ids) == len(ids)
        plain.push(ids)
        # Some formats tell a call from text at the end only.
        assert stopped.finish(cut=False) == plain.finish(cut=False)
        assert (plain.calls, stopped.calls, stopped.stop) == (1, 1, "")


def until_stop(model: Model, channels: Channels, ids: list[int], least: int) -> int:
    """How many tokens an answer has, whose end a stop is."""
    return model.reader(channels, least).until_stop(ids)


def _matched(pieces: Pieces, least: int) -> str:
    """The text in which no stop may be; what the first tokens gave is free."""
    return "" if least else pieces.text


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_is_lost_or_made_up_where_there_is_no_markup(form: str) -> None:
    rng = random.Random(form)
    for _ in range(50):
        text = "".join(rng.choice((*"abc \n\u00e9\ud55c", "\U0001f600", "x")) for _ in range(30))
        model = Model(form, rng)
        reader = model.reader(Channels(form=form, tools=TOOLS))
        pieces = [reader.push(part) for part in text.encode().splitlines(keepends=True)]
        told = joined([*pieces, reader.finish(cut=rng.random() < 0.5)])
        assert (told.text.strip("\n"), told.reasoning, told.calls) == (text.strip("\n"), "", ())


def test_t1_a_character_cut_by_the_end_is_dropped_in_every_channel() -> None:
    rng = random.Random(1)
    model = Model("think", rng)
    reader = model.reader(Channels(form="think", opened="<think>"))
    told = [reader.push("a\U0001f600".encode()[:4]), reader.finish(cut=True)]
    assert joined(told) == Pieces("", "a", ())
    reader = model.reader(Channels(form="think", opened="<think>"))
    told = [reader.push([byte]) for byte in "a\ud55c</think>\uae00".encode()[:-1]]
    assert [one.reasoning for one in told[:4]] == ["a", "", "", "\ud55c"]
    assert joined([*told, reader.finish(cut=True)]) == Pieces("", "a\ud55c", ())


def test_half_characters_in_arguments_are_replaced() -> None:
    escaped = '{"a": "x\\ud800\\ud83d\\ude00"}'
    whole = '{"a": "x\ufffd\\ud83d\\ude00"}'
    assert _argument("hermes", f'<tool_call>{{"name": "f", "arguments": {escaped}}}') == whole
    assert _argument("llama4", r'<|python_start|>[f(a="x\ud800")]') == '{"a": "x\ufffd"}'
    # What is whole stays as the model wrote it.
    pair = '{"a": "\\ud83d\\ude00"}'
    assert _argument("hermes", f'<tool_call>{{"name": "f", "arguments": {pair}}}') == pair


#: Arguments with a half character, and as they are told: the rest is what the model wrote.
ODD = {
    '{"y": "\\ud800", "x": 1e308,"z" :1.00000000000000000000001}': '{"y": "\ufffd", "x": 1e308,'
    '"z" :1.00000000000000000000001}',
    r'{"y": "\\ud800\ud83d\udc00\uDFFF\\\udc00\n\ud83d\ud83d\ude00"}': r'{"y": "\\ud800\ud83d\udc00'
    "\ufffd\\\\\ufffd\\n\ufffd"
    r'\ud83d\ude00"}',
}


@pytest.mark.parametrize("wrote", ODD)
def test_arguments_stay_the_letters_that_the_model_wrote(wrote: str) -> None:
    json.loads(ODD[wrote])
    for arguments in (wrote, json.dumps(wrote)):
        said = f'<tool_call>{{"name": "f", "arguments": {arguments}}}'
        assert _argument("hermes", said) == ODD[wrote]
    parameter = f"<function=f><parameter=b>{wrote}</parameter></function>"
    assert _argument("qwen3-coder", parameter) == f'{{"b": {ODD[wrote]}}}'
    invoke = f'<invoke name="f"><parameter name="b">{wrote}</parameter></invoke>'
    assert _argument("minimax", f"<minimax:tool_call>{invoke}") == f'{{"b": {ODD[wrote]}}}'


@pytest.mark.parametrize(
    "arguments",
    [
        '{"y": "\\ud800", "x": %s}' % ("1" * 5000),
        '{"y": "\\\\ud800", "x": [-%s]}' % ("1" * 5000),
        '{"x": 1.%s}' % ("1" * 5000),
        '{"x": 1e999}',
        '{"x": [-1e309]}',
        '{"x": %s1}' % ("9" * 400),
        # Two keys that no reader could tell from one another.
        '{"\\ud800": 1, "\\ud801": 2}',
        '{"x": {"\ufffd": 1, "\\ud801": 2}}',
    ],
)  # fmt: skip
def test_what_no_reader_could_take_is_text(arguments: str) -> None:
    for wrote in (arguments, json.dumps(arguments)):
        said = f'<tool_call>{{"name": "f", "arguments": {wrote}}}</tool_call>'
        told = _told("hermes", said)
        assert (told.text, told.calls) == (said, ())


def test_what_a_call_has_can_be_sent_back_and_nothing_else() -> None:
    """One rule for the calls of a model and for those in messages."""
    deep = "[" * 63 + "]" * 63
    for value, fits in (
        ("1e308", True),
        ("1" * 300, True),
        ("1e999", False),
        ("-1e309", False),
        ("9" * 400, False),
        ("NaN", False),
        ('1, "x": 1', False),
        ('NaN, "x": 1', False),
        (deep, True),
        (f"[{deep}]", False),
        ('"%s"' % ("[" * 100), True),
        ('"\\"[[{%s"' % ("{" * 100), True),
    ):
        arguments = f'{{"x": {value}}}'
        calls = _told("hermes", f'<tool_call>{{"name": "f", "arguments": {arguments}}}').calls
        assert [call.arguments for call in calls] == ([arguments] if fits else []), value
        if fits:
            read_calls([{"name": "f", "arguments": arguments}], "calls")
        else:
            with pytest.raises(Invalid, match=r"calls\[0\].arguments"):
                read_calls([{"name": "f", "arguments": arguments}], "calls")


@pytest.mark.parametrize("form", sorted(CALLS))
def test_arguments_of_all_kinds_can_be_sent_back(form: str) -> None:
    call = CALLS[form]
    for value in ("1e999", "[" * 63 + "]" * 63, "[" * 64 + "]" * 64, "9" * 400, "1e308"):
        written = value if form in ("llama4", "lfm2", "gemma4") else f"\n{value}\n"
        said = re.sub(r"""<\|"\|>.*?<\|"\|>|"(?:STOP|\u00fc)"|STOP|\u00fc""", written, call)
        assert value in said
        pieces = _told(form, said)
        for one in pieces.calls:
            read_calls([{"name": one.name, "arguments": one.arguments}], "calls")
        assert pieces.calls or value in pieces.text


def test_any_number_of_calls_in_one_event_can_be_read() -> None:
    count = 5000
    for form, said in (
        ("lfm2", f"<|tool_call_start|>[{', '.join(['now()'] * count)}]<|tool_call_end|>"),
        ("llama4", f"[{', '.join(['now()'] * count)}]"),
        ("hermes", "<think>" + '<tool_call>{"name": "now"}</tool_call>' * count),
    ):
        told = _told(form, said)
        event = {"type": "token", "offset": 0, "tokens": [], "text": told.text, **pieces_map(told)}
        read = read_event(event)
        assert isinstance(read, TokenEvent)
        assert [call.index for call in read.tool_calls] == list(range(count))
        assert len(encode_body(event)) < MAX_BODY_BYTES
        end = end_tail({**pieces_map(told)}, 0)
        assert len(end.tool_calls) == count


@pytest.mark.parametrize("form", ["lfm2", "hermes"])
def test_more_calls_at_once_than_an_event_can_hold_are_text(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (channel_literals, channel_grammar):
        monkeypatch.setattr(module, "MAX_CALLS_AT_ONCE", 3)
    begin, between, end = {
        "lfm2": ("<|tool_call_start|>[", ",", "]<|tool_call_end|>"),
        "hermes": ("<think>", "", ""),
    }[form]
    call = "now()" if form == "lfm2" else '<tool_call>{"name": "now"}</tool_call>'
    for count in (3, 4):
        said = begin + between.join([call] * count) + end
        told = _told(form, said)
        assert len(told.calls) == (3 if count == 3 else 0)
        assert (call in told.text + told.reasoning) == (count == 4)


def _argument(form: str, said: str) -> str:
    """The arguments of the one call in an answer."""
    end = {"hermes": "</tool_call>", "llama4": "<|python_end|>", "minimax": "</minimax:tool_call>"}
    (call,) = _told(form, said + end.get(form, "")).calls
    return call.arguments


def _told(form: str, said: str) -> Pieces:
    model = Model(form, random.Random(1))
    reader = model.reader(Channels(form=form, tools=TOOLS))
    return joined([reader.push(model.ids(said)), reader.finish(cut=False)])


def test_the_first_tokens_of_min_tokens_are_no_stop() -> None:
    model = Model("hermes", random.Random(1))
    reader = model.reader(Channels(form="hermes", tools=TOOLS, stops=("STOP",)), min_tokens=6)
    assert reader.until_stop(list(b"STOP, STOP it")) == 10
    assert reader.stop == "STOP"
    assert reader.finish(cut=False) == Pieces()


def test_what_a_token_begins_behind_the_only_call_is_no_text() -> None:
    call = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0"
        "<|tool_call_argument_begin|>{}<|tool_call_end|>"
    )
    known = Described(
        job=0,
        vocabulary=(*(bytes([byte]) for byte in range(256)), b"><"),
        special=(),
        special_texts=(),
        bos=None,
        eos=(),
        digest=1,
        has_template=True,
    )
    channels = Channels(form="kimi-k2", tools=({"name": "now"},), parallel=False, only_calls=True)
    reader = AnswerPieces(known, channels, "s-1/1")
    ids = [*call[:-1].encode(), 256]  # The last one has the end of the call, and a "<".
    assert reader.until_stop(ids) == len(ids)
    assert reader.calls == 1
    assert not reader.finish(cut=False)

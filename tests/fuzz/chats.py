"""Fuzz targets for chats: what a request asks for, and events made of any tokens."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgpack

from bus.api_maps import from_map, to_map
from bus.errors import SuperfluidError
from bus.ids import ModelName, PackedIds, SessionId
from bus.messages.api import TokenEvent, encode_body
from bus.messages.chat import ChatRequest
from bus.messages.sampling import SamplingParams
from bus.messages.text import Described, Encoded
from head.answer_pieces import AnswerPieces, Channels, pieces_map
from head.answers import Answer
from head.chat_request import chat_plan
from head.text.channels import FORMATS
from tests.fuzz.decoders import Case, Wrong
from tests.fuzz.generate import junk, spoil
from tests.toolcalls.answers import TOOLS, any_answer

_CHOICES = ("auto", "none", "required", {"name": "get_weather"}, {"function": {"name": "now"}})


def _answer(sampling: SamplingParams) -> Answer:
    return Answer(
        id=1,
        session=SessionId("s"),
        owner="o",
        key=None,
        model=ModelName("m"),
        sampling=sampling,
        max_new=1,
        wall_ms=0,
        qos=0,
        exact=False,
        keep=False,
        accepted_s=0.0,
    )


def request_case(rng: random.Random) -> None:
    """A chat's own keys: refused by name, or a plan that can be begun and kept."""
    body: Any = {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": list(TOOLS),
        "tool_choice": rng.choice(_CHOICES),
        "parallel_tool_calls": rng.random() < 0.5,
        "channels": rng.choice((None, *FORMATS)),
    }
    for key in rng.sample(sorted(body), rng.choice((0, 0, 1, 2))):
        body[key] = rng.choice((junk(rng), spoil(rng, body[key])))
    answer = _answer(SamplingParams(stop=("x",)))
    rendered = Encoded(job=1, ids=PackedIds(b""), channels=rng.choice(("", *FORMATS, "other")))
    try:
        plan = chat_plan(from_map(ChatRequest, body))
        plan.begin(answer, rendered)
    except SuperfluidError as error:
        if not error.param:
            raise Wrong(f"{error!r} names no field") from None
        return
    encode_body(to_map(answer.sampling))
    if answer.channels is not None:
        kept = msgpack.unpackb(msgpack.packb(answer.channels.to_map()))
        if Channels.from_map(kept).to_map() != answer.channels.to_map():
            raise Wrong(f"{answer.channels!r} does not come back")


def pieces_case(rng: random.Random) -> None:
    """Events of any tokens can be packed, and are what the client takes."""
    form = rng.choice(sorted(FORMATS))
    markers = FORMATS[form].markers
    known = Described(
        job=1,
        vocabulary=(*(bytes([byte]) for byte in range(256)), *(b"" for _ in markers)),
        special=tuple(range(256, 256 + len(markers))),
        special_texts=markers,
        bos=None,
        eos=(),
        digest=1,
        has_template=True,
    )
    stops = rng.choice(((), ("a",), ("}", "\n\n")))
    channels = Channels(form=form, tools=tuple(TOOLS), opened=rng.choice(("", "<think>")))
    reader = AnswerPieces(known, Channels.from_map({**channels.to_map(), "stops": stops}), "s/1")
    ids = list(any_answer(rng, form).encode("utf-8", "surrogatepass"))
    for _ in range(rng.choice((0, 1, 5))):
        odd: tuple[bytes, ...] = (b"\\ud800", b"\\u0000", b"\xff\xed\xa0\x80", b'"', b"1e999", b"-")
        place = rng.randrange(len(ids) + 1)
        ids[place:place] = rng.choice(
            (list(rng.choice(odd)), [rng.randrange(len(known.vocabulary))])
        )
    for part in (ids[: len(ids) // 2], ids[len(ids) // 2 :], None):
        pieces = reader.finish(cut=rng.random() < 0.5) if part is None else reader.push(part)
        event = {"offset": 0, "tokens": [], "text": pieces.text, **pieces_map(pieces)}
        got = from_map(TokenEvent, msgpack.unpackb(encode_body(event)))
        if (got.text, got.reasoning) != (pieces.text, pieces.reasoning):
            raise Wrong(f"{pieces!r} came as {got!r}")


CHATS: Mapping[str, Case] = {"chat request": request_case, "answer pieces": pieces_case}

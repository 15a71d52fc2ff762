"""Fuzz targets that take bytes: each decoder gives a message or its documented error."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgpack

from agent.worker.lane_file import LANE_FILE
from bus.api_maps import from_map, to_map
from bus.codec import Codec
from bus.crypto import KeyPair
from bus.errors import DecodeError, Invalid, SuperfluidError
from bus.frames import HEADER, MAX_FRAME_BYTES, FrameKind, pack_header, parse_frame
from bus.handshake import HANDSHAKE
from bus.keys import new_token, parse_token
from bus.messages import api, chat, job_bodies, transcripts
from bus.messages.link import LINK
from bus.messages.text import TEXT
from bus.messages.worker import WORKER
from tests.fuzz.generate import (
    change_bytes,
    encoding,
    junk,
    random_bytes,
    spoil,
    struct_of,
)

#: One case: draws an input and tries it. What it raises is a failure.
Case = Callable[[random.Random], None]

_REQUESTS = (
    api.Envelope,
    api.GenerateRequest,
    chat.ChatRequest,
    chat.SessionChatRequest,
    chat.RenderRequest,
    api.AboutRequest,
    api.AttachRequest,
    api.TokenizeRequest,
    api.DetokenizeRequest,
    api.PutBlobRequest,
    api.HasBlobRequest,
    api.TokenEvent,
    api.PlacedEvent,
    api.QueuedEvent,
    api.AnswerUsage,
    api.Timing,
    api.EndBody,
    transcripts.TranscribeRequest,
    transcripts.SegmentsEvent,
    transcripts.TranscriptEnd,
    job_bodies.TranscribeBody,
    job_bodies.TranscribePart,
)
_TOKEN = new_token(KeyPair.from_secret(bytes(range(32))).public, random.Random(0).randbytes)


class Wrong(Exception):
    """An input led to something that is neither a result nor a documented error."""


def codec_case(codec: Codec) -> Case:
    """Decode; what decodes comes back equal from its own encoding."""

    def case(rng: random.Random) -> None:
        try:
            message = codec.decode(encoding(rng, codec))
        except DecodeError:
            return
        if message is not None and codec.decode(codec.encode(message)) != message:
            raise Wrong(f"{message!r} does not come back")

    return case


def api_case(rng: random.Random) -> None:
    """A request's frames: body, envelope, and every operation's own keys."""
    frames = _api_frames(rng)
    try:
        body = api.decode_body(frames)
    except DecodeError:
        return
    api.readable_id(body)
    try:
        api.read_envelope(frames, body)
    except Invalid:
        pass
    for cls in _REQUESTS:
        try:
            made = from_map(cls, body)
        except Invalid:
            continue
        if from_map(cls, to_map(made)) != made:
            raise Wrong(f"{made!r} does not come back")


def _api_frames(rng: random.Random) -> list[bytes]:
    body: object = {"op": "generate", "id": b"r1"}
    body |= to_map(struct_of(rng, rng.choice(_REQUESTS)))  # type: ignore[operator]
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        body = spoil(rng, body)
    data: bytes = msgpack.packb(body)
    how = rng.randrange(4)
    if how == 0:
        data = change_bytes(rng, data)
    elif how == 1 and rng.random() < 0.3:
        data = random_bytes(rng)
    frames = [api.MARK, data, *(rng.randbytes(5) for _ in range(rng.choice((0, 0, 1, 40))))]
    if rng.random() < 0.1:
        frames[0] = random_bytes(rng)
    return frames if rng.random() < 0.95 else frames[: rng.randrange(len(frames))]


def frame_case(rng: random.Random) -> None:
    """A frame's header: parsed to exactly what is in it, or refused."""
    header = pack_header(
        rng.choice(list(FrameKind)),
        rng.getrandbits(64),
        rng.choice((0, rng.getrandbits(64))),
        rng.randrange(6),
        more=rng.random() < 0.5,
        phase=rng.randrange(8),
    )
    data = header + rng.randbytes(rng.choice((0, 1, 16, 300, MAX_FRAME_BYTES - HEADER.size + 1)))
    data = rng.choice((data, change_bytes(rng, data), random_bytes(rng)))
    try:
        frame = parse_frame(data)
    except DecodeError:
        return
    again = pack_header(
        frame.kind, frame.link_id, frame.counter, frame.channel, more=frame.more, phase=frame.phase
    )
    if again + frame.payload != data:
        raise Wrong(f"{data.hex()} was parsed as {frame}")


def token_case(rng: random.Random) -> None:
    """A fleet token's text."""
    text = change_bytes(rng, _TOKEN.encode()).decode("utf-8", rng.choice(("replace", "ignore")))
    if rng.random() < 0.2:
        text = str(junk(rng))
    try:
        parse_token(text, source="fuzz")
    except SuperfluidError:
        return
    if text.strip() != _TOKEN:
        raise Wrong(f"{text!r} was taken for a token")


DECODERS: dict[str, Case] = {
    **{codec.name: codec_case(codec) for codec in (LINK, WORKER, TEXT, HANDSHAKE, LANE_FILE)},
    "api": api_case,
    "frame": frame_case,
    "token": token_case,
}

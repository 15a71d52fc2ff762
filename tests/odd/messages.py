"""Odd messages for a worker of all kinds: submits, orders about what is not there, and no messages.

An odd request's generation has a number of its own, from `FIRST` on, so that what comes of it can
be told from the neighbours'.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgpack

from bus.errors import DecodeError
from bus.ids import U64_MAX, GenerationId, SessionId, pack_ids
from bus.messages.parts import Segment
from bus.messages.worker import (
    WORKER,
    Cancel,
    Forget,
    Park,
    Pause,
    Ping,
    Restore,
    Resume,
    Stop,
    Submit,
)
from tests.fuzz.generate import encoding
from tests.odd.submits import SUBMIT_TAG, odd_submit

#: Generations of odd requests.
FIRST = 1 << 41


@dataclass(frozen=True, slots=True)
class Odd:
    """One request: its bytes, and the generation that must be told how it went, if it has one."""

    number: int
    data: bytes
    generation: int | None
    about: str


def odd_message(seed: int, number: int, window: int) -> Odd:
    """The `number`-th odd request of a seed."""
    rng = random.Random(f"{seed}:{number}")
    own = FIRST + number
    how = rng.randrange(20)
    if how < 13:
        data, about = odd_submit(rng, own, window), "submit"
    elif how == 13:
        # A number that is in use, or was a moment ago.
        data, about = odd_submit(rng, max(FIRST, own - rng.randrange(1, 12)), window), "again"
    elif how < 17:
        data, about = _order(rng, own), "order"
    else:
        data, about = _anything(rng), "anything"
    return Odd(number, data, told_generation(data), about)


def told_generation(data: bytes) -> int | None:
    """Whose submit some bytes are, also when it can not be read any further."""
    unpacker = msgpack.Unpacker(raw=True)
    unpacker.feed(data[:64])
    try:
        count, tag, own = unpacker.read_array_header(), unpacker.unpack(), unpacker.unpack()
    except Exception:  # noqa: BLE001 - of any kind, for bytes that are no message
        return None
    if count < 2 or type(tag) is not int or tag != SUBMIT_TAG:
        return None
    return own if type(own) is int and 0 <= own <= U64_MAX else None


def _order(rng: random.Random, own: int) -> bytes:
    about = GenerationId(rng.choice((0, 1, U64_MAX, own, own - rng.randrange(1, 12))))
    session = SessionId(rng.choice(("", "s", "../../x", "\0", "é" * 32, "/")))
    context = pack_ids([rng.randrange(300) for _ in range(rng.choice((0, 1, 64, 130, 5000)))])
    segments = rng.choice(((), (Segment(tokens=3), Segment(tokens=9, by_step=True))))
    message = rng.choice(
        (
            Cancel(generation=about),
            Pause(generation=about),
            Resume(generation=about),
            Park(session=session, context=context, salt=bytes(rng.choice((0, 32)))),
            Restore(session=session, context=context, segments=segments),
            Forget(session=session),
            Ping(nonce=rng.choice((0, 1, 2**63))),
        )
    )
    return WORKER.encode(message)


def _anything(rng: random.Random) -> bytes:
    """Valid, changed and random bytes; never what would end the worker as it should."""
    while True:
        data = encoding(rng, WORKER)
        try:
            message = WORKER.decode(data)
        except DecodeError:
            return data
        # A submit with a number of nobody's would run with nobody to read it.
        if not isinstance(message, Stop | Submit):
            return data

"""Odd submits for a worker: one to three things wrong with each, drawn from a seed."""

from __future__ import annotations

import dataclasses
import random
import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack

from bus.ids import pack_ids
from bus.messages.sampling import SamplingParams
from bus.messages.worker import Submit
from bus.struct_codec import StructCodec
from tests.odd.constraints import odd_constraint

SUBMIT_TAG = 1
VOCAB = 260

NAN, INF = float("nan"), float("inf")
#: What floats may be sent as; most are no value of any field.
FLOATS: tuple[Any, ...] = (
    *(NAN, INF, -INF, 0.0, -0.0, 5e-324, 1e-38, 1e-9, 1e-6, 0.01, 0.5, 0.9999999, 1.0, 1.0000001),
    *(100.0, 100.0001, -100.0, 1e4, -1e4, 1e38, 1e308, -1e308, -1.0, 3, -1, 2**53, 2**64 - 1),
    *("1.0", None, True, b"\0", [], [1.0], {}),
)
INTS: tuple[Any, ...] = (
    *(0, 1, 2, 3, 20, 21, 22, 255, 256, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63),
    *(2**64 - 1, -1, -(2**63), 1.0, NAN, "1", None, False, []),
)
STOPS: tuple[Any, ...] = (
    *("", "a", " ", "\n", "\0", "e", "<|im_end|>", "<|endoftext|>", "\ufffd", "é", "\U0001f600"),
    *("\ud800", "\udfff", "ab\udc80", "\ud83d", "a" * 256, "a" * 257, "é" * 128, "the", 7, None),
)


@dataclass
class Draft:
    """A submit's fields as they will be packed, wrong ones too; `window` is the worker's."""

    rng: random.Random
    window: int
    fields: dict[str, Any]
    sampling: dict[str, Any]

    @property
    def length(self) -> int:
        """Tokens of the context."""
        context = self.fields["context"]
        return len(context) // 4 if isinstance(context, bytes) else 9

    def set_length(self, tokens: int) -> None:
        """A context of printable bytes and a prompt that is all of it."""
        seen = array("I", [32 + self.rng.randrange(95) for _ in range(min(tokens, 4096))])
        repeats = -(-tokens // len(seen)) if seen else 0
        self.fields["context"] = pack_ids((seen * repeats)[:tokens])
        self.fields["prompt_tokens"] = tokens


def odd_submit(rng: random.Random, generation: int, window: int) -> bytes:
    """The bytes of a submit of which one to three things are odd."""
    sampling = SamplingParams(temperature=rng.choice((0.0, 0.7, 1.0)), seed=rng.getrandbits(32))
    draft = Draft(
        rng,
        window,
        {f.name: None for f in dataclasses.fields(Submit)},
        _fields(sampling),
    )
    plain = Submit(
        generation=0,  # type: ignore[arg-type]  # set below as it is to be sent
        context=pack_ids([]),
        sampling=sampling,
        max_new_tokens=rng.randrange(1, 12),
        prompt_tokens=0,
        qos=rng.randrange(4),
    )
    draft.fields.update(_fields(plain), generation=generation)
    draft.set_length(rng.choice((1, 2, 5, 20, 70, 130)))
    twists = rng.sample(TWISTS, rng.choice((1, 1, 2, 3)))
    for twist in sorted(twists, key=TWISTS.index):
        twist(draft)
    return pack(draft)


def pack(draft: Draft) -> bytes:
    """A draft's bytes. Half characters are sent as their own three bytes."""
    values = {**draft.fields, "sampling": list(draft.sampling.values())}
    packed: bytes = msgpack.packb([SUBMIT_TAG, *values.values()], unicode_errors="surrogatepass")
    return packed


def _fields(value: Any) -> dict[str, Any]:
    struct_codec = StructCodec.of(type(value))
    return dict(zip(struct_codec.names, struct_codec.encode(value), strict=True))


# --- what may be odd --------------------------------------------------------------------------


def _length(draft: Draft) -> None:
    window = draft.window
    lengths = (0, 1, 2, window - 2, window - 1, window, window + 1, 5 * window)
    draft.set_length(draft.rng.choice((*lengths, *lengths, 1 << 18)))


def _ids(draft: Draft) -> None:
    ids = [draft.rng.choice((0, 9, 255, 256, 259)) for _ in range(draft.rng.randrange(1, 40))]
    if draft.rng.random() < 0.5:
        ids[draft.rng.randrange(len(ids))] = draft.rng.choice((VOCAB, 2**31, 2**32 - 1))
    draft.fields["context"] = pack_ids(ids)
    draft.fields["prompt_tokens"] = len(ids)


def _no_ids(draft: Draft) -> None:
    draft.fields["context"] = draft.rng.choice(
        (b"\1", b"\1\0\0\0\2", "text", None, 5, [1, 2], draft.rng.randbytes(4 * 9))
    )


def _float(draft: Draft) -> None:
    names = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty")
    name = draft.rng.choice((*names, "frequency_penalty"))
    draft.sampling[name] = draft.rng.choice(FLOATS)


def _valid_floats(draft: Draft) -> None:
    rng = draft.rng
    draft.sampling |= {
        "temperature": rng.choice((0.0, 5e-324, 1e-9, 9.9e-7, 1e-6, 1e-3, 1.0, 100.0)),
        "top_p": rng.choice((0.0, 5e-324, 1e-9, 0.5, 1 - 2**-53, 1.0)),
        "min_p": rng.choice((0.0, 5e-324, 1e-300, 0.5, 1.0)),
        "repetition_penalty": rng.choice((0.01, 0.5, 1.0, 100.0)),
        "presence_penalty": rng.choice((-100.0, 0.0, 5e-324, 100.0)),
        "frequency_penalty": rng.choice((-100.0, 0.0, 100.0)),
        "top_k": rng.choice((0, 1, 2, VOCAB - 1, VOCAB, VOCAB + 1, 2**32 - 1)),
    }


def _int(draft: Draft) -> None:
    name = draft.rng.choice(("top_k", "seed", "min_tokens", "logprobs", "ignore_eos"))
    draft.sampling[name] = draft.rng.choice(INTS)


def _bias(draft: Draft) -> None:
    rng = draft.rng
    count = rng.choice((1, 2, 9, VOCAB, 4096, 4097))
    ids = [rng.choice((0, 1, 65, 65, 259, rng.randrange(VOCAB))) for _ in range(count)]
    if rng.random() < 0.3:
        ids[-1] = rng.choice((VOCAB, 2**32 - 1))
    extremes = (1e4, -1e4, 5e-324, -0.0, 1.5, -3.0)
    biases: list[Any] = [rng.choice(extremes) for _ in ids]
    if rng.random() < 0.3:
        biases[rng.randrange(count)] = rng.choice(FLOATS)
    if rng.random() < 0.2:
        biases = biases[: rng.randrange(count)]
    packed = pack_ids(ids) + rng.choice((b"", b"", b"", b"\1"))
    draft.sampling |= {"bias_ids": packed, "biases": biases}


def _forbid_all(draft: Draft) -> None:
    """All tokens alike, or all out of reach."""
    bias = draft.rng.choice((-1e4, 1e4))
    draft.sampling |= {
        "bias_ids": pack_ids(range(VOCAB)),
        "biases": [bias] * VOCAB,
        "frequency_penalty": draft.rng.choice((0.0, 100.0, -100.0)),
        "repetition_penalty": draft.rng.choice((1.0, 0.01, 100.0)),
    }


def _stop(draft: Draft) -> None:
    rng = draft.rng
    count = rng.choice((1, 1, 2, 16, 17))
    stops: Any = [rng.choice(STOPS) for _ in range(count)]
    if rng.random() < 0.3:
        stops = [rng.choice("ae ") * (256 - place) for place in range(16)]
    if rng.random() < 0.1:
        stops = rng.choice(("stop", None, 5, {}, [[]], b"a"))
    draft.sampling["stop"] = stops


def _stop_ids(draft: Draft) -> None:
    rng = draft.rng
    ids = [rng.choice((0, 65, 101, 256, VOCAB, 2**32 - 1)) for _ in range(rng.randrange(6))]
    choices = (pack_ids(ids), pack_ids(range(256)), pack_ids(range(257)), b"\1", None)
    draft.sampling["stop_ids"] = rng.choice(choices)
    draft.sampling["min_tokens"] = rng.choice((0, 0, 1, 2**32 - 1))


def _constraint(draft: Draft) -> None:
    draft.sampling["constraint"] = odd_constraint(draft.rng)
    draft.fields["max_new_tokens"] = draft.rng.choice((0, 1, 30))


def _segments(draft: Draft) -> None:
    rng, length = draft.rng, draft.length
    cut = rng.randrange(length + 1)
    choices: tuple[Any, ...] = (
        [[length, True]],
        [[cut, True], [length - cut, False]],
        [[cut, False], [length - cut, True]],
        [[1, bool(place % 2)] for place in range(length)],
        [[1, not place % 2] for place in range(length)],
        [[0, True]] * 9 + [[length, False]],
        [[0, False]] * 65_536,
        [[0, False]] * 65_537,
        [[length + 1, False]],
        [[length - 1, False]],
        [[2**32 - 1, False]] * 3,
        [[-1, False]],
        [[length]],
        [[]],
        [None],
        "segments",
    )
    draft.fields["segments"] = rng.choice(choices)


def _counts(draft: Draft) -> None:
    counts = (0, 1, draft.length - 1, draft.length, draft.length + 1, *INTS)
    draft.fields[draft.rng.choice(("prompt_tokens", "generated_tokens"))] = draft.rng.choice(counts)


def _budget(draft: Draft) -> None:
    rng = draft.rng
    if rng.random() < 0.5:
        draft.fields["max_new_tokens"] = rng.choice((0, 1, 2**32 - 1, *INTS))
    else:
        draft.fields["wall_ms"] = rng.choice((1, 1, 30, 2**31, 2**32 - 1, 2**63, *INTS))


def _owner(draft: Draft) -> None:
    rng = draft.rng
    draft.fields["qos"] = rng.choice((0, 3, 4, 255, 256, -1, None))
    draft.fields["exact"] = rng.choice((True, False, 1, None))
    draft.fields["salt"] = rng.choice((b"", b"\0", bytes(32), bytes(33), "salt", None))


def _files(draft: Draft) -> None:
    choices = (
        ["/nowhere/a"],
        [""],
        ["/nowhere/\0"],
        ["x" * 4097],
        ["\ud800"],
        ["a"] * 65,
        [1],
        "a",
    )
    draft.fields["files"] = draft.rng.choice(choices)


def _logprobs(draft: Draft) -> None:
    draft.sampling["logprobs"] = draft.rng.choice((1, 2, 21, 21, 22))


def _cut_short(draft: Draft) -> None:
    """Fewer or more fields than a submit has."""
    if draft.rng.random() < 0.5:
        names = list(draft.fields)
        for name in names[draft.rng.randrange(1, len(names)) :]:
            del draft.fields[name]
        draft.fields.setdefault("sampling", None)
    else:
        draft.fields["of a later version"] = struct.pack("<d", 1.0)


#: In the order in which they are done.
TWISTS: tuple[Callable[[Draft], None], ...] = (
    *(_length, _ids, _no_ids, _float, _valid_floats, _int, _bias, _forbid_all, _stop, _stop_ids),
    *(_constraint, _segments, _counts, _budget, _owner, _files, _logprobs, _cut_short),
)

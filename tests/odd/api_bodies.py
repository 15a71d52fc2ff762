"""Odd requests for the head's API as raw frames, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgpack

from bus.errors import DecodeError
from bus.messages.api import MARK, decode_body
from tests.fuzz.generate import change_bytes, junk, random_bytes, spoil
from tests.odd.constraints import odd_constraint
from tests.odd.submits import FLOATS, INTS, STOPS, VOCAB

Body = dict[str, Any]

#: Operations beside generating, with keys that some of them have.
_OTHERS = (
    *("hello", "ping", "cancel", "more", "attach", "session.create", "session.append"),
    *(
        "session.generate",
        "session.chat",
        "session.get",
        "session.finish",
        "put_blob",
        "has_blob",
        "tokenize",
    ),
    *("media.probe", "render"),
    *("detokenize", "status", "nodes", "models", "", "GENERATE", "generate\0", "no such"),
)
_FLOAT_KEYS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty")
_INT_KEYS = ("max_new", "max_wall_ms", "top_k", "seed", "min_tokens", "logprobs", "credit")


def odd_frames(rng: random.Random, name: bytes, model: str, window: int) -> list[bytes]:
    """The frames of one request with the id `name`, if it has one that can be read."""
    how = rng.randrange(20)
    body = _generation(rng, model, window) if how < 15 else _other(rng, model)
    body["id"] = name
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        changed = spoil(rng, body)
        body = changed if type(changed) is dict else body
    try:
        data: bytes = msgpack.packb(body, unicode_errors="surrogatepass")
    except (ValueError, OverflowError):
        data = msgpack.packb({"op": "generate", "id": name})
    if how == 18:
        data = change_bytes(rng, data)
    if how == 19:
        return rng.choice(
            (
                [random_bytes(rng)],
                [MARK, random_bytes(rng)],
                [b"SF2", data],
                [MARK, data, *[b"blob"] * rng.choice((1, 40))],
                [MARK],
                [b""],
            )
        )
    return [MARK, data]


def id_of(frames: list[bytes]) -> bytes | None:
    """The id that a reply will have; None where none can be read."""
    try:
        found = decode_body(frames).get("id")
    except DecodeError:
        return None
    return found if type(found) is bytes and 1 <= len(found) <= 64 else None


def _other(rng: random.Random, model: str) -> Body:
    body: Body = {"op": rng.choice(_OTHERS), "model": model}
    for key in ("about", "session", "key", "tokens", "text", "offset", "limit", "sha256", "length"):
        if rng.random() < 0.5:
            body[key] = junk(rng)
    return body


def _generation(rng: random.Random, model: str, window: int) -> Body:
    body: Body = {"op": "generate", "model": model, "max_new": rng.randrange(1, 12)}
    if rng.random() < 0.2:
        body |= {"op": "chat", "messages": [{"role": "user", "content": "Hello"}]}
    else:
        body["tokens"] = [32 + rng.randrange(95) for _ in range(rng.choice((1, 5, 70, 130)))]
    body |= {"temperature": rng.choice((0.0, 1.0)), "qos": rng.choice(("interactive", "agent"))}
    for twist in rng.sample(_TWISTS, rng.choice((1, 1, 2, 3))):
        twist(rng, body, window)
    return body


def _length(rng: random.Random, body: Body, window: int) -> None:
    lengths = (0, 1, window - 2, window - 1, window, window + 1, 20 * window)
    count = rng.choice(lengths)
    body |= {"op": "generate", "tokens": [40] * count}
    if rng.random() < 0.3:
        del body["tokens"]
        body["prompt"] = rng.choice(("", "a", "\0", "é" * count, "\ud800", "a\udcff", b"bytes", 5))


def _ids(rng: random.Random, body: Body, window: int) -> None:
    wrong: tuple[Any, ...] = (VOCAB, 2**32 - 1, 2**32, -1, 1.0, "1", None, [])
    body |= {"op": "generate", "tokens": [0, 256, 259, rng.choice(wrong)]}


def _messages(rng: random.Random, body: Body, window: int) -> None:
    body["op"] = "chat"
    body["messages"] = rng.choice(
        (
            [],
            [{}],
            [{"role": "user"}],
            [{"role": 5, "content": None}],
            [{"role": "user", "content": "<|im_end|>" * 9}],
            [{"role": "\ud800", "content": "\udfff"}],
            [junk(rng)],
            "hello",
        )
    )
    if rng.random() < 0.3:
        body["template"] = rng.choice(({}, {"messages": 5}, {"add_generation_prompt": junk(rng)}))


def _tools(rng: random.Random, body: Body, window: int) -> None:
    body |= {"op": "chat", "messages": [{"role": "user", "content": "Hello"}]}
    tool: Body = {"name": "look", "parameters": {"properties": {"at": {"type": "string"}}}}
    body["tools"] = rng.choice(
        (
            [tool],
            [{"type": "function", "function": tool}, {"name": "now"}],
            [tool, tool],
            [tool | {"name": rng.choice(("", "a b", "\ud800", "x" * 65, 5))}],
            [tool | {"parameters": rng.choice(({"not": {}}, {"type": "array"}, [], junk(rng)))}],
            [junk(rng)],
            junk(rng),
        )
    )
    named = rng.choice(("look", "now", "rm", None, 5))
    choices: tuple[Any, ...] = ("auto", "none", "required", "always", {"name": named}, junk(rng))
    body["tool_choice"] = rng.choice(choices)
    if rng.random() < 0.5:
        body["channels"] = rng.choice(("hermes", "llama3", "harmony", "plain", "", "none", 5))
    if rng.random() < 0.2:
        body["parallel_tool_calls"] = rng.choice((False, 0, None, "no"))
    if rng.random() < 0.3:
        result = {"role": "tool", "tool_call_id": rng.choice(("c", "", 5)), "content": junk(rng)}
        body["messages"] += [
            {"role": "assistant", "tool_calls": rng.choice(([], junk(rng)))},
            result,
        ]


def _float(rng: random.Random, body: Body, window: int) -> None:
    body[rng.choice((*_FLOAT_KEYS, "frequency_penalty"))] = rng.choice(FLOATS)


def _int(rng: random.Random, body: Body, window: int) -> None:
    body[rng.choice(_INT_KEYS)] = rng.choice(INTS)


def _bias(rng: random.Random, body: Body, window: int) -> None:
    keys = ("65", 65, "0", "259", str(VOCAB), "-1", "1.5", "", "x", "00065", 2**32, "\ud800")
    size = rng.choice((1, 2, 5))
    body["logit_bias"] = {rng.choice(keys): rng.choice(FLOATS) for _ in range(size)}
    if rng.random() < 0.2:
        body["logit_bias"] = rng.choice(({str(n): 1.0 for n in range(4097)}, [], "5", None))


def _stop(rng: random.Random, body: Body, window: int) -> None:
    count = rng.choice((0, 1, 2, 16, 17))
    stops: Any = [rng.choice(STOPS) for _ in range(count)]
    body["stop"] = rng.choice((stops, stops, rng.choice(STOPS), {}, b"a"))


def _stop_ids(rng: random.Random, body: Body, window: int) -> None:
    body["stop_ids"] = rng.choice(([0], list(range(256)), list(range(257)), [VOCAB], [-1], "a"))


def _constraint(rng: random.Random, body: Body, window: int) -> None:
    made = odd_constraint(rng)
    if type(made) is list and len(made) == 2 and type(made[0]) is str:
        body["constraint"] = {made[0]: made[1]}
    else:
        body["constraint"] = rng.choice((made, {}, {"regex": "a", "lark": "b"}))
    if rng.random() < 0.3:
        body["schema"] = rng.choice((True, {}, {"type": "integer"}, "{", 5, junk(rng)))


def _rest(rng: random.Random, body: Body, window: int) -> None:
    key, values = rng.choice(
        (
            ("qos", ("urgent", 0, None)),
            ("exact", (True, 1, None)),
            ("key", ("", "k" * 257, 5, "\ud800")),
            ("on_disconnect", ("keep", "stay", None)),
            ("blobs", ([bytes(32)], [b"short"], [bytes(32)] * 65, "x")),
            ("tools", ([], [{}], None)),
            ("model", ("", "none", "../toy", "x" * 300, None, 5)),
            ("n", (1, 2)),
        )
    )
    body[key] = rng.choice(values)


_TWISTS: tuple[Callable[[random.Random, Body, int], None], ...] = (
    *(_length, _ids, _messages, _float, _float, _int, _int, _bias, _stop, _stop_ids),
    *(_constraint, _rest, _tools),
)

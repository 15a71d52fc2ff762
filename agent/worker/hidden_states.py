"""Hidden states as they travel between stages: a row of numbers for each token, dense."""

from __future__ import annotations

from typing import Any

import numpy as np

from agent.worker.host_way import Hidden
from bus.errors import DecodeError, Internal

#: On the way, little-endian. `float16` halves the bytes, and is not bit for bit what was computed.
TYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2")}


def pack_hidden(hidden: Hidden, hidden_type: str) -> bytes:
    """The bytes of what a stage gave, float32 `[tokens, hidden]`.

    Raises:
        Internal: a number is too large for the type.
    """
    try:
        with np.errstate(over="raise"):
            return hidden.astype(TYPES[hidden_type], copy=False).tobytes()
    except FloatingPointError:
        raise Internal(
            f"hidden states of this model do not fit {hidden_type}; open its chains with float32"
        ) from None


def unpack_hidden(data: bytes, tokens: int, width: int, hidden_type: str) -> Hidden:
    """What goes into a stage, `[tokens, hidden]`, of the type that came.

    Raises:
        DecodeError: it is not of so many tokens.
    """
    kind = TYPES[hidden_type]
    expected = tokens * width * kind.itemsize
    if len(data) != expected:
        raise DecodeError(
            f"{len(data)} bytes of hidden states, and {tokens} tokens of {width} numbers in "
            f"{hidden_type} are {expected}; are the stages of one model?"
        )
    return np.frombuffer(data, kind).reshape(tokens, width)

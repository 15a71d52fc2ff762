"""Records of log-probabilities, as nodes send them, as the maps that clients get."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

#: Stands for what is no number; the worker gives this to tokens that can not come.
LEAST_LOGPROB = -9999.0


def token_logprobs(
    ids: Sequence[int], records: bytes, others: int, vocabulary: Sequence[bytes]
) -> list[dict[str, Any]]:
    """A `TokenLogprob` map for each token.

    Args:
        ids: the tokens.
        records: one a token, as in `TokenRun`.
        others: how many tokens each record has beside the chosen one.
        vocabulary: bytes of each id; ids beyond it stand for nothing and are left out.
    """
    layout = struct.Struct("<f" + "If" * others)
    return [
        _entry(token, numbers, others, vocabulary)
        for token, numbers in zip(ids, layout.iter_unpack(records), strict=True)
    ]


def _entry(
    token: int, numbers: Sequence[Any], others: int, vocabulary: Sequence[bytes]
) -> dict[str, Any]:
    chosen = _token(token, numbers[0], vocabulary)
    beside = [
        _token(other, logprob, vocabulary)
        for other, logprob in zip(numbers[1::2], numbers[2::2], strict=True)
        if other < len(vocabulary) and other != token
    ]
    ranked = sorted([chosen, *beside], key=lambda one: (-one["logprob"], one["token"]))
    top = ranked[:others]
    if others and chosen not in top:
        top.append(chosen)
    return {**chosen, "top": top}


def _token(token: int, logprob: float, vocabulary: Sequence[bytes]) -> dict[str, Any]:
    raw = vocabulary[token] if token < len(vocabulary) else b""
    text = raw.decode(errors="replace")
    finite = logprob if math.isfinite(logprob) else LEAST_LOGPROB
    made: dict[str, Any] = {"token": token, "text": text, "logprob": finite}
    if text.encode() != raw:
        made["raw"] = raw
    return made

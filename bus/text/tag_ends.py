"""Whether what is to stand behind a structural tag can come, or the tag takes it for its own.

The engine ends a tag's last terminal only where no more of it can come. A tag whose body goes on
with what `close` or `between` begins with is never left, so no answer could end.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from bus.text.constraint_errors import refused

#: Bytes of a tag that are tried, and CPU time for all tags, before one is let pass.
_MAX_STEPS = 500
_SEARCH_S = 1.0
_SEED = 1
#: What mostly leads to the end of a value, then what starts one that is not ended by itself.
_PREFERRED = (*b'"]})>', *b"1")

Spec = Mapping[str, Any]


def check_tag_ends(spec: Spec, matcher: Callable[[LLTokenizer, str], LLMatcher]) -> None:
    """Refuse a tag behind which neither `close` nor `between` can come.

    A tag of which no text is found soon is let pass.

    Args:
        spec: a source that was found to be well formed.
        matcher: makes one for a tokenizer and a source.

    Raises:
        ConstraintInvalid: with the tag and the text that it takes.
    """
    close, between = spec.get("close", ""), spec.get("between", "")
    if spec.get("stop_after_first"):
        between = ""
    if not close and not between:
        return
    start = time.thread_time()
    for number, tag in enumerate(spec["tags"]):
        # An end that is a terminal of its own is over where it is.
        own = tag["end"] and "regex" not in tag
        text = None if own else _text(tag, matcher)
        if text is not None:
            again = text + between.encode() + text
            _check(tag, number, "close", close, text + close.encode(), matcher)
            _check(tag, number, "between", between, again, matcher)
        if time.thread_time() - start > _SEARCH_S:
            return


def _check(
    tag: Spec,
    number: int,
    key: str,
    behind: str,
    text: bytes,
    matcher: Callable[[LLTokenizer, str], LLMatcher],
) -> None:
    if not behind:
        return
    alone = _alone(tag, **{key: behind, "stop_after_first": key == "close"})
    found = matcher(_bytes(), alone)
    if _takes(found, text) and found.is_accepting():
        return
    raise refused(
        f"structural.tags[{number}]",
        f"{key} {behind[:40]!r} can not come behind it, since the tag itself may go on with that; "
        f"make its body or its end such that it can not, or give another {key}",
    )


def _text(tag: Spec, matcher: Callable[[LLTokenizer, str], LLMatcher]) -> bytes | None:
    """A short text of a tag, if one is found."""
    found = matcher(_bytes(), _alone(tag, stop_after_first=True))
    made = bytearray(tag["begin"].encode())
    if not _takes(found, made):
        return None
    end: bytes = tag["end"].encode()
    choice = random.Random(_SEED)
    for _ in range(_MAX_STEPS):
        if found.is_accepting():
            return bytes(made)
        if end and found.validate_tokens(list(end)) == len(end):
            ended = found.deep_copy()
            if _takes(ended, end) and ended.is_accepting():
                return bytes(made + end)
        mask = int.from_bytes(found.compute_bitmask(), "little") & ((1 << 256) - 1)
        allowed = [byte for byte in range(256) if mask >> byte & 1]
        if not allowed:
            return None
        liked = [byte for byte in _PREFERRED if byte in allowed]
        byte = liked[0] if liked and choice.random() < 0.5 else choice.choice(allowed)
        made.append(byte)
        if not found.consume_token(byte):
            return None
    return None


def _takes(matcher: LLMatcher, text: bytes | bytearray) -> bool:
    taken: int = matcher.try_consume_tokens(list(text))
    return taken == len(text)


def _alone(tag: Spec, **more: object) -> str:
    return json.dumps({"tags": [tag], "only_tags": True, "at_least_one": True, **more})


@cache
def _bytes() -> LLTokenizer:
    """A tokenizer whose tokens are bytes, so that texts need not be told apart in tokens."""
    return LLTokenizer("byte")

"""Questions about translated patterns, answered by the grammar engine itself.

Python's `re` would read some of them in another way, and take no end of time with others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from bus.text.patterns import exact_character

#: In the engine's error when nothing can follow.
_NOTHING = "NoExtension"


def matches(pattern: str, text: str) -> bool | None:
    """Whether a pattern matches the whole text; None where that takes too much work.

    Args:
        pattern: from `bus.text.patterns.translate`.
        text: without half characters.
    """
    matcher = _started(pattern).deep_copy()
    if matcher.is_error():
        # It matches nothing at all, or is too large.
        return False if "empty" in matcher.get_error() else None
    ids = list(text.encode())
    taken = matcher.try_consume_tokens(ids) == len(ids)
    return None if matcher.is_error() else taken and matcher.is_accepting()


def has_others(patterns: Sequence[str], texts: Collection[str]) -> bool:
    """Whether one of the patterns matches a text that is none of these, as far as can be told.

    Args:
        patterns: from `bus.text.patterns.translate`.
        texts: without half characters.
    """
    if any(mark in pattern for pattern in patterns for mark in ("*", "+", ",}")):
        # Without end; characters of the pattern's own are written as code points.
        return True
    known = [text for text in texts if any(matches(pattern, text) for pattern in patterns)]
    if not known:
        return True
    found = "|".join(pattern.removeprefix("^").removesuffix("$") for pattern in patterns)
    taken = "|".join("".join(exact_character(ord(c)) for c in text) for text in known)
    grammar = f"start: FREE\nFREE: /(?:{found})/ & ~/(?:{taken})/"
    matcher = _matcher(LLMatcher.grammar_from_lark(grammar))
    matcher.compute_bitmask()
    return _NOTHING not in matcher.get_error()


@cache
def _bytes() -> LLTokenizer:
    return LLTokenizer("byte")


def _matcher(grammar: str) -> LLMatcher:
    limits = LLParserLimits(initial_lexer_fuel=100_000, step_lexer_fuel=20_000)
    return LLMatcher(_bytes(), grammar, log_level=0, limits=limits)


def _started(pattern: str) -> LLMatcher:
    return _matcher(LLMatcher.grammar_from_regex(pattern.removeprefix("^").removesuffix("$")))

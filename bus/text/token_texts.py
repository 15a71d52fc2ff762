"""Finds the texts of added tokens in a text, as a tokenizer does: leftmost first, then longest."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

#: Marks in a tree of characters that a text ends there.
_END = ""


def token_pattern(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds the leftmost of some texts, and of those that begin there the longest.

    Alternatives share their beginnings, so that thousands of them cost a search little.

    Args:
        texts: without empty ones; none at all match nothing.
    """
    texts = list(texts)
    try:
        return re.compile(_shared(texts))
    except RecursionError:
        # Some hundreds of them each begin the next one.
        return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))


def _shared(texts: Iterable[str]) -> str:
    """The pattern with shared beginnings."""
    tree: dict[str, Any] = {}
    for text in texts:
        place = tree
        for character in text:
            place = place.setdefault(character, {})
        place[_END] = {}
    return _source(tree) if tree else r"(?!)"


def _source(tree: dict[str, Any]) -> str:
    """The pattern of what may follow; the ways on come before the end, so the longest is found."""
    begin = ""
    # One way only: no alternatives, and no recursion along a text.
    while len(tree) == 1:
        ((character, tree),) = tree.items()
        if character == _END:
            return begin
        begin += re.escape(character)
    ways = [re.escape(key) + _source(below) for key, below in tree.items() if key != _END]
    joined = f"(?:{'|'.join(ways)})" if len(ways) > 1 or _END in tree else ways[0]
    return begin + joined + ("?" if _END in tree else "")

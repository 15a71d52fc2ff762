"""What a template writes behind the calls of an answer, before and with the results of its tools.

A marker can not stand for calls, since templates write results by the calls that they answer. So a
chat is rendered several times, with something changed in it: what the results begin alike with was
said before, and what other calls change is one.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from head.text.opened import common_start


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledChat:
    """A chat with calls and their results, as a template writes it.

    Attributes:
        whole: all of it.
        before: up to the calls, as the template ends it there.
        other_calls: the whole with other calls.
        other_results: the whole with other results.
    """

    whole: str
    before: str
    other_calls: str
    other_results: str


def after_calls(chat: CalledChat, special: Collection[str], ends: Collection[str]) -> str | None:
    """What follows the calls, from the control token on that ends the answer, if there is one.

    Args:
        chat: rendered.
        special: texts of control tokens.
        ends: those of them that end an answer.

    Returns:
        None where it can not be told from the calls.
    """
    whole = chat.whole
    called = common_start(whole, chat.other_calls)
    texts = "|".join(map(re.escape, sorted(filter(None, ends), key=len, reverse=True)))
    cut = _before_token(whole, common_start(whole, chat.before), special)
    if cut > called:
        end = re.search(rf"(?:{texts})\s*\Z", whole[:cut]) if texts else None
        return whole[end.start() if end is not None else cut :]
    # The template writes an answer in another way where it is the last message.
    told = common_start(whole, chat.other_results)
    end = re.search(texts, whole[called:told]) if texts else None
    return None if end is None else whole[called + end.start() :]


def _before_token(text: str, place: int, special: Collection[str]) -> int:
    """The place, or the beginning of the control token that it is inside of."""
    starts = (
        start
        for one in special
        for start in range(max(place - len(one) + 1, 0), place)
        if text.startswith(one, start)
    )
    return min(starts, default=place)

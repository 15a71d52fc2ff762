"""`session.ls`: an owner's sessions, the newest first, a page at a time.

Sessions of one request and sessions for several turns are named by one rising number, so a page
goes on below the last name of the page before, also when that session is gone meanwhile.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from bus.errors import Invalid
from bus.fields import Range
from bus.ids import SessionId
from bus.messages.api import QOS_NAMES, SessionIdField
from head.answers import Answer
from head.book import AnswerBook
from head.sessions import Session, state_of

MAX_PAGE = 1000
_NAME = re.compile(r"s-([0-9a-f]{1,16})-[0-9a-f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionListRequest:
    """`after` is the `next` of the page before."""

    limit: Annotated[int, Range(1, MAX_PAGE)] = 100
    after: SessionIdField | None = None


def session_page(
    asked: SessionListRequest, owner: str, made: Iterable[Session], book: AnswerBook, now: float
) -> dict[str, Any]:
    """`sessions`, one map each, and `next`: what to ask the next page with, None at the end.

    Raises:
        Invalid: `after` is no session's name.
    """
    below = _number(asked.after) if asked.after is not None else None
    if asked.after is not None and below is None:
        raise Invalid(
            f"after is {asked.after!r}, which is no session's name; give the next of a page",
            param="after",
        )
    found = (
        (number, each)
        for each in _all(owner, made, book)
        if (number := _number(_name(each)) or 0) < (below if below is not None else 1 << 64)
    )
    page = heapq.nlargest(asked.limit + 1, found, key=lambda pair: pair[0])
    shown = [_row(each, owner, book, now) for _, each in page[: asked.limit]]
    more = len(page) > asked.limit
    return {"sessions": shown, "next": shown[-1]["session"] if more else None}


def _all(owner: str, made: Iterable[Session], book: AnswerBook) -> Iterator[Session | Answer]:
    """Made sessions, and the answers that are no turn of one."""
    yield from (session for session in made if session.owner == owner)
    yield from (answer for answer in book if answer.owner == owner and not answer.is_turn)


def _name(each: Session | Answer) -> SessionId:
    return each.id if isinstance(each, Session) else each.session


def _number(name: SessionId) -> int | None:
    found = _NAME.fullmatch(name)
    return int(found[1], 16) if found else None


def _row(each: Session | Answer, owner: str, book: AnswerBook, now: float) -> dict[str, Any]:
    if isinstance(each, Session):
        answer = book.by_session(owner, each.id)
        begun_s, tokens, state = each.created_s, len(each.context), state_of(each)
    else:
        answer, begun_s, tokens, state = each, each.accepted_s, each.prompt_tokens, each.stage
    return {
        "session": _name(each),
        "model": each.model,
        "qos": QOS_NAMES[each.qos],
        "turns": isinstance(each, Session),
        "state": state,
        "finish": answer.finish if answer is not None else "",
        "tokens": tokens,
        "answer_tokens": len(answer.tokens) if answer is not None else 0,
        "node": answer.node if answer is not None else "",
        "age_s": round(max(now - begun_s, 0.0), 3),
    }

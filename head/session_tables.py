"""SQL of made sessions: each of their rows as a statement, and reading them back."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any

from bus.ids import NodeIdentity, PackedIds, SessionId, count_ids
from head.rows import (
    CutContent,
    EndSession,
    PurgeSessions,
    PutContent,
    PutParked,
    PutSession,
    StoredSession,
)


def _put_session(connection: sqlite3.Connection, row: PutSession) -> None:
    connection.execute(
        "INSERT INTO session (session, owner, model, qos, created_wall_s, parent)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (row.session, row.owner, row.model, row.qos, row.created_wall_s, row.parent),
    )


def _put_parked(connection: sqlite3.Connection, row: PutParked) -> None:
    connection.execute(
        "UPDATE session SET parked = ?, file_on = ? WHERE session = ?",
        (row.parked, row.file_on, row.session),
    )


def _put_content(connection: sqlite3.Connection, row: PutContent) -> None:
    connection.execute(
        "INSERT INTO content (session, first, answer, ids, tokenizer) VALUES (?, ?, ?, ?, ?)",
        (row.session, row.first, row.answer, row.ids, _digest_text(row.tokenizer_digest)),
    )


def _cut_content(connection: sqlite3.Connection, row: CutContent) -> None:
    connection.execute(
        "DELETE FROM content WHERE session = ? AND first >= ?", (row.session, row.first)
    )


def _end_session(connection: sqlite3.Connection, row: EndSession) -> None:
    connection.execute(
        "UPDATE session SET ended_wall_s = ? WHERE session = ?", (row.ended_wall_s, row.session)
    )


def _purge_sessions(connection: sqlite3.Connection, row: PurgeSessions) -> None:
    connection.executemany(
        "DELETE FROM session WHERE session = ?", [(session,) for session in row.sessions]
    )


def read_sessions(connection: sqlite3.Connection) -> tuple[StoredSession, ...]:
    """Every made session with its context, in order of its name.

    Raises:
        sqlite3.DatabaseError: the file is damaged, or a context has a gap.
    """
    contents: dict[SessionId, list[PutContent]] = {}
    for session, first, answer, ids, tokenizer in connection.execute(
        "SELECT session, first, answer, ids, tokenizer FROM content ORDER BY session, first"
    ):
        rows = contents.setdefault(session, [])
        if first != (rows[-1].first + count_ids(rows[-1].ids) if rows else 0):
            raise sqlite3.DatabaseError(f"session {session} has a gap in its context at {first}")
        rows.append(
            PutContent(
                session=session,
                first=first,
                ids=PackedIds(ids),
                answer=answer,
                tokenizer_digest=_digest(tokenizer),
            )
        )
    return tuple(
        StoredSession(
            session=session,
            owner=owner,
            model=model,
            qos=qos,
            created_wall_s=created,
            ended_wall_s=ended,
            contents=tuple(contents.get(session, ())),
            parent=parent,
            parked=bool(parked),
            file_on=NodeIdentity(file_on),
        )
        for session, owner, model, qos, created, ended, parent, parked, file_on in (
            connection.execute(
                "SELECT session, owner, model, qos, created_wall_s, ended_wall_s, parent, parked,"
                " file_on FROM session ORDER BY session"
            )
        )
    )


# A digest has 64 bits, and SQLite's integers have a sign: it is kept as people are told it.


def _digest_text(digest: int) -> str:
    return f"{digest:016x}" if digest else ""


def _digest(text: str) -> int:
    """The digest that `_digest_text` wrote.

    Raises:
        sqlite3.DatabaseError: it is none.
    """
    try:
        return int(text, 16) if text else 0
    except ValueError:
        raise sqlite3.DatabaseError(f"{text!r} is no digest of a tokenizer") from None


WRITERS: Mapping[type, Callable[[sqlite3.Connection, Any], None]] = {
    PutSession: _put_session,
    PutContent: _put_content,
    CutContent: _cut_content,
    PutParked: _put_parked,
    EndSession: _end_session,
    PurgeSessions: _purge_sessions,
}

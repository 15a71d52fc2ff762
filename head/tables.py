"""The rows of head/rows.py in the tables of head/schema.py, written and read back."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, cast

from bus.ids import Epoch, NodeIdentity, PackedIds, count_ids
from head import session_tables
from head.rows import (
    FINISHED,
    PLACED,
    SENT,
    ForgetNodeKey,
    MarkSent,
    PurgeAnswers,
    PutAccount,
    PutAnswer,
    PutFinish,
    PutGeneration,
    PutNodeKey,
    PutPeer,
    PutSetting,
    PutTokens,
    RaiseBoot,
    Row,
    StoredAnswer,
)

#: Pages that one purge gives back to the file system at most; the rest goes with the next.
VACUUM_PAGES = 2048

Write = Callable[[sqlite3.Connection, Any], None]


def write(connection: sqlite3.Connection, row: Row) -> None:
    """Apply one row, inside the caller's transaction.

    Raises:
        sqlite3.IntegrityError: an idempotency key of this owner is taken, tokens stand where
            others are, or their answer is not there.
    """
    _WRITERS[type(row)](connection, row)


def write_all(connection: sqlite3.Connection, rows: Iterable[Row]) -> None:
    """Apply rows in order, inside the caller's transaction; raises what `write` raises.

    Tokens, of which a busy head writes many in a row, go in together.
    """
    for kind, group in groupby(rows, type):
        if kind is PutTokens:
            connection.executemany(
                _INSERT_TOKENS, map(_token_values, cast("Iterable[PutTokens]", group))
            )
        else:
            for row in group:
                write(connection, row)


def _put_answer(connection: sqlite3.Connection, row: PutAnswer) -> None:
    connection.execute(
        "INSERT INTO answer (answer, session, owner, key, model, prompt, options, on_disconnect,"
        " created_wall_s, state, context_tokens) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.answer,
            row.session,
            row.owner,
            row.key,
            row.model,
            row.prompt,
            row.options,
            row.on_disconnect,
            row.created_wall_s,
            row.state,
            row.context_tokens,
        ),
    )


def _put_generation(connection: sqlite3.Connection, row: PutGeneration) -> None:
    connection.execute(
        "INSERT INTO generation (generation, answer, session, epoch, node, worker, numerics,"
        " first_offset, used_ms, replays) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.generation,
            row.answer,
            row.session,
            row.epoch,
            row.node,
            row.worker,
            row.numerics,
            row.first_offset,
            row.used_ms,
            row.replays,
        ),
    )
    _set_state(connection, row.answer, PLACED)


def _put_account(connection: sqlite3.Connection, row: PutAccount) -> None:
    connection.execute(
        "UPDATE answer SET cached_tokens = ?, replayed_tokens = ?, suspicion = ? WHERE answer = ?",
        (row.cached_tokens, row.replayed_tokens, row.suspicion, row.answer),
    )


def _mark_sent(connection: sqlite3.Connection, row: MarkSent) -> None:
    _set_state(connection, row.answer, SENT)


def _set_state(connection: sqlite3.Connection, answer: int, state: str) -> None:
    # An answer that is finished stays so, whatever was decided just before.
    connection.execute(
        "UPDATE answer SET state = ? WHERE answer = ? AND state != ?", (state, answer, FINISHED)
    )


_INSERT_TOKENS = (
    "INSERT INTO tokens (answer, first, generation, ids, logprobs, used_ms)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)


def _put_tokens(connection: sqlite3.Connection, row: PutTokens) -> None:
    connection.execute(_INSERT_TOKENS, _token_values(row))


def _token_values(row: PutTokens) -> tuple[object, ...]:
    return (row.answer, row.offset, row.generation, row.ids, row.logprobs, row.used_ms)


def _put_finish(connection: sqlite3.Connection, row: PutFinish) -> None:
    connection.execute(
        "UPDATE answer SET state = ?, finish = ?, error = ?, prompt_tokens = ?,"
        " cached_tokens = ?, completion_tokens = ?, finished_wall_s = ?, stop = ?,"
        " replayed_tokens = ? WHERE answer = ?",
        (
            FINISHED,
            row.finish,
            row.error,
            row.prompt_tokens,
            row.cached_tokens,
            row.completion_tokens,
            row.finished_wall_s,
            row.stop,
            row.replayed_tokens,
            row.answer,
        ),
    )


def _purge(connection: sqlite3.Connection, row: PurgeAnswers) -> None:
    connection.executemany(
        "DELETE FROM answer WHERE answer = ?", [(answer,) for answer in row.answers]
    )


def _put_peer(connection: sqlite3.Connection, row: PutPeer) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO peer VALUES (?, ?, ?, ?)",
        (row.public, row.identity, row.incarnation, row.hello_counter),
    )


def _put_node_key(connection: sqlite3.Connection, row: PutNodeKey) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO node_key (public, identity, state, host, changed_wall_s)"
        " VALUES (?, ?, ?, ?, ?)",
        (row.public, row.identity, row.state, row.host, row.changed_wall_s),
    )


def _forget_node_key(connection: sqlite3.Connection, row: ForgetNodeKey) -> None:
    connection.execute("DELETE FROM node_key WHERE public = ?", (row.public,))


def _put_setting(connection: sqlite3.Connection, row: PutSetting) -> None:
    connection.execute("INSERT OR REPLACE INTO setting VALUES (?, ?)", (row.name, row.value))


def _raise_boot(connection: sqlite3.Connection, row: RaiseBoot) -> None:
    connection.execute("UPDATE head SET boot = max(boot, ?)", (row.boot,))


_WRITERS: dict[type, Write] = {
    PutAnswer: _put_answer,
    PutGeneration: _put_generation,
    PutAccount: _put_account,
    MarkSent: _mark_sent,
    PutTokens: _put_tokens,
    PutFinish: _put_finish,
    PurgeAnswers: _purge,
    PutPeer: _put_peer,
    **session_tables.WRITERS,
    PutNodeKey: _put_node_key,
    ForgetNodeKey: _forget_node_key,
    PutSetting: _put_setting,
    RaiseBoot: _raise_boot,
}


def give_back_space(connection: sqlite3.Connection) -> None:
    """Shrink the file by what purges left free. Outside a transaction."""
    # A page a step, without columns: `execute` would stop after the first.
    connection.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")


# --- reading ----------------------------------------------------------------------------------

_GENERATION = "generation, node, epoch, worker, first_offset, numerics, used_ms, replays"
_NO_GENERATION = (None, None, Epoch(0), 0, 0, "", 0, 0)
_ANSWER = (
    "SELECT answer, session, owner, key, model, prompt, options, on_disconnect, created_wall_s,"
    " state, finish, error, prompt_tokens, cached_tokens, finished_wall_s,"
    " context_tokens, stop, replayed_tokens, suspicion FROM answer "
)


def read_answers(connection: sqlite3.Connection) -> tuple[StoredAnswer, ...]:
    """Every answer, in order of its number.

    Raises:
        sqlite3.DatabaseError: the file is damaged, or an answer's tokens have a gap.
    """
    tokens = _join(connection.execute(f"SELECT {_BATCH} FROM tokens ORDER BY answer, first"))
    latest = {
        answer: found
        for answer, *found in connection.execute(
            f"SELECT answer, {_GENERATION} FROM generation ORDER BY generation"
        )
    }
    return tuple(
        _answer(values, tokens.get(values[0], _NO_TOKENS), latest.get(values[0]))
        for values in connection.execute(_ANSWER + "ORDER BY answer")
    )


def read_peers(connection: sqlite3.Connection) -> tuple[PutPeer, ...]:
    """The newest Hello of every static key that was ever linked."""
    return tuple(
        PutPeer(
            public=public,
            identity=NodeIdentity(identity),
            incarnation=incarnation,
            hello_counter=hello_counter,
        )
        for public, identity, incarnation, hello_counter in connection.execute(
            "SELECT public, identity, incarnation, hello_counter FROM peer ORDER BY identity"
        )
    )


def read_node_keys(connection: sqlite3.Connection) -> tuple[PutNodeKey, ...]:
    """Every static key that an operator, or the way of enrolment, decided about."""
    return tuple(
        PutNodeKey(public=public, identity=identity, state=state, host=host, changed_wall_s=changed)
        for public, identity, state, host, changed in connection.execute(
            "SELECT public, identity, state, host, changed_wall_s FROM node_key ORDER BY identity"
        )
    )


def read_settings(connection: sqlite3.Connection) -> tuple[PutSetting, ...]:
    """What operators decided for good."""
    return tuple(
        PutSetting(name=name, value=value)
        for name, value in connection.execute("SELECT name, value FROM setting ORDER BY name")
    )


def find_answer(
    connection: sqlite3.Connection, where: str, values: tuple[str, ...]
) -> StoredAnswer | None:
    """The newest answer that fits a condition."""
    found = connection.execute(
        f"{_ANSWER} WHERE {where} ORDER BY answer DESC LIMIT 1", values
    ).fetchone()
    if found is None:
        return None
    number = found[0]
    tokens = _join(
        connection.execute(
            f"SELECT {_BATCH} FROM tokens WHERE answer = ? ORDER BY first", (number,)
        )
    )
    latest = connection.execute(
        f"SELECT {_GENERATION} FROM generation WHERE answer = ? ORDER BY generation DESC LIMIT 1",
        (number,),
    ).fetchone()
    return _answer(found, tokens.get(number, _NO_TOKENS), latest)


_BATCH = "answer, first, ids, logprobs, used_ms"
#: Ids and log-probabilities of an answer, and what of its wall budget was used at the last.
_Tokens = tuple[bytes, bytes, int]
_NO_TOKENS: _Tokens = (b"", b"", 0)


def _join(batches: Iterable[tuple[int, int, bytes, bytes, int]]) -> dict[int, _Tokens]:
    """All ids of each answer, and their log-probabilities, in order."""
    parts: dict[int, list[_Tokens]] = {}
    lengths: dict[int, int] = {}
    for answer, first, ids, logprobs, used_ms in batches:
        if first != lengths.get(answer, 0):
            raise sqlite3.DatabaseError(f"answer {answer} has a gap in its tokens at {first}")
        parts.setdefault(answer, []).append((ids, logprobs, used_ms))
        lengths[answer] = first + count_ids(ids)
    return {
        answer: (
            b"".join(ids for ids, _, _ in batch),
            b"".join(logprobs for _, logprobs, _ in batch),
            batch[-1][2],
        )
        for answer, batch in parts.items()
    }


def _answer(values: Sequence[Any], tokens: _Tokens, latest: Sequence[Any] | None) -> StoredAnswer:
    (
        answer,
        session,
        owner,
        key,
        model,
        prompt,
        options,
        on_disconnect,
        created_wall_s,
        state,
        finish,
        error,
        prompt_tokens,
        cached_tokens,
        finished_wall_s,
        context_tokens,
        stop,
        replayed_tokens,
        suspicion,
    ) = values
    ids, logprobs, used_ms = tokens
    generation, node, epoch, worker, first_offset, numerics, placed_ms, replays = (
        latest or _NO_GENERATION
    )
    return StoredAnswer(
        answer=answer,
        session=session,
        owner=owner,
        key=key,
        model=model,
        prompt=PackedIds(prompt),
        options=options,
        on_disconnect=on_disconnect,
        created_wall_s=created_wall_s,
        state=state,
        tokens=PackedIds(ids),
        logprobs=logprobs,
        finish=finish,
        error=error,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        finished_wall_s=finished_wall_s,
        generation=generation,
        node=node,
        context_tokens=context_tokens,
        epoch=epoch,
        worker=worker,
        first_offset=first_offset,
        numerics=numerics,
        stop=stop,
        replayed_tokens=replayed_tokens,
        suspicion=suspicion,
        used_ms=max(used_ms, placed_ms),
        replays=bool(replays),
    )

"""The store's tables and how an older file becomes a newer one.

`MIGRATIONS[n]` brings a file from version n to n + 1; version 1 is made from nothing. A migration
is never changed once it was released: files that it made are out there. Each runs in one
transaction with the row that records it, after the file was backed up.

Times named `wall` are seconds since 1970, for people; everything else about time is derived.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bus.errors import StartError
from bus.version import __version__
from head.store_copy import copy_whole, read_facts


@dataclass(frozen=True, slots=True)
class Migration:
    """SQL statements that lead to the next version, and what they are for."""

    purpose: str
    statements: tuple[str, ...]


_FIRST = (
    """CREATE TABLE schema_version (
        version INTEGER PRIMARY KEY,
        purpose TEXT NOT NULL,
        software TEXT NOT NULL,
        applied_wall_s REAL NOT NULL
    )""",
    # `one` keeps it to a single row.
    """CREATE TABLE head (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        head_id TEXT NOT NULL,
        boot INTEGER NOT NULL
    )""",
    "INSERT INTO head (one, head_id, boot) VALUES (1, lower(hex(randomblob(16))), 0)",
    """CREATE TABLE answer (
        answer INTEGER PRIMARY KEY,
        session TEXT NOT NULL,
        owner TEXT NOT NULL,
        key TEXT,
        model TEXT NOT NULL,
        prompt BLOB NOT NULL,
        options BLOB NOT NULL,
        on_disconnect TEXT NOT NULL,
        created_wall_s REAL NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('admitted', 'placed', 'sent', 'finished')),
        finish TEXT NOT NULL DEFAULT '',
        error BLOB NOT NULL DEFAULT x'',
        prompt_tokens INTEGER NOT NULL DEFAULT 0,
        cached_tokens INTEGER NOT NULL DEFAULT 0,
        completion_tokens INTEGER NOT NULL DEFAULT 0,
        finished_wall_s REAL NOT NULL DEFAULT 0
    )""",
    "CREATE UNIQUE INDEX answer_by_key ON answer (owner, key) WHERE key IS NOT NULL",
    "CREATE INDEX answer_by_session ON answer (session)",
    """CREATE TABLE generation (
        generation INTEGER PRIMARY KEY,
        answer INTEGER NOT NULL REFERENCES answer ON DELETE CASCADE,
        session TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        node TEXT NOT NULL,
        worker INTEGER NOT NULL,
        numerics TEXT NOT NULL,
        first_offset INTEGER NOT NULL
    )""",
    "CREATE INDEX generation_by_answer ON generation (answer)",
    # One row a batch, found by its place in the answer: the key is the table.
    """CREATE TABLE tokens (
        answer INTEGER NOT NULL REFERENCES answer ON DELETE CASCADE,
        first INTEGER NOT NULL,
        generation INTEGER NOT NULL,
        ids BLOB NOT NULL,
        PRIMARY KEY (answer, first)
    ) WITHOUT ROWID""",
    """CREATE TABLE peer (
        public BLOB PRIMARY KEY,
        identity TEXT NOT NULL,
        incarnation INTEGER NOT NULL,
        hello_counter INTEGER NOT NULL
    ) WITHOUT ROWID""",
)

_SESSIONS = (
    """CREATE TABLE session (
        session TEXT PRIMARY KEY,
        owner TEXT NOT NULL,
        model TEXT NOT NULL,
        qos INTEGER NOT NULL,
        created_wall_s REAL NOT NULL,
        ended_wall_s REAL NOT NULL DEFAULT 0
    ) WITHOUT ROWID""",
    """CREATE TABLE content (
        session TEXT NOT NULL REFERENCES session ON DELETE CASCADE,
        first INTEGER NOT NULL,
        answer INTEGER NOT NULL,
        ids BLOB NOT NULL,
        PRIMARY KEY (session, first)
    ) WITHOUT ROWID""",
    "ALTER TABLE answer ADD COLUMN context_tokens INTEGER NOT NULL DEFAULT 0",
    """CREATE TABLE node_key (
        public BLOB PRIMARY KEY,
        identity TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('pending', 'enrolled', 'revoked')),
        host TEXT NOT NULL,
        changed_wall_s REAL NOT NULL
    ) WITHOUT ROWID""",
    """CREATE TABLE setting (
        name TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) WITHOUT ROWID""",
)

_LOGPROBS = (
    "ALTER TABLE tokens ADD COLUMN logprobs BLOB NOT NULL DEFAULT x''",
    "ALTER TABLE answer ADD COLUMN stop TEXT NOT NULL DEFAULT ''",
)

_PARKING = (
    "ALTER TABLE session ADD COLUMN parent TEXT",
    "ALTER TABLE session ADD COLUMN parked INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE session ADD COLUMN file_on TEXT NOT NULL DEFAULT ''",
)

_ACCOUNTS = (
    "ALTER TABLE answer ADD COLUMN replayed_tokens INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE answer ADD COLUMN suspicion BLOB NOT NULL DEFAULT x''",
    "ALTER TABLE generation ADD COLUMN used_ms INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE generation ADD COLUMN replays INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE tokens ADD COLUMN used_ms INTEGER NOT NULL DEFAULT 0",
)

_TOKENIZERS = ("ALTER TABLE content ADD COLUMN tokenizer TEXT NOT NULL DEFAULT ''",)

MIGRATIONS: Sequence[Migration] = (
    Migration("answers, generations, tokens and peers", _FIRST),
    Migration("sessions with several turns, enrolled keys and settings", _SESSIONS),
    Migration("log-probabilities and stop strings", _LOGPROBS),
    Migration("sessions that are parked or forked", _PARKING),
    Migration("what failures left of answers, and used budgets", _ACCOUNTS),
    Migration("the tokenizer of a session's tokens", _TOKENIZERS),
)


def migrate(
    connection: sqlite3.Connection, file: Path, migrations: Sequence[Migration] = MIGRATIONS
) -> None:
    """Bring an existing file to the newest version; a copy of what it was stays beside it.

    Raises:
        StartError: a newer program wrote it, it could not be backed up, or a migration failed;
            the file is then as it was before that one.
        sqlite3.DatabaseError: it is none of ours.
    """
    version = read_facts(connection).schema
    if version > len(migrations):
        raise StartError(
            f"the store {file} has schema version {version} and this program knows up to "
            f"{len(migrations)}: a newer one wrote it; install that one again, or put back the "
            f"copy named {backup_path(file, len(migrations)).name} if there is one"
        )
    if version < len(migrations):
        _back_up(connection, file, version)
    for number in range(version, len(migrations)):
        try:
            apply(connection, number + 1, migrations[number])
        except sqlite3.Error as error:
            raise StartError(
                f"the store {file} could not be brought to schema version {number + 1} ({error}); "
                "it is as before; see that the disk has room, or install the program that wrote it"
            ) from error


def backup_path(file: Path, version: int) -> Path:
    """Where the copy of a file of `version` is kept when it is migrated."""
    return file.with_name(f"{file.name}.v{version}.backup")


def _back_up(connection: sqlite3.Connection, file: Path, version: int) -> None:
    target = backup_path(file, version)
    try:
        copy_whole(connection, target)
    except OSError as error:
        raise StartError(
            f"the store {file} has to be brought to a newer schema and {target} could not be "
            f"written before that ({error.strerror}); see that the disk has room"
        ) from error


def apply(connection: sqlite3.Connection, version: int, migration: Migration) -> None:
    """Run one migration and record it, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in migration.statements:
            connection.execute(statement)
        connection.execute(
            "INSERT INTO schema_version VALUES (?, ?, ?, ?)",
            (version, migration.purpose, __version__, time.time()),
        )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise

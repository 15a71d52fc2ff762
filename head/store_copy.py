"""A copy of a store: one moment of it, whole or not there at all, and marked as a copy.

The mark (SQLite's user_version) tells a head that starts on the file that what it knows is of an
earlier time, however the file came there: see head/put_back.py.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bus.errors import Internal, StoreCorrupt

#: The user_version of a copy; a store that a head works on has 0.
COPY_MARK = 1
#: Pages copied at a time (4 MiB); between two the copy can be given up.
STEP_PAGES = 1024
#: Faults that a check of the file names at most.
_FAULTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """What a store's file says of itself.

    Attributes:
        schema: its schema version.
        head: the id of the head that it is of.
        boot: the number of that head's last start in it.
    """

    schema: int
    head: str
    boot: int


def read_facts(connection: sqlite3.Connection) -> StoreFacts:
    """What a file says of itself.

    Raises:
        sqlite3.DatabaseError: it is no store of a head.
    """
    (schema,) = connection.execute("SELECT max(version) FROM schema_version").fetchone()
    row = connection.execute("SELECT head_id, boot FROM head").fetchone()
    if not isinstance(schema, int) or row is None:
        raise sqlite3.DatabaseError("its table of schema versions or of its head is empty")
    return StoreFacts(schema=schema, head=row[0], boot=row[1])


def find_damage(connection: sqlite3.Connection) -> str:
    """The first faults of a file's pages and rows (quick_check); empty when it is sound."""
    rows = connection.execute(f"PRAGMA quick_check({_FAULTS})").fetchall()
    found = [str(fault) for (fault,) in rows]
    return "" if found == ["ok"] else "; ".join(found).replace("\n", " ")


def copy_whole(
    source: sqlite3.Connection, target: Path, *, go_on: Callable[[], bool] = lambda: True
) -> StoreFacts:
    """Copy a store as it is at this moment into a file (0600, on disk when this returns).

    A head that writes meanwhile is not held up. A file of that name is replaced.

    Args:
        go_on: asked between parts of the copy.

    Raises:
        sqlite3.Error: the source can not be read, or the copy not be written.
        OSError: the copy can not be written.
        StoreCorrupt: the source is damaged.
        Internal: `go_on` said no.
    """
    unfinished = target.with_name(target.name + ".part")
    unfinished.unlink(missing_ok=True)
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600))
    try:
        facts = _fill(source, unfinished, go_on)
        sync(unfinished)
        unfinished.replace(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync(target.parent)
    return facts


def _fill(source: sqlite3.Connection, unfinished: Path, go_on: Callable[[], bool]) -> StoreFacts:
    def between(status: int, remaining: int, total: int) -> None:
        if not go_on():
            raise Internal("the head ends, so this backup was given up; make another")

    copy = sqlite3.connect(unfinished, isolation_level=None, check_same_thread=False)
    try:
        # One transaction holds the moment; else every commit would begin the copy anew.
        source.execute("BEGIN")
        try:
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
            source.backup(copy, pages=STEP_PAGES, progress=between)
        finally:
            source.execute("ROLLBACK")
        copy.execute("PRAGMA journal_mode = DELETE")
        copy.execute(f"PRAGMA user_version = {COPY_MARK}")
        facts = read_facts(copy)
        if damage := find_damage(copy):
            raise StoreCorrupt(
                f"the store is damaged ({damage}), so no copy was made; put an earlier backup in "
                "its place with `sfctl restore FILE`"
            )
        return facts
    finally:
        copy.close()


def sync(path: Path) -> None:
    """Bring a file, or a folder's list of files, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

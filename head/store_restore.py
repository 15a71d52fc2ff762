"""Puts a backup in the place of a store, while no head works on it.

    FILE ──copy, check──▶ head.db.restoring.part ──whole──▶ head.db.restoring
    head.db, its log ──▶ replaced/<time>/                     ──▶ head.db

While `head.db.restoring` is there no head starts, so one that is interrupted is never a silent
fresh start; it is done again, and may be given that file. What was there is moved, never deleted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bus.errors import Invalid, NotFound, StartError, StorageFull, StoreCorrupt
from bus.state import private_folder
from head.enrolment import REVOKED
from head.log_mark import log_file, mark_file
from head.rows import PutNodeKey
from head.schema import MIGRATIONS, apply
from head.store_copy import StoreFacts, copy_whole, read_facts, sync
from head.store_file import FILE, RESTORING, connect
from head.store_folder import claim_folder
from head.tables import read_node_keys, write

REPLACED = "replaced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What was done.

    Attributes:
        facts: of the backup.
        moved_to: where the former store lies now; None when there was none.
        revoked: identities of nodes that were revoked since, and stay so.
        knows_revoked: whether the former store could be asked for them.
    """

    facts: StoreFacts
    moved_to: Path | None
    revoked: tuple[str, ...]
    knows_revoked: bool


def restore(folder: Path, source: Path, *, wall_s: float, force: bool = False) -> Restored:
    """Put a backup in place.

    Args:
        folder: of the store.
        source: a file that `sfctl backup` made, or a store's file.
        wall_s: this moment, for the name of where the former store goes.
        force: also one of another head.

    Raises:
        StartError: a head works on the store, or the folder can not be used.
        NotFound: there is no such file.
        StoreCorrupt: it is no store, or damaged.
        Invalid: it is of another head.
        StorageFull: it can not be copied.
    """
    with claim_folder(folder):
        part = folder / f"{RESTORING}.part"
        store = folder / FILE
        with _said_of(source, folder):
            facts = _take_copy(source, part)
        # One that was interrupted has moved the store away, and its copy knows what that knew.
        present, keys = _look(store if store.is_file() else folder / RESTORING)
        if present is not None and present.head != facts.head and not force:
            part.unlink()
            raise Invalid(
                f"{source} is of head {facts.head} and the store {store} of head {present.head}; "
                "if it is to be that head's from now on, add --force"
            )
        known = keys if present is not None and present.head == facts.head else None
        with _said_of(source, folder):
            revoked = _carry_over(part, present.boot if present else 0, known or ())
        part.replace(folder / RESTORING)
        sync(folder)
        moved_to = _move_away(store, wall_s)
        (folder / RESTORING).replace(store)
        sync(folder)
        return Restored(
            facts=facts, moved_to=moved_to, revoked=revoked, knows_revoked=known is not None
        )


def _take_copy(source: Path, part: Path) -> StoreFacts:
    """Copy the backup into the store's folder, once it is known to be one."""
    if not source.is_file():
        raise NotFound(f"there is no file {source}; give one that `sfctl backup` made")
    # What one that was interrupted left would be mixed into this copy.
    part.with_name(f"{part.name}-journal").unlink(missing_ok=True)
    connection = connect(source, read_only=True)
    try:
        facts = read_facts(connection)
        if facts.schema > len(MIGRATIONS):
            raise StartError(
                f"{source} has schema version {facts.schema} and this program knows up to "
                f"{len(MIGRATIONS)}: a newer one wrote it; install that one"
            )
        return copy_whole(connection, part)
    finally:
        connection.close()


@contextmanager
def _said_of(source: Path, folder: Path) -> Iterator[None]:
    """Say of what goes wrong which file it is about, and what to do."""
    try:
        yield
    except StoreCorrupt as error:
        raise StoreCorrupt(f"{source} is damaged ({error.message}); give another backup") from error
    except OSError as error:
        raise StorageFull(
            f"{source} can not be copied to {folder} ({error.strerror}); see that the disk there "
            "has room"
        ) from error
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL:
            raise StorageFull(
                f"{source} can not be copied to {folder} ({error}); free some space there"
            ) from error
        raise StoreCorrupt(
            f"{source} is no store of a head, or damaged ({error}); give a file that `sfctl "
            "backup` made"
        ) from error


def _look(store: Path) -> tuple[StoreFacts | None, tuple[PutNodeKey, ...] | None]:
    """What the present store says, as far as it can be read, and the keys that it knows."""
    if not store.is_file():
        return None, None
    facts = None
    try:
        connection = connect(store, read_only=True)
        try:
            facts = read_facts(connection)
            return facts, read_node_keys(connection)
        finally:
            connection.close()
    except sqlite3.Error:
        # It is being replaced, most likely for that.
        return facts, None


def _carry_over(part: Path, boot: int, keys: tuple[PutNodeKey, ...]) -> tuple[str, ...]:
    """Let the backup know how many starts there were, and keep out who was shut out after it."""
    connection = connect(part)
    try:
        for version in range(read_facts(connection).schema, len(MIGRATIONS)):
            apply(connection, version + 1, MIGRATIONS[version])
        known = {key.public for key in read_node_keys(connection) if key.state == REVOKED}
        added = [key for key in keys if key.state == REVOKED and key.public not in known]
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE head SET boot = max(boot, ?)", (boot,))
        for key in added:
            write(connection, key)
        connection.execute("COMMIT")
        return tuple(key.identity for key in added)
    finally:
        connection.close()
        sync(part)


def _move_away(store: Path, wall_s: float) -> Path | None:
    """Move what was there into a folder of its own; gives which."""
    there = [file for file in (store, log_file(store), mark_file(store)) if file.exists()]
    store.with_name(f"{store.name}-shm").unlink(missing_ok=True)
    if not there:
        return None
    name = f"{datetime.fromtimestamp(wall_s, UTC):%Y%m%dT%H%M%SZ}"
    aside = private_folder(store.parent / REPLACED)
    number = 1
    while (aside / name).exists():
        number += 1
        name = f"{name.partition('-')[0]}-{number}"
    target = private_folder(aside / name)
    for file in there:
        file.replace(target / file.name)
    sync(target)
    sync(aside)
    sync(store.parent)
    return target if store.name in {file.name for file in there} else None

"""The durable store: what the head knows, in one SQLite file behind one writer thread.

The loop hands over `Persist`s and goes on; the writer commits all that wait in one transaction as
soon as the last commit returned, and wakes the loop through a descriptor that it polls. There is
no timer: one request alone waits for one commit, a burst shares one.

A commit that fails is the end: nothing after it is written, `completed` raises, and the head
exits and starts again from disk. Every commit checks the boot number that this head wrote at its
start, so a second head that got hold of the file stops the first one.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from bus.errors import Internal, StartError, StoreCorrupt, SuperfluidError
from bus.file_lock import FileLock
from bus.ids import SessionId
from head.effects import Persist
from head.rows import PurgeAnswers, PurgeSessions, StoredAnswer, StoredState
from head.schema import MIGRATIONS, Migration, apply, migrate, sync
from head.store_folder import claim_folder
from head.tables import (
    find_answer,
    give_back_space,
    read_answers,
    read_node_keys,
    read_peers,
    read_sessions,
    read_settings,
    write,
)

FILE = "head.db"
#: Boot numbers are the high half of ids that SQLite keeps as signed 64-bit numbers.
MAX_BOOT = 2**31 - 1
#: How long another program (a backup) may hold the file before that is a fault.
BUSY_TIMEOUT_S = 5.0

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class Store:
    """The open store. `submit`, `completed` and the reads belong to the loop's thread.

    Invariants: lsns are committed in the order submitted; `completed` never names one that is not
    on disk; after an error nothing is committed any more.
    """

    def __init__(
        self, file: Path, connection: sqlite3.Connection, boot: int, lock: FileLock
    ) -> None:
        self._file = file
        self._connection = connection
        self._boot = boot
        self._lock = lock
        self._reader = _connect(file)
        self._reader.execute("PRAGMA query_only = ON")
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._changed = threading.Condition()
        self._waiting: deque[Persist] = deque()
        self._durable = 0
        self._closing = False
        self._error: SuperfluidError | None = None
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls, folder: Path, *, boot_above: int = 0, migrations: Sequence[Migration] = MIGRATIONS
    ) -> tuple[Self, StoredState]:
        """Open the store in `folder`, or make it, and raise the boot number.

        Args:
            boot_above: the new boot number will be above this (what nodes report).

        Raises:
            StoreCorrupt: it can not be read; nothing was changed.
            StartError: the folder can not be used, another head has it, or a newer program
                wrote the store.
        """
        lock = claim_folder(folder)
        file = folder / FILE
        connection: sqlite3.Connection | None = None
        try:
            _make_when_missing(file, migrations)
            connection = _connect(file)
            migrate(connection, file, migrations)
            connection.execute("PRAGMA journal_mode = WAL")
            # Before the boot number is raised: a file that can not be read is left as it is.
            state = StoredState(
                boot=0,
                head_id="",
                answers=read_answers(connection),
                peers=read_peers(connection),
                sessions=read_sessions(connection),
                node_keys=read_node_keys(connection),
                settings=read_settings(connection),
            )
            head_id, boot = _raise_boot(connection, boot_above)
            store = cls(file, connection, boot, lock)
        except BaseException as error:
            if connection is not None:
                connection.close()
            lock.close()
            if isinstance(error, sqlite3.Error):
                raise _start_error(file, error) from error
            raise
        return store, replace(state, boot=boot, head_id=head_id)

    def submit(self, persist: Persist) -> None:
        """Hand over what is to be committed; returns at once.

        Raises:
            SuperfluidError: an earlier commit failed.
            Internal: the store is closed.
        """
        with self._changed:
            if self._error is not None:
                raise self._error
            if self._closing:
                raise Internal("the store is closed; nothing can be committed any more")
            self._waiting.append(persist)
            self._changed.notify()

    def fileno(self) -> int:
        """Becomes readable when `completed` has news."""
        return self._wake

    def completed(self) -> int:
        """The lsn up to which all is on disk.

        Raises:
            SuperfluidError: a commit failed; the head must end.
        """
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass
        with self._changed:
            if self._error is not None:
                raise self._error
            return self._durable

    def read_by_key(self, owner: str, key: str) -> StoredAnswer | None:
        """The committed answer of an owner's idempotency key."""
        return self._read("owner = ? AND key = ?", (owner, key))

    def read_by_session(self, session: SessionId) -> StoredAnswer | None:
        """The newest committed answer of a session."""
        return self._read("session = ?", (session,))

    def close(self) -> None:
        """Commit what waits and let the folder go. May be called again."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._reader.close()
        self._connection.close()
        os.close(self._wake)
        self._lock.close()

    def _read(self, where: str, values: tuple[str, ...]) -> StoredAnswer | None:
        try:
            # One transaction: an answer and its tokens are of one moment.
            self._reader.execute("BEGIN")
            try:
                return find_answer(self._reader, where, values)
            finally:
                self._reader.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise _run_error(self._file, error) from error

    # --- the writer's thread ------------------------------------------------------------------

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                self._commit(batch)
            except sqlite3.Error as error:
                self._settle(error=_run_error(self._file, error))
                return
            except SuperfluidError as error:
                self._settle(error=error)
                return
            except Exception as error:  # noqa: BLE001 - any fault here must stop the head
                self._settle(error=Internal(f"the store's writer failed: {error!r}"))
                return
            self._settle(durable=batch[-1].lsn)
            self._shrink(batch)

    def _next_batch(self) -> list[Persist]:
        """All that waits; nothing when the store closes."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            batch = list(self._waiting)
            self._waiting.clear()
            return batch

    def _commit(self, batch: list[Persist]) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            (boot,) = connection.execute("SELECT boot FROM head").fetchone()
            if boot != self._boot:
                raise Internal(
                    f"another head (boot {boot}) writes the store {self._file}; this one (boot "
                    f"{self._boot}) ends; see that only one head runs on this state folder"
                )
            for persist in batch:
                for row in persist.rows:
                    write(connection, row)
            (boot,) = connection.execute("SELECT boot FROM head").fetchone()
            connection.execute("COMMIT")
            self._boot = boot
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _settle(self, *, durable: int | None = None, error: SuperfluidError | None = None) -> None:
        with self._changed:
            if durable is not None:
                self._durable = durable
            self._error = error
            os.eventfd_write(self._wake, 1)

    def _shrink(self, batch: list[Persist]) -> None:
        if any(
            isinstance(row, PurgeAnswers | PurgeSessions)
            for persist in batch
            for row in persist.rows
        ):
            try:
                give_back_space(self._connection)
            except sqlite3.Error as error:
                self._settle(error=_run_error(self._file, error))


def _connect(file: Path) -> sqlite3.Connection:
    """A connection to an existing file."""
    connection = sqlite3.connect(
        f"{file.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        # The writer's thread uses the one that was opened in the loop's, and no other does then.
        check_same_thread=False,
    )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _make_when_missing(file: Path, migrations: Sequence[Migration]) -> None:
    """Make a new file whole under another name first: a file that is there was once complete."""
    if file.exists():
        return
    left = [name for name in (f"{FILE}-wal", f"{FILE}-journal") if (file.parent / name).exists()]
    if left:
        raise StoreCorrupt(
            f"the store {file} is gone, but its {left[0]} is there; put the file back, or move "
            f"{left[0]} away to begin with an empty store"
        )
    unfinished = file.with_name(FILE + ".new")
    for suffix in ("", "-wal", "-shm", "-journal"):
        unfinished.with_name(unfinished.name + suffix).unlink(missing_ok=True)
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    connection = _connect(unfinished)
    try:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        for version, migration in enumerate(migrations, start=1):
            apply(connection, version, migration)
    finally:
        connection.close()
    sync(unfinished)
    unfinished.replace(file)
    sync(file.parent)


def _raise_boot(connection: sqlite3.Connection, above: int) -> tuple[str, int]:
    """Commit a boot number above all earlier ones."""
    connection.execute("BEGIN IMMEDIATE")
    row = connection.execute("SELECT head_id, boot FROM head").fetchone()
    if row is None:
        raise sqlite3.DatabaseError("its row for the head is gone")
    head_id, stored = row
    boot = max(stored, above) + 1
    if boot > MAX_BOOT:
        raise StartError(f"boot number {boot} is above {MAX_BOOT}; a node or the store is damaged")
    connection.execute("UPDATE head SET boot = ?", (boot,))
    connection.execute("COMMIT")
    return head_id, boot


def _start_error(file: Path, error: sqlite3.Error) -> StartError:
    code = getattr(error, "sqlite_errorcode", None)
    # Errors without a code are our own findings; OperationalError without damage is the system's.
    if code is None or (code & 0xFF) in _DAMAGE or code == sqlite3.SQLITE_ERROR:
        return StoreCorrupt(
            f"the store {file} can not be read ({error}); put a copy of it in its place, or move "
            "it away to begin with an empty one (its sessions and answers are lost then)"
        )
    return StartError(
        f"the store {file} can not be opened ({error}); see that the disk has room, the folder "
        "can be written and no other program uses the file"
    )


def _run_error(file: Path, error: sqlite3.Error) -> SuperfluidError:
    if (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _DAMAGE:
        return StoreCorrupt(
            f"the store {file} is damaged ({error}); stop the head and put a copy in its place"
        )
    return Internal(
        f"the store {file} could not commit ({error}); the head ends and starts again from what "
        "is on disk; see that the disk has room"
    )

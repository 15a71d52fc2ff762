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
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from bus.errors import Internal, StartError, SuperfluidError
from bus.file_lock import FileLock
from bus.ids import SessionId
from head.effects import Persist
from head.log_mark import LogMark, has_frames, lineage, log_file, mark_file
from head.put_back import SETTING, boot_above_copy
from head.reserve import Reserve
from head.rows import (
    PurgeAnswers,
    PurgeSessions,
    PutSetting,
    RaiseBoot,
    StoredAnswer,
    StoredState,
)
from head.schema import MIGRATIONS, Migration, migrate
from head.session_tables import read_sessions
from head.store_copy import read_facts
from head.store_file import (
    BUSY_TIMEOUT_S,
    FILE,
    check_copy,
    check_file,
    checkpoint,
    connect,
    make_when_missing,
    run_error,
    start_error,
)
from head.store_folder import claim_folder
from head.tables import (
    find_answer,
    give_back_space,
    read_answers,
    read_node_keys,
    read_peers,
    read_settings,
    write,
    write_all,
)

#: Boot numbers are the high half of ids that SQLite keeps as signed 64-bit numbers.
MAX_BOOT = 2**31 - 1
#: SQLite asks after so many steps of a read whether it has to end.
_STEPS_PER_LOOK = 10_000


class Store:
    """The open store. `submit`, `completed` and the reads belong to the loop's thread.

    Invariants: lsns are committed in the order submitted; `completed` never names one that is not
    on disk; after an error nothing is committed any more.
    """

    def __init__(
        self,
        file: Path,
        connection: sqlite3.Connection,
        boot: int,
        lock: FileLock,
        reserve: Reserve | None = None,
    ) -> None:
        self.file = file
        self._connection = connection
        self._boot = boot
        self._lock = lock
        self._reserve = reserve
        self._reader = connect(file)
        self._reader.execute("PRAGMA query_only = ON")
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._changed = threading.Condition()
        self._waiting: deque[Persist] = deque()
        self._durable = 0
        self._closing = False
        self._write_back = False
        self._error: SuperfluidError | None = None
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        boot_above: int = 0,
        migrations: Sequence[Migration] = MIGRATIONS,
        reserve: Reserve | None = None,
        wall_s: float = 0.0,
    ) -> tuple[Self, StoredState]:
        """Open the store in `folder`, or make it, and raise the boot number.

        Args:
            boot_above: the new boot number will be above this (what nodes report).
            reserve: what is given up when the disk is full.
            wall_s: seconds since 1970, for the boot number of a copy; 0 is not known.

        Raises:
            StoreCorrupt: it can not be read; nothing was changed.
            StartError: the folder can not be used, another head has it, or a newer program
                wrote the store.
        """
        lock = claim_folder(folder)
        file = folder / FILE
        connection: sqlite3.Connection | None = None
        mark: LogMark | None = None
        try:
            check_file(file)
            if reserve is not None:
                reserve.settle_before_start()
            make_when_missing(file, migrations)
            is_copy = check_copy(file)
            mark = _check_log(file, is_copy=is_copy)
            connection = connect(file)
            migrate(connection, file, migrations)
            # Before the boot number is raised: a file that can not be read is left as it is.
            state = _read(connection)
            if is_copy or (mark is not None and mark.is_older(file, state.head_id, state.boot)):
                _adopt(connection, wall_s)
            connection.execute("PRAGMA journal_mode = WAL")
            head_id, boot = _raise_boot(connection, boot_above)
            LogMark(head_id, boot, lineage(log_file(file))).write(file)
            settings = read_settings(connection)
            store = cls(file, connection, boot, lock, reserve)
        except BaseException as error:
            if connection is not None:
                if mark is None:
                    # Its log, if it has one, was its own, and closing writes it back.
                    mark_file(file).unlink(missing_ok=True)
                connection.close()
            lock.close()
            if isinstance(error, sqlite3.Error):
                raise start_error(file, error) from error
            if isinstance(error, OSError):
                raise StartError(
                    f"the store's folder {folder} can not be used ({error.strerror}); see that "
                    "the disk has room and the folder can be written"
                ) from error
            raise
        return store, replace(state, boot=boot, head_id=head_id, settings=settings)

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

    def write_back_log(self) -> None:
        """Have the log written back, after a reader that stayed long has ended."""
        with self._changed:
            self._write_back = True
            self._changed.notify()

    def close(self) -> None:
        """Commit what waits and let the folder go. May be called again."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self._reader.close()
        # From here on a log that is gone is one that was written back.
        mark_file(self.file).unlink(missing_ok=True)
        self._connection.close()
        os.close(self._wake)
        self._lock.close()

    def _read(self, where: str, values: tuple[str, ...]) -> StoredAnswer | None:
        until = time.monotonic() + BUSY_TIMEOUT_S
        self._reader.set_progress_handler(lambda: time.monotonic() > until, _STEPS_PER_LOOK)
        try:
            # One transaction: an answer and its tokens are of one moment.
            self._reader.execute("BEGIN")
            try:
                return find_answer(self._reader, where, values)
            finally:
                self._reader.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise run_error(self.file, error) from error

    # --- the writer's thread ------------------------------------------------------------------

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            try:
                if batch:
                    self._commit(batch)
                else:
                    checkpoint(self._connection)
            except sqlite3.Error as error:
                self._settle(error=run_error(self.file, error))
                return
            except SuperfluidError as error:
                self._settle(error=error)
                return
            except Exception as error:  # noqa: BLE001 - any fault here must stop the head
                self._settle(error=Internal(f"the store's writer failed: {error!r}"))
                return
            if batch:
                self._settle(durable=batch[-1].lsn)
                self._shrink(batch)

    def _next_batch(self) -> list[Persist] | None:
        """All that waits; nothing when the log is to be written back; None at the end."""
        with self._changed:
            while not (self._waiting or self._write_back or self._closing):
                self._changed.wait()
            if not (self._waiting or self._write_back):
                return None
            batch = list(self._waiting)
            self._waiting.clear()
            self._write_back = self._write_back and bool(batch)
            return batch

    def _commit(self, batch: list[Persist]) -> None:
        """Commit once, or a second time when the disk was full and the reserve made room."""
        try:
            self._commit_once(batch)
        except sqlite3.OperationalError as error:
            full = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
            if not full or self._reserve is None or not self._reserve.give_up():
                raise
            self._commit_once(batch)

    def _commit_once(self, batch: list[Persist]) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            (boot,) = connection.execute("SELECT boot FROM head").fetchone()
            if boot != self._boot:
                raise Internal(
                    f"another head (boot {boot}) writes the store {self.file}; this one (boot "
                    f"{self._boot}) ends; see that only one head runs on this state folder"
                )
            rows = [row for persist in batch for row in persist.rows]
            write_all(connection, rows)
            connection.execute("COMMIT")
            raised = [row.boot for row in rows if isinstance(row, RaiseBoot)]
            self._boot = max([self._boot, *raised])
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
                self._settle(error=run_error(self.file, error))


def _adopt(connection: sqlite3.Connection, wall_s: float) -> None:
    """Commit that this store is of an earlier time, and go above all that was given out since.

    A copy has no log yet, so that this is in the file itself at once: as a copy with a log beside
    it, it would not be opened again.
    """
    connection.execute("BEGIN IMMEDIATE")
    (copied,) = connection.execute("SELECT boot FROM head").fetchone()
    boot = boot_above_copy(copied, wall_s)
    connection.execute("UPDATE head SET boot = ?", (boot,))
    write(connection, PutSetting(name=SETTING, value=str(boot)))
    connection.execute("PRAGMA user_version = 0")
    connection.execute("COMMIT")


def _raise_boot(connection: sqlite3.Connection, above: int) -> tuple[str, int]:
    """Commit a boot number above all earlier ones."""
    connection.execute("BEGIN IMMEDIATE")
    head_id, stored = connection.execute("SELECT head_id, boot FROM head").fetchone()
    boot = max(stored, above) + 1
    if boot > MAX_BOOT:
        raise StartError(f"boot number {boot} is above {MAX_BOOT}; a node or the store is damaged")
    connection.execute("UPDATE head SET boot = ?", (boot,))
    connection.execute("COMMIT")
    return head_id, boot


def _read(connection: sqlite3.Connection) -> StoredState:
    """All that a store has, and the number of its last start."""
    facts = read_facts(connection)
    return StoredState(
        boot=facts.boot,
        head_id=facts.head,
        answers=read_answers(connection),
        peers=read_peers(connection),
        sessions=read_sessions(connection),
        node_keys=read_node_keys(connection),
        settings=read_settings(connection),
    )


def _check_log(file: Path, *, is_copy: bool) -> LogMark | None:
    """See that the log beside a store is its own; gives the note to compare with when it has none.

    Raises:
        StoreCorrupt: it is another's.
        StartError: the note can not be read.
    """
    if is_copy:
        mark_file(file).unlink(missing_ok=True)
        return None
    mark = LogMark.read(file)
    if mark is None:
        return None
    mark.check_log(file)
    if has_frames(log_file(file)):
        return None
    # A log begins anew: who is killed before it is noted leaves one that belongs here all the same.
    replace(mark, lineage=None).write(file)
    return mark

"""What is done for the store beside the head's work: backups, a check of its file, its disk.

One thread of low priority does what takes long, on connections of its own, so that neither the loop
nor the store's writer waits. A copy and the check read one moment of the store; the log grows until
they have ended, and is then written back.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from bus.closing import Closing
from bus.errors import Internal, SuperfluidError
from bus.file_thread import FileThread
from bus.log import EventLog
from bus.transport import clock
from head.backups import Backup, back_up, clear_unfinished
from head.log_mark import log_file
from head.reserve import Reserve, Step
from head.storage import DAMAGED, NOT_CHECKED, SOUND, StoreReport
from head.store_copy import find_damage
from head.store_file import connect

#: How often the disk is looked at, and how long after the start the file is checked.
LOOK_EVERY_S = 1.0
CHECK_AFTER_S = 2.0
#: Beside 19, the lowest; a check is never urgent, a backup hardly.
NICENESS = 15

T = TypeVar("T")
Then = Callable[[T | SuperfluidError], None]


class StoreCare(Closing):
    """Owned by the head's server; its loop's thread calls everything.

    Args:
        store: the file.
        reserve: of its folder.
        log: for what happens to the store.
        tell: takes every report.
        write_back: has the store's writer shorten its log.
    """

    def __init__(
        self,
        store: Path,
        reserve: Reserve,
        log: EventLog,
        *,
        tell: Callable[[StoreReport], None],
        write_back: Callable[[], None],
    ) -> None:
        self._store = store
        self._reserve = reserve
        self._log = log
        self._tell = tell
        self._write_back = write_back
        self._thread = FileThread("store-care")
        self._closing = threading.Event()
        self._reading: sqlite3.Connection | None = None
        self._report = StoreReport(folder=str(store.parent))
        self._look_at_s = self._check_at_s = clock.now()
        self._check_at_s += CHECK_AFTER_S
        self._making_reserve = False
        self._thread.submit(_be_nice, lambda error: None)
        self._do(partial(clear_unfinished, store), self._cleared)

    def fileno(self) -> int:
        """Becomes readable when `settle` has something to do."""
        return self._thread.fileno()

    def settle(self) -> None:
        """Take what the thread has done."""
        self._thread.finish()

    def next_timeout(self) -> float | None:
        """When `handle_timeout` is to be called."""
        return self._look_at_s

    def handle_timeout(self, now: float) -> None:
        """Look at the disk, and have the file checked once."""
        self._look_at_s = now + LOOK_EVERY_S
        self._look()
        if self._check_at_s <= now:
            self._check_at_s = float("inf")
            self._do(self._find_damage, self._checked)

    def back_up(
        self, target: str, keep: int, then: Callable[[Backup | SuperfluidError], None]
    ) -> None:
        """Copy the store after all that the thread has to do; `then` gets what came of it.

        Args:
            target: an absolute path; empty makes a file in the store's own folder.
            keep: how many stay there; 0 is all.
        """

        def work() -> Backup:
            return back_up(
                self._store,
                Path(target) if target else None,
                keep=keep,
                wall_s=time.time(),
                spare_bytes=self._reserve.policy.min_free_bytes,
                go_on=lambda: not self._closing.is_set(),
            )

        self._do(work, partial(self._backed_up, then))

    def close(self) -> None:
        """Give up what is being read and end the thread. May be called again."""
        self._closing.set()
        if (reading := self._reading) is not None:
            reading.interrupt()
        self._thread.close()

    # --- room -----------------------------------------------------------------------------------

    def _look(self) -> None:
        """See how the disk is, and do about the reserve what is to be done."""
        room = self._reserve.look()
        lacking = self._reserve.policy.lacking(room)
        if bool(lacking) != bool(self._report.lacking_bytes):
            event = "store_disk_full" if lacking else "store_disk_has_room"
            say = self._log.warning if lacking else self._log.info
            say(event, free_bytes=room.free_bytes, lacking_bytes=lacking)
        self._change(
            file_bytes=_size(self._store),
            log_bytes=_size(log_file(self._store)),
            free_bytes=room.free_bytes,
            lacking_bytes=lacking,
            has_reserve=room.has_reserve,
        )
        step = self._reserve.policy.step(room)
        if step is Step.GIVE_UP:
            # Now: the thread may have a backup to finish, which may be what fills the disk.
            self._reserve.give_up()
            self._log.warning("store_reserve_given_up", file=self._reserve.file)
        elif step is Step.MAKE and not self._making_reserve:
            self._making_reserve = True
            self._thread.submit(self._reserve.make, self._reserve_made)

    def _reserve_made(self, error: OSError | None) -> None:
        self._making_reserve = False
        if error is None:
            self._log.info("store_reserve_made", bytes=self._reserve.policy.reserve_bytes)
        else:
            file = str(self._reserve.file)
            self._log.repeated(clock.now(), "store_reserve_failed", peer=file, why=str(error))

    # --- what the thread does -------------------------------------------------------------------

    def _cleared(self, removed: tuple[str, ...] | SuperfluidError) -> None:
        if isinstance(removed, SuperfluidError):
            self._log.warning("store_backups_not_cleared", why=removed.message)
        for name in removed if isinstance(removed, tuple) else ():
            self._log.info("store_backup_unfinished_removed", file=name)

    def _find_damage(self) -> str:
        connection = self._reading = connect(self._store, read_only=True)
        try:
            if self._closing.is_set():
                return ""
            return find_damage(connection)
        finally:
            self._reading = None
            connection.close()

    def _checked(self, found: str | SuperfluidError) -> None:
        self._write_back()
        if isinstance(found, SuperfluidError):
            self._log.warning("store_not_checked", why=found.message)
            self._change(check=NOT_CHECKED, problem=found.message)
        elif found:
            self._log.error(
                "store_damaged", file=self._store, found=found, remedy="sfctl restore FILE"
            )
            self._change(check=DAMAGED, problem=found)
        else:
            self._log.info("store_checked", bytes=_size(self._store))
            self._change(check=SOUND)

    def _backed_up(
        self, then: Callable[[Backup | SuperfluidError], None], made: Backup | SuperfluidError
    ) -> None:
        self._write_back()
        if isinstance(made, SuperfluidError):
            self._log.error("store_not_backed_up", why=made.message)
        else:
            self._log.info("store_backed_up", file=made.file, bytes=made.size_bytes)
            self._change(backup=str(made.file), backup_wall_s=made.made_wall_s)
        then(made)

    def _do(self, work: Callable[[], T], then: Then[T]) -> None:
        """Have the thread do `work`; `then` gets what it gave, or its error."""
        outcome: list[T | SuperfluidError] = []

        def run() -> None:
            try:
                outcome.append(work())
            except SuperfluidError as error:
                outcome.append(error)
            except Exception as error:  # noqa: BLE001 - a thread's end would be noticed by nobody
                outcome.append(Internal(f"the store could not be read ({error}); see the disk"))

        self._thread.submit(run, lambda error: then(outcome[0]))

    def _change(self, **changes: object) -> None:
        self._report = replace(self._report, **changes)  # type: ignore[arg-type]
        self._tell(self._report)


def _be_nice() -> None:
    # Linux counts niceness by thread.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0

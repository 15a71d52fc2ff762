"""Backups as files: where they go, what they are called, which ones stay."""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bus.errors import Invalid, StorageFull
from bus.state import private_folder
from head.log_mark import log_file
from head.store_copy import StoreFacts, copy_whole
from head.store_file import connect, copy_error

FOLDER = "backups"
_NAME = re.compile(r"head-\d{8}T\d{6}Z(-\d+)?\.db")
_UNFINISHED = re.compile(_NAME.pattern + r"\.part(-journal)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """One that was made.

    Attributes:
        removed: older ones that went for it.
    """

    file: Path
    size_bytes: int
    made_wall_s: float
    facts: StoreFacts
    removed: int

    def to_map(self) -> dict[str, Any]:
        """As the API tells it."""
        return {
            "file": str(self.file),
            "bytes": self.size_bytes,
            "made_wall_s": self.made_wall_s,
            "schema": self.facts.schema,
            "head": self.facts.head,
            "boot": self.facts.boot,
            "removed": self.removed,
        }


def back_up(
    store: Path,
    target: Path | None,
    *,
    keep: int = 0,
    wall_s: float,
    spare_bytes: int = 0,
    go_on: Callable[[], bool] = lambda: True,
) -> Backup:
    """Copy a store, whether a head works on it or not.

    Args:
        store: its file.
        target: a file that is not there yet; None makes one in the store's own folder.
        keep: how many of that folder stay; 0 is all.
        wall_s: this moment, for the name.
        spare_bytes: what has to stay free on the store's own disk.
        go_on: asked between parts; False gives up.

    Raises:
        Invalid: the target is there already, or its folder is not.
        SuperfluidError: the copy can not be made; then there is no part of it either.
    """
    own = private_folder(store.parent / FOLDER)
    file = own if target is None else target
    try:
        with _working_in(own):
            file = _new_name(own, wall_s) if target is None else target
            _check_target(file)
            _check_room(store, file.parent, spare_bytes)
            facts = _copy(store, file, go_on)
            size_bytes = file.stat().st_size
            removed = _remove_older(own, keep) if keep else 0
    except (sqlite3.Error, OSError) as error:
        raise copy_error(file, error) from error
    return Backup(
        file=file, size_bytes=size_bytes, made_wall_s=wall_s, facts=facts, removed=removed
    )


def clear_unfinished(store: Path) -> tuple[str, ...]:
    """Remove what a process that was killed left of its backup in the store's own folder.

    Returns:
        The names of what was removed; nothing goes while some process makes a backup there.

    Raises:
        OSError: the folder can not be read, or a file of it not be removed.
    """
    folder = store.parent / FOLDER
    if not folder.is_dir():
        return ()
    with _working_in(folder) as removed:
        return removed


@contextmanager
def _working_in(folder: Path) -> Iterator[tuple[str, ...]]:
    """Keep the unfinished files of the folder from others; those of nobody go before.

    A lock on the folder ends with its process. Who gets it alone knows that nobody else is at work
    there, and each of those who are shares it.

    Yields:
        The names of what was removed.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        removed: list[str] = []
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for file in folder.iterdir():
                if _UNFINISHED.fullmatch(file.name):
                    file.unlink()
                    removed.append(file.name)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield tuple(removed)
    finally:
        os.close(descriptor)


def _copy(store: Path, target: Path, go_on: Callable[[], bool]) -> StoreFacts:
    source = connect(store, read_only=True)
    try:
        return copy_whole(source, target, go_on=go_on)
    finally:
        source.close()


def _check_target(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise Invalid(f"{target} is there already; name a file that is not", param="file")
    if not target.parent.is_dir():
        raise Invalid(f"there is no folder {target.parent}; make it first", param="file")


def _check_room(store: Path, folder: Path, spare_bytes: int) -> None:
    """See that a copy fits, before it fills the disk that the store itself is on."""
    files = [file for file in (store, log_file(store)) if file.exists()]
    needed = sum(file.stat().st_size for file in files)
    status = os.statvfs(folder)
    if folder.stat().st_dev == store.stat().st_dev:
        needed += spare_bytes
    if (free := status.f_bavail * status.f_frsize) < needed:
        raise StorageFull(
            f"no backup was made: it needs {needed} bytes in {folder} and {free} are free; free "
            "some space there, or name a file on another disk",
            details={"free_bytes": free, "lacking_bytes": needed - free},
        )


def _new_name(folder: Path, wall_s: float) -> Path:
    """A name that sorts by time; a second one of the same second gets a number.

    An unfinished file is another process's at work.
    """
    stem = f"head-{datetime.fromtimestamp(wall_s, UTC):%Y%m%dT%H%M%SZ}"
    name, number = f"{stem}.db", 1
    while (folder / name).exists() or (folder / f"{name}.part").exists():
        number += 1
        name = f"{stem}-{number}.db"
    return folder / name


def _remove_older(folder: Path, keep: int) -> int:
    """Remove all but the newest of our own names; what else lies there is not ours."""
    ours = [file for file in folder.iterdir() if _NAME.fullmatch(file.name)]
    ours.sort(key=lambda file: file.stat().st_mtime_ns, reverse=True)
    for file in ours[keep:]:
        file.unlink()
    return len(ours[keep:])

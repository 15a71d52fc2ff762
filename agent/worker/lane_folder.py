"""Files of parked lanes in a folder: named by session, private, replaced whole, purged.

Files are 0600 in a folder 0700, since keys and values tell what was said. Which are kept is by
age and by a byte budget, the least recently used removed first; other files are left alone.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Final
from urllib.parse import quote

from agent.proc_state import read_process
from bus.ids import SessionId
from bus.secret_files import make_private_folder, sync_folder

SUFFIX: Final = ".lane"
PART_SUFFIX: Final = ".part"
#: A file that is being written is younger.
PART_AGE_S: Final = 3600.0

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class UnreadableError(Exception):
    """A file that is not taken, whatever is in it; the text goes on after its name."""


def lane_path(folder: Path, session: SessionId) -> Path:
    """Where a session's lane is parked. Any id gives one plain name in the folder."""
    return folder / (quote(session, safe="") + SUFFIX)


def replace_lane(path: Path, parts: Iterable[bytes | memoryview]) -> int:
    """Write a file in place of an older one: whole or not at all, durable before this returns.

    Returns:
        Its bytes.

    Raises:
        OSError: it can not be written; the older one is still there.
    """
    make_private_folder(path.absolute().parent)
    temporary = path.with_name(f"{path.name}.{os.getpid()}{PART_SUFFIX}")
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, 0o600), "wb") as file:
            written = sum(file.write(part) for part in parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.absolute().parent)
    return written


def open_lane(path: Path) -> BufferedReader:
    """A file to read: a regular one of ours that nobody else can use.

    Raises:
        OSError: it can not be opened; FileNotFoundError when there is none.
        UnreadableError: it is not of that kind.
    """
    return open(path, "rb", opener=_open_private)


def _open_private(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check_private(path, os.fstat(descriptor))
    except (OSError, UnreadableError):
        os.close(descriptor)
        raise
    return descriptor


def _check_private(path: str, about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise UnreadableError("is no regular file; remove it")
    if about.st_uid != os.geteuid():
        raise UnreadableError(f"belongs to user {about.st_uid}; remove it")
    if about.st_mode & _OTHERS:
        raise UnreadableError(f"can be used by others; run: chmod 600 {path}")


def touch(file: BufferedReader) -> None:
    """Count a file as used now, where the file system allows it."""
    with contextlib.suppress(OSError):
        os.utime(file.fileno())


def forget(folder: Path, session: SessionId) -> bool:
    """Remove a session's file; whether there was one.

    Raises:
        OSError: it can not be removed.
    """
    try:
        lane_path(folder, session).unlink()
    except FileNotFoundError:
        return False
    return True


def forget_others(folder: Path, keep: Collection[SessionId]) -> int:
    """Remove the files of all sessions but some; how many there were. A missing folder is empty.

    Raises:
        OSError: one can not be removed.
    """
    kept = {lane_path(folder, session).name for session in keep}
    removed = 0
    for entry in _files(folder):
        if entry.name.endswith(SUFFIX) and entry.name not in kept:
            Path(entry.path).unlink(missing_ok=True)
            removed += 1
    return removed


@dataclass(frozen=True, slots=True)
class Purged:
    """Files that were removed, and the bytes of those that are left."""

    files: int
    left_bytes: int


def purge_lanes(folder: Path, *, now_s: float, max_age_s: float, max_bytes: int) -> Purged:
    """Remove files that are too old, then the least recently used until the rest fits.

    Args:
        folder: of parked lanes. A missing one is empty.
        now_s: wall-clock time, as files have it.
        max_age_s: since a file was written or used.
        max_bytes: of all files together.

    Raises:
        OSError: a file can not be removed.
    """
    found = sorted(_lanes(folder, now_s))
    left = sum(size for _, size, _ in found)
    removed = 0
    for used_s, size, path in found:
        if left > max_bytes or now_s - used_s > max_age_s:
            path.unlink(missing_ok=True)
            left -= size
            removed += 1
    return Purged(removed, left)


def _lanes(folder: Path, now_s: float) -> list[tuple[float, int, Path]]:
    """When each was used, its bytes and path. What a crash left half-written counts as oldest."""
    lanes = []
    for entry in _files(folder):
        try:
            about = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # Removed meanwhile.
        if entry.name.endswith(SUFFIX):
            lanes.append((about.st_mtime, about.st_size, Path(entry.path)))
        elif entry.name.endswith(PART_SUFFIX) and _is_left(entry.name, now_s - about.st_mtime):
            lanes.append((float("-inf"), about.st_size, Path(entry.path)))
    return lanes


def _is_left(name: str, age_s: float) -> bool:
    """Whether a file that is being written was left by its writer, who ended or is too slow."""
    writer = name.removesuffix(PART_SUFFIX).rpartition(".")[2]
    return age_s > PART_AGE_S or not writer.isdecimal() or read_process(int(writer)) is None


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    """What is in a folder, but folders, which nobody parks; a missing folder has nothing."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                yield entry

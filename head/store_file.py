"""The store's one file: how it is opened and made, and what its faults mean to a person."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Sequence
from pathlib import Path

from bus.errors import Internal, StartError, StorageFull, StoreCorrupt, SuperfluidError
from head.log_mark import has_frames, log_file, mark_file
from head.schema import Migration, apply
from head.store_copy import COPY_MARK, find_damage, read_facts, sync

FILE = "head.db"
#: A copy that is to become the store; while it is there, putting it back is under way.
RESTORING = FILE + ".restoring"
#: How long another program (a backup) may hold the file before that is a fault, and how long one
#: read of ours may take.
BUSY_TIMEOUT_S = 5.0
#: What its log is cut to when it begins anew. SQLite writes back every 1,000 pages, about so many
#: bytes; only a reader that stays long makes the log longer.
LOG_LIMIT_BYTES = 4 * 1024 * 1024

#: Where a file's header has its user_version, four bytes, the high one first.
_USER_VERSION_AT = 60
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
REMEDY = "put a backup in its place with `sfctl restore FILE`"


def connect(file: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection to an existing file.

    Args:
        read_only: it also never writes the log back, and leaves it there when it is closed.
    """
    connection = sqlite3.connect(
        f"{file.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        # The writer's thread uses the one that was opened in the loop's, and no other does then.
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA journal_size_limit = {LOG_LIMIT_BYTES}")
    except BaseException:
        connection.close()
        raise
    return connection


def check_file(file: Path, *, only_look: bool = False) -> None:
    """See that the store's file, when it is there, is one that this user alone has.

    Args:
        only_look: a mode that lets others read it stays.

    Raises:
        StartError: it is no file, another user's, or has another name too.
    """
    if (file.parent / RESTORING).exists():
        raise StartError(
            f"a restore in {file.parent} was interrupted; do it again with `sfctl restore FILE`, "
            f"where FILE may be {file.parent / RESTORING}"
        )
    try:
        found = file.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise StartError(
            f"{file} should be the store and is no file; move it away, then {REMEDY}, or begin "
            "with an empty one"
        )
    if found.st_uid != os.geteuid():
        raise StartError(
            f"the store {file} belongs to user id {found.st_uid} and the head runs as "
            f"{os.geteuid()}; run the head as that user, or as root: chown {os.geteuid()} {file}*"
        )
    if found.st_nlink > 1:
        # Each name would get a log of its own, and two heads could write one file.
        raise StartError(
            f"the store {file} has another name too (a hard link); give the other one a copy of "
            "its own: cp, not cp -l"
        )
    if stat.S_IMODE(found.st_mode) & 0o077 and not only_look:
        file.chmod(0o600)


def check_copy(file: Path) -> bool:
    """Whether the file is a copy that was put there.

    Raises:
        StoreCorrupt: the log of what was there before lies beside it, and would be mixed into it.
    """
    try:
        with file.open("rb") as opened:
            opened.seek(_USER_VERSION_AT)
            is_copy = opened.read(4) == COPY_MARK.to_bytes(4, "big")
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StartError(
            f"the store {file} can not be read ({error.strerror}); see that the disk is well, or "
            f"{REMEDY}"
        ) from error
    if is_copy and has_frames(log_file(file)):
        raise StoreCorrupt(
            f"the store {file} is a copy and {log_file(file).name} is of what was there before; "
            f"move the copy away, then {REMEDY}"
        )
    return is_copy


def make_when_missing(file: Path, migrations: Sequence[Migration]) -> None:
    """Make a new file whole under another name first: a file that is there was once complete.

    Raises:
        StoreCorrupt: it is missing, but something of it is there.
    """
    if file.exists():
        return
    parts = (f"{FILE}-wal", f"{FILE}-journal", mark_file(file).name)
    left = [name for name in parts if _is_filled(file.with_name(name))]
    if left:
        raise StoreCorrupt(
            f"the store {file} is gone, but its {left[0]} is there; put the file back, or "
            f"{REMEDY}; or move {left[0]} away to begin with an empty store"
        )
    unfinished = file.with_name(FILE + ".new")
    for suffix in ("", "-wal", "-shm", "-journal"):
        unfinished.with_name(unfinished.name + suffix).unlink(missing_ok=True)
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    connection = connect(unfinished)
    try:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        for version, migration in enumerate(migrations, start=1):
            apply(connection, version, migration)
    finally:
        connection.close()
    sync(unfinished)
    unfinished.replace(file)
    sync(file.parent)


def _is_filled(file: Path) -> bool:
    """Whether a file is there with something in it: who only looks leaves an empty log."""
    return file.exists() and file.stat().st_size > 0


def checkpoint(connection: sqlite3.Connection) -> None:
    """Write the log back as far as readers let it, and wait for none; a later commit cuts it.

    It is not emptied: a log that a killed head left empty could not be told from one that is lost.

    Raises:
        sqlite3.Error: the file can not be written.
    """
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite found the file itself damaged."""
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _DAMAGE


def start_error(file: Path, error: sqlite3.Error) -> StartError:
    """Why a store can not be opened."""
    code = getattr(error, "sqlite_errorcode", None)
    # Errors without a code are our own findings; OperationalError without damage is the system's.
    if code is None or is_damage(error) or code == sqlite3.SQLITE_ERROR:
        return StoreCorrupt(
            f"the store {file} can not be read ({error}); {REMEDY}, or move it away to begin with "
            "an empty one (its sessions and answers are lost then)"
        )
    return StartError(
        f"the store {file} can not be opened ({error}); see that the disk has room, the folder "
        "can be written and no other program uses the file"
    )


def run_error(file: Path, error: sqlite3.Error) -> SuperfluidError:
    """Why a store can not be used any more."""
    if is_damage(error):
        return StoreCorrupt(f"the store {file} is damaged ({error}); stop the head and {REMEDY}")
    return Internal(
        f"the store {file} could not commit ({error}); the head ends and starts again from what "
        "is on disk; see that the disk has room"
    )


def copy_error(target: Path, error: sqlite3.Error | OSError) -> SuperfluidError:
    """Why a copy of a store could not be made."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL or isinstance(error, OSError):
        return StorageFull(
            f"no backup was made: {target} can not be written ({error}); choose a place with room "
            "that this user can write to"
        )
    if is_damage(error):
        return StoreCorrupt(f"no backup was made: the store is damaged ({error}); {REMEDY}")
    return Internal(f"no backup was made ({error}); see the head's log, and try again")


def look_at_store(file: Path) -> str:
    """What is wrong with a store, whether a head works on it or not; empty for one that is sound.

    A store that is not there is none of that.
    """
    try:
        check_file(file, only_look=True)
        if not file.exists():
            return ""
        connection = connect(file, read_only=True)
        try:
            read_facts(connection)
            damage = find_damage(connection)
        finally:
            connection.close()
    except StartError as error:
        return error.message
    except sqlite3.Error as error:
        return start_error(file, error).message
    return f"the store {file} is damaged ({damage}); {REMEDY}" if damage else ""

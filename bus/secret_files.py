"""Files that only their owner may read: made whole or not at all, never followed through links.

Every refusal names the file and the command that repairs it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from bus.errors import SuperfluidError, TokenRefused

#: A key or token is a line; more than this is some other file named by mistake.
MAX_SECRET_BYTES = 4096
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def read_secret_file(path: Path, *, error: type[SuperfluidError] = TokenRefused) -> str:
    """The text of a secret file, without white space around it.

    Args:
        path: a regular file, 0600, ours, in a folder that others can not write.
        error: what to raise.

    Raises:
        FileNotFoundError: there is none.
        SuperfluidError: of class `error`: others can read it, it is not ours, or it is no secret
            file at all; the text names the remedy.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except PermissionError:
        raise error(_closed_to_us(path)) from None
    except OSError as problem:
        raise error(f"can not open {path}: {problem.strerror}; name the file itself") from None
    try:
        _check_owner_only(path, os.fstat(descriptor), error)
        data = os.read(descriptor, MAX_SECRET_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_SECRET_BYTES:
        raise error(f"{path} is longer than a key or token; name the right file")
    try:
        return data.decode("ascii").strip()
    except UnicodeDecodeError:
        raise error(f"{path} holds no key or token; name the right file") from None


def _closed_to_us(path: Path) -> str:
    """Why this user can not open a file, as far as this user can see."""
    user = os.geteuid()
    try:
        found = os.stat(path)
    except OSError:
        return (
            f"user {user}, who runs this, may not look into the folder of {path}; run it as the "
            "user whose file it is, or copy the file to a place of your own"
        )
    mode = stat.S_IMODE(found.st_mode)
    remedy = f"chmod 600 {path}" if found.st_uid == user else f"chown {user} {path}"
    return (
        f"user {user}, who runs this, may not read {path} (owner {found.st_uid}, mode {mode:04o}); "
        f"run: {remedy}"
    )


def _check_owner_only(path: Path, found: os.stat_result, error: type[SuperfluidError]) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise error(f"{path} is no regular file; name the file that holds the secret")
    if found.st_uid != os.geteuid():
        raise error(
            f"{path} belongs to user {found.st_uid}, not to user {os.geteuid()} who runs this; "
            f"run: chown {os.geteuid()} {path}"
        )
    if found.st_mode & _OTHERS:
        mode = stat.S_IMODE(found.st_mode)
        raise error(f"others can use {path} (mode {mode:04o}); run: chmod 600 {path}")
    folder = path.absolute().parent
    mode = folder.stat().st_mode
    if mode & _OTHERS_WRITE and not mode & stat.S_ISVTX:
        raise error(f"others can replace files in {folder}; run: chmod 700 {folder}")


def create_secret_file(path: Path, text: str) -> None:
    """Write a new file 0600, whole or not at all, in a folder that is made 0700 when missing.

    Raises:
        FileExistsError: there is one already; it is left alone.
    """
    make_private_folder(path.absolute().parent)
    temporary = _write_temporary(path, text)
    try:
        os.link(temporary, path)
    finally:
        temporary.unlink()
    sync_folder(path.absolute().parent)


def replace_private_file(path: Path, text: str) -> None:
    """Write a file 0600 in place of an older one, durable before this returns."""
    make_private_folder(path.absolute().parent)
    os.replace(_write_temporary(path, text), path)
    sync_folder(path.absolute().parent)


def make_private_folder(folder: Path) -> None:
    """Make a folder 0700 with its parents; one that exists keeps its mode."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _write_temporary(path: Path, text: str) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    temporary.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(temporary, flags, 0o600), "wb") as file:
        file.write(text.encode("ascii") + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return temporary


def sync_folder(folder: Path) -> None:
    """Bring a folder's list of files to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

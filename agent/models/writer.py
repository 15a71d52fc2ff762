"""Makes a model folder, whole or not at all.

Files are written into a hidden folder beside the target, synchronised, and the folder is renamed.
Whatever ends the work early, an error or an interrupt, the hidden folder goes and the target stays
as it was.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent.models.folder import RECORD, SCHEMA, FileRecord, file_sha256
from bus.errors import Invalid

#: Endings of hidden folders: being made, stepped aside for a new one, being removed.
_LEFT = ("partial", "old", "removed")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_name(name: str) -> bool:
    """Whether a model may be called so."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """Accept a model's name: it becomes a folder.

    Raises:
        Invalid: with what a name may be.
    """
    if not is_name(name):
        raise Invalid(
            f"{name!r} is no model name; use up to 64 letters, digits, dots, dashes and "
            "underscores, a letter or digit first",
            param="name",
        )
    return name


@contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """Give a fresh folder that becomes `target` when the block ends well.

    A folder at `target` is replaced; files that other processes have open stay readable to them.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(target)
    partial = target.parent / f".{target.name}.{os.getpid()}.partial"
    partial.mkdir()
    try:
        yield partial
        _synchronise(partial)
        _swap(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def link_file(source: Path, target: Path) -> None:
    """Give a file a second name; where the file system can not, copy it."""
    source = source.resolve()
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def write_text(path: Path, text: str) -> None:
    """Write a text file; its folder is synchronised later."""
    path.write_text(text, "utf-8")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file for people too."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def record_files(folder: Path) -> dict[str, FileRecord]:
    """Size and hash of every file of a folder but its record."""
    return {
        file.name: FileRecord(file.stat().st_size, file_sha256(file))
        for file in sorted(folder.iterdir())
        if file.name != RECORD
    }


def write_record(folder: Path, fields: Mapping[str, Any]) -> None:
    """Write `superfluid.json`, the last file of a folder."""
    files = {
        name: {"size": entry.size, "sha256": entry.sha256}
        for name, entry in record_files(folder).items()
    }
    write_json(folder / RECORD, {"schema": SCHEMA, **fields, "files": files})


def _synchronise(folder: Path) -> None:
    for path in [*folder.iterdir(), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _swap(partial: Path, target: Path) -> None:
    """Rename `partial` to `target`; an old folder steps aside and comes back if that fails."""
    old = target.parent / f".{target.name}.{os.getpid()}.old"
    had_old = target.exists()
    if had_old:
        target.rename(old)
    try:
        partial.rename(target)
    except BaseException:
        if had_old:
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _remove_leftovers(target: Path) -> None:
    """Remove what writers that were killed left; bring back an old folder that has no successor."""
    for path in target.parent.glob(f".{target.name}.*"):
        base, pid, kind = path.name.rsplit(".", 2)
        if base != f".{target.name}" or kind not in _LEFT or not pid.isdigit():
            continue
        if int(pid) != os.getpid() and _is_running(int(pid)):
            continue
        if kind == "old" and not target.exists():
            path.rename(target)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

"""What `status` and `doctor` say of the head's store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from head.cli.output import human_age
from head.reserve import MIB
from head.storage import DAMAGED


def store_problems(status: Mapping[str, Any], command: Callable[[str], str]) -> list[str]:
    """What is wrong with the store by the head's word, one sentence each."""
    store = status.get("store", {})
    found = []
    if store.get("check") == DAMAGED:
        found.append(
            f"the store {store.get('folder')} is damaged ({store.get('problem')}) and takes no "
            f"new work; put a backup in its place: {command('down')} && {command('restore FILE')}"
        )
    if lacking := store.get("lacking_bytes"):
        found.append(
            f"the disk of the store {store.get('folder')} is nearly full and new work is refused; "
            f"free {-(-lacking // MIB)} MiB there"
        )
    return found


def store_line(status: Mapping[str, Any], now_wall_s: float) -> str:
    """The line of `status` about it; empty for a head that tells nothing.

    Args:
        now_wall_s: wall time, for the age of the last backup.
    """
    store = status.get("store")
    if not store or not store.get("folder"):
        return ""
    sizes = f"{store['file_bytes'] / MIB:.1f} MiB, log {store['log_bytes'] / MIB:.1f} MiB"
    backed_up = ""
    if at := store.get("backup_wall_s"):
        backed_up = f", last backup {human_age(max(0.0, now_wall_s - at))} ago"
    free = f"{store['free_bytes'] // MIB} MiB free on disk"
    return f"store: {sizes}, check {store['check']}, {free}{backed_up}"

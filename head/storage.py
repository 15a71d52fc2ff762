"""What the head's core knows of its store's file and disk, and whether new work can be kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bus.errors import StorageFull, StoreCorrupt
from head.reserve import MIB

#: What the check of the file has come to.
WAITS, SOUND, DAMAGED, NOT_CHECKED = "waits", "sound", "damaged", "not checked"
#: Clients of a full disk or a damaged store come back after so long.
RETRY_MS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReport:
    """How the store is. `problem` says what the check found, or why there was none.

    `lacking_bytes` is what has to be freed before new work is taken; `backup` the last one that
    this head made, with its wall time.
    """

    folder: str = ""
    file_bytes: int = 0
    log_bytes: int = 0
    free_bytes: int = 0
    lacking_bytes: int = 0
    has_reserve: bool = False
    check: str = WAITS
    problem: str = ""
    backup: str = ""
    backup_wall_s: float = 0.0


class Storage:
    """Owned by the core; its driver tells how the store is."""

    def __init__(self) -> None:
        self._report = StoreReport()

    def tell(self, report: StoreReport) -> None:
        """How the store is now."""
        self._report = report

    def check_new_work(self) -> None:
        """See that work can be taken that was not there before.

        Raises:
            StorageFull: the disk is full.
            StoreCorrupt: the store is damaged, so what would be kept might be lost.
        """
        told = self._report
        if told.check == DAMAGED:
            raise StoreCorrupt(
                f"the head's store is damaged ({told.problem}) and takes no new work; on its "
                "machine put a backup in its place: sfctl down, then sfctl restore FILE",
                retry_after_ms=RETRY_MS,
            )
        if told.lacking_bytes:
            raise StorageFull(
                f"the disk of the head's store {told.folder} has {_mib(told.free_bytes)} MiB free; "
                f"free {_mib(told.lacking_bytes)} MiB more there, or lower min_free_mib in [store] "
                "of head.toml; what runs goes on",
                details={"free_bytes": told.free_bytes, "lacking_bytes": told.lacking_bytes},
                retry_after_ms=RETRY_MS,
            )

    def report(self) -> Mapping[str, Any]:
        """The part of `status` about it."""
        told = self._report
        return {
            "folder": told.folder,
            "file_bytes": told.file_bytes,
            "log_bytes": told.log_bytes,
            "free_bytes": told.free_bytes,
            "lacking_bytes": told.lacking_bytes,
            "reserve": told.has_reserve,
            "check": told.check,
            "problem": told.problem,
            "backup": told.backup or None,
            "backup_wall_s": told.backup_wall_s or None,
        }


def _mib(size: int) -> int:
    """Whole MiB, rounded up."""
    return -(-size // MIB)

"""Whether the log beside the store is the one that its last head left there.

SQLite keeps the newest commits in a file of their own, `head.db-wal`, until it writes them back.
Without it, or with another one, the store opens all the same and is an older or a broken one. So a
head that runs leaves a note of its start and of its log's lineage beside the store, and takes it
away when it ends in order; whoever finds the note compares.

Source: https://www.sqlite.org/fileformat2.html#the_write_ahead_log (the header's fields).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

from bus.errors import StartError, StoreCorrupt
from bus.state import write_atomically

#: Bytes before the frames, and what they begin with; the last bit tells the checksums' byte order.
_HEADER = struct.Struct(">8I")
_MAGIC = 0x377F0682
#: How often a log may have begun anew; each time is after 4 MB or more.
_MOST_BEGINNINGS = 2**20
#: Of a file that is no log at all.
_NO_LOG = -1


@dataclass(frozen=True, slots=True)
class LogMark:
    """A head's note.

    Attributes:
        head: its id.
        boot: its start's number.
        lineage: of the log; None when there was none.
    """

    head: str
    boot: int
    lineage: int | None

    @classmethod
    def read(cls, store: Path) -> LogMark | None:
        """The note beside a store; None when its last head ended in order.

        Raises:
            StartError: there is one that can not be read.
        """
        file = mark_file(store)
        try:
            found = json.loads(file.read_text())
            return cls(str(found["head"]), int(found["boot"]), found["log"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StartError(
                f"can not read {file} ({error}); put a backup in place with `sfctl restore FILE`, "
                f"or move {file.name} away when you know that {log_file(store).name} belongs here"
            ) from error

    def write(self, store: Path) -> None:
        """Leave the note.

        Raises:
            OSError: it can not be written.
        """
        body = {"head": self.head, "boot": self.boot, "log": self.lineage}
        write_atomically(mark_file(store), json.dumps(body) + "\n")

    def check_log(self, store: Path) -> None:
        """See, before a store is opened, that its log is the one of the note.

        Raises:
            StoreCorrupt: it is another one.
        """
        log = log_file(store)
        found = lineage(log)
        if found is None or self.lineage is None:
            return
        # Its counter of checkpoints is 0 again for a head beside whose start another program read
        # the store, and what was counted until then comes on top of the lineage.
        if found == _NO_LOG or (found - self.lineage) % 2**32 >= _MOST_BEGINNINGS:
            raise StoreCorrupt(
                f"{log} is not the log that the store {store.name} was last used with; put that "
                "one back, or put a backup in place with `sfctl restore FILE`"
            )

    def is_older(self, store: Path, head: str, boot: int) -> bool:
        """Whether a store that was opened without a log may be older than its last head left it.

        Raises:
            StoreCorrupt: commits are missing for certain.
        """
        if head != self.head:
            return True
        if boot < self.boot:
            raise StoreCorrupt(
                f"the store {store} is of start {boot} and was used by start {self.boot}: its log "
                f"{log_file(store).name} is gone, or an older copy was put there; put the log "
                f"back, or go on from what is there with `sfctl restore {store}`"
            )
        return boot == self.boot


def mark_file(store: Path) -> Path:
    """Where the note of a store is."""
    return store.with_name(store.name + ".open")


def log_file(store: Path) -> Path:
    """Where the log of a store is."""
    return store.with_name(store.name + "-wal")


def lineage(log: Path) -> int | None:
    """What stays the same of a log while it is used, and differs between logs.

    SQLite draws the first salt when it makes a log, and adds one to it, as to the counter of
    checkpoints, each time that the log begins anew.

    Returns:
        None when there is no log, or nothing in it.
    """
    try:
        with log.open("rb") as opened:
            header = opened.read(_HEADER.size)
    except FileNotFoundError:
        return None
    if len(header) < _HEADER.size:
        return None
    magic, _, _, checkpoints, salt, *_ = _HEADER.unpack(header)
    # What is no log at all is SQLite's to pass over, and so has no lineage that could fit.
    return (salt - checkpoints) % 2**32 if magic & ~1 == _MAGIC else _NO_LOG


def has_frames(log: Path) -> bool:
    """Whether there is anything in a log."""
    try:
        return log.stat().st_size > _HEADER.size
    except FileNotFoundError:
        return False

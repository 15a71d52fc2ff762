"""Room that is kept back on the store's disk, so that what runs can end when the disk is full.

    free, without the reserve          new work      reserve
at or above `min_free`                 is taken      is there, made again when it was not
below `min_free`                       is refused    is there
below a quarter of the reserve         is refused    is given up, so that what runs can end
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from pathlib import Path

from head.store_copy import sync

FILE = "reserve"
MIB = 1024 * 1024
#: The reserve is given up when less than this part of it is left beside it.
GIVE_UP_PART = 4


class Step(enum.Enum):
    """What is to be done about the reserve."""

    NOTHING = "nothing"
    MAKE = "make"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How the disk is.

    Attributes:
        free_bytes: that this user can still write, without the reserve.
        has_reserve: the reserve is there.
    """

    free_bytes: int
    has_reserve: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomPolicy:
    """How much is kept back, and below what new work is refused; 0 for not at all."""

    reserve_bytes: int
    min_free_bytes: int

    def lacking(self, room: Room) -> int:
        """Bytes that have to be freed before new work is taken; 0 when it is.

        What the reserve needs to be made again does not count as free.
        """
        needed = self.min_free_bytes
        if needed and not room.has_reserve:
            needed += self.reserve_bytes
        return max(needed - room.free_bytes, 0)

    def step(self, room: Room) -> Step:
        """What to do now."""
        if room.has_reserve:
            scarce = room.free_bytes < self.reserve_bytes // GIVE_UP_PART
            return Step.GIVE_UP if scarce else Step.NOTHING
        enough = room.free_bytes >= self.min_free_bytes + self.reserve_bytes
        return Step.MAKE if self.reserve_bytes and enough else Step.NOTHING


class Reserve:
    """The file of one store folder. Every method may be called from any thread.

    Args:
        folder: the store's.
        policy: how much is kept back.
    """

    def __init__(self, folder: Path, policy: RoomPolicy) -> None:
        self.file = folder / FILE
        self.policy = policy

    def look(self) -> Room:
        """How the disk is now."""
        status = os.statvfs(self.file.parent)
        return Room(
            free_bytes=status.f_bavail * status.f_frsize,
            has_reserve=self.file.exists(),
        )

    def make(self) -> None:
        """Have the file in its size, with blocks of its own.

        Raises:
            OSError: there is no room; nothing is kept back then.
        """
        flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.file, flags, 0o600)
        try:
            # It grows with its blocks, so that one which is not whole can be told by its size.
            os.posix_fallocate(descriptor, 0, self.policy.reserve_bytes)
        except OSError:
            self.give_up()
            raise
        finally:
            os.close(descriptor)
        sync(self.file.parent)

    def give_up(self) -> bool:
        """Free what is kept back; False when nothing was.

        Raises:
            OSError: the folder can not be written.
        """
        try:
            self.file.unlink()
        except FileNotFoundError:
            return False
        return True

    def settle_before_start(self) -> None:
        """Before the store is opened: give it up where there is no room to start with.

        So is one of another size, of a head that was set otherwise or was killed while it made it.

        Raises:
            OSError: the folder can not be written.
        """
        room = self.look()
        if room.has_reserve and (
            self.file.stat().st_size != self.policy.reserve_bytes
            or self.policy.step(room) is Step.GIVE_UP
        ):
            self.give_up()

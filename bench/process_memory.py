"""What a process takes of memory, from Linux's smaps_rollup."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Bytes of a process.

    Attributes:
        resident: all pages in memory.
        proportional: pages shared with others divided among those that share them.
        anonymous: backed by no file, so not given back under pressure.
    """

    resident: int
    proportional: int
    anonymous: int

    @classmethod
    def of(cls, pid: int) -> ProcessMemory:
        """Read what a process takes now."""
        return cls.parse(Path(f"/proc/{pid}/smaps_rollup").read_text("ascii"))

    @classmethod
    def parse(cls, text: str) -> ProcessMemory:
        """From the file's text: lines `NAME: NUMBER kB`."""
        kib = {}
        for line in text.splitlines()[1:]:
            name, value = line.split(":")
            kib[name] = int(value.split()[0])
        return cls(kib["Rss"] << 10, kib["Pss"] << 10, kib["Anonymous"] << 10)

    def __str__(self) -> str:
        return (
            f"{self.proportional / MIB:.0f} MiB proportional, "
            f"{self.anonymous / MIB:.0f} anonymous, {self.resident / MIB:.0f} resident"
        )

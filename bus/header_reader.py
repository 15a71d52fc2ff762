"""Bytes of a file by their offset, for what reads headers: in few windows, and boundedly many."""

from __future__ import annotations

from collections.abc import Callable

from bus.errors import Invalid

#: Gives bytes of a file: offset, size; fewer than asked for only at its end.
Read = Callable[[int, int], bytes]

#: Bytes of one read, and how many reads; JPEG files may have megabytes before their size.
WINDOW_BYTES = 16 * 1024
MAX_READS = 256
#: Chunks, segments or blocks that are looked at.
MAX_STEPS = 4096


class HeaderReader:
    """A file whose header is read.

    Args:
        read: gives its bytes.
        length: of the file.
        what: names it in errors, such as `image`.
    """

    def __init__(self, read: Read, length: int, what: str) -> None:
        self.length = length
        self._read = read
        self._what = what
        self._reads = 0
        self._start = 0
        self._window = b""

    def take(self, offset: int, size: int) -> bytes:
        """Just so many bytes, at most a window.

        Raises:
            Invalid: the file ends before, or too much of it was looked at.
        """
        end = offset + size
        if end > self.length:
            raise Invalid(f"the {self._what} is cut off after {self.length} bytes; send all of it")
        if offset < self._start or end > self._start + len(self._window):
            self._load(offset)
        found = self._window[offset - self._start : end - self._start]
        if len(found) != size:
            raise Invalid(f"the {self._what} is cut off before byte {end}; send it again")
        return found

    def too_far(self) -> Invalid:
        """The error of a file whose facts are behind too much else."""
        return Invalid(
            f"what the {self._what} is does not stand near its beginning; save it without metadata"
        )

    def _load(self, offset: int) -> None:
        self._reads += 1
        if self._reads > MAX_READS:
            raise self.too_far()
        self._start, self._window = offset, self._read(offset, WINDOW_BYTES)


def reader_of(data: bytes) -> Read:
    """Reads a file that is in memory."""
    return lambda offset, size: data[offset : offset + size]

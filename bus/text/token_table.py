"""What each token id adds to a text, kept in one block and cut out of it when it is asked for.

So a vocabulary of a quarter of a million tokens is two pieces of bytes on its way to the head and
there, and holds up no loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Self, overload

from bus.errors import DecodeError
from bus.ids import PackedIds, pack_ids, unpack_ids


class _Cuts(dict[int, bytes]):
    """The tokens that were asked for so far; any other one is cut out when it is."""

    __slots__ = ("_data", "_ends")

    def __init__(self, data: bytes, ends: Sequence[int]) -> None:
        super().__init__()
        self._data = data
        self._ends = ends

    def __missing__(self, token: int) -> bytes:
        begin = self._ends[token - 1] if token else 0
        self[token] = found = self._data[begin : self._ends[token]]
        return found


class TokenTable(Sequence[bytes]):
    """A vocabulary: bytes of each id.

    Attributes:
        by_id: gives the bytes of an id below the table's length, at the cost of a dict.

    Args:
        data: the bytes of all tokens, one after the other.
        ends: where each ends in `data`. One that ends before it begins adds nothing.

    Raises:
        DecodeError: the last one does not end where `data` does.
    """

    __slots__ = ("_data", "_ends", "by_id")

    def __init__(self, data: bytes, ends: PackedIds) -> None:
        self._data = data
        self._ends = unpack_ids(ends)
        if (self._ends[-1] if self._ends else 0) != len(data):
            raise DecodeError(f"{len(self._ends)} tokens do not end with their {len(data)} bytes")
        self.by_id: Mapping[int, bytes] = _Cuts(data, self._ends)

    @classmethod
    def of(cls, tokens: Iterable[bytes]) -> Self:
        """The table of some tokens."""
        listed = tuple(tokens)
        return cls(b"".join(listed), pack_ids(accumulate(map(len, listed))))

    @property
    def packed(self) -> tuple[bytes, PackedIds]:
        """`data` and `ends`."""
        return self._data, pack_ids(self._ends)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[bytes, ...]: ...

    def __getitem__(self, index: int | slice) -> bytes | tuple[bytes, ...]:
        ids = range(len(self._ends))
        if isinstance(index, slice):
            return tuple(self.by_id[token] for token in ids[index])
        return self.by_id[ids[index]]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

"""The header of a GGUF file: its metadata, and where its tensors lie.

Read from a file that may be anything: cut short, damaged, or made to harm. Every count and length
is compared with what the file has left before memory is taken for it, arrays hold no arrays, and
the items of all arrays are counted against one limit, so a header costs no more than a small
multiple of its own bytes.

    magic "GGUF" | version u32 | tensors u64 | pairs u64
    pairs times:   key string | type u32 | value
    tensors times: name string | dimensions u32 | each u64 | type u32 | offset u64
    zeros up to a multiple of `general.alignment`, then the tensors' bytes

A string is a u64 length and UTF-8. Everything is little-endian.

Source: the format's specification in ggml (`docs/gguf.md`).
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bus.errors import Invalid, NotFound

MAGIC = b"GGUF"
VERSIONS = (2, 3)
#: Far above what models have (a thousand tensors, a hundred pairs).
MAX_TENSORS = 1 << 16
MAX_PAIRS = 1 << 16
MAX_NAME_BYTES = 1 << 16
#: Items of all arrays together; the largest vocabularies with their merges have a million.
MAX_ITEMS = 1 << 22
#: A chat template is the longest text, some ten thousand bytes.
MAX_TEXT_BYTES = 1 << 22
MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16


@dataclass(frozen=True, slots=True)
class TensorType:
    """A row of the table of types: values of a block, and its bytes."""

    name: str
    values: int
    block_bytes: int


def _types(*rows: tuple[int, str, int, int]) -> dict[int, TensorType]:
    return {number: TensorType(name, values, size) for number, name, values, size in rows}


#: Numbers of types to what they take. Those that can be imported are in `blocks`.
TYPES: Mapping[int, TensorType] = _types(
    *((0, "F32", 1, 4), (1, "F16", 1, 2), (28, "F64", 1, 8), (30, "BF16", 1, 2)),
    *((24, "I8", 1, 1), (25, "I16", 1, 2), (26, "I32", 1, 4), (27, "I64", 1, 8)),
    *((2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22), (7, "Q5_1", 32, 24)),
    *((8, "Q8_0", 32, 34), (9, "Q8_1", 32, 40), (20, "IQ4_NL", 32, 18), (39, "MXFP4", 32, 17)),
    *((10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110), (12, "Q4_K", 256, 144)),
    *((13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210), (15, "Q8_K", 256, 292)),
    *((16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98)),
    *((19, "IQ1_S", 256, 50), (21, "IQ3_S", 256, 110), (22, "IQ2_S", 256, 82)),
    *((23, "IQ4_XS", 256, 136), (29, "IQ1_M", 256, 56)),
    *((34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66)),
)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies and what it is.

    Attributes:
        shape: the fastest dimension first, as GGUF has it: `(columns, rows)` of a matrix.
        type_name: a name of `TYPES`, or the number where it is not in it.
        offset: bytes from the start of the file.
        nbytes: its length; None for a type whose size is not known.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    nbytes: int | None

    @property
    def values(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """All that stands before the tensors' bytes.

    Attributes:
        file_bytes: the file's size.
        end: where the last tensor ends; more than `file_bytes` when the file is cut short.
    """

    version: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    file_bytes: int
    end: int


def read_header(path: Path) -> Header:
    """Read a file's header; the tensors' bytes are neither read nor needed.

    Raises:
        NotFound: no such file.
        Invalid: no GGUF, a header that is cut short or damaged, or one beyond the limits.
    """
    if not path.is_file():
        raise NotFound(f"there is no file {path}; name a .gguf file", param="file")
    with path.open("rb") as file:
        size = path.stat().st_size
        if size < len(MAGIC):
            raise _invalid(path, "it is no whole GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _Reader(path, view, size).header()


def _invalid(path: Path, fact: str, remedy: str = "download it again") -> Invalid:
    return Invalid(f"{path} can not be read: {fact}; {remedy}", param="file")


#: Types of metadata values: struct letter of the fixed-size ones.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
_BOOL, _TEXT, _ARRAY = 7, 8, 9


class _Reader:
    """A place in the file, which only moves forward and never past its end."""

    def __init__(self, path: Path, view: mmap.mmap, size: int) -> None:
        self._path = path
        self._view = view
        self._size = size
        self._at = 0
        self._items = 0

    def header(self) -> Header:
        if self._take(4) != MAGIC:
            raise _invalid(self._path, "it is no whole GGUF file", "name a .gguf file")
        version = self._version()
        tensor_count = self._count("Q", MAX_TENSORS, "tensors")
        pair_count = self._count("Q", MAX_PAIRS, "pairs of metadata")
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = self._text(MAX_NAME_BYTES)
            if key in metadata:
                raise _invalid(self._path, f"its key {key!r} stands there twice")
            metadata[key] = self._value()
        rows = [self._tensor() for _ in range(tensor_count)]
        tensors, end = self._place(rows, self._alignment(metadata))
        return Header(version, metadata, tensors, self._size, end)

    def _version(self) -> int:
        version = int(self._number("I"))
        if version in VERSIONS:
            return version
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in VERSIONS:
            raise _invalid(self._path, "it is big-endian", "use the little-endian file")
        raise _invalid(
            self._path, f"it is of GGUF version {version}", f"use one of version {VERSIONS[-1]}"
        )

    def _take(self, count: int) -> bytes:
        if count > self._size - self._at:
            raise _invalid(
                self._path, f"it is no whole GGUF file: {self._size} bytes end its header"
            )
        self._at += count
        return self._view[self._at - count : self._at]

    def _number(self, letter: str) -> Any:
        form = f"<{letter}"
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _count(self, letter: str, most: int, of_what: str) -> int:
        count = int(self._number(letter))
        if count > most:
            raise _invalid(self._path, f"it claims {count} {of_what} and {most} is the most")
        return count

    def _text(self, most: int) -> str:
        length = self._count("Q", most, "bytes in one text")
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise _invalid(self._path, f"a text at byte {self._at - length} is no UTF-8") from error

    def _value(self) -> Any:
        kind = self._number("I")
        if kind == _ARRAY:
            return self._array()
        if kind == _TEXT:
            return self._text(MAX_TEXT_BYTES)
        if kind == _BOOL:
            return self._number("B") != 0
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        raise _invalid(self._path, f"a value is of type {kind}, which GGUF does not have")

    def _array(self) -> list[Any]:
        kind = self._number("I")
        count = self._count("Q", MAX_ITEMS - self._items, "items in its arrays")
        self._items += count
        if kind == _TEXT:
            return [self._text(MAX_TEXT_BYTES) for _ in range(count)]
        letter = "?" if kind == _BOOL else _SCALARS.get(kind)
        if letter is None:
            raise _invalid(self._path, f"an array's items are of type {kind}")
        dtype = np.dtype(letter).newbyteorder("<")
        found: list[Any] = np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()
        return found

    def _tensor(self) -> TensorInfo:
        """A tensor whose offset still counts from the first tensor."""
        name = self._text(MAX_NAME_BYTES)
        dimensions = self._count("I", MAX_DIMENSIONS, "dimensions of a tensor")
        shape = tuple(
            self._count("Q", 1 << 40, "values in one dimension") for _ in range(dimensions)
        )
        number, offset = self._number("I"), self._number("Q")
        if not shape or 0 in shape:
            raise _invalid(self._path, f"its tensor {name!r} has no values")
        known = TYPES.get(number)
        if known is None:
            return TensorInfo(name, shape, str(number), offset, None)
        if shape[0] % known.values:
            raise _invalid(
                self._path, f"its tensor {name!r} has rows of {shape[0]}, no whole blocks"
            )
        nbytes = math.prod(shape) // known.values * known.block_bytes
        return TensorInfo(name, shape, known.name, offset, nbytes)

    def _alignment(self, metadata: Mapping[str, Any]) -> int:
        found = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(found, int) or not 0 < found <= MAX_ALIGNMENT or found & (found - 1):
            raise _invalid(self._path, f"its alignment is {found!r}")
        return found

    def _place(self, rows: list[TensorInfo], alignment: int) -> tuple[dict[str, TensorInfo], int]:
        """Tensors by name with offsets in the file, and the end of the last one."""
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        end = self._at
        for row in rows:
            if row.name in tensors:
                raise _invalid(self._path, f"its tensor {row.name!r} stands there twice")
            if row.offset % alignment:
                raise _invalid(self._path, f"its tensor {row.name!r} does not begin where it may")
            offset = start + row.offset
            tensors[row.name] = TensorInfo(row.name, row.shape, row.type_name, offset, row.nbytes)
            end = max(end, offset + (row.nbytes or 1))
        return tensors, end

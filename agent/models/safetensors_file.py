"""A safetensors file: its header, and its floating-point tensors.

Read from a file that may be anything: cut short, damaged, or made to harm. The header's length is
compared with the file and with a limit before memory is taken, every figure in it is checked, and
the tensors must fill the rest of the file without a gap or an overlap, as the format demands.

    length u64 little-endian | a JSON object of that many bytes | the tensors' bytes

    {"__metadata__": {"format": "pt"},
     "a.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}

Source: the format's specification (github.com/huggingface/safetensors, README).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from agent.models.blocks import DENSE, FloatArray, decode_dense
from bus.errors import Invalid, NotFound

#: A tensor takes about 120 bytes of it; the largest models have some ten thousand tensors.
MAX_HEADER_BYTES = 8 << 20
MAX_TENSORS = 1 << 16
MAX_NAME_BYTES = 1 << 10
MAX_DIMENSIONS = 8
MAX_DIMENSION = 1 << 40
METADATA = "__metadata__"

#: Bytes of a value of each type. Those of `blocks.DENSE` can be read.
VALUE_BYTES: Mapping[str, int] = {
    name: size
    for size, names in {
        8: ("F64", "I64", "U64"),
        4: ("F32", "I32", "U32"),
        2: ("F16", "BF16", "I16", "U16"),
        1: ("F8_E4M3", "F8_E5M2", "I8", "U8", "BOOL"),
    }.items()
    for name in names
}
_LENGTH_BYTES = 8
_KEYS = {"dtype", "shape", "data_offsets"}


@dataclass(frozen=True, slots=True)
class SafeTensor:
    """Where a tensor lies and what it is; `offset` counts from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class SafetensorsFile:
    """A file whose header was read and found whole.

    Attributes:
        metadata: texts that the file says of itself.
        tensors: by name, in the file's order.

    Raises:
        NotFound: no such file.
        Invalid: no safetensors file, one that is cut short or damaged, or beyond the limits.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise NotFound(f"there is no file {path}; name a .safetensors file", param="file")
        self.path = path
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_LENGTH_BYTES)
            length = int.from_bytes(head, "little")
            if len(head) < _LENGTH_BYTES or length > size - _LENGTH_BYTES:
                self._refuse("it is no whole safetensors file")
            if length > MAX_HEADER_BYTES:
                self._refuse(f"its header has {length} bytes and {MAX_HEADER_BYTES} are the most")
            header = self._parse(file.read(length))
        start = _LENGTH_BYTES + length
        self.metadata = self._metadata(header.pop(METADATA, {}))
        if len(header) > MAX_TENSORS:
            self._refuse(f"it has {len(header)} tensors and {MAX_TENSORS} are the most")
        rows = [self._tensor(name, entry, start) for name, entry in header.items()]
        self._check_places(rows, start, size)
        self.tensors: Mapping[str, SafeTensor] = {row.name: row for row in rows}

    def floats(self, name: str) -> FloatArray:
        """A tensor's values as float32, which F16 and BF16 widen to without loss.

        Raises:
            Invalid: no such tensor, one that is no float, or a file that has changed.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            self._refuse(f"it has no tensor {name[:200]!r}", "use a whole model")
        if tensor.dtype not in DENSE:
            self._refuse(
                f"its tensor {name!r} is of type {tensor.dtype}", f"use one of {', '.join(DENSE)}"
            )
        with self.path.open("rb") as file:
            file.seek(tensor.offset)
            raw = file.read(tensor.nbytes)
        if len(raw) != tensor.nbytes:
            self._refuse("it became shorter while it was read")
        return decode_dense(tensor.dtype, raw).reshape(tensor.shape)

    def _refuse(self, fact: str, remedy: str = "download it again") -> NoReturn:
        raise Invalid(f"{self.path} can not be read: {fact}; {remedy}", param="file")

    def _parse(self, raw: bytes) -> dict[str, Any]:
        if not raw.startswith(b"{"):
            self._refuse("its header is no JSON object", "name a .safetensors file")
        try:
            found: dict[str, Any] = json.loads(
                raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant
            )
        except (ValueError, RecursionError) as error:
            self._refuse(f"its header is no JSON as it should be ({str(error)[:200]})")
        return found

    def _metadata(self, found: Any) -> Mapping[str, str]:
        texts = isinstance(found, dict) and all(isinstance(value, str) for value in found.values())
        if not texts:
            self._refuse(f"its {METADATA} are no texts")
        return dict(found)

    def _tensor(self, name: str, entry: Any, start: int) -> SafeTensor:
        if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
            self._refuse(f"a tensor's name is longer than {MAX_NAME_BYTES} bytes")
        if not isinstance(entry, dict) or set(entry) != _KEYS:
            self._refuse(f"what it says of its tensor {name!r} is not {', '.join(sorted(_KEYS))}")
        dtype, shape, places = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in VALUE_BYTES:
            self._refuse(f"its tensor {name!r} is of type {str(dtype)[:60]!r}", "use another file")
        if not _whole_numbers(shape, MAX_DIMENSION) or len(shape) > MAX_DIMENSIONS:
            self._refuse(f"its tensor {name!r} has no usable shape")
        if not _whole_numbers(places, 1 << 62) or len(places) != 2 or places[0] > places[1]:
            self._refuse(f"its tensor {name!r} has no usable data_offsets")
        nbytes = math.prod(shape) * VALUE_BYTES[dtype]
        if nbytes != places[1] - places[0]:
            self._refuse(
                f"its tensor {name!r} takes {places[1] - places[0]} bytes where its shape takes "
                f"{nbytes}"
            )
        return SafeTensor(name, dtype, tuple(shape), start + places[0], nbytes)

    def _check_places(self, rows: list[SafeTensor], start: int, size: int) -> None:
        """One after the other from the header's end to the file's."""
        end = start
        for row in sorted(rows, key=lambda row: (row.offset, row.nbytes)):
            if row.offset != end:
                self._refuse(f"its tensor {row.name!r} does not begin where the last one ends")
            end += row.nbytes
        if end != size:
            self._refuse(f"it has {size} bytes and its tensors end at {end}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _whole_numbers(value: Any, most: int) -> bool:
    """Whether it is a list of whole numbers; `true` is none."""
    return isinstance(value, list) and all(
        type(item) is int and 0 <= item <= most for item in value
    )

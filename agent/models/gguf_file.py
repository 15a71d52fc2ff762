"""A GGUF file, or the parts of one that was split, as a source of weights."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.models.architecture import DecoderConfig, check_shapes
from agent.models.blocks import DENSE, FORMATS, FloatArray, Matrix, decode_blocks, decode_dense
from agent.models.figures import config_from_metadata
from agent.models.gguf_header import Header, TensorInfo, read_header
from bus.errors import Invalid, NotFound

#: How the parts of a split file are named.
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf\Z")
IMPORTED_TYPES = (*FORMATS, *DENSE)


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a model and its header."""

    path: Path
    header: Header

    def check_whole(self) -> None:
        """Refuse a file that ends before its tensors do.

        Raises:
            Invalid: says by how many bytes.
        """
        if self.header.end > self.header.file_bytes:
            raise Invalid(
                f"{self.path} is no whole GGUF file: it has {self.header.file_bytes} bytes and "
                f"its tensors end at {self.header.end}; download it again",
                param="file",
            )


def read_parts(path: Path) -> list[Part]:
    """Read the header of a file, and of its sisters when it is the first part of a split one.

    Raises:
        NotFound: there is no such file.
        Invalid: a header that can not be read, another part than the first, or parts missing.
    """
    first = Part(path, read_header(path))
    count = first.header.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return [first]
    name = _PART.match(path.name)
    if name is None or int(name["count"]) != count:
        raise Invalid(
            f"{path} is a part of a file that was split in {count}; give the parts their names "
            f"again, such as MODEL-00001-of-{count:05}.gguf",
            param="file",
        )
    paths = [
        path.with_name(f"{name['stem']}-{number:05}-of-{count:05}.gguf")
        for number in range(1, count + 1)
    ]
    if path != paths[0]:
        raise Invalid(
            f"{path} is part {int(name['number'])} of {count}; name the first: {paths[0]}",
            param="file",
        )
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise Invalid(
            f"{path} is the first of {count} parts and beside it there is no "
            f"{', '.join(missing[:3])}{' ...' if missing[3:] else ''}; put all into one folder",
            param="file",
        )
    return [first, *(Part(other, read_header(other)) for other in paths[1:])]


def all_tensors(parts: Iterable[Part]) -> dict[str, TensorInfo]:
    """The tensors of all parts.

    Raises:
        Invalid: two parts have a tensor of one name.
    """
    found: dict[str, TensorInfo] = {}
    for part in parts:
        twice = found.keys() & part.header.tensors.keys()
        if twice:
            raise Invalid(f"{part.path} repeats {min(twice)} of another part", param="file")
        found.update(part.header.tensors)
    return found


def vocab_size(path: Path, tensors: Mapping[str, TensorInfo]) -> int:
    """Rows of the embedding.

    Raises:
        Invalid: there is none.
    """
    table = tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise Invalid(f"{path} has no token_embd.weight; it is no language model", param="file")
    return table.shape[1]


def check_types(tensors: Iterable[TensorInfo]) -> None:
    """Refuse tensors of types that are not imported without loss and without growing.

    Raises:
        Invalid: names the types and what can be used.
    """
    others = {tensor.type_name: tensor.name for tensor in tensors}
    for known in IMPORTED_TYPES:
        others.pop(known, None)
    if others:
        name = others[min(others)]
        raise Invalid(
            f"tensors of type {', '.join(sorted(others))} can not be imported (such as {name}); "
            f"use a file whose tensors are of {', '.join(IMPORTED_TYPES)}",
            param=name,
        )


class GgufFile:
    """An open, memory-mapped GGUF file: a `WeightSource` with metadata.

    Attributes:
        metadata: key to value, all keys of the file.
        config: the decoder's figures.
        paths: the file, or all parts of it.
    """

    def __init__(self, path: Path) -> None:
        """Open and check a file.

        Raises:
            NotFound: no such file.
            Invalid: not GGUF, cut short, or a model that can not be imported.
        """
        parts = read_parts(path)
        for part in parts:
            part.check_whole()
        self.paths = [part.path for part in parts]
        self.metadata: Mapping[str, Any] = parts[0].header.metadata
        self._tensors = all_tensors(parts)
        self._maps: dict[str, npt.NDArray[np.uint8]] = {}
        for part in parts:
            view = np.memmap(part.path, np.uint8, "r")
            self._maps.update(dict.fromkeys(part.header.tensors, view))
        vocab = vocab_size(path, self._tensors)
        self.config: DecoderConfig = config_from_metadata(self.metadata, vocab)
        check_types(self._tensors.values())
        check_shapes(self.config, {name: info.shape for name, info in self._tensors.items()})

    def names(self) -> Iterable[str]:
        """All tensors of the file."""
        return self._tensors.keys()

    def type_counts(self) -> dict[str, int]:
        """How many tensors there are of each GGUF type."""
        return dict(Counter(tensor.type_name for tensor in self._tensors.values()))

    def matrix(self, name: str) -> Matrix:
        """A weight matrix `[rows, columns]`; types without blocks become dense float32."""
        info = self._info(name)
        if info.type_name in FORMATS:
            return decode_blocks(info.type_name, self._bytes(info), info.shape[1])
        return self._dense(info).reshape(info.shape[::-1])

    def vector(self, name: str) -> FloatArray:
        """A one-dimensional tensor in float32."""
        info = self._info(name)
        if info.type_name in FORMATS:
            return decode_blocks(info.type_name, self._bytes(info), 1).dequantize().reshape(-1)
        return self._dense(info)

    def _info(self, name: str) -> TensorInfo:
        if name not in self._tensors:
            raise NotFound(f"the file has no tensor {name}", param=name)
        return self._tensors[name]

    def _bytes(self, info: TensorInfo) -> npt.NDArray[np.uint8]:
        return self._maps[info.name][info.offset : info.offset + (info.nbytes or 0)]

    def _dense(self, info: TensorInfo) -> FloatArray:
        return decode_dense(info.type_name, self._bytes(info))

"""A GGUF file as a source of weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from agent.models.architecture import DecoderConfig, check_tensors, config_from_metadata
from agent.models.blocks import FORMATS, FloatArray, Matrix, decode_blocks
from bus.errors import Invalid, NotFound


class GgufFile:
    """An open, memory-mapped GGUF file: a `WeightSource` with metadata.

    Attributes:
        metadata: key to value, all keys of the file.
        config: the decoder's figures.
    """

    def __init__(self, path: Path) -> None:
        """Open and check a file.

        Raises:
            NotFound: no such file.
            Invalid: not GGUF, cut short, or a model that can not be imported.
        """
        if not path.is_file():
            raise NotFound(f"there is no file {path}; name a .gguf file", param="file")
        try:
            reader = gguf.GGUFReader(str(path))
        except (ValueError, IndexError, KeyError) as error:
            raise Invalid(
                f"{path} is no whole GGUF file; download it again", param="file"
            ) from error
        self.metadata: dict[str, Any] = {
            key: field.contents() for key, field in reader.fields.items()
        }
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        if "token_embd.weight" not in self._tensors:
            raise Invalid(f"{path} has no token_embd.weight; it is no language model", param="file")
        vocab = int(self._tensors["token_embd.weight"].shape[1])
        self.config: DecoderConfig = config_from_metadata(self.metadata, vocab)
        check_tensors(self.config, self._tensors)

    def names(self) -> Iterable[str]:
        """All tensors of the file."""
        return self._tensors.keys()

    def type_counts(self) -> dict[str, int]:
        """How many tensors there are of each GGUF type."""
        return dict(Counter(tensor.tensor_type.name for tensor in self._tensors.values()))

    def matrix(self, name: str) -> Matrix:
        """A weight matrix `[rows, columns]`; types without blocks of their own become dense."""
        tensor = self._tensors[name]
        if tensor.tensor_type.name in FORMATS:
            raw = np.asarray(tensor.data).view(np.uint8)
            return decode_blocks(tensor.tensor_type.name, raw, int(tensor.shape[1]))
        return self._dense(name)

    def vector(self, name: str) -> FloatArray:
        """A one-dimensional tensor in float32."""
        return self._dense(name).reshape(-1)

    def _dense(self, name: str) -> FloatArray:
        tensor = self._tensors[name]
        try:
            dense = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise Invalid(
                f"tensor {name} is of type {tensor.tensor_type.name}, which can not be imported; "
                f"use a file of one of {', '.join(FORMATS)}, F16 or F32",
                param=name,
            ) from error
        return np.asarray(dense, np.float32)

"""The toy decoder with weights in any GGUF format, and its dense reference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import gguf
import numpy as np
import numpy.typing as npt

from agent.models.architecture import DecoderConfig
from agent.models.blocks import FORMATS, FloatArray, Matrix, decode_blocks
from agent.models.toy import CONFIG, ToyWeights
from tests.harness.reference import ReferenceModel

#: Wide enough for the formats with blocks of 256 columns.
WIDE = replace(CONFIG, hidden=256, heads=8, feed_forward=256)

#: Where a format's blocks keep float16 scales, as offsets in halves.
_SCALES = {"Q4_1": (0, 1), "Q5_1": (0, 1), "Q4_K": (0, 1), "Q5_K": (0, 1), "Q6_K": (104,)}


def random_blocks(type_name: str, rows: int, columns: int, seed: int) -> npt.NDArray[np.uint8]:
    """Random bytes of a format, `[rows, bytes]`.

    Their float16 scales are such that the weights' standard deviation is `columns**-0.5`.
    """
    rng = np.random.default_rng(seed)
    form = FORMATS[type_name]
    blocks = rows * columns // form.values
    raw = rng.integers(0, 256, (blocks, form.block_bytes), dtype=np.uint8)
    places = np.array(_SCALES.get(type_name, (0,)))
    drawn = rng.uniform(-1, 1, (blocks, len(places)))
    raw.view("<f2")[:, places] = drawn
    spread = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[type_name]).std()
    raw.view("<f2")[:, places] = drawn * (columns**-0.5 / spread)
    return raw.reshape(rows, -1)


@dataclass(frozen=True)
class VariedWeights:
    """A `WeightSource` whose matrices are random blocks of chosen formats.

    Attributes:
        choose: from a tensor's name to its format; None for dense float32.
    """

    choose: Callable[[str], str | None]
    config: DecoderConfig = WIDE
    untied: bool = False

    def names(self) -> Iterable[str]:
        """All tensors."""
        return [*ToyWeights(self.config).names(), *(["output.weight"] if self.untied else [])]

    def vector(self, name: str) -> FloatArray:
        """A norm."""
        return ToyWeights(self.config).vector(name)

    def matrix(self, name: str) -> Matrix:
        """As the importer would read it."""
        kind = self.choose(name)
        if kind is None:
            return self.dense(name)
        return decode_blocks(kind, self.raw(name, kind), self._shape(name)[0])

    def dense(self, name: str) -> FloatArray:
        """As gguf dequantizes it."""
        kind = self.choose(name)
        rows, columns = self._shape(name)
        if kind is None:
            rng = np.random.default_rng(self._seed(name))
            return rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)
        raw = self.raw(name, kind)
        found: FloatArray = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
        return found

    def _shape(self, name: str) -> tuple[int, int]:
        if name == "output.weight":
            return self.config.vocab, self.config.hidden
        return ToyWeights(self.config).shape(name)

    def dense_weights(self) -> dict[str, FloatArray]:
        """All tensors, for the reference."""
        return {
            name: self.vector(name) if "norm" in name else self.dense(name) for name in self.names()
        }

    def raw(self, name: str, kind: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes in a file, `[rows, bytes]`."""
        return random_blocks(kind, *self._shape(name), seed=self._seed(name))

    def _seed(self, name: str) -> int:
        return sum(name.encode())


def reference_of(
    config: DecoderConfig,
    weights: Mapping[str, FloatArray],
    kind: type[ReferenceModel] = ReferenceModel,
) -> ReferenceModel:
    """The reference model with a toy's figures."""
    return kind(
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        epsilon=config.epsilon,
        rotary_base=config.rotary.base,
        weights=weights,
    )

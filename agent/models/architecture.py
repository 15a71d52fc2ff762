"""What a decoder is: its figures, where its weights come from, and a table of architectures.

An architecture is a row of `ARCHITECTURES`; the graph builder reads the row and has no name of an
architecture in it. Tensor names are GGUF's (`blk.0.attn_q.weight`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from agent.models.blocks import FloatArray, IndexArray, Matrix, take_rows
from bus.errors import Invalid


class WeightSource(Protocol):
    """Weights by GGUF name, decoded when asked for."""

    def names(self) -> Iterable[str]:
        """All tensors there are."""

    def matrix(self, name: str) -> Matrix:
        """A weight matrix `[rows, columns]`, in blocks where it is quantised."""

    def vector(self, name: str) -> FloatArray:
        """A one-dimensional tensor."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one family differs from the plain pre-norm decoder.

    Attributes:
        name: as GGUF's `general.architecture`.
        paired_rotary: the file's query and key rows are ordered for rotation of neighbouring
            pairs and are put back into halves, an exact permutation.
        layer_tensors: what each layer must have, without `blk.N.` and `.weight`.
    """

    name: str
    paired_rotary: bool
    layer_tensors: tuple[str, ...]


_LLAMA_LAYER = (
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
)

ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", paired_rotary=True, layer_tensors=_LLAMA_LAYER),
}

#: Tensors outside the layers that a file may have.
_OUTER = ("token_embd.weight", "output_norm.weight", "output.weight", "rope_freqs.weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """The figures of one decoder.

    Attributes:
        max_positions: the context window, in tokens; the length of the rotary tables.
        rotary_base: base of the rotary frequencies.
        rotary_scale: linear position scaling, 1 for none.
    """

    architecture: Architecture
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocab: int
    max_positions: int
    epsilon: float
    rotary_base: float
    rotary_scale: float = 1.0

    def query_rows(self) -> IndexArray:
        """Row order that turns the file's query matrix into rotary halves."""
        return _halves(self.heads, self.head_dim)

    def key_rows(self) -> IndexArray:
        """The same for keys."""
        return _halves(self.kv_heads, self.head_dim)


def _halves(heads: int, head_dim: int) -> IndexArray:
    """Rows `(x0 y0 x1 y1 ...)` of each head as `(x0 x1 ... y0 y1 ...)`."""
    index = np.arange(heads * head_dim, dtype=np.int64).reshape(heads, head_dim // 2, 2)
    return index.swapaxes(1, 2).reshape(-1)


def query_key_value(config: DecoderConfig, weights: WeightSource, prefix: str) -> list[Matrix]:
    """The three projections of a layer, rows in the order that the graph rotates."""
    query, key, value = (weights.matrix(f"{prefix}attn_{part}.weight") for part in "qkv")
    if config.architecture.paired_rotary:
        query, key = take_rows(query, config.query_rows()), take_rows(key, config.key_rows())
    return [query, key, value]


def config_from_metadata(metadata: Mapping[str, Any], vocab: int) -> DecoderConfig:
    """Read a decoder's figures from GGUF metadata.

    Args:
        metadata: the file's key-value pairs.
        vocab: rows of the embedding, in tokens.

    Raises:
        Invalid: an architecture or rotary scaling that the graph builder does not have.
    """
    name = str(metadata.get("general.architecture"))
    if name not in ARCHITECTURES:
        raise Invalid(
            f"architecture {name!r} can not be imported; these can: {', '.join(ARCHITECTURES)}",
            param="architecture",
        )

    def figure(key: str, default: float | None = None) -> float:
        value = metadata.get(f"{name}.{key}", default)
        if not isinstance(value, (int, float)):
            raise Invalid(
                f"the file's metadata has no usable {name}.{key}; download the file again",
                param=f"{name}.{key}",
            )
        return value

    scaling = metadata.get(f"{name}.rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise Invalid(f"rotary scaling {scaling!r} can not be imported", param="rope.scaling.type")
    hidden, heads = int(figure("embedding_length")), int(figure("attention.head_count"))
    head_dim = int(figure("attention.key_length", hidden // heads))
    if int(figure("rope.dimension_count", head_dim)) != head_dim:
        raise Invalid("rotation of a part of a head can not be imported", param="rope")
    return DecoderConfig(
        architecture=ARCHITECTURES[name],
        layers=int(figure("block_count")),
        hidden=hidden,
        heads=heads,
        kv_heads=int(figure("attention.head_count_kv", heads)),
        head_dim=head_dim,
        feed_forward=int(figure("feed_forward_length")),
        vocab=vocab,
        max_positions=int(figure("context_length")),
        epsilon=figure("attention.layer_norm_rms_epsilon"),
        rotary_base=figure("rope.freq_base", 10000.0),
        rotary_scale=figure("rope.scaling.factor", 1.0) if scaling == "linear" else 1.0,
    )


def check_tensors(config: DecoderConfig, names: Iterable[str]) -> None:
    """Refuse a file that lacks a tensor or has one that the graph would leave out.

    Raises:
        Invalid: with the first few names.
    """
    have = set(names)
    layered = {
        f"blk.{layer}.{part}.weight"
        for layer in range(config.layers)
        for part in config.architecture.layer_tensors
    }
    missing = (layered | set(_OUTER[:2])) - have
    if missing:
        raise Invalid(
            f"the file lacks {_some(missing)}; download it again", param=sorted(missing)[0]
        )
    unknown = have - layered - set(_OUTER)
    if unknown:
        raise Invalid(
            f"the file has tensors that architecture {config.architecture.name} does not use here: "
            f"{_some(unknown)}; importing it would change the model",
            param=sorted(unknown)[0],
        )


def _some(names: set[str]) -> str:
    shown = sorted(names)[:3]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")

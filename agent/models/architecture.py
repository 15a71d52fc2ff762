"""The families of decoders, a row each, and where weights come from.

The graph builder reads the row and has no name of an architecture in it. Tensor names are GGUF's
(`blk.0.attn_q.weight`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np

from agent.models.blocks import FloatArray, IndexArray, Matrix, take_rows
from agent.models.rotary import Rotary
from bus.errors import Invalid


class WeightSource(Protocol):
    """Weights by GGUF name, decoded when asked for."""

    def names(self) -> Iterable[str]:
        """All tensors there are."""

    def matrix(self, name: str) -> Matrix:
        """A weight matrix `[rows, columns]`, in blocks where it is quantised."""

    def vector(self, name: str) -> FloatArray:
        """A one-dimensional tensor."""


class Activation(Enum):
    """What the gate of a feed-forward layer goes through."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"


@dataclass(frozen=True, slots=True)
class LocalLayers:
    """Some layers look back over a window only.

    Attributes:
        period: every so many layers the last one looks back over everything.
        rotary_base: of the layers with a window, unless the file says.
    """

    period: int
    rotary_base: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """How one family differs from the plain pre-norm decoder.

    Attributes:
        name: as GGUF's `general.architecture`.
        paired_rotary: the file's query and key rows are ordered for rotation of neighbouring
            pairs and are put back into halves, an exact permutation.
        biases: query, key and value may have a bias.
        head_norms: each head of query and key is normed before it is rotated.
        branch_norms: what attention and feed-forward give is normed before it is added.
        scaled_embedding: embeddings are multiplied with the root of their length.
        activation: of the gate.
        local: layers with a window, if any.
        scores_by_width: models of so many layers divide scores by the root of hidden / heads, all
            others by the root of the head's length.
        wide_residual: values between layers exceed what float16 holds, so they stay float32 in
            the float16 graph.
    """

    name: str
    paired_rotary: bool = False
    biases: bool = False
    head_norms: bool = False
    branch_norms: bool = False
    scaled_embedding: bool = False
    activation: Activation = Activation.SILU
    local: LocalLayers | None = None
    scores_by_width: int | None = None
    wide_residual: bool = False


ARCHITECTURES: dict[str, Architecture] = {
    row.name: row
    for row in (
        Architecture(name="llama", paired_rotary=True),
        Architecture(name="qwen2", biases=True),
        Architecture(name="qwen3", head_norms=True),
        Architecture(
            name="gemma3",
            head_norms=True,
            branch_norms=True,
            scaled_embedding=True,
            activation=Activation.GELU_TANH,
            local=LocalLayers(period=6, rotary_base=10_000.0),
            scores_by_width=62,
            wide_residual=True,
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """The figures of one decoder.

    Attributes:
        max_positions: the context window, in tokens; the length of the rotary tables.
        rotary: of the layers that look back over everything.
        window: how many tokens a layer with a window sees, itself included; None when no layer
            has one.
        local_rotary: of those layers.
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
    rotary: Rotary
    window: int | None = None
    local_rotary: Rotary | None = None

    @property
    def score_scale(self) -> float:
        """What products of query and key are multiplied with."""
        wide = self.layers == self.architecture.scores_by_width
        return float((self.hidden / self.heads if wide else self.head_dim) ** -0.5)

    def is_local(self, layer: int) -> bool:
        """Whether a layer looks back over the window only."""
        local = self.architecture.local
        return self.window is not None and local is not None and (layer + 1) % local.period != 0

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


def query_key_value_biases(
    config: DecoderConfig, weights: WeightSource, prefix: str
) -> list[FloatArray] | None:
    """Their biases, zeros where only some have one; None where none has."""
    if not config.architecture.biases:
        return None
    names, sizes = set(weights.names()), _bias_sizes(config)
    wanted = [f"{prefix}{part}" for part in sizes]
    if not names.intersection(wanted):
        return None
    return [
        weights.vector(name) if name in names else np.zeros(size, np.float32)
        for name, size in zip(wanted, sizes.values(), strict=True)
    ]


def _bias_sizes(config: DecoderConfig) -> dict[str, int]:
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {"attn_q.bias": queries, "attn_k.bias": keys, "attn_v.bias": keys}


Shapes = dict[str, tuple[int, ...]]


def layer_shapes(config: DecoderConfig) -> Shapes:
    """What each layer has, without `blk.N.`, as GGUF gives shapes: columns, then rows."""
    row, hidden, wide = config.architecture, config.hidden, config.feed_forward
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: Shapes = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (hidden, queries),
        "attn_k.weight": (hidden, keys),
        "attn_v.weight": (hidden, keys),
        "attn_output.weight": (queries, hidden),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (hidden, wide),
        "ffn_up.weight": (hidden, wide),
        "ffn_down.weight": (wide, hidden),
    }
    if row.head_norms:
        shapes |= {f"attn_{part}_norm.weight": (config.head_dim,) for part in "qk"}
    if row.branch_norms:
        shapes |= {f"post_{part}_norm.weight": (hidden,) for part in ("attention", "ffw")}
    return shapes


def check_shapes(config: DecoderConfig, have: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a file that lacks a tensor, has one of another shape, or one left out here.

    Args:
        have: name to shape, columns first.

    Raises:
        Invalid: with the first few names.
    """
    if config.layers > len(have):
        raise Invalid(
            f"the file claims {config.layers} layers and has {len(have)} tensors; download it "
            "again",
            param="block_count",
        )
    required, optional = _wanted(config)
    missing = required.keys() - have.keys()
    if missing:
        raise Invalid(f"the file lacks {_some(missing)}; download it again", param=min(missing))
    wanted = required | optional
    unknown = have.keys() - wanted.keys()
    if unknown:
        raise Invalid(
            f"the file has tensors that architecture {config.architecture.name} does not use here: "
            f"{_some(unknown)}; importing it would change the model",
            param=min(unknown),
        )
    for name, shape in have.items():
        if shape != wanted[name]:
            raise Invalid(
                f"tensor {name} is {_text(shape)} and the file's metadata make it "
                f"{_text(wanted[name])}; download it again",
                param=name,
            )


def _wanted(config: DecoderConfig) -> tuple[Shapes, Shapes]:
    """Shapes of the tensors that there must be, and of those that there may be."""
    layers = [f"blk.{layer}." for layer in range(config.layers)]
    table = (config.hidden, config.vocab)
    required: Shapes = {
        "token_embd.weight": table,
        "output_norm.weight": (config.hidden,),
    }
    for part, shape in layer_shapes(config).items():
        required |= {prefix + part: shape for prefix in layers}
    optional: Shapes = {
        "output.weight": table,
        "rope_freqs.weight": (config.head_dim // 2,),
    }
    if config.architecture.biases:
        for part, size in _bias_sizes(config).items():
            optional |= {prefix + part: (size,) for prefix in layers}
    return required, optional


def _text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) if math.prod(shape) else "empty"


def _some(names: Iterable[str]) -> str:
    found = sorted(names)
    shown = found[:3]
    more = len(found) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")

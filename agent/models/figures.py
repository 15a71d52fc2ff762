"""A decoder's figures from the metadata of a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent.models.architecture import ARCHITECTURES, Architecture, DecoderConfig
from agent.models.rotary import Rotary, Yarn
from bus.errors import Invalid

#: Rotary tables are no longer than this: 2**18 positions of a head of 128 take 128 MiB.
MAX_POSITIONS = 1 << 18
#: The largest figure that means something; each must also fit the tensors' shapes.
_LARGEST = 1 << 24
#: GroupQueryAttention refuses heads of other lengths when it runs.
_HEAD_STEP, _LARGEST_HEAD = 16, 1024
#: Keys of things that change what a model computes and that graphs do not have.
_NOT_HERE = {
    "expert_count": "a mixture of experts",
    "attn_logit_softcapping": "capping of attention scores",
    "final_logit_softcapping": "capping of logits",
    "attention.clamp_kqv": "clamped projections",
    "attention.max_alibi_bias": "linear position biases",
}


@dataclass(frozen=True, slots=True)
class _Figures:
    """One architecture's keys in a file's metadata."""

    metadata: Mapping[str, Any]
    name: str

    def get(self, key: str) -> Any:
        return self.metadata.get(f"{self.name}.{key}")

    def number(self, key: str, default: float | None = None) -> float:
        value = self.metadata.get(f"{self.name}.{key}", default)
        usable = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not usable or not math.isfinite(value) or value < 0:
            raise self._unusable(key, value)
        return float(value)

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.number(key, default)
        if value == 0:
            raise self._unusable(key, value)
        return value

    def whole(self, key: str, default: int | None = None, most: int = _LARGEST) -> int:
        value = self.positive(key, default)
        if value != int(value) or value > most:
            raise self._unusable(key, value)
        return int(value)

    def _unusable(self, key: str, value: Any) -> Invalid:
        shown = f" ({value!r:.60})" if value is not None else ""
        return Invalid(
            f"the file's metadata has no usable {self.name}.{key}{shown}; download the file again",
            param=f"{self.name}.{key}",
        )


def config_from_metadata(metadata: Mapping[str, Any], vocab: int) -> DecoderConfig:
    """Read a decoder's figures from GGUF metadata.

    Args:
        metadata: the file's key-value pairs.
        vocab: rows of the embedding, in tokens.

    Raises:
        Invalid: a figure that is missing or senseless, or something that graphs do not have.
    """
    name = str(metadata.get("general.architecture"))
    row = ARCHITECTURES.get(name)
    if row is None:
        raise Invalid(
            f"architecture {name[:60]!r} can not be imported; these can: "
            f"{', '.join(ARCHITECTURES)}",
            param="architecture",
        )
    figures = _Figures(metadata, name)
    for key, what in _NOT_HERE.items():
        if figures.get(key):
            raise Invalid(f"{what} ({name}.{key}) can not be imported", param=f"{name}.{key}")
    hidden, heads = figures.whole("embedding_length"), figures.whole("attention.head_count")
    head_dim = _head_dim(figures, hidden, heads)
    window = _window(figures, row)
    rotary = _rotary(figures)
    return DecoderConfig(
        architecture=row,
        layers=figures.whole("block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=_kv_heads(figures, heads),
        head_dim=head_dim,
        feed_forward=figures.whole("feed_forward_length"),
        vocab=vocab,
        max_positions=min(figures.whole("context_length", most=1 << 40), MAX_POSITIONS),
        epsilon=figures.positive("attention.layer_norm_rms_epsilon"),
        rotary=rotary,
        window=window,
        local_rotary=_local_rotary(figures, row) if window else None,
    )


def _head_dim(figures: _Figures, hidden: int, heads: int) -> int:
    head_dim = figures.whole("attention.key_length", max(hidden // heads, 1))
    if figures.whole("attention.value_length", head_dim) != head_dim:
        raise Invalid("values of another length than keys can not be imported", param="head")
    if figures.whole("rope.dimension_count", head_dim) != head_dim:
        raise Invalid("rotation of a part of a head can not be imported", param="rope")
    if head_dim % _HEAD_STEP or head_dim > _LARGEST_HEAD:
        raise Invalid(
            f"heads of {head_dim} values can not be imported: ONNX Runtime's attention takes "
            f"multiples of {_HEAD_STEP} up to {_LARGEST_HEAD}",
            param="head",
        )
    return head_dim


def _kv_heads(figures: _Figures, heads: int) -> int:
    kv_heads = figures.whole("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise Invalid(
            f"{heads} heads over {kv_heads} of keys can not be shared out", param="head_count_kv"
        )
    return kv_heads


def _window(figures: _Figures, row: Architecture) -> int | None:
    """Tokens that a layer with a window sees; 0 and nothing mean that no layer has one."""
    window = int(figures.number("attention.sliding_window", 0))
    if row.local is None or window == 0:
        return None
    return figures.whole("attention.sliding_window")


def _local_rotary(figures: _Figures, row: Architecture) -> Rotary | None:
    if row.local is None:
        return None
    return Rotary(base=figures.positive("rope.freq_base_swa", row.local.rotary_base))


def _rotary(figures: _Figures) -> Rotary:
    base = figures.positive("rope.freq_base", 10_000.0)
    if base <= 1:
        raise Invalid(f"a rotary base of {base} can not be imported", param="rope.freq_base")
    kind = figures.get("rope.scaling.type") or "none"
    if kind == "none":
        return Rotary(base=base)
    if kind == "linear":
        return Rotary(base=base, scale=figures.positive("rope.scaling.factor", 1.0))
    if kind == "yarn":
        return Rotary(base=base, yarn=_yarn(figures))
    raise Invalid(
        f"rotary scaling {str(kind)[:60]!r} can not be imported; none, linear and yarn can",
        param="rope.scaling.type",
    )


def _yarn(figures: _Figures) -> Yarn:
    if figures.get("rope.scaling.yarn_log_multiplier"):
        raise Invalid("yarn with a multiplier of its own can not be imported", param="rope.scaling")
    factor = figures.positive("rope.scaling.factor", 1.0)
    if factor < 1:
        raise Invalid(f"yarn by a factor of {factor} can not be imported", param="rope.scaling")
    return Yarn(
        factor=factor,
        original=figures.whole(
            "rope.scaling.original_context_length", figures.whole("context_length")
        ),
        fast=figures.positive("rope.scaling.yarn_beta_fast", 32.0),
        slow=figures.positive("rope.scaling.yarn_beta_slow", 1.0),
        attention=figures.positive("rope.scaling.attn_factor", 1.0),
    )

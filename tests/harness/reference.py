"""A decoder's forward pass in plain float32 numpy, written apart from the graph builder.

It takes dense weights under GGUF names in GGUF's row order, attends over the whole sequence without
a cache, and rotates a vector at a time as complex numbers. Slow and plain on purpose: it is what
logits are compared with. What differs between families stands here once more, from their papers and
published configurations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

#: Families whose queries and keys rotate neighbours; the others rotate the first half of a head
#: with the second.
_NEIGHBOURS = ("llama",)
#: Every sixth layer of Gemma 3 is global; the others have a window and rotate with base 10,000.
_GEMMA_PERIOD, _GEMMA_LOCAL_BASE = 6, 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceModel:
    """Figures and dense weights of a model.

    Attributes:
        window: tokens that a local layer of Gemma sees, itself included.
        stretch: YaRN's factor and the original window, if the model has them.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    rotary_base: float
    weights: Mapping[str, Floats]
    family: str = "llama"
    window: int = 0
    position_scale: float = 1.0
    stretch: tuple[float, int] | None = None

    @classmethod
    def from_gguf(cls, path: Path) -> ReferenceModel:
        """Read a file with gguf's own reader and dequantizer."""
        reader = gguf.GGUFReader(str(path))
        values = {key: field.contents() for key, field in reader.fields.items()}
        family = values["general.architecture"]

        def figure(key: str, default: Any = None) -> Any:
            found = values.get(f"{family}.{key}", default)
            assert found is not None, key
            return found

        heads = figure("attention.head_count")
        scaling = values.get(f"{family}.rope.scaling.type")
        factor = figure("rope.scaling.factor", 1.0)
        return cls(
            layers=figure("block_count"),
            heads=heads,
            kv_heads=figure("attention.head_count_kv"),
            head_dim=figure("attention.key_length", figure("embedding_length") // heads),
            epsilon=figure("attention.layer_norm_rms_epsilon"),
            rotary_base=figure("rope.freq_base", 10_000.0),
            weights={
                tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
                for tensor in reader.tensors
            },
            family=family,
            window=figure("attention.sliding_window", 0),
            position_scale=factor if scaling == "linear" else 1.0,
            stretch=(factor, figure("rope.scaling.original_context_length"))
            if scaling == "yarn"
            else None,
        )

    def logits(
        self, tokens: Sequence[int], positions: Any = None, last: int | None = None
    ) -> Floats:
        """Logits of every token, `[len(tokens), vocab]`, or of the `last` ones.

        Positions count from 0 unless given.
        """
        where = np.arange(len(tokens)) if positions is None else positions
        embedding = self.weights["token_embd.weight"]
        x = embedding[np.asarray(tokens)]
        if self.family == "gemma3":
            x = x * np.float32(math.sqrt(embedding.shape[1]))
        for layer in range(self.layers):
            prefix = f"blk.{layer}."
            branch = self._attention(self._norm(x, f"{prefix}attn_norm"), layer, where)
            x = x + self._branch(branch, f"{prefix}post_attention_norm")
            branch = self._feed_forward(self._norm(x, f"{prefix}ffn_norm"), prefix)
            x = x + self._branch(branch, f"{prefix}post_ffw_norm")
        head = "output" if "output.weight" in self.weights else "token_embd"
        return self._linear(self._norm(x if last is None else x[-last:], "output_norm"), head)

    def _branch(self, x: Floats, name: str) -> Floats:
        return self._norm(x, name) if self.family == "gemma3" else x

    def _norm(self, x: Floats, name: str) -> Floats:
        square = (x * x).mean(axis=-1, keepdims=True)
        result: Floats = x / np.sqrt(square + np.float32(self.epsilon))
        return result * self.weights[f"{name}.weight"]

    def _linear(self, x: Floats, name: str) -> Floats:
        result: Floats = x @ self.weights[f"{name}.weight"].T
        bias = self.weights.get(f"{name}.bias")
        return result if bias is None else result + bias

    def _is_local(self, layer: int) -> bool:
        return self.family == "gemma3" and self.window > 0 and layer % _GEMMA_PERIOD != 5

    def _turns(self, local: bool) -> npt.NDArray[np.float64]:
        """Radians a position of each pair."""
        base = _GEMMA_LOCAL_BASE if local else self.rotary_base
        pairs = np.arange(self.head_dim // 2)
        turns = base ** (-2.0 * pairs / self.head_dim)
        if local:
            return turns
        if "rope_freqs.weight" in self.weights:
            turns = turns / self.weights["rope_freqs.weight"]
        if self.stretch is not None:
            return self._stretched(turns)
        return turns / self.position_scale

    def _stretched(self, turns: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """YaRN, a pair at a time: full turns over the original window decide."""
        assert self.stretch is not None
        factor, original = self.stretch

        def place(rotations: float) -> float:
            length = original / rotations / (2 * math.pi)
            return self.head_dim / 2 * math.log(length) / math.log(self.rotary_base)

        low, high = max(math.floor(place(32)), 0), min(math.ceil(place(1)), self.head_dim - 1)
        result = []
        for pair, turn in enumerate(turns):
            keep = 1 - min(max((pair - low) / max(high - low, 0.001), 0), 1)
            result.append(turn * keep + turn / factor * (1 - keep))
        return np.array(result)

    def _rotate(self, x: Floats, where: npt.NDArray[Any], local: bool) -> Floats:
        """Turn each pair of a head by its position's angle."""
        turn = np.exp(1j * where[:, None] * self._turns(local))[:, None, :]
        if self.stretch is not None and not local:
            turn = turn * (0.1 * math.log(self.stretch[0]) + 1)
        half = self.head_dim // 2
        if self.family in _NEIGHBOURS:
            turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
            pairs = np.stack([turned.real, turned.imag], axis=-1)
            return pairs.reshape(x.shape).astype(np.float32)
        turned = (x[..., :half] + 1j * x[..., half:]) * turn
        return np.concatenate([turned.real, turned.imag], axis=-1).astype(np.float32)

    def _attention(self, x: Floats, layer: int, where: npt.NDArray[Any]) -> Floats:
        length, prefix, local = len(x), f"blk.{layer}.", self._is_local(layer)
        query, key, value = (
            self._linear(x, f"{prefix}attn_{part}").reshape(length, -1, self.head_dim)
            for part in "qkv"
        )
        if self.family in ("qwen3", "gemma3"):
            query = self._norm(query, f"{prefix}attn_q_norm")
            key = self._norm(key, f"{prefix}attn_k_norm")
        query, key = self._rotate(query, where, local), self._rotate(key, where, local)
        distance = np.arange(length)[:, None] - np.arange(length)[None]
        hidden = distance < 0
        if local:
            hidden = hidden | (distance >= self.window)
        heads = []
        for head in range(self.heads):
            shared = head * self.kv_heads // self.heads
            scores = query[:, head] @ key[:, shared].T / np.float32(self.head_dim**0.5)
            heads.append(softmax(np.where(hidden, -np.inf, scores)) @ value[:, shared])
        return self._linear(np.concatenate(heads, axis=-1), f"{prefix}attn_output")

    def _feed_forward(self, x: Floats, prefix: str) -> Floats:
        gate = self._linear(x, f"{prefix}ffn_gate")
        if self.family == "gemma3":
            inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
            activated: Floats = (0.5 * gate * (1 + np.tanh(inner))).astype(np.float32)
        else:
            activated = gate / (1 + np.exp(-gate))
        return self._linear(activated * self._linear(x, f"{prefix}ffn_up"), f"{prefix}ffn_down")


def softmax(logits: Floats) -> Floats:
    """Probabilities over the last axis."""
    exponent = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: Floats = exponent / exponent.sum(axis=-1, keepdims=True)
    return result


def divergence(expected: Floats, got: Floats) -> float:
    """Mean Kullback-Leibler divergence of the distributions of logits, in nats."""
    p, q = softmax(expected.astype(np.float64)), softmax(got.astype(np.float64))
    return float((p * (np.log(p) - np.log(q))).sum(axis=-1).mean())

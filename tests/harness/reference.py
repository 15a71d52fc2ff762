"""A llama forward pass in plain float32 numpy, written apart from the graph builder.

It takes dense weights under GGUF names in GGUF's row order, attends over the whole sequence without
a cache, and rotates neighbouring pairs. Slow and plain on purpose: it is what logits are compared
with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceModel:
    """Figures and dense weights of a llama model."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    rotary_base: float
    weights: Mapping[str, Floats]

    @classmethod
    def from_gguf(cls, path: Path) -> ReferenceModel:
        """Read a file with gguf's own dequantizer."""
        reader = gguf.GGUFReader(str(path))

        def figure(key: str) -> Any:
            field = reader.get_field(f"llama.{key}")
            assert field is not None, key
            return field.contents()

        heads = figure("attention.head_count")
        return cls(
            layers=figure("block_count"),
            heads=heads,
            kv_heads=figure("attention.head_count_kv"),
            head_dim=figure("embedding_length") // heads,
            epsilon=figure("attention.layer_norm_rms_epsilon"),
            rotary_base=figure("rope.freq_base"),
            weights={
                tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
                for tensor in reader.tensors
            },
        )

    def logits(self, tokens: Sequence[int], positions: Any = None) -> Floats:
        """Logits of every token, `[len(tokens), vocab]`; positions count from 0 unless given."""
        where = np.arange(len(tokens)) if positions is None else positions
        embedding = self.weights["token_embd.weight"]
        x = embedding[np.asarray(tokens)]
        for layer in range(self.layers):
            x = x + self._attention(self._norm(x, f"blk.{layer}.attn_norm"), f"blk.{layer}.", where)
            x = x + self._feed_forward(self._norm(x, f"blk.{layer}.ffn_norm"), f"blk.{layer}.")
        head = "output" if "output.weight" in self.weights else "token_embd"
        return self._linear(self._norm(x, "output_norm"), head)

    def _norm(self, x: Floats, name: str) -> Floats:
        square = (x * x).mean(axis=-1, keepdims=True)
        result: Floats = x / np.sqrt(square + np.float32(self.epsilon))
        return result * self.weights[f"{name}.weight"]

    def _linear(self, x: Floats, name: str) -> Floats:
        result: Floats = x @ self.weights[f"{name}.weight"].T
        return result

    def _rotate(self, x: Floats, where: npt.NDArray[Any]) -> Floats:
        """Turn each pair `(x[2j], x[2j+1])` of position p by `p * base**(-2j / head_dim)`."""
        pairs = np.arange(self.head_dim // 2)
        angle = where[:, None] * self.rotary_base ** (-2.0 * pairs / self.head_dim)
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)[:, None, :]
        result = np.empty_like(x)
        result[..., 0::2], result[..., 1::2] = turned.real, turned.imag
        return result

    def _attention(self, x: Floats, prefix: str, where: npt.NDArray[Any]) -> Floats:
        length = len(x)
        query, key, value = (
            self._linear(x, f"{prefix}attn_{part}").reshape(length, -1, self.head_dim)
            for part in "qkv"
        )
        query, key = self._rotate(query, where), self._rotate(key, where)
        future = np.triu(np.full((length, length), -np.inf, np.float32), 1)
        heads = []
        for head in range(self.heads):
            shared = head * self.kv_heads // self.heads
            scores = query[:, head] @ key[:, shared].T / np.float32(self.head_dim**0.5) + future
            heads.append(softmax(scores) @ value[:, shared])
        return self._linear(np.concatenate(heads, axis=-1), f"{prefix}attn_output")

    def _feed_forward(self, x: Floats, prefix: str) -> Floats:
        gate = self._linear(x, f"{prefix}ffn_gate")
        silu: Floats = gate / (1 + np.exp(-gate))
        gated = silu * self._linear(x, f"{prefix}ffn_up")
        return self._linear(gated, f"{prefix}ffn_down")


def softmax(logits: Floats) -> Floats:
    """Probabilities over the last axis."""
    exponent = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: Floats = exponent / exponent.sum(axis=-1, keepdims=True)
    return result


def divergence(expected: Floats, got: Floats) -> float:
    """Mean Kullback-Leibler divergence of the distributions of logits, in nats."""
    p, q = softmax(expected.astype(np.float64)), softmax(got.astype(np.float64))
    return float((p * (np.log(p) - np.log(q))).sum(axis=-1).mean())

"""A Whisper in NumPy, float64, one window at a time: what our graphs are compared with.

Written from the paper (Radford et al., arXiv 2212.04356) and independent of the code under test: it
is given weights by name and keeps no cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_erf = np.vectorize(math.erf, otypes=[np.float64])


class ReferenceWhisper:
    """Weights by CTranslate2's names."""

    def __init__(self, weights: Mapping[str, npt.NDArray[Any]], layers: int, heads: int) -> None:
        self._weights = {name: values.astype(np.float64) for name, values in weights.items()}
        self._layers = layers
        self._heads = heads

    def heard(self, mel: npt.NDArray[Any]) -> Array:
        """What the encoder makes of a spectrogram `[mels, frames]`: `[frames / 2, hidden]`."""
        x = _gelu(self._convolution(mel.astype(np.float64), "encoder/conv1", 1))
        x = _gelu(self._convolution(x, "encoder/conv2", 2)).T
        x = x + self._weights["encoder/position_encodings/encodings"]
        for layer in range(self._layers):
            x = self._block(x, None, f"encoder/layer_{layer}", causal=False)
        return self._norm(x, "encoder/layer_norm")

    def logits(self, heard: Array, tokens: Sequence[int]) -> Array:
        """Logits after each of the tokens, `[tokens, vocab]`."""
        table = self._weights["decoder/embeddings/weight"]
        places = self._weights["decoder/position_encodings/encodings"][: len(tokens)]
        x = table[list(tokens)] + places
        for layer in range(self._layers):
            x = self._block(x, heard, f"decoder/layer_{layer}", causal=True)
        return self._norm(x, "decoder/layer_norm") @ table.T

    def _convolution(self, x: Array, name: str, stride: int) -> Array:
        weight, bias = self._weights[f"{name}/weight"], self._weights[f"{name}/bias"]
        padded = np.pad(x, ((0, 0), (1, 1)))
        taps = [padded[:, k : k + x.shape[1] : stride] for k in range(3)]
        return np.asarray(sum(weight[:, :, k] @ taps[k] for k in range(3)) + bias[:, None])

    def _block(self, x: Array, heard: Array | None, tag: str, *, causal: bool) -> Array:
        own = f"{tag}/self_attention"
        product = self._linear(self._norm(x, f"{own}/layer_norm"), f"{own}/linear_0")
        query, key, value = np.split(product, 3, axis=1)
        x = x + self._linear(self._attend(query, key, value, causal), f"{own}/linear_1")
        if heard is not None:
            cross = f"{tag}/attention"
            query = self._linear(self._norm(x, f"{cross}/layer_norm"), f"{cross}/linear_0")
            key, value = np.split(self._linear(heard, f"{cross}/linear_1"), 2, axis=1)
            x = x + self._linear(self._attend(query, key, value, False), f"{cross}/linear_2")
        wide = self._linear(self._norm(x, f"{tag}/ffn/layer_norm"), f"{tag}/ffn/linear_0")
        return x + self._linear(_gelu(wide), f"{tag}/ffn/linear_1")

    def _attend(self, query: Array, key: Array, value: Array, causal: bool) -> Array:
        width = query.shape[1] // self._heads
        made = []
        for head in range(self._heads):
            part = slice(head * width, (head + 1) * width)
            scores = query[:, part] @ key[:, part].T / math.sqrt(width)
            if causal:
                scores = np.where(np.tri(len(query), len(key)) > 0, scores, -np.inf)
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            made.append(shares / shares.sum(axis=1, keepdims=True) @ value[:, part])
        return np.concatenate(made, axis=1)

    def _linear(self, x: Array, name: str) -> Array:
        return np.asarray(x @ self._weights[f"{name}/weight"].T + self._weights[f"{name}/bias"])

    def _norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + 1e-5)
        return np.asarray(scaled * self._weights[f"{name}/gamma"] + self._weights[f"{name}/beta"])


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + _erf(x / math.sqrt(2))))

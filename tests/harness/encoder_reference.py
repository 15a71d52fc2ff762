"""A BERT in NumPy, float32, one text at a time: what our encoders are compared with.

Written from the paper (Devlin et al., arXiv 1810.04805) and independent of the code under test: it
reads the safetensors bytes itself and pads nothing.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

_erf = np.vectorize(math.erf, otypes=[np.float64])


class ReferenceEncoder:
    """A model of a folder with config.json and model.safetensors, all tensors float32."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        raw = (folder / "model.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + length])
        self.weights: dict[str, FloatArray] = {}
        for name, entry in header.items():
            if entry.get("dtype") == "F32":
                start, end = (8 + length + place for place in entry["data_offsets"])
                flat = np.frombuffer(raw[start:end], np.float32)
                self.weights[name] = flat.reshape(entry["shape"])

    def hidden_states(self, ids: Sequence[int]) -> FloatArray:
        """The last hidden states of a text, `[tokens, hidden]`."""
        words = self.weights["embeddings.word_embeddings.weight"][list(ids)]
        places = self.weights["embeddings.position_embeddings.weight"][: len(ids)]
        kind = self.weights["embeddings.token_type_embeddings.weight"][0]
        x = self._norm(words + places + kind, "embeddings.LayerNorm")
        for layer in range(self.config["num_hidden_layers"]):
            x = self._layer(x, f"encoder.layer.{layer}")
        return x

    def vector(self, ids: Sequence[int], pooling: str, *, normalize: bool) -> FloatArray:
        """A text's vector: the `mean` of its tokens' or the first one's (`cls`)."""
        states = self.hidden_states(ids)
        vector = states.mean(axis=0) if pooling == "mean" else states[0]
        length = np.sqrt((vector * vector).sum()) if normalize else np.float32(1)
        return np.asarray(vector / length, np.float32)

    def _layer(self, x: FloatArray, tag: str) -> FloatArray:
        attended = self._linear(self._attention(x, tag), f"{tag}.attention.output.dense")
        x = self._norm(x + attended, f"{tag}.attention.output.LayerNorm")
        wide = self._linear(x, f"{tag}.intermediate.dense")
        gelu = (0.5 * wide * (1 + _erf(wide / math.sqrt(2)))).astype(np.float32)
        return self._norm(x + self._linear(gelu, f"{tag}.output.dense"), f"{tag}.output.LayerNorm")

    def _attention(self, x: FloatArray, tag: str) -> FloatArray:
        heads = self.config["num_attention_heads"]
        width = x.shape[1] // heads
        query, key, value = (
            self._linear(x, f"{tag}.attention.self.{part}") for part in ("query", "key", "value")
        )
        made = []
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            scores = query[:, part] @ key[:, part].T / np.float32(math.sqrt(width))
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            made.append(weights / weights.sum(axis=1, keepdims=True) @ value[:, part])
        return np.concatenate(made, axis=1)

    def _linear(self, x: FloatArray, name: str) -> FloatArray:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _norm(self, x: FloatArray, name: str) -> FloatArray:
        centred = x - x.mean(axis=1, keepdims=True)
        variance = (centred * centred).mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt(variance + np.float32(self.config["layer_norm_eps"]))
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return np.asarray(scaled * weight + bias, np.float32)

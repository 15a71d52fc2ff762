"""Small GGUF files of every family, written by gguf's own writer with weights from a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from agent.models.toy import CHAT_TEMPLATE, IM_END, vocabulary
from tests.harness.toy_variants import random_blocks

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")
#: Types without blocks, as gguf's writer is told of them.
_DENSE = {"F32": np.float32, "F16": np.float16}

#: From a tensor's name to its type.
Choose = Callable[[str], str]


@dataclass(frozen=True, kw_only=True)
class SmallModel:
    """What is written.

    Attributes:
        choose: type of each matrix.
        window: of Gemma's local layers.
        biases: which of query, key and value have one.
        more: further metadata, without the family's prefix; they win.
        tensors: further tensors.
    """

    family: str = "llama"
    choose: Choose = lambda name: "F32"
    layers: int = 2
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    feed_forward: int = 256
    positions: int = 256
    window: int = 8
    untied: bool = False
    biases: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)

    def figures(self) -> dict[str, Any]:
        """Metadata without the family's prefix."""
        found: dict[str, Any] = {
            "block_count": self.layers,
            "context_length": self.positions,
            "embedding_length": self.hidden,
            "feed_forward_length": self.feed_forward,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 50_000.0,
        }
        if self.family == "gemma3":
            found["attention.sliding_window"] = self.window
        return found | dict(self.more)

    def matrices(self) -> Iterator[tuple[str, int, int]]:
        """Name, rows and columns of each matrix."""
        vocab = len(vocabulary().tokens)
        yield "token_embd.weight", vocab, self.hidden
        if self.untied:
            yield "output.weight", vocab, self.hidden
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        for layer in range(self.layers):
            for part, rows, columns in (
                ("attn_q", queries, self.hidden),
                ("attn_k", keys, self.hidden),
                ("attn_v", keys, self.hidden),
                ("attn_output", self.hidden, queries),
                ("ffn_gate", self.feed_forward, self.hidden),
                ("ffn_up", self.feed_forward, self.hidden),
                ("ffn_down", self.hidden, self.feed_forward),
            ):
                yield f"blk.{layer}.{part}.weight", rows, columns

    def vectors(self) -> Iterator[tuple[str, int]]:
        """Name and length of each norm and bias."""
        yield "output_norm.weight", self.hidden
        norms = {"attn": self.hidden, "ffn": self.hidden}
        if self.family in ("qwen3", "gemma3"):
            norms |= {"attn_q": self.head_dim, "attn_k": self.head_dim}
        if self.family == "gemma3":
            norms |= {"post_attention": self.hidden, "post_ffw": self.hidden}
        for layer in range(self.layers):
            for part, length in norms.items():
                yield f"blk.{layer}.{part}_norm.weight", length
            for part in self.biases:
                heads = self.heads if part == "q" else self.kv_heads
                yield f"blk.{layer}.attn_{part}.bias", heads * self.head_dim


def write_model(path: Path, model: SmallModel) -> Path:
    """Write the file; gives its path."""
    writer = gguf.GGUFWriter(str(path), model.family)
    for key, value in model.figures().items():
        _add_value(writer, f"{model.family}.{key}", value)
    add_vocabulary(writer)
    for name, rows, columns in model.matrices():
        _add_matrix(writer, name, model.choose(name), rows, columns)
    for name, length in model.vectors():
        writer.add_tensor(name, _vector(name, length))
    for name, values in model.tensors.items():
        writer.add_tensor(name, values)
    write_all(writer)
    return path


def write_all(writer: gguf.GGUFWriter) -> None:
    """Write what was added, and close the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """Add the toy's vocabulary and chat template."""
    words = vocabulary()
    writer.add_tokenizer_model(words.kind)
    writer.add_tokenizer_pre(words.pre)
    writer.add_token_list(list(words.tokens))
    writer.add_token_types(list(words.kinds))
    writer.add_eos_token_id(IM_END)
    writer.add_chat_template(CHAT_TEMPLATE)


def _add_matrix(writer: gguf.GGUFWriter, name: str, kind: str, rows: int, columns: int) -> None:
    seed = sum(name.encode())
    if kind not in (*_DENSE, "BF16"):
        raw = random_blocks(kind, rows, columns, seed)
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[kind])
        return
    rng = np.random.default_rng(seed)
    values = rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)
    if kind == "BF16":
        raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
        return
    writer.add_tensor(name, values.astype(_DENSE[kind]))


def _vector(name: str, length: int) -> npt.NDArray[np.float32]:
    """Norms around one, biases around zero."""
    drawn = np.random.default_rng(sum(name.encode())).normal(0, 0.25, length)
    return (drawn + (0.0 if name.endswith(".bias") else 1.0)).astype(np.float32)

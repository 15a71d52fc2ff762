"""A small BERT as a folder of safetensors, in the layout of sentence-transformers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

VOCAB, HIDDEN, HEADS, WIDE, LAYERS, WINDOW = 40, 16, 4, 32, 2, 24
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz", ".", "##s")


def tensor_bytes(values: npt.NDArray[np.float32], dtype: str) -> bytes:
    """As safetensors has them."""
    if dtype == "F16":
        return values.astype("<f2").tobytes()
    if dtype == "BF16":
        return (values.astype("<f4").view(np.uint32) >> 16).astype("<u2").tobytes()
    return values.astype("<f4").tobytes()


def write_safetensors(
    path: Path, tensors: dict[str, npt.NDArray[np.float32]], dtype: str = "F32"
) -> None:
    """Write a file of tensors of one type."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        raw = tensor_bytes(values, dtype)
        places = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": places}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (VOCAB, HIDDEN),
        "embeddings.position_embeddings.weight": (WINDOW, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(LAYERS):
        tag = f"encoder.layer.{layer}"
        products = {
            f"attention.self.{part}": (HIDDEN, HIDDEN) for part in ("query", "key", "value")
        }
        products |= {
            "attention.output.dense": (HIDDEN, HIDDEN),
            "intermediate.dense": (WIDE, HIDDEN),
            "output.dense": (HIDDEN, WIDE),
        }
        for name, shape in products.items():
            shapes[f"{tag}.{name}.weight"] = shape
            shapes[f"{tag}.{name}.bias"] = shape[:1]
        norms += [f"{tag}.attention.output.LayerNorm", f"{tag}.output.LayerNorm"]
    for norm in norms:
        shapes[f"{norm}.weight"] = shapes[f"{norm}.bias"] = (HIDDEN,)
    return shapes


def write_small_encoder(folder: Path, prefix: str = "", dtype: str = "F32") -> Path:
    """Two layers of 16 values, 40 tokens, a window of 24; weights are multiples of 1/64.

    Args:
        folder: to make.
        prefix: of the tensors' names.
        dtype: of the tensors: `F32`, `F16` or `BF16`; all hold the same values.
    """
    rng = np.random.default_rng(7)
    tensors = {
        prefix + name: (rng.integers(-32, 33, shape) / 64).astype(np.float32)
        for name, shape in _shapes().items()
    }
    (folder / "1_Pooling").mkdir(parents=True)
    write_safetensors(folder / "model.safetensors", tensors, dtype)
    files: dict[str, Any] = {
        "config.json": {
            "model_type": "bert",
            "hidden_act": "gelu",
            "hidden_size": HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "intermediate_size": WIDE,
            "vocab_size": VOCAB,
            "max_position_embeddings": WINDOW,
            "type_vocab_size": 2,
            "layer_norm_eps": 1e-12,
        },
        "modules.json": [
            {"path": "", "type": "sentence_transformers.models.Transformer"},
            {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ],
        "sentence_bert_config.json": {"max_seq_length": 20},
        "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {"cls_token": "[CLS]", "sep_token": "[SEP]"},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def _tokenizer() -> dict[str, Any]:
    flags = {"special": True, "normalized": False} | dict.fromkeys(
        ("single_word", "lstrip", "rstrip"), False
    )
    special = [{"id": token, "content": WORDS[token]} | flags for token in range(4)]
    pieces = ["[CLS]", "A", "[SEP]"]
    template = [
        {"Sequence" if piece == "A" else "SpecialToken": {"id": piece, "type_id": 0}}
        for piece in pieces
    ]
    ends = {
        name: {"id": name, "ids": [t], "tokens": [name]} for name, t in (("[CLS]", 2), ("[SEP]", 3))
    }
    return {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": {"type": "BertNormalizer", "lowercase": True}
        | {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": template,
            "pair": [*template, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": ends,
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {word: token for token, word in enumerate(WORDS)},
        },
    }

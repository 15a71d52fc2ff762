"""A small Whisper as a folder of CTranslate2 files."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

HIDDEN, HEADS, WIDE, LAYERS, MELS, WINDOW, TEXTS = 8, 2, 16, 2, 80, 1500, 64
#: Of English models: 256 bytes, then these, then 1,501 timestamps.
ENGLISH = ("endoftext", "startoftranscript", "en", "translate", "transcribe")
AFTER = ("startoflm", "startofprev", "nocaptions", "notimestamps")
TIMESTAMPS = 1501
#: A model is one of many languages from this vocabulary on.
MANY = 51865

Array = npt.NDArray[Any]
_NUMBERS = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4, "bfloat16": 5}


def text(value: str) -> bytes:
    """A text as the format has it."""
    raw = value.encode() + b"\0"
    return struct.pack("<H", len(raw)) + raw


def variable(name: str, values: Array, kind: str = "") -> bytes:
    """A variable as the format has it; `bfloat16` values are given as uint16."""
    number = _NUMBERS[kind or values.dtype.name]
    head = struct.pack(f"<B{values.ndim}I", values.ndim, *values.shape)
    return text(name) + head + struct.pack("<BI", number, values.nbytes) + values.tobytes()


def model_bytes(
    variables: Mapping[str, bytes],
    aliases: Mapping[str, str] | None = None,
    *,
    version: int = 6,
    specification: str = "WhisperSpec",
    revision: int = 3,
) -> bytes:
    """A whole file; `variables` are made by `variable`."""
    head = struct.pack("<I", version) + text(specification) + struct.pack("<I", revision)
    pairs = [text(name) + text(target) for name, target in (aliases or {}).items()]
    counts = struct.pack("<I", len(variables)), struct.pack("<I", len(pairs))
    return head + counts[0] + b"".join(variables.values()) + counts[1] + b"".join(pairs)


def small_weights(vocab: int) -> dict[str, Array]:
    """Float32 weights by name, multiples of 1/64; those of norms are around 1."""
    shapes: dict[str, tuple[int, ...]] = {
        "encoder/conv1/weight": (HIDDEN, MELS, 3),
        "encoder/conv1/bias": (HIDDEN,),
        "encoder/conv2/weight": (HIDDEN, HIDDEN, 3),
        "encoder/conv2/bias": (HIDDEN,),
        "encoder/position_encodings/encodings": (WINDOW, HIDDEN),
        "decoder/position_encodings/encodings": (TEXTS, HIDDEN),
        "decoder/embeddings/weight": (vocab, HIDDEN),
    }
    norms = ["encoder/layer_norm", "decoder/layer_norm"]
    for side in ("encoder", "decoder"):
        for layer in range(LAYERS):
            tag = f"{side}/layer_{layer}"
            products = {
                "self_attention/linear_0": (3 * HIDDEN, HIDDEN),
                "self_attention/linear_1": (HIDDEN, HIDDEN),
                "ffn/linear_0": (WIDE, HIDDEN),
                "ffn/linear_1": (HIDDEN, WIDE),
            }
            if side == "decoder":
                products["attention/linear_0"] = products["attention/linear_2"] = (HIDDEN, HIDDEN)
                products["attention/linear_1"] = (2 * HIDDEN, HIDDEN)
                norms.append(f"{tag}/attention/layer_norm")
            norms += [f"{tag}/self_attention/layer_norm", f"{tag}/ffn/layer_norm"]
            for name, shape in products.items():
                shapes[f"{tag}/{name}/weight"] = shape
                shapes[f"{tag}/{name}/bias"] = shape[:1]
    rng = np.random.default_rng(11)

    def values(shape: tuple[int, ...]) -> Array:
        return (rng.integers(-32, 33, shape) / 64).astype(np.float32)

    weights = {name: values(shape) for name, shape in shapes.items()}
    for norm in norms:
        weights[f"{norm}/gamma"] = values((HIDDEN,)) + np.float32(1)
        weights[f"{norm}/beta"] = values((HIDDEN,))
    return weights


def quantised(name: str, values: Array, kind: str) -> dict[str, bytes]:
    """A weight as a converter writes it: int8 with a scale a row, int16 with one scale."""
    if kind == "float16":
        return {name: variable(name, values.astype(np.float16))}
    if kind == "float32":
        return {name: variable(name, values)}
    most = np.abs(values).max() if kind == "int16" else np.abs(values).max(1, keepdims=True)
    scale = ((1024 if kind == "int16" else 127) / most).astype(np.float32)
    whole = np.rint(values * scale).astype(kind)
    scales = scale if kind == "int16" else scale[:, 0]
    return {
        name: variable(name, whole),
        f"{name}_scale": variable(f"{name}_scale", np.asarray(scales, np.float32)),
    }


def small_variables(vocab: int, kind: str = "float16") -> dict[str, bytes]:
    """All variables of the small model; matrices are of `kind`, all else float16 or float32."""
    plain = "float32" if kind == "float32" else "float16"
    found: dict[str, bytes] = {}
    for name, values in small_weights(vocab).items():
        matrix = name.endswith("/weight") and "conv" not in name
        found |= quantised(name, values, kind if matrix else plain)
    for name, setting in {
        "decoder/activation": 3,
        "decoder/alibi": 0,
        "decoder/pre_norm": 1,
        "decoder/scale_embeddings": 0,
        "decoder/start_from_zero_embedding": 0,
    }.items():
        found[name] = variable(name, np.array(setting, np.int8))
    for side in ("encoder", "decoder"):
        name = f"{side}/num_heads"
        found[name] = variable(name, np.array(HEADS, np.int16))
    return found


def control_tokens(languages: tuple[str, ...] = ()) -> dict[str, int]:
    """Control token to id; with `languages` the vocabulary is padded to that of many."""
    names = ENGLISH if not languages else (*ENGLISH[:2], *languages, *ENGLISH[3:])
    first = 256 if not languages else MANY - TIMESTAMPS - len(names) - len(AFTER)
    return {f"<|{name}|>": first + place for place, name in enumerate((*names, *AFTER))}


def write_small_whisper(
    folder: Path, *, languages: tuple[str, ...] = (), kind: str = "float16"
) -> Path:
    """Two layers of 8 values on each side, a text window of 64, tokens that are bytes.

    Args:
        folder: to make.
        languages: codes of a model of many; none is one of English.
        kind: of the matrices: `float32`, `float16`, `int16` or `int8`.
    """
    controls = control_tokens(languages)
    vocab = max(controls.values()) + 1 + TIMESTAMPS
    folder.mkdir(parents=True)
    aliases = {"decoder/projection/weight": "decoder/embeddings/weight"}
    (folder / "model.bin").write_bytes(model_bytes(small_variables(vocab, kind), aliases))
    named = [controls[f"<|{name}|>"] for name in ("startoftranscript", "startofprev", "nocaptions")]
    config = {
        "suppress_ids": [1, *named],
        "suppress_ids_begin": [32, controls["<|endoftext|>"]],
        "lang_ids": [controls[f"<|{code}|>"] for code in languages] or [controls["<|en|>"]],
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(controls)))
    return folder


def byte_letters() -> list[str]:
    """The letter that byte-level tokenizers have for each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte if byte in kept else next(spare)) for byte in range(256)]


def _tokenizer(controls: Mapping[str, int]) -> dict[str, Any]:
    first = min(controls.values())
    vocab = {letter: byte for byte, letter in enumerate(byte_letters())}
    vocab |= {f"x{number}": number for number in range(256, first)}
    flags = {"special": True, "normalized": False} | dict.fromkeys(
        ("single_word", "lstrip", "rstrip"), False
    )
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": name} | flags for name, i in controls.items()],
        "pre_tokenizer": level | {"use_regex": True},
        "decoder": level | {"use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }

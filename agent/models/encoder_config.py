"""An encoder's figures, from the files of a Hugging Face or sentence-transformers folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.models.folder import CONFIG
from bus.errors import Invalid

WEIGHTS = "model.safetensors"
MODULES = "modules.json"
SENTENCE_CONFIG = "sentence_bert_config.json"
MODEL_TYPE = "bert"

#: Configurations are a few kilobytes.
_MAX_CONFIG_BYTES = 1 << 20
#: Far above every encoder: the largest BERT has 1,024 hidden, 24 layers and a window of 512.
_MOST = {
    "hidden_size": 8192,
    "num_hidden_layers": 512,
    "num_attention_heads": 1024,
    "intermediate_size": 1 << 18,
    "vocab_size": 1 << 22,
    "max_position_embeddings": 1 << 16,
    "type_vocab_size": 1 << 10,
}
#: Settings that change what is computed, and the only value that graphs have.
_ONLY = {
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}
_MODULE_KINDS = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """A BERT's figures.

    Attributes:
        max_positions: rows of the position table: no token may stand behind it.
        trained_tokens: the length that its makers cut training texts to; the window without one.
        pooling: what the model was trained with, `mean` or `cls`.
        normalize: whether it was trained with vectors of length 1.
    """

    layers: int
    hidden: int
    heads: int
    feed_forward: int
    vocab: int
    max_positions: int
    token_types: int
    epsilon: float
    trained_tokens: int
    pooling: str
    normalize: bool

    @property
    def head_dim(self) -> int:
        """Values of a head."""
        return self.hidden // self.heads


def is_encoder_source(folder: Path) -> bool:
    """Whether a folder looks like one that `import_encoder` takes: configuration and weights."""
    return (folder / CONFIG).is_file() and (folder / WEIGHTS).is_file()


def read_encoder_config(folder: Path) -> EncoderConfig:
    """Read the figures.

    Raises:
        Invalid: a file that is none, a figure without sense, or something that graphs do not have.
    """
    config = _read(folder / CONFIG)
    kind = config.get("model_type")
    if kind != MODEL_TYPE:
        raise Invalid(
            f"model_type {str(kind)[:60]!r} can not be imported from safetensors; "
            f"{MODEL_TYPE} can, and decoders as GGUF files",
            param="model_type",
        )
    for key, only in _ONLY.items():
        if config.get(key, only) != only:
            raise Invalid(
                f"{key} {str(config[key])[:60]!r} can not be imported; {only!r} can", param=key
            )
    figures = {key: _whole(config, key, most) for key, most in _MOST.items()}
    hidden, heads = figures["hidden_size"], figures["num_attention_heads"]
    if hidden % heads:
        raise Invalid(f"{hidden} values can not be shared out over {heads} heads", param="heads")
    window = figures["max_position_embeddings"]
    pooling, normalize = _modules(folder)
    return EncoderConfig(
        layers=figures["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        feed_forward=figures["intermediate_size"],
        vocab=figures["vocab_size"],
        max_positions=window,
        token_types=figures["type_vocab_size"],
        epsilon=_epsilon(config),
        trained_tokens=_trained_tokens(folder, window),
        pooling=pooling,
        normalize=normalize,
    )


def _read(file: Path) -> dict[str, Any]:
    found = _read_json(file)
    if not isinstance(found, dict):
        raise Invalid(f"{file} is no JSON object; download the model again", param=file.name)
    return found


def _read_json(file: Path) -> Any:
    try:
        with file.open("rb") as opened:
            raw = opened.read(_MAX_CONFIG_BYTES + 1)
        if len(raw) > _MAX_CONFIG_BYTES:
            raise ValueError(f"more than {_MAX_CONFIG_BYTES} bytes")
        return json.loads(raw.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Invalid(
            f"{file} can not be read ({error}); download the model again", param=file.name
        ) from error


def _whole(config: Mapping[str, Any], key: str, most: int) -> int:
    value = config.get(key)
    if type(value) is not int or not 1 <= value <= most:
        raise Invalid(
            f"{CONFIG} has no usable {key} ({value!r:.60}); it must be 1 to {most}", param=key
        )
    return value


def _epsilon(config: Mapping[str, Any]) -> float:
    value = config.get("layer_norm_eps", 1e-12)
    usable = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not usable or not math.isfinite(value) or not 0 < value < 1:
        raise Invalid(f"{CONFIG} has no usable layer_norm_eps ({value!r:.60})", param="epsilon")
    return float(value)


def _trained_tokens(folder: Path, window: int) -> int:
    file = folder / SENTENCE_CONFIG
    value = _read(file).get("max_seq_length") if file.is_file() else None
    return value if type(value) is int and 0 < value < window else window


def _modules(folder: Path) -> tuple[str, bool]:
    """Pooling and normalisation by sentence-transformers' modules; mean and True without them."""
    if not (folder / MODULES).is_file():
        return "mean", True
    modules = _read_json(folder / MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise Invalid(f"{folder / MODULES} lists no modules; download the model again")
    kinds = {str(module.get("type")).rpartition(".")[2]: module for module in modules}
    unknown = sorted(set(kinds) - set(_MODULE_KINDS))
    if unknown:
        raise Invalid(
            f"a model with a module {unknown[0][:60]!r} can not be imported; "
            f"{', '.join(_MODULE_KINDS)} can",
            param=MODULES,
        )
    pooling = kinds.get("Pooling")
    return _pooling(folder, pooling) if pooling else "mean", "Normalize" in kinds


def _pooling(folder: Path, module: Mapping[str, Any]) -> str:
    # A name, not a path out of the folder.
    place = folder / Path(str(module.get("path"))).name / CONFIG
    chosen = {
        key for key, value in _read(place).items() if key.startswith("pooling_mode_") and value
    }
    for name, key in (("mean", "pooling_mode_mean_tokens"), ("cls", "pooling_mode_cls_token")):
        if chosen == {key}:
            return name
    raise Invalid(
        f"pooling by {', '.join(sorted(chosen)) or 'nothing'} can not be imported; one of mean and "
        "cls can",
        param="pooling",
    )

"""Model folders that other programs made, and what their configurations say.

Two layouts are read: onnxruntime-genai's, whose `genai_config.json` names the graph, and that of
Optimum and onnx-community, which has `config.json` and one graph for each precision.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.models.figures import MAX_POSITIONS
from agent.models.folder import GENAI_CONFIG, RECORD
from bus.errors import Invalid, ModelIncomplete, NotFound
from bus.text.model_files import TOKENIZER

GENAI = "onnxruntime-genai"
OPTIMUM = "optimum"
CONFIG = "config.json"
#: The largest figure that means something.
_LARGEST = 1 << 24
#: The same of layers, of heads, and of a head's width.
_MOST_LAYERS, _MOST_HEADS = 4096, 1024
#: Parts of a `genai_config.json` of models that do more than complete text.
_OTHER_PARTS = ("encoder", "encoder_decoder_init", "vision", "speech", "embedding", "joiner")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a folder's configuration says of its graph."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFolder:
    """A folder of another program, its configuration read.

    Attributes:
        path: the folder.
        kind: `GENAI` or `OPTIMUM`.
        graph: the graph file chosen.
        variants: names of all graphs that can be chosen; a single one has none.
        architecture: as the configuration calls the model.
        logits: name of the graph's output.
        bos_id: as the configuration has it.
    """

    path: Path
    kind: str
    graph: Path
    variants: tuple[str, ...]
    architecture: str
    figures: Figures
    logits: str
    bos_id: int | None


def is_foreign(path: Path) -> bool:
    """Whether a folder has one of these layouts; those of safetensors are not read here."""
    if (path / RECORD).exists():
        return False
    return (path / GENAI_CONFIG).is_file() or (
        (path / CONFIG).is_file() and not has_safetensors(path)
    )


def has_safetensors(path: Path) -> bool:
    """Whether a folder has weights in that format."""
    return any(path.glob("*.safetensors"))


def read_foreign(path: Path, variant: str | None = None) -> ForeignFolder:
    """Read a folder's configuration and choose its graph.

    Args:
        path: the folder.
        variant: `q4` for `onnx/model_q4.onnx`, `model` for the plain one; None takes the int4 one,
            else the plain one.

    Raises:
        NotFound: no folder, or no variant of that name; says which there are.
        Invalid: a folder that is not of these layouts, or of a model that can not be served.
        ModelIncomplete: something is missing in it.
    """
    if not path.is_dir():
        raise NotFound(f"there is no folder {path}", param="model")
    if (path / RECORD).exists():
        raise Invalid(
            f"{path} is a model folder of this program already; copy it into the folder of models",
            param="model",
        )
    if not (path / TOKENIZER).is_file():
        raise ModelIncomplete(
            f"{path} has no {TOKENIZER}; put in the model's own, or have transformers write it: "
            'AutoTokenizer.from_pretrained(...).save_pretrained("DIR")',
            param="model",
        )
    if (path / GENAI_CONFIG).is_file():
        return _read_genai(path, variant)
    if (path / CONFIG).is_file():
        return _read_optimum(path, variant)
    raise Invalid(
        f"{path} has neither {GENAI_CONFIG} nor {CONFIG}; name a folder of onnxruntime-genai or of "
        "Optimum, or a GGUF file",
        param="model",
    )


def read_object(file: Path) -> dict[str, Any]:
    """A JSON file's object; empty when it holds something else.

    Raises:
        ModelIncomplete: it can not be read.
    """
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelIncomplete(
            f"{file} can not be read ({error}); download the folder again", param="model"
        ) from error
    return found if isinstance(found, dict) else {}


class _Config:
    """A part of a configuration file."""

    def __init__(self, file: Path, part: str, values: Mapping[str, Any]) -> None:
        self._file = file
        self._part = part
        self._values = values

    @classmethod
    def read(cls, file: Path) -> _Config:
        return cls(file, "", read_object(file))

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def part(self, key: str) -> _Config:
        found = self._values.get(key)
        return _Config(self._file, f"{self._part}{key}.", found if isinstance(found, dict) else {})

    def whole(self, key: str, default: int | None = None, most: int = _LARGEST) -> int:
        """A number from 1 on."""
        value = self._values.get(key)
        value = default if value is None else value
        if type(value) is not int or not 0 < value <= most:
            shown = "" if value is None else f" ({value!r:.60})"
            raise ModelIncomplete(
                f"{self._file} has no usable {self._part}{key}{shown}; download the folder again",
                param="model",
            )
        return value

    def text(self, key: str, default: str = "") -> str:
        value = self._values.get(key)
        return value if isinstance(value, str) and value else default

    def token(self, key: str) -> int | None:
        value = self._values.get(key)
        return value if type(value) is int and value >= 0 else None


def _figures(config: _Config, names: Mapping[str, str], vocab: int, window: int) -> Figures:
    heads = config.whole(names["heads"], most=_MOST_HEADS)
    hidden = config.whole(names["hidden"])
    return Figures(
        layers=config.whole(names["layers"], most=_MOST_LAYERS),
        hidden=hidden,
        heads=heads,
        kv_heads=config.whole(names["kv_heads"], heads, _MOST_HEADS),
        head_dim=config.whole(names["head_dim"], hidden // heads, _MOST_HEADS),
        vocab=vocab,
        window=min(window, MAX_POSITIONS),
    )


def _read_genai(path: Path, variant: str | None) -> ForeignFolder:
    model = _Config.read(path / GENAI_CONFIG).part("model")
    decoder = model.part("decoder")
    others = [name for name in _OTHER_PARTS if isinstance(model.get(name), dict)]
    if others or decoder.get("pipeline"):
        what = f"a part {others[0]!r}" if others else "a decoder in several parts"
        raise Invalid(
            f"{path / GENAI_CONFIG} describes {what}; folders of one text decoder can be imported",
            param="model",
        )
    names = {
        "layers": "num_hidden_layers",
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_size",
    }
    vocab, window = model.whole("vocab_size"), model.whole("context_length", most=1 << 40)
    name = decoder.text("filename", "model.onnx")
    if Path(name).name != name:
        raise Invalid(f"{path / GENAI_CONFIG} names a graph outside of its folder", param="model")
    if variant not in (None, Path(name).stem):
        raise _no_variant(path, str(variant), [Path(name).stem])
    return ForeignFolder(
        path=path,
        kind=GENAI,
        graph=path / name,
        variants=(),
        architecture=model.text("type", "decoder"),
        figures=_figures(decoder, names, vocab, window),
        logits=decoder.part("outputs").text("logits", "logits"),
        bos_id=model.token("bos_token_id"),
    )


def _read_optimum(path: Path, variant: str | None) -> ForeignFolder:
    config = _Config.read(path / CONFIG)
    architecture = config.text("model_type", "decoder")
    if config.get("num_hidden_layers") is None and isinstance(config.get("text_config"), dict):
        config = config.part("text_config")
    names = {
        "layers": "num_hidden_layers",
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
    }
    graphs = _graphs(path)
    window = config.whole("max_position_embeddings", most=1 << 40)
    return ForeignFolder(
        path=path,
        kind=OPTIMUM,
        graph=_choose(path, graphs, variant),
        variants=tuple(graphs),
        architecture=architecture,
        figures=_figures(config, names, config.whole("vocab_size"), window),
        logits="logits",
        bos_id=config.token("bos_token_id"),
    )


def _graphs(path: Path) -> dict[str, Path]:
    """Graphs by the name of their variant: `model`, `q4`, `fp16`."""
    for folder in (path / "onnx", path):
        found = sorted(folder.glob("model*.onnx"))
        if found:
            return {file.stem.removeprefix("model_") or "model": file for file in found}
    others = [file.name for file in sorted((path / "onnx").glob("*.onnx"))][:3]
    has = f" (it has {', '.join(others)})" if others else ""
    raise ModelIncomplete(
        f"{path} has no onnx/model*.onnx{has}; download one of the repository's graphs, such as "
        "onnx/model_q4.onnx and what begins with that name",
        param="model",
    )


def _choose(path: Path, graphs: Mapping[str, Path], variant: str | None) -> Path:
    if variant is not None:
        name = variant.removesuffix(".onnx").removeprefix("model_")
        if name not in graphs:
            raise _no_variant(path, variant, list(graphs))
        return graphs[name]
    return graphs[min(graphs, key=_rank)]


def _rank(name: str) -> tuple[int, str]:
    """int4 first, then the plain one; float16 ones run on GPUs only and come last."""
    if name.endswith("f16") or name == "fp16":
        return 3, name
    if name.startswith("q4"):
        return 0, name
    return (1 if name == "model" else 2), name


def _no_variant(path: Path, variant: str, known: Sequence[str]) -> NotFound:
    return NotFound(
        f"{path} has no variant {variant!r:.60}; it has: {', '.join(known)}", param="variant"
    )

"""A model folder: the files a worker loads and the record of what they must be.

`superfluid.json` is the record. It is written last, so a folder with a record was once whole;
opening a folder checks that it still is. Nothing here imports onnx, gguf or onnxruntime.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.models.sources import known_names, pulled_name
from agent.models.stages import Stage, stage_from_record
from agent.models.transcriber_figures import TranscriberFigures, figures_from_record
from bus.errors import ModelIncomplete, NotFound

SCHEMA = 1
RECORD = "superfluid.json"
GRAPH = "model.onnx"
GRAPH_FLOAT16 = "model.fp16.onnx"
GRAPH_DATA = "model.onnx.data"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
GENAI_CONFIG = "genai_config.json"
CONFIG = "config.json"
#: Of a transcriber, whose `GRAPH` writes what this one heard.
AUDIO_GRAPH = "audio.onnx"
AUDIO_GRAPH_DATA = "audio.onnx.data"
#: What all files of weights have in their names; graphs may have several.
_WEIGHTS = ".onnx.data"

#: Kinds of models; a record without one is a decoder's.
DECODER = "decoder"
ENCODER = "encoder"
TRANSCRIBER = "transcriber"
#: How an encoder's vectors of tokens become one of a text: their mean, or the first.
POOLINGS = ("mean", "cls")
#: What every folder has; the chat template and the float16 graph may be absent.
REQUIRED = {
    DECODER: (GRAPH, GRAPH_DATA, TOKENIZER, TOKENIZER_CONFIG, GENAI_CONFIG),
    ENCODER: (GRAPH, GRAPH_DATA, TOKENIZER, CONFIG),
    TRANSCRIBER: (AUDIO_GRAPH, AUDIO_GRAPH_DATA, GRAPH, GRAPH_DATA, TOKENIZER),
}

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What a file must be: its size in bytes and its SHA-256 in hex."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Signature:
    """The graph's figures, all that an engine needs to allocate and feed it.

    Attributes:
        first_layer: 0, or where a stage begins.
        layers: layers in this folder.
        kv_heads: 0 of encoders and transcribers, which keep nothing of a token.
        vocab: width of the logits; of an encoder, ids that it knows.
        max_positions: length of the position tables: no token may stand behind it.
        inputs: names of the graph's inputs.
    """

    first_layer: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    inputs: tuple[str, ...]

    def kv_bytes_per_token(self, *, float16: bool = False) -> int:
        """Bytes of keys and values that one token takes in these layers."""
        values = self.layers * 2 * self.kv_heads * self.head_dim
        return values * (2 if float16 else 4)


@dataclass(frozen=True, slots=True)
class SelfTest:
    """A prompt and the token that the float32 graph chose after it, when it was made.

    Attributes:
        margin: by how much that token's logit led the next one.
        vector: of an encoder, in place of the token (then -1): the first values of its mean of the
            prompt, of length 1; of a transcriber, beside the token: the first logits after it; of
            a stage, in place of the token: some values of what it gives after the prompt.
    """

    prompt: tuple[int, ...]
    next_token: int
    margin: float
    vector: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class EncoderFigures:
    """How an encoder was trained.

    Attributes:
        pooling: what makes one vector of a text's: `mean` of all, or `cls`, the first.
        normalize: whether vectors were made of length 1.
        trained_tokens: what training texts were cut to.
    """

    pooling: str
    normalize: bool
    trained_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """An opened, complete model folder.

    Attributes:
        path: the folder.
        name: the model's name; the folder's, unless it was renamed since.
        source: where it came from: `kind`, `file`, `sha256`.
        architecture: GGUF name of the family.
        quantization: tensor type to number of tensors.
        numerics: accuracy level and such that the graph was made with.
        eos_ids: every id that ends a sequence, from all sources.
        bos_id: begin-of-sequence id, if any.
        add_bos: whether plain text is preceded by it.
        files: name to record, for every file but the record itself.
        encoder: set of an encoder, which makes vectors; a decoder makes text.
        transcriber: set of a transcriber, which writes what it hears.
        stage: set of a decoder's folder that holds a range of its layers.
    """

    path: Path
    name: str
    source: Mapping[str, str]
    architecture: str
    quantization: Mapping[str, int]
    numerics: Mapping[str, int]
    signature: Signature
    eos_ids: tuple[int, ...]
    bos_id: int | None
    add_bos: bool
    self_test: SelfTest
    files: Mapping[str, FileRecord]
    encoder: EncoderFigures | None = None
    transcriber: TranscriberFigures | None = None
    stage: Stage | None = None

    @classmethod
    def open(cls, path: Path, *, verify: bool = False) -> ModelFolder:
        """Read a folder and check that it is complete.

        Args:
            path: the folder.
            verify: also check every file's SHA-256 (about a second for each GB).

        Raises:
            NotFound: no such folder.
            ModelIncomplete: names the file, what is wrong with it, and the remedy.
        """
        if not path.is_dir():
            raise NotFound(
                f"there is no model folder {path}; make it with `{import_command(path)}`",
                param="model",
            )
        folder = _from_record(path, _read_record(path))
        folder._check_files(verify)
        return folder

    @property
    def kind(self) -> str:
        """`decoder`, `encoder` or `transcriber`."""
        if self.transcriber is not None:
            return TRANSCRIBER
        return DECODER if self.encoder is None else ENCODER

    @property
    def graph(self) -> Path:
        """The float32 graph, for CPU; see `runs_on_cpu`."""
        return self.path / GRAPH

    @property
    def runs_on_cpu(self) -> bool:
        """Whether there is a float32 graph; imported folders may have the float16 one only."""
        return GRAPH in self.files

    @property
    def graph_float16(self) -> Path | None:
        """The float16 graph that CUDA needs, if the folder has one."""
        return self._optional(GRAPH_FLOAT16)

    @property
    def tokenizer(self) -> Path:
        """`tokenizer.json`."""
        return self.path / TOKENIZER

    @property
    def chat_template(self) -> Path | None:
        """The chat template's Jinja source, if the model has one."""
        return self._optional(CHAT_TEMPLATE)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(record.size for record in self.files.values())

    @property
    def digest(self) -> str:
        """Names the content: equal for folders whose files are equal, byte for byte."""
        lines = [f"{name} {self.files[name].sha256}" for name in sorted(self.files)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @property
    def weights_digest(self) -> int:
        """Names the weights: equal for folders that hold the same, byte for byte; at least 1.

        What an encoder does beside them to make a vector counts as one of them.
        """
        names = sorted(name for name in self.files if _WEIGHTS in name)
        facts = [f"{name} {self.files[name].sha256}" for name in names]
        if self.encoder is not None:
            facts.append(repr(self.encoder))
        digest = hashlib.sha256("\n".join(facts).encode()).digest()
        return max(1, int.from_bytes(digest[:8], "little"))

    def kv_bytes_per_token(self, *, float16: bool = False) -> int:
        """Bytes of keys and values that one token takes in this folder's layers."""
        return self.signature.kv_bytes_per_token(float16=float16)

    @property
    def import_command(self) -> str:
        """The command that makes it again."""
        return import_command(self.path)

    def _optional(self, name: str) -> Path | None:
        return self.path / name if name in self.files else None

    def _check_files(self, verify: bool) -> None:
        # A float16 graph alone is enough: it is served on CUDA.
        alone = GRAPH_FLOAT16 in self.files and not (self.path / GRAPH).exists()
        spared = {GRAPH} if alone else set()
        for name in sorted({*REQUIRED[self.kind]} - spared | {*self.files}):
            record = self.files.get(name)
            if record is None:
                raise _incomplete(self.path, f"its {RECORD} does not list {name}")
            file = self.path / name
            if not file.is_file():
                raise _incomplete(self.path, f"{name} is missing")
            if name == CHAT_TEMPLATE:
                # People put their own in its place; it makes no difference to what is computed.
                continue
            size = file.stat().st_size
            if size != record.size:
                raise _incomplete(self.path, f"{name} has {size} bytes and not {record.size}")
            if verify and file_sha256(file) != record.sha256:
                raise _incomplete(self.path, f"{name} is damaged: its SHA-256 is not the recorded")


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_READ_BYTES):
            digest.update(part)
    return digest.hexdigest()


def import_command(path: Path) -> str:
    """The command that makes a folder, again where its record says of what it was made."""
    name, source, which = path.name, _recorded(path, "source"), ""
    try:
        stage = stage_from_record(_recorded(path, "stage") or None)
    except (KeyError, TypeError, ValueError):
        stage = None
    if stage is not None:
        name = stage.model
        if source.get("kind") != "gguf":
            return f"sfctl model split {shlex.quote(name)} --stages {stage.stages}"
        which = f" --stage {stage.index + 1}/{stage.stages} --layers {stage.range}"
    pulled = pulled_name(str(source.get("sha256")))
    if pulled is None and not source and name in known_names():
        pulled = name
    what = pulled or str(source.get("file") or "FILE.gguf")
    named = "" if pulled == name else f" --name {shlex.quote(name)}"
    return f"sfctl model import {shlex.quote(what)}{which}{named}"


def _recorded(path: Path, key: str) -> Mapping[str, Any]:
    """An object of a record that may be damaged; empty when it can not be read."""
    try:
        found = json.loads((path / RECORD).read_text("utf-8"))[key]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _incomplete(path: Path, fact: str) -> ModelIncomplete:
    return ModelIncomplete(
        f"model folder {path} can not be used: {fact}; make it again with `{import_command(path)}`",
        param="model",
    )


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads((path / RECORD).read_text("utf-8"))
    except FileNotFoundError as error:
        raise _incomplete(path, f"{RECORD} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise _incomplete(path, f"{RECORD} can not be read ({error})") from error
    if not isinstance(record, dict):
        raise _incomplete(path, f"{RECORD} is no JSON object")
    if record.get("schema") != SCHEMA:
        raise _incomplete(
            path, f"{RECORD} has schema {record.get('schema')!r} and this version reads {SCHEMA}"
        )
    return record


def _from_record(path: Path, record: Mapping[str, Any]) -> ModelFolder:
    """Take the record's JSON apart; anything that is not as written is damage."""
    try:
        signature = dict(record["signature"])
        inputs = tuple(str(name) for name in signature.pop("inputs"))
        figures = {key: int(value) for key, value in signature.items()}
        test = record["self_test"]
        return ModelFolder(
            path=path,
            name=str(record["name"]),
            source={str(key): str(value) for key, value in record["source"].items()},
            architecture=str(record["architecture"]),
            quantization={str(k): int(v) for k, v in record["quantization"].items()},
            numerics={str(k): int(v) for k, v in record["numerics"].items()},
            signature=Signature(**figures, inputs=inputs),
            eos_ids=tuple(int(token) for token in record["eos_ids"]),
            bos_id=None if record["bos_id"] is None else int(record["bos_id"]),
            add_bos=bool(record["add_bos"]),
            self_test=SelfTest(
                tuple(int(token) for token in test["prompt"]),
                int(test["next_token"]),
                float(test["margin"]),
                tuple(float(value) for value in test.get("vector", ())),
            ),
            files={
                str(name): FileRecord(int(entry["size"]), str(entry["sha256"]))
                for name, entry in record["files"].items()
            },
            encoder=_encoder(path, record),
            transcriber=_transcriber(record),
            stage=_stage(record),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _incomplete(path, f"{RECORD} is damaged ({error!r})") from error


def _encoder(path: Path, record: Mapping[str, Any]) -> EncoderFigures | None:
    """An encoder's figures; None of another kind."""
    kind = record.get("kind", DECODER)
    if kind not in REQUIRED:
        raise _incomplete(
            path, f"its kind is {kind!r} and this version knows {', '.join(REQUIRED)}"
        )
    if kind != ENCODER:
        return None
    figures = record["encoder"]
    if figures["pooling"] not in POOLINGS or not record["self_test"]["vector"]:
        raise ValueError("neither pooling nor self-test of an encoder")
    return EncoderFigures(
        str(figures["pooling"]), bool(figures["normalize"]), int(figures["trained_tokens"])
    )


def _transcriber(record: Mapping[str, Any]) -> TranscriberFigures | None:
    """A transcriber's figures; None of another kind."""
    if record.get("kind", DECODER) != TRANSCRIBER:
        return None
    if not record["self_test"]["vector"]:
        raise ValueError("no self-test of a transcriber")
    return figures_from_record(record["transcriber"])


def _stage(record: Mapping[str, Any]) -> Stage | None:
    """Which part of its model a folder holds; None of a whole one."""
    stage = stage_from_record(record.get("stage"))
    if stage is None:
        return None
    figures = record["signature"]
    if (figures["first_layer"], figures["layers"]) != (stage.first, stage.end - stage.first):
        raise ValueError("stage and signature have other layers")
    if not record["self_test"]["vector"]:
        raise ValueError("no self-test of a stage")
    return stage

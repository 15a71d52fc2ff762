"""Can this be served, and why not: from a file's header, or a model folder.

Everything that is wrong is told at once, not only the first of it, and a file that can not be
served still shows what it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from agent.models.architecture import DecoderConfig, check_shapes
from agent.models.blocks import FORMATS
from agent.models.ct2_file import Ct2File
from agent.models.encoder_config import MODEL_TYPE, WEIGHTS, is_encoder_source, read_encoder_config
from agent.models.estimate import LANES, estimate
from agent.models.figures import MAX_POSITIONS, config_from_metadata
from agent.models.folder import RECORD, ModelFolder
from agent.models.foreign_files import is_foreign
from agent.models.gguf_file import all_tensors, check_types, read_parts, vocab_size
from agent.models.gguf_header import TensorInfo, read_header
from agent.models.safetensors_file import SafetensorsFile
from agent.models.vocabulary_check import check_vocabulary
from agent.models.vocabulary_source import read_vocabulary
from agent.models.whisper_config import (
    ARCHITECTURE,
    is_whisper_source,
    read_transcriber_figures,
    read_whisper_config,
)
from agent.models.whisper_config import WEIGHTS as WHISPER_WEIGHTS
from bus.errors import Invalid, ModelIncomplete
from bus.text.model_files import eos_ids_by_file, template_file

#: What a person sees: a map of plain values. `usable` is whether it can be served, `reasons` why
#: not, `notes` what is worth knowing though it can be.
Findings = dict[str, Any]
T = TypeVar("T")


class _Examination:
    """Findings as they come."""

    def __init__(self, path: Path, kind: str) -> None:
        self._reasons: list[str] = []
        self._notes: list[str] = []
        self._facts: Findings = {"path": str(path), "kind": kind}

    def fact(self, **facts: Any) -> None:
        self._facts.update(facts)

    def note(self, text: str) -> None:
        self._notes.append(text)

    def attempt(self, check: Callable[[], T]) -> T | None:
        """Run a check; what it refuses is a reason, told once."""
        try:
            return check()
        except (Invalid, ModelIncomplete) as error:
            if error.message not in self._reasons:
                self._reasons.append(error.message)
            return None

    def findings(self) -> Findings:
        return {
            "usable": not self._reasons,
            "reasons": self._reasons,
            "notes": self._notes,
            **self._facts,
        }


def examine(path: Path, *, verify: bool = False, variant: str | None = None) -> Findings:
    """Look at a GGUF file, at a model folder, or at one that another program made.

    Args:
        path: of any of them.
        verify: of a model folder, also compare every file's SHA-256.
        variant: of another program's folder, which of its graphs.

    Raises:
        NotFound: there is none of them at `path`.
    """
    if not path.is_dir():
        return examine_file(path)
    if is_whisper_source(path) and not (path / RECORD).exists():
        return examine_whisper(path)
    if is_foreign(path):
        return examine_foreign_folder(path, variant)
    if is_encoder_source(path) and not (path / RECORD).exists():
        return examine_encoder(path)
    return examine_folder(path, verify=verify)


def examine_file(path: Path) -> Findings:
    """Look at the header of a GGUF file and of its sisters.

    Raises:
        NotFound: no such file.
    """
    found = _Examination(path, "gguf")
    header = found.attempt(lambda: read_header(path))
    if header is None:
        return found.findings()
    metadata = header.metadata
    _describe(found, metadata)
    parts = found.attempt(lambda: read_parts(path))
    if parts is None:
        return found.findings()
    for part in parts:
        found.attempt(part.check_whole)
    tensors = found.attempt(lambda: all_tensors(parts)) or {}
    found.fact(
        files=len(parts),
        file_bytes=sum(part.header.file_bytes for part in parts),
        tensors=len(tensors),
        parameters=sum(tensor.values for tensor in tensors.values()),
        quantization=dict(Counter(tensor.type_name for tensor in tensors.values())),
    )
    found.attempt(lambda: check_types(tensors.values()))
    _examine_figures(found, path, metadata, tensors)
    _examine_vocabulary(found, metadata, found.attempt(lambda: vocab_size(path, tensors)))
    return found.findings()


def _describe(found: _Examination, metadata: Mapping[str, Any]) -> None:
    for key in ("architecture", "name", "size_label", "license"):
        value = metadata.get(f"general.{key}")
        if isinstance(value, str):
            found.fact(**{key: value[:200]})


def _examine_figures(
    found: _Examination,
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, TensorInfo],
) -> None:
    vocab = found.attempt(lambda: vocab_size(path, tensors))
    config = found.attempt(lambda: config_from_metadata(metadata, vocab or 1))
    if vocab is None or config is None:
        return
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    found.attempt(lambda: check_shapes(config, shapes))
    _tell_memory(found, config, tensors)
    trained = metadata.get(f"{config.architecture.name}.context_length")
    if trained != config.max_positions:
        found.note(f"its window of {trained} tokens is cut to {MAX_POSITIONS}")


def _tell_memory(
    found: _Examination, config: DecoderConfig, tensors: Mapping[str, TensorInfo]
) -> None:
    figures = estimate(config, tensors)
    found.fact(
        layers=config.layers,
        vocab=config.vocab,
        window=config.max_positions,
        kv_bytes_per_token=figures.kv_per_token,
        lanes=LANES,
        lane_tokens=figures.lane_tokens,
        weights_bytes=figures.weights,
        kv_bytes=figures.kv,
        memory_bytes=figures.total,
    )
    grown = [
        tensor
        for tensor in tensors.values()
        if tensor.type_name in ("F16", "BF16") and len(tensor.shape) > 1
    ]
    if grown:
        found.note(
            f"{len(grown)} matrices are without quantisation and take 4 bytes a weight on CPU; "
            f"one of {', '.join(FORMATS)} is smaller and faster"
        )


def _examine_vocabulary(found: _Examination, metadata: Mapping[str, Any], rows: int | None) -> None:
    vocabulary = found.attempt(lambda: read_vocabulary(metadata))
    if vocabulary is None:
        return
    found.attempt(lambda: check_vocabulary(vocabulary, rows))
    cut = f" ({vocabulary.pre[:60]})" if vocabulary.kind == "gpt2" else ""
    found.fact(
        tokenizer=f"{vocabulary.kind[:60]}{cut}",
        eos_ids=list(vocabulary.eos_ids),
        chat_template=vocabulary.chat_template is not None,
    )
    if vocabulary.chat_template is None:
        found.note("it has no chat template: it completes text and does not chat")


def examine_encoder(path: Path) -> Findings:
    """Look at the configuration, the weights' header and the tokenizer of an encoder's folder."""
    from agent.models.encoder_graph import check_encoder_shapes
    from agent.models.encoder_importer import sample_ids

    found = _Examination(path, "safetensors")
    weights = found.attempt(lambda: SafetensorsFile(path / WEIGHTS))
    config = found.attempt(lambda: read_encoder_config(path))
    if weights is not None:
        tensors = weights.tensors
        found.fact(
            file_bytes=weights.path.stat().st_size,
            tensors=len(tensors),
            parameters=sum(math.prod(tensor.shape) for tensor in tensors.values()),
            quantization=dict(Counter(tensor.dtype for tensor in tensors.values())),
        )
    if config is not None:
        found.fact(
            architecture=MODEL_TYPE,
            layers=config.layers,
            vocab=config.vocab,
            window=config.max_positions,
            pooling=config.pooling,
        )
        found.attempt(lambda: sample_ids(path, config))
    if weights is not None and config is not None:
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        found.attempt(lambda: check_encoder_shapes(config, shapes))
    return found.findings()


def examine_whisper(path: Path) -> Findings:
    """Look at the weights' variables, the lists and the tokenizer of a Whisper's folder."""
    found = _Examination(path, "ctranslate2")
    weights = found.attempt(lambda: Ct2File(path / WHISPER_WEIGHTS))
    if weights is None:
        return found.findings()
    variables = [variable for variable in weights.variables.values() if variable.shape]
    found.fact(
        file_bytes=weights.path.stat().st_size,
        tensors=len(variables),
        parameters=sum(math.prod(variable.shape) for variable in variables),
        quantization=dict(Counter(variable.kind for variable in variables)),
    )
    config = found.attempt(lambda: read_whisper_config(weights))
    if config is None:
        return found.findings()
    found.fact(
        architecture=ARCHITECTURE,
        layers=config.text_layers,
        vocab=config.vocab,
        window=config.text_positions,
    )
    figures = found.attempt(lambda: read_transcriber_figures(path, config))
    if figures is not None:
        found.fact(languages=list(figures.languages))
    return found.findings()


def examine_folder(path: Path, *, verify: bool) -> Findings:
    """Look at a model folder: complete, of the sizes and, when verified, the hashes recorded."""
    found = _Examination(path, "folder")
    folder = found.attempt(lambda: ModelFolder.open(path, verify=verify))
    if folder is not None:
        found.fact(verified=verify, **folder_facts(folder))
    return found.findings()


def examine_foreign_folder(path: Path, variant: str | None) -> Findings:
    """Look at a folder of onnxruntime-genai or Optimum: what an import would make of it."""
    from agent.models.foreign import describe_foreign, prepare

    found = _Examination(path, "foreign")
    prepared = found.attempt(lambda: prepare(path, variant))
    if prepared is not None:
        facts = describe_foreign(prepared)
        for note in facts.pop("notes"):
            found.note(note)
        found.fact(**facts)
    return found.findings()


def describe_folder(folder: ModelFolder) -> Findings:
    """All that a folder says of itself: its record, its template, what ends its texts."""
    return {
        "usable": True,
        "path": str(folder.path),
        "kind": folder.kind,
        **folder_facts(folder),
        "eos_ids": list(folder.eos_ids),
        "eos_ids_by_file": {name: list(ids) for name, ids in eos_ids_by_file(folder.path).items()},
        "bos_id": folder.bos_id,
        "add_bos": folder.add_bos,
        "template_file": template_file(folder.path),
        "files": {
            name: {"size": record.size, "sha256": record.sha256}
            for name, record in folder.files.items()
        },
    }


def folder_facts(folder: ModelFolder) -> Findings:
    """What a folder's record says, for people."""
    figures = folder.signature
    own: Findings = {} if folder.encoder is None else asdict(folder.encoder)
    if own:
        own["dimensions"] = figures.hidden
    if folder.transcriber is not None:
        own["languages"] = list(folder.transcriber.languages)
    if folder.stage is not None:
        own["stage"] = folder.stage.describe()
    return {
        "name": folder.path.name,
        "architecture": folder.architecture,
        "source": dict(folder.source),
        "digest": folder.digest,
        "size_bytes": folder.size_bytes,
        "quantization": dict(folder.quantization),
        "numerics": dict(folder.numerics),
        "layers": figures.layers,
        "vocab": figures.vocab,
        "window": figures.max_positions,
        "kv_bytes_per_token": folder.kv_bytes_per_token(),
        "float16_graph": folder.graph_float16 is not None,
        **own,
    }

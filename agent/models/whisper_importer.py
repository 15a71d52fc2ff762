"""Imports a Whisper's folder of CTranslate2 files."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agent.models.assemble import Progress, no_progress
from agent.models.ct2_file import Ct2File
from agent.models.folder import (
    AUDIO_GRAPH,
    GRAPH,
    TOKENIZER,
    TOKENIZER_CONFIG,
    TRANSCRIBER,
    ModelFolder,
    Signature,
    file_sha256,
)
from agent.models.selftest import open_session
from agent.models.transcriber_figures import TranscriberFigures
from agent.models.transcriber_selftest import make_test
from agent.models.whisper_config import (
    ARCHITECTURE,
    WEIGHTS,
    WhisperConfig,
    is_whisper_source,
    read_transcriber_figures,
    read_whisper_config,
)
from agent.models.whisper_graph import write_whisper_graphs
from agent.models.writer import check_name, replacing_folder, write_record
from bus.errors import Invalid

#: Taken over as they are, where they are.
_KEPT = (TOKENIZER, TOKENIZER_CONFIG, "preprocessor_config.json")


def import_whisper(source: Path, target: Path, *, progress: Progress = no_progress) -> ModelFolder:
    """Make a model folder from a Whisper's CTranslate2 files, without torch.

    Args:
        source: with `model.bin`, `config.json` and `tokenizer.json`.
        target: the folder to make; its name becomes the model's.
        progress: told what is done.

    Raises:
        Invalid: a file or model that can not be imported, with what is unusual about it.
        ModelIncomplete: the graphs that were written do not work.
    """
    check_name(target.name)
    if not is_whisper_source(source):
        raise Invalid(
            f"folder {source} can not be imported: it has no {WEIGHTS} with a config.json beside "
            "it, as CTranslate2 has them",
            param="file",
        )
    progress("read", 0, 1)
    weights = Ct2File(source / WEIGHTS)
    config = read_whisper_config(weights)
    figures = read_transcriber_figures(source, config)
    origin = {
        "kind": "ctranslate2",
        "file": source.resolve().name,
        "sha256": file_sha256(source / WEIGHTS),
    }
    progress("read", 1, 1)
    with replacing_folder(target) as partial:
        inputs = write_whisper_graphs(
            partial,
            config,
            weights,
            progress=lambda done, total: progress("layers", done, total),
        )
        for name in _KEPT:
            if (source / name).is_file():
                shutil.copyfile(source / name, partial / name)
        signature = _signature(config, tuple(inputs))
        progress("self-test", 0, 1)
        audio, text = (open_session(partial / name) for name in (AUDIO_GRAPH, GRAPH))
        test = make_test(audio, text, figures, signature)
        progress("self-test", 1, 1)
        record = {"name": target.name, "source": origin, **_record(weights, figures, signature)}
        write_record(partial, {**record, "self_test": asdict(test)})
    return ModelFolder.open(target)


def _record(weights: Ct2File, figures: TranscriberFigures, signature: Signature) -> dict[str, Any]:
    return {
        "kind": TRANSCRIBER,
        "architecture": ARCHITECTURE,
        "quantization": dict(Counter(v.kind for v in weights.variables.values() if v.shape)),
        "numerics": {},
        "signature": asdict(signature),
        "transcriber": asdict(figures),
        "eos_ids": [figures.end],
        "bos_id": None,
        "add_bos": False,
    }


def _signature(config: WhisperConfig, inputs: tuple[str, ...]) -> Signature:
    """Of the text graph; nothing is kept of a token behind its window."""
    return Signature(
        first_layer=0,
        layers=config.text_layers,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=0,
        head_dim=config.head_dim,
        vocab=config.vocab,
        max_positions=config.text_positions,
        inputs=inputs,
    )

"""Imports a GGUF file."""

from __future__ import annotations

from pathlib import Path

from agent.models.assemble import ModelSource, Progress, assemble, no_progress
from agent.models.folder import ModelFolder, file_sha256
from agent.models.gguf_file import GgufFile
from agent.models.graph import INT8_ACTIVATIONS, Numerics
from agent.models.vocabulary_check import check_vocabulary
from agent.models.vocabulary_source import read_vocabulary


def import_gguf(
    file: Path,
    target: Path,
    *,
    numerics: Numerics = INT8_ACTIVATIONS,
    progress: Progress = no_progress,
) -> ModelFolder:
    """Make a model folder from a GGUF file, without loss; takes seconds for a small model.

    Args:
        file: the GGUF file, or the first part of a split one.
        target: the folder to make; its name becomes the model's.
        numerics: how the CPU graph computes.
        progress: told what is done.

    Raises:
        NotFound: no such file.
        Invalid: a file or model that can not be imported, with what is unusual about it.
        ModelIncomplete: the graph that was written does not work.
    """
    progress("read", 0, 1)
    weights = GgufFile(file)
    vocabulary = read_vocabulary(weights.metadata)
    check_vocabulary(vocabulary, weights.config.vocab)
    origin = {"kind": "gguf", "file": file.name, "sha256": file_sha256(file)}
    if len(weights.paths) > 1:
        origin["parts"] = str(len(weights.paths))
    progress("read", 1, 1)
    source = ModelSource(
        config=weights.config,
        weights=weights,
        vocabulary=vocabulary,
        origin=origin,
        quantization=weights.type_counts(),
    )
    return assemble(source, target, numerics=numerics, progress=progress)

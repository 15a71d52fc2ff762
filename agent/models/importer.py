"""Imports a GGUF file."""

from __future__ import annotations

from pathlib import Path

from agent.models.assemble import ModelSource, Part, Progress, assemble, no_progress
from agent.models.folder import ModelFolder, file_sha256
from agent.models.gguf_file import GgufFile
from agent.models.graph import INT8_ACTIVATIONS, Numerics
from agent.models.stages import StageChoice, one_stage
from agent.models.vocabulary_check import check_vocabulary
from agent.models.vocabulary_source import read_vocabulary
from agent.models.writer import check_name


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
    source = _source(file, GgufFile(file), progress)
    return assemble(source, target, numerics=numerics, progress=progress)


def import_gguf_stage(
    file: Path,
    models: Path,
    name: str,
    *,
    place: str | None = None,
    layers: str | None = None,
    numerics: Numerics = INT8_ACTIVATIONS,
    progress: Progress = no_progress,
) -> ModelFolder:
    """Make the folder of one stage of a GGUF file's model; other stages' weights are not read.

    Args:
        file: the GGUF file, or the first part of a split one.
        models: where the folder is made.
        name: the whole model's; the folder's is `NAME.1of2`.
        place: `1/2`, which of how many.
        layers: ranges, as `agent.models.stages.one_stage` takes them.
        numerics: how the CPU graph computes.
        progress: told what is done.

    Raises:
        As `import_gguf`; Invalid also when there is no such stage.
    """
    weights = GgufFile(file)
    choice = one_stage(weights.config.layers, place, layers)
    target = models / choice.folder_name(check_name(name))
    source = _source(file, weights, progress)
    return assemble(source, target, numerics=numerics, part=Part(name, choice), progress=progress)


def choose_gguf_stage(file: Path, place: str | None, layers: str | None) -> StageChoice:
    """Which stage an import would make, from the file's header.

    Raises:
        NotFound: no such file.
        Invalid: a file or model that can not be imported, or no such stage.
    """
    return one_stage(GgufFile(file).config.layers, place, layers)


def _source(file: Path, weights: GgufFile, progress: Progress) -> ModelSource:
    progress("read", 0, 1)
    vocabulary = read_vocabulary(weights.metadata)
    check_vocabulary(vocabulary, weights.config.vocab)
    origin = {"kind": "gguf", "file": file.name, "sha256": file_sha256(file)}
    if len(weights.paths) > 1:
        origin["parts"] = str(len(weights.paths))
    progress("read", 1, 1)
    return ModelSource(
        config=weights.config,
        weights=weights,
        vocabulary=vocabulary,
        origin=origin,
        quantization=weights.type_counts(),
    )

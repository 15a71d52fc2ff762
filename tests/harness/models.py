"""Model folders for tests, made once and shared by all runs and workers.

They lie under `$SUPERFLUID_TEST_CACHE`, else `~/.cache/superfluid/test`, in a folder named after
the code that made them; that folder is a folder of models, so a node can be pointed at
`toy_model_folder().path.parent`. Tests do not change what is in it; one that must, copies.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import agent.models
from agent.models.assemble import no_progress
from agent.models.encoder_importer import import_encoder
from agent.models.folder import ModelFolder
from agent.models.graph import EXACT
from agent.models.importer import import_gguf
from agent.models.pull import pull
from agent.models.sources import FOLDER_SOURCES, SOURCES
from agent.models.split import split_model
from agent.models.stages import even_stages
from agent.models.toy import write_toy
from agent.models.whisper_importer import import_whisper
from bus.errors import ModelIncomplete, NotFound
from tests.harness.graph_logits import FLOAT_ACTIVATIONS

#: Of the folders that other code made so many stay, those that were made last, and none that
#: nobody made anything in for so long; one that a test may still use is never removed.
_KEPT = 6
_KEEP_S = 2 * 86400.0
_IN_USE_S = 3600.0


def cache_folder() -> Path:
    """Where the folders are kept."""
    chosen = os.environ.get("SUPERFLUID_TEST_CACHE")
    path = Path(chosen) if chosen else Path.home() / ".cache" / "superfluid" / "test"
    path.mkdir(parents=True, exist_ok=True)
    return path


def toy_model_folder() -> ModelFolder:
    """The toy model: byte tokens, two layers, loads in milliseconds."""
    return cached_model("toy", write_toy)


def smollm2_folder() -> ModelFolder:
    """SmolLM2-135M-Instruct, imported; skips the test where the index can not be reached."""
    return cached_model("smollm2", lambda target: import_gguf(smollm2_gguf(), target))


def smollm2_exact_folder() -> ModelFolder:
    """The same with float32 activations and dense 8-bit weights; to compare with a reference."""
    return cached_model(
        "smollm2-exact", lambda target: import_gguf(smollm2_gguf(), target, numerics=EXACT)
    )


def smollm2_gguf() -> Path:
    """The GGUF file that the folder is made of; in CI a missing index is a failure."""
    return _pulled("smollm2")


def gemma3_folder() -> ModelFolder:
    """Gemma-3-270M, imported: a base model, which has no chat template."""
    return cached_model("gemma3-270m", lambda target: import_gguf(gemma3_gguf(), target))


def gemma3_float_folder() -> ModelFolder:
    """The same with float32 activations; to compare with a reference."""
    return cached_model(
        "gemma3-270m-float",
        lambda target: import_gguf(gemma3_gguf(), target, numerics=FLOAT_ACTIVATIONS),
    )


def gemma3_gguf() -> Path:
    """Its GGUF file, 253 MB."""
    return _pulled("gemma3-270m")


def stage_folders(whole: ModelFolder, stages: int) -> list[ModelFolder]:
    """The stages of a model, evenly cut, in a folder of models of their own."""
    models = whole.path.parent / ".stages"
    chosen = even_stages(whole.signature.layers, stages)
    with locked(f"{whole.path.name}.{stages}"):
        try:
            return [
                ModelFolder.open(models / choice.folder_name(whole.path.name)) for choice in chosen
            ]
        except (NotFound, ModelIncomplete):
            return split_model(whole, models, chosen)


def minilm_folder() -> ModelFolder:
    """all-MiniLM-L6-v2, an encoder, imported."""
    return cached_model("minilm", lambda target: import_encoder(minilm_source(), target))


def minilm_source() -> Path:
    """The folder of safetensors that it is made of, 91 MB."""
    return _pulled("minilm")


def whisper_folder() -> ModelFolder:
    """Whisper tiny.en, a transcriber, imported."""
    return cached_model("whisper-tiny-en", lambda target: import_whisper(whisper_source(), target))


def whisper_source() -> Path:
    """The folder of CTranslate2 files that it is made of, 78 MB."""
    return _pulled("whisper-tiny-en")


#: For `parametrize`: what makes the folder of each decoder.
DECODERS = (
    pytest.param(toy_model_folder, id="toy"),
    pytest.param(smollm2_folder, id="smollm2", marks=pytest.mark.model),
    pytest.param(gemma3_folder, id="gemma3", marks=pytest.mark.model),
)


def _pulled(name: str) -> Path:
    try:
        with locked("pull"):
            return pull(name, cache_folder(), no_progress)
    except ModelIncomplete as error:
        folder = FOLDER_SOURCES.get(name)
        requirement = (folder.part if folder else SOURCES[name].parts[0]).requirement
        if os.environ.get("CI") or "can not be downloaded" not in error.message:
            pytest.fail(f"{requirement}: {error}", pytrace=False)
        pytest.skip(f"{requirement}: {error}")


def cached_model(name: str, make: Callable[[Path], ModelFolder]) -> ModelFolder:
    """A model's folder, made when this code has not made it yet."""
    target = cache_folder() / _code_digest() / name
    with locked(name):
        try:
            folder = ModelFolder.open(target)
        except (NotFound, ModelIncomplete):
            folder = make(target)
        os.utime(target.parent)
        _remove_old(target.parent)
    return folder


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold back the other test workers, in this run and others."""
    with (cache_folder() / f".{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _code_digest() -> str:
    """Changes when the code that makes folders does."""
    digest = hashlib.sha256()
    for file in sorted(Path(agent.models.__path__[0]).glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _remove_old(current: Path) -> None:
    now = time.time()
    others = [
        (path.stat().st_mtime, path)
        for path in current.parent.iterdir()
        if path.is_dir() and len(path.name) == len(current.name) and path != current
    ]
    for place, (made_s, path) in enumerate(sorted(others, reverse=True)):
        age_s = now - made_s
        if age_s > _KEEP_S or (place >= _KEPT and age_s > _IN_USE_S):
            shutil.rmtree(path, ignore_errors=True)

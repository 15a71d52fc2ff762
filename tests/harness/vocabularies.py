"""The vocabularies that llama.cpp tests its tokenizers with, and the ids that it expects.

They lie in the source archive of llama-cpp-python, which pip gets once; only they are kept.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.models.folder import file_sha256
from tests.harness.models import cache_folder, locked

REQUIREMENT = "llama-cpp-python==0.3.36"
ARCHIVE_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
_FOLDER = "vendor/llama.cpp/models/ggml-vocab-"
_BETWEEN = "\n__ggml_vocab_test__\n"


def vocabularies() -> Path:
    """The folder of `ggml-vocab-NAME.gguf`; skips where the index can not be reached."""
    folder = cache_folder() / "vocabularies-0.3.36"
    with locked("vocabularies"):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=cache_folder()) as partial:
                whole = Path(partial) / "found"
                whole.mkdir()
                _take_out(_download(Path(partial)), whole)
                whole.rename(folder)
    return folder


def cases(file: Path) -> Iterator[tuple[str, list[int]]]:
    """Texts and their ids, without a beginning or end token."""
    texts = Path(f"{file}.inp").read_text("utf-8").split(_BETWEEN)
    for text, line in zip(texts, Path(f"{file}.out").read_text().splitlines(), strict=False):
        yield text, [int(token) for token in line.split()]


def _download(folder: Path) -> Path:
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-binary=:all:"]
    pip = subprocess.run(
        [*command, "-q", "--dest", str(folder), REQUIREMENT],
        capture_output=True,
        text=True,
        check=False,
    )
    found = list(folder.glob("*.tar.gz"))
    if pip.returncode != 0 or len(found) != 1:
        said = (pip.stderr.strip().splitlines() or ["nothing"])[-1]
        if os.environ.get("CI"):
            pytest.fail(f"{REQUIREMENT}: pip said {said}", pytrace=False)
        pytest.skip(f"{REQUIREMENT}: pip said {said}")
    if file_sha256(found[0]) != ARCHIVE_SHA256:
        pytest.fail(f"{REQUIREMENT}: another archive than was recorded", pytrace=False)
    return found[0]


def _take_out(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as members:
        for member in members:
            if _FOLDER in member.name and member.isfile():
                content = members.extractfile(member)
                assert content is not None
                (folder / Path(member.name).name).write_bytes(content.read())

"""The documents' examples in Python run as they stand, one after the other, on real models."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile

from agent.worker.log_mel import RATE
from bench.cluster import Cluster
from tests.harness.models import minilm_folder, smollm2_folder, whisper_folder
from tests.harness.speech import english_clips, joined

ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0
TALK_S = 12.0


def examples(document: Path) -> list[str]:
    """Its fenced blocks of Python."""
    return re.findall(r"^```python\n(.*?)^```$", document.read_text(), re.M | re.S)


DOCUMENTS = {
    path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
#: What each prints somewhere; a document with examples has an entry.
SAYS = {
    "README.md": r"\w",
    "api.md": r"'kind': 'end'",
    "transcription.md": rf"(?m)^en {TALK_S}$",
}


@pytest.fixture(scope="module")
def fleet() -> Iterator[Cluster]:
    """What the README's steps make, with the models that the documents import besides."""
    made = Cluster(smollm2_folder().path, threads=2)
    for folder in (minilm_folder(), whisper_folder()):
        (made.state / "models" / folder.path.name).symlink_to(folder.path)
    with made:
        yield made


def test_every_document_with_examples_is_run() -> None:
    assert {name for name, path in DOCUMENTS.items() if examples(path)} == SAYS.keys()


@pytest.mark.model
@pytest.mark.parametrize("name", SAYS)
def test_examples_run_as_they_stand(fleet: Cluster, tmp_path: Path, name: str) -> None:
    talk = joined(english_clips(), 0.8, TALK_S)
    soundfile.write(tmp_path / "talk.mp3", talk, RATE, format="MP3")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(examples(DOCUMENTS[name]))],
        cwd=tmp_path,
        env=os.environ | {"SUPERFLUID_STATE": str(fleet.state)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(SAYS[name], done.stdout)

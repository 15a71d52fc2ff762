"""Stages are made in memory that does not grow with the model's layers.

Counted is memory that no file backs: what is mapped of files the system takes back when it wants.
The kernel keeps no highest figure of it, so a thread looks again and again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent.models.folder import ModelFolder
from agent.models.importer import import_gguf
from tests.harness.gguf_models import SmallModel, write_model

#: A stage of the model has twice as much. Measured: 14 to 34 MB, with as many layers or twice.
ROOM_BYTES = 40 << 20

_WATCHED = """
import sys, threading
from pathlib import Path
from agent.models.folder import ModelFolder
from agent.models.importer import import_gguf_stage
from agent.models.selftest import open_session
from agent.models.split import split_model
from agent.models.stages import even_stages

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

source, models, start, ended = Path(sys.argv[1]), Path(sys.argv[2]), anonymous(), threading.Event()
highest = [start]

def watch():
    while not ended.wait(0.002):
        highest[0] = max(highest[0], anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
try:
    if sys.argv[3] == "packed":
        session = open_session(source / "model.onnx")
    elif source.is_dir():
        whole = ModelFolder.open(source, verify=True)
        split_model(whole, models, even_stages(whole.signature.layers, 2))
    else:
        import_gguf_stage(source, models, "large", place="2/2")
finally:
    ended.set()
    watcher.join()
print(highest[0] - start)
"""


def highest_bytes(source: Path, models: Path, how: str = "") -> int:
    """What a process took more at most while it made stages of a folder or file."""
    command = [sys.executable, "-P", "-c", _WATCHED, str(source), str(models), how]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = SmallModel(
        layers=40, feed_forward=2048, hidden=512, heads=8, choose=lambda name: "Q8_0"
    )
    return write_model(tmp_path_factory.mktemp("source") / "large.gguf", model)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_model(file: Path, tmp_path: Path) -> None:
    whole = import_gguf(file, tmp_path / "large")
    assert highest_bytes(whole.path, tmp_path / "split") < ROOM_BYTES
    stages = [ModelFolder.open(tmp_path / "split" / f"large.{n}of2") for n in (1, 2)]
    assert all(stage.size_bytes > 2 * ROOM_BYTES for stage in stages)
    assert highest_bytes(file, tmp_path / "alone") < ROOM_BYTES
    assert ModelFolder.open(tmp_path / "alone" / "large.2of2").digest == stages[1].digest
    # one that is served takes memory for its weights, which this way of counting sees
    assert highest_bytes(stages[0].path, tmp_path, "packed") > 1.5 * ROOM_BYTES

"""Prepacked copies: the same bits as the graph, made once, whole or not used."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from agent.models import selftest
from agent.models.folder import ModelFolder
from agent.models.onnx_runtime import onnxruntime
from agent.worker import prepacked
from agent.worker.model_runner import ModelRunner
from agent.worker.prepacked import KEPT, open_prepacked, prepacked_key
from agent.worker.provider import CPU_PROVIDER
from agent.worker.sessions import SessionOptions, open_session
from bus.log import TextFormatter
from tests.harness.models import smollm2_folder, toy_model_folder

PROMPT = tuple(range(40, 72))


@pytest.fixture
def folder(tmp_path: Path) -> ModelFolder:
    return ModelFolder.open(Path(shutil.copytree(toy_model_folder().path, tmp_path / "toy")))


def opened(copy: Path) -> onnxruntime.InferenceSession:
    return open_session(copy, [CPU_PROVIDER], SessionOptions(optimized=True))


def open_copy(folder: ModelFolder, least: int = 0) -> onnxruntime.InferenceSession | None:
    return open_prepacked(folder, folder.graph, CPU_PROVIDER, opened, min_model_bytes=least)


def copies(folder: ModelFolder) -> list[Path]:
    return [path for path in (folder.path / prepacked.FOLDER).iterdir() if path.is_dir()]


def logits(session: onnxruntime.InferenceSession, folder: ModelFolder) -> list[bytes]:
    return [
        selftest.prompt_logits(session, folder.signature, ids).tobytes()
        for ids in (PROMPT, PROMPT[:1])
    ]


def test_a_copy_computes_the_same_bits_as_the_graph(folder: ModelFolder) -> None:
    session = open_copy(folder)
    assert session is not None
    plain = open_session(folder.graph, [CPU_PROVIDER], SessionOptions())
    assert logits(session, folder) == logits(plain, folder)


def test_a_copy_is_made_once_and_as_readable_as_the_graph(folder: ModelFolder) -> None:
    folder.graph.chmod(0o640)
    assert open_copy(folder) is not None
    (copy,) = copies(folder)
    made = (copy / prepacked.DATA).stat().st_ino
    assert open_copy(folder) is not None
    assert (copy / prepacked.DATA).stat().st_ino == made
    for name in (prepacked.GRAPH, prepacked.DATA, prepacked.RECORD):
        assert stat.S_IMODE((copy / name).stat().st_mode) == 0o640
    assert stat.S_IMODE((copy.parent / "lock").stat().st_mode) == 0o600


def test_small_models_have_none(folder: ModelFolder) -> None:
    assert open_copy(folder, least=1 << 30) is None
    assert not (folder.path / prepacked.FOLDER).exists()


def cut(copy: Path) -> None:
    os.truncate(copy / prepacked.DATA, 100)


def flip_a_byte(copy: Path) -> None:
    data = bytearray((copy / prepacked.DATA).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / prepacked.DATA).write_bytes(data)


def lose_the_record(copy: Path) -> None:
    (copy / prepacked.RECORD).unlink()


def break_the_record(copy: Path) -> None:
    (copy / prepacked.RECORD).write_text('{"schema": 1, "files": []}')


@pytest.mark.parametrize("damage", [cut, flip_a_byte, lose_the_record, break_the_record])
def test_a_damaged_copy_is_made_again(
    folder: ModelFolder, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert open_copy(folder) is not None
    (copy,) = copies(folder)
    whole = (copy / prepacked.DATA).read_bytes()
    assert callable(damage)
    damage(copy)
    session = open_copy(folder)
    assert session is not None
    assert (copy / prepacked.DATA).read_bytes() == whole


def test_a_copied_folder_is_read_whole_and_used(folder: ModelFolder, tmp_path: Path) -> None:
    assert open_copy(folder) is not None
    other = ModelFolder.open(Path(shutil.copytree(folder.path, tmp_path / "other")))
    (copy,) = copies(other)
    made = (copy / prepacked.DATA).stat().st_ino
    assert open_copy(other) is not None
    assert (copy / prepacked.DATA).stat().st_ino == made


def test_what_can_not_be_made_leaves_the_plain_load(
    folder: ModelFolder, caplog: pytest.LogCaptureFixture
) -> None:
    broken = ModelFolder.open(folder.path)
    folder.graph.write_bytes(bytes(folder.graph.stat().st_size))
    assert open_copy(broken) is None
    (record,) = [r for r in caplog.records if r.getMessage() == "prepacked_not_used"]
    assert "prepack = false" in TextFormatter().format(record)
    assert copies(broken) == []


def test_a_folder_that_can_not_be_written_leaves_the_plain_load(
    folder: ModelFolder, caplog: pytest.LogCaptureFixture
) -> None:
    (folder.path / prepacked.FOLDER).write_text("no folder")
    assert open_copy(folder) is None
    assert "prepacked_not_used" in caplog.text


def test_old_and_half_made_copies_go(folder: ModelFolder) -> None:
    root = folder.path / prepacked.FOLDER
    for age, name in enumerate(("a", "b", "c", ".half")):
        (root / name).mkdir(parents=True)
        os.utime(root / name, (1000.0 - age, 1000.0 - age))
    assert open_copy(folder) is not None
    key = prepacked_key(folder, folder.graph, CPU_PROVIDER)
    assert sorted(path.name for path in copies(folder)) == sorted([key, "a"])
    assert len(copies(folder)) == KEPT


def test_processes_that_come_together_make_one(folder: ModelFolder) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from agent.models.folder import ModelFolder\n"
        "from tests.unit.worker.test_prepacked import open_copy\n"
        "print(open_copy(ModelFolder.open(Path(sys.argv[1]))) is not None)\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, folder.path], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    assert [process.communicate(timeout=120)[0].strip() for process in started] == ["True"] * 2
    (copy,) = copies(folder)
    record = json.loads((copy / prepacked.RECORD).read_text())
    assert record["files"][prepacked.DATA]["inode"] == (copy / prepacked.DATA).stat().st_ino


def test_a_real_model_runs_the_same_bits_by_chunk_and_by_step() -> None:
    folder = smollm2_folder()
    size = 1 << 26
    plain = ModelRunner(folder, device="cpu", lanes=2, kv_bytes=size, threads=1)
    mapped = ModelRunner(folder, device="cpu", lanes=2, kv_bytes=size, threads=1, prepack=True)
    assert (folder.path / prepacked.FOLDER).is_dir()
    ids = np.random.default_rng(5).integers(0, folder.signature.vocab, 200).tolist()

    def through(runner: ModelRunner) -> list[npt.NDArray[np.float32]]:
        found = [runner.prefill_chunk(0, ids[:128], 0).copy()]
        found.append(runner.prefill_chunk(0, ids[128:], 128).copy())
        runner.slab.copy_lane(0, 1, 200)
        found.append(runner.decode([3, 4], [201, 201]).copy())
        found.append(runner.decode([5], [202]).copy())
        return found

    for expected, got in zip(through(plain), through(mapped), strict=True):
        np.testing.assert_array_equal(got, expected)

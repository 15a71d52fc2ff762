"""Which device a worker takes, and what it says when it can not have it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.models.folder import ModelFolder
from agent.models.onnx_runtime import onnxruntime
from agent.worker import model_runner
from agent.worker.kv_cache import LaneShape
from agent.worker.model_runner import ModelRunner
from agent.worker.numerics import cpu_facts, numerics_id
from agent.worker.provider import (
    CPU_PROVIDER,
    Gpu,
    NoGpuError,
    check_provider,
    choose_target,
    preload_cuda,
    probe_cuda,
)
from agent.worker.sessions import SessionOptions, open_session
from bus.errors import StartError
from tests.harness.models import toy_model_folder

no_gpu_here = pytest.mark.skipif(
    Path("/proc/driver/nvidia").exists(), reason="this machine has a GPU"
)


@pytest.fixture(scope="module")
def folder() -> ModelFolder:
    return toy_model_folder()


def no_gpu() -> Gpu:
    raise NoGpuError("no NVIDIA driver is installed (libcuda.so.1 is not there)")


def one_gpu() -> Gpu:
    return Gpu("NVIDIA Test", "9.0")


def without_float16(folder: ModelFolder) -> ModelFolder:
    files = {name: record for name, record in folder.files.items() if "fp16" not in name}
    return dataclasses.replace(folder, files=files)


def test_auto_takes_the_gpu_and_its_graph(folder: ModelFolder) -> None:
    target = choose_target(folder, "auto", one_gpu)
    assert target.graph == folder.graph_float16
    assert target.providers == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert target.description == "cuda (NVIDIA Test)"


def test_auto_takes_the_cpu_without_a_gpu_or_without_its_graph(folder: ModelFolder) -> None:
    for target in (
        choose_target(folder, "auto", no_gpu),
        choose_target(without_float16(folder), "auto", one_gpu),
        choose_target(folder, "cpu", one_gpu),
    ):
        assert target.graph == folder.graph
        assert target.providers == ("CPUExecutionProvider",)
        assert target.device == "cpu"


def test_cuda_without_a_gpu_says_why_and_what_to_do(folder: ModelFolder) -> None:
    with pytest.raises(StartError, match=r"no NVIDIA driver.*SUPERFLUID_WORKER_DEVICE"):
        choose_target(folder, "cuda", no_gpu)
    with pytest.raises(StartError, match=r"no float16 graph.*import it again"):
        choose_target(without_float16(folder), "cuda", one_gpu)


class Driver:
    """A CUDA driver that answers so; `count` GPUs."""

    def __init__(self, status: int = 0, count: int = 0) -> None:
        self.status, self.count = status, count

    def cuInit(self, flags: int) -> int:  # noqa: N802 - the driver's name
        return self.status

    def cuDeviceGetCount(self, found: Any) -> int:  # noqa: N802
        found._obj.value = self.count
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:  # noqa: N802
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:  # noqa: N802
        name.value = b"NVIDIA Test"
        return 0

    def cuDeviceGetAttribute(self, part: Any, what: int, device: Any) -> int:  # noqa: N802
        part._obj.value = {75: 9, 76: 0}[what]
        return 0


def no_library(name: str) -> Driver:
    raise OSError(name)


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (no_library, r"no NVIDIA driver is installed \(libcuda.so.1 is not there\); install it"),
        (lambda name: Driver(status=100), r"has no GPU \(CUDA status 100\); see that nvidia-smi"),
        (lambda name: Driver(count=0), r"has no GPU \(CUDA status 0\).*container"),
    ],
)
def test_the_probe_says_what_is_missing_and_what_to_do(
    load: Callable[[str], Driver], said: str
) -> None:
    with pytest.raises(NoGpuError, match=said):
        probe_cuda(load)


def test_the_probe_finds_the_first_gpu() -> None:
    assert probe_cuda(lambda name: Driver(count=2)) == Gpu("NVIDIA Test", "9.0")


def test_a_package_without_cuda_names_the_extra(
    folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CPU_PROVIDER])
    with pytest.raises(StartError, match=r'no CUDA; run pip install "superfluid-fleet\[cuda\]"'):
        choose_target(folder, "cuda", one_gpu)
    assert choose_target(folder, "auto", one_gpu).device == "cpu"


def test_nothing_of_cuda_is_looked_at_before_a_gpu_is_found(
    folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looked_at(*args: object, **options: object) -> None:
        pytest.fail("CUDA was looked at without a driver")

    monkeypatch.setattr(onnxruntime, "get_available_providers", looked_at)
    monkeypatch.setattr(onnxruntime, "preload_dlls", looked_at)
    monkeypatch.setattr(model_runner, "choose_target", partial(choose_target, probe=no_gpu))
    runner = ModelRunner(folder, lanes=1, threads=1)
    assert runner.target.device == "cpu"
    with pytest.raises(StartError, match="no NVIDIA driver"):
        ModelRunner(folder, device="cuda", lanes=1)


def test_what_preloading_prints_goes_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: print("Failed to load libcudnn.so.9"))
    preload_cuda()
    assert capsys.readouterr() == ("", "Failed to load libcudnn.so.9\n")


def test_preloading_for_real_prints_nothing_to_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    preload_cuda()
    assert capfd.readouterr().out == ""


@no_gpu_here
def test_a_session_that_fell_back_is_told_with_what_to_install(
    folder: ModelFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    target = choose_target(folder, "cuda", one_gpu)
    session = open_session(target.graph, target.providers, SessionOptions())
    with pytest.raises(StartError, match=r"took CPUExecutionProvider.*superfluid-fleet\[cuda\]"):
        check_provider(session, target)
    assert capfd.readouterr().out == ""


@no_gpu_here
def test_a_gpu_that_can_not_be_used_leaves_auto_the_cpu_and_a_line(
    folder: ModelFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(model_runner, "choose_target", partial(choose_target, probe=one_gpu))
    runner = ModelRunner(folder, lanes=1, threads=1)
    assert runner.target.device == "cpu"
    runner.self_test()
    assert [record.getMessage() for record in caplog.records] == ["cuda_not_used"]
    with pytest.raises(StartError, match="device cuda can not be used"):
        ModelRunner(folder, device="cuda", lanes=1, threads=1)


@no_gpu_here
def test_the_probe_says_why_there_is_none() -> None:
    with pytest.raises(NoGpuError, match="NVIDIA driver"):
        probe_cuda()


def test_the_numerics_id_names_all_that_decides_results(folder: ModelFolder) -> None:
    lane = LaneShape(2, 64, 32, np.dtype(np.float32))
    target = choose_target(folder, "cpu")
    same = numerics_id(folder, target, lane)
    assert len(same) == 32
    assert numerics_id(folder, target, LaneShape(2, 4096, 32, lane.dtype)) == same
    others = {
        numerics_id(folder, target, LaneShape(2, 64, 32, np.dtype(np.float16))),
        numerics_id(folder, choose_target(folder, "auto", one_gpu), lane),
        numerics_id(dataclasses.replace(folder, numerics={"accuracy_level": 0}), target, lane),
        numerics_id(without_float16(folder), target, lane),
    }
    assert len(others | {same}) == 5


def test_cpu_facts_have_the_instruction_sets() -> None:
    assert len(cpu_facts().split()) > 5

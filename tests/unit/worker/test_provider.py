"""Which device a worker takes, and what it says when it can not have it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from agent.models.folder import ModelFolder
from agent.worker.kv_cache import LaneShape
from agent.worker.numerics import cpu_facts, numerics_id
from agent.worker.provider import Gpu, NoGpuError, choose_target, probe_cuda
from bus.errors import StartError
from tests.harness.models import toy_model_folder


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


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this machine has a GPU")
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

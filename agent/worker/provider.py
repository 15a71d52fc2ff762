"""Which hardware a worker computes on.

The onnxruntime-gpu package lists CUDA on machines without a GPU, falls back to the CPU without an
error when asked for it there, and prints when it preloads CUDA's libraries. So the driver is asked
first, by itself, and what a session really got is checked after it was made.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.models.folder import ModelFolder
from agent.models.onnx_runtime import onnxruntime
from bus.errors import StartError

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"

_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76


@dataclass(frozen=True, slots=True)
class Gpu:
    """The first GPU that the driver has: its name and compute capability (`9.0`)."""

    name: str
    capability: str


@dataclass(frozen=True, slots=True)
class Target:
    """Where a model runs: the graph to load and the providers to ask for.

    Attributes:
        gpu: None on CPU.
    """

    graph: Path
    providers: tuple[str, ...]
    gpu: Gpu | None

    @property
    def device(self) -> str:
        """ONNX Runtime's name of the device."""
        return "cuda" if self.gpu else "cpu"

    @property
    def description(self) -> str:
        """The device for people: `cpu`, or `cuda` with the GPU's name."""
        return f"cuda ({self.gpu.name})" if self.gpu else "cpu"


class NoGpuError(Exception):
    """Why no GPU can be used; the text is a clause for a longer sentence."""


def probe_cuda(load: Callable[[str], Any] = ctypes.CDLL) -> Gpu:
    """Ask the CUDA driver, and nothing else, for its first GPU.

    Args:
        load: opens a library.

    Raises:
        NoGpuError: there is no driver, or it has no GPU.
    """
    try:
        driver = load("libcuda.so.1")
    except OSError:
        raise NoGpuError(
            "no NVIDIA driver is installed (libcuda.so.1 is not there); install it, or give it to "
            "the container"
        ) from None
    count, device = ctypes.c_int(), ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status or not count.value:
        raise NoGpuError(
            f"the NVIDIA driver has no GPU (CUDA status {status}); see that nvidia-smi shows one, "
            "and that a container is given it"
        )
    name = ctypes.create_string_buffer(128)
    parts = [ctypes.c_int(), ctypes.c_int()]
    status = driver.cuDeviceGet(ctypes.byref(device), 0) or driver.cuDeviceGetName(
        name, 128, device
    )
    for part, what in zip(
        parts, (_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR), strict=True
    ):
        status = status or driver.cuDeviceGetAttribute(ctypes.byref(part), what, device)
    if status:
        raise NoGpuError(
            f"the NVIDIA driver does not describe its GPU (CUDA status {status}); see whether "
            "nvidia-smi does"
        )
    return Gpu(name.value.decode(errors="replace"), ".".join(str(part.value) for part in parts))


def choose_target(
    folder: ModelFolder, device: str, probe: Callable[[], Gpu] = probe_cuda
) -> Target:
    """Where to run a model.

    Args:
        folder: its files; CUDA needs the float16 graph.
        device: `auto` takes a GPU where there is one and the folder has its graph.
        probe: finds the GPU.

    Raises:
        StartError: `cuda` was asked for and can not be had; says why and what to do.
    """
    if device == "cpu":
        return _cpu(folder, "device cpu was chosen")
    try:
        gpu = probe()
        graph = folder.graph_float16
        if graph is None:
            raise NoGpuError(
                f"model {folder.name} has no float16 graph; import it again with this version"
            )
        if CUDA_PROVIDER not in onnxruntime.get_available_providers():
            raise NoGpuError(
                'this onnxruntime has no CUDA; run pip install "superfluid-fleet[cuda]"'
            )
    except NoGpuError as reason:
        if device == "cuda":
            raise _refusal(str(reason)) from None
        return _cpu(folder, str(reason))
    return Target(graph, (CUDA_PROVIDER, CPU_PROVIDER), gpu)


def preload_cuda() -> None:
    """Load CUDA's and cuDNN's libraries from their wheels; what that prints goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        onnxruntime.preload_dlls()


def check_provider(session: onnxruntime.InferenceSession, target: Target) -> None:
    """See that a session got what it was made for.

    Raises:
        StartError: it fell back to the CPU.
    """
    got = session.get_providers()[0]
    if got != target.providers[0]:
        raise _refusal(
            f"ONNX Runtime took {got} instead, for want of CUDA's libraries; run pip install "
            '"superfluid-fleet[cuda]"'
        )


def _cpu(folder: ModelFolder, why: str) -> Target:
    if not folder.runs_on_cpu:
        raise StartError(
            f"model {folder.name} has a float16 graph only, which runs on CUDA, and {why}; import "
            "its int4 or float32 variant with `sfctl model import DIR --variant q4`, or serve it "
            "on a node with a GPU"
        )
    return Target(folder.graph, (CPU_PROVIDER,), None)


def _refusal(reason: str) -> StartError:
    return StartError(
        f'device cuda can not be used: {reason}; or take another device: "auto" or "cpu" in '
        "[worker] of agent.toml, or SUPERFLUID_WORKER_DEVICE"
    )

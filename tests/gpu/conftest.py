"""What these tests need: a GPU, and an onnxruntime with CUDA. Elsewhere they are skipped."""

from __future__ import annotations

import pytest

from agent.models.onnx_runtime import onnxruntime
from agent.worker.provider import CUDA_PROVIDER, NoGpuError, preload_cuda, probe_cuda


@pytest.fixture(scope="session")
def gpu() -> str:
    """The GPU's name."""
    try:
        found = probe_cuda()
    except NoGpuError as reason:
        pytest.skip(str(reason))
    if CUDA_PROVIDER not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA")
    preload_cuda()
    return found.name

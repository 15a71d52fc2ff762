"""The numerics id: equal on two workers means that they compute equal bits."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from pathlib import Path

from agent.models.folder import ModelFolder
from agent.models.onnx_runtime import onnxruntime
from agent.worker.kv_cache import LaneShape
from agent.worker.provider import Target
from bus.ids import NumericsId

#: Of a lane; part of the id, since attention sums in the order that a layout gives.
_LAYOUT = "lanes,kv_heads,tokens,head_dim"
_ID_DIGITS = 32


def numerics_id(folder: ModelFolder, target: Target, lane: LaneShape) -> NumericsId:
    """Hash of all that decides results: files, runtime, hardware, accuracy, KV type and layout."""
    facts = [
        f"files {folder.digest}",
        f"onnxruntime {onnxruntime.__version__}",
        f"graph {target.graph.name}",
        f"provider {target.providers[0]}",
        f"hardware {_gpu(target) if target.gpu else cpu_facts()}",
        f"accuracy {sorted(folder.numerics.items())}",
        f"kv {lane.dtype.name} {_LAYOUT}",
    ]
    return NumericsId(hash_of(facts))


def encoder_numerics_id(folder: ModelFolder) -> NumericsId:
    """The same of an encoder's vectors, which are made on CPU."""
    facts = [
        f"files {folder.digest}",
        f"onnxruntime {onnxruntime.__version__}",
        f"graph {folder.graph.name}",
        f"hardware {cpu_facts()}",
    ]
    return NumericsId(hash_of(facts))


def transcriber_numerics_id(folder: ModelFolder) -> NumericsId:
    """The same of a transcriber, which hears and writes on CPU."""
    return encoder_numerics_id(folder)


def hash_of(facts: Sequence[str]) -> str:
    """A name for what is decided by facts, 32 hex digits."""
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:_ID_DIGITS]


def _gpu(target: Target) -> str:
    return f"sm {target.gpu.capability}" if target.gpu else ""


def cpu_facts(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Model and instruction sets of the first processor, which choose ONNX Runtime's kernels."""
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    facts = [platform.machine()]
    try:
        first = cpuinfo.read_text("utf-8").split("\n\n", 1)[0]
    except OSError:
        return " ".join([*facts, platform.processor()])
    for line in first.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in wanted:
            facts.append(" ".join(sorted(value.split())))
    return " ".join(facts)

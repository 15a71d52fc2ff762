"""ONNX Runtime sessions with the options that a worker runs with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.models.folder import ModelFolder
from agent.models.onnx_runtime import onnxruntime
from agent.worker.provider import CPU_PROVIDER
from bus.errors import ModelIncomplete

#: How long a thread without work stays awake: longer than what lies between two steps.
SPIN_US = 1000

_CONFIG_SPINNING = "session.intra_op.allow_spinning"
_CONFIG_SPIN_US = "session.intra_op.spin_duration_us"
_QUIET = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """How a session is made.

    Attributes:
        threads: that compute.
        spin: whether they stay awake between operators.
        optimized: whether the graph is taken as it is; a saved one was optimized before.
        save_to: where the optimized graph goes.
        config: further entries, by ONNX Runtime's names.
        provider_options: of the first provider.
    """

    threads: int = 1
    spin: bool = False
    optimized: bool = False
    save_to: Path | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    provider_options: Mapping[str, str] = field(default_factory=dict)


def usable_processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def open_session(
    graph: Path, providers: Sequence[str], wanted: SessionOptions
) -> onnxruntime.InferenceSession:
    """Open a graph.

    Raises:
        Exception: of ONNX Runtime's many, which share no narrower base.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = wanted.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _QUIET
    options.add_session_config_entry(_CONFIG_SPINNING, "1" if wanted.spin else "0")
    if wanted.spin:
        options.add_session_config_entry(_CONFIG_SPIN_US, str(SPIN_US))
    for name, value in wanted.config.items():
        options.add_session_config_entry(name, value)
    if wanted.optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if wanted.save_to is not None:
        options.optimized_model_filepath = str(wanted.save_to)
    first, *others = providers
    # Left to itself it tries another provider after a fault, and prints that to stdout.
    return onnxruntime.InferenceSession(
        str(graph),
        options,
        providers=[(first, dict(wanted.provider_options)), *others],
        enable_fallback=0,
    )


def open_on_cpu(folder: ModelFolder, graph: Path, threads: int) -> onnxruntime.InferenceSession:
    """Open a graph of a folder that has no other for other devices.

    Args:
        folder: whose graph it is.
        graph: its path.
        threads: of the session; 0 takes all processors that this process may use.

    Raises:
        ModelIncomplete: it can not be loaded.
    """
    options = SessionOptions(threads=threads or usable_processors())
    try:
        return open_session(graph, [CPU_PROVIDER], options)
    except Exception as error:  # its errors share no narrower base
        raise ModelIncomplete(
            f"model {folder.name} can not be loaded: {error}; make it again with "
            f"`{folder.import_command}`",
            param="model",
        ) from error

"""One part of bench/gpu.py, in a process of its own; its last line is JSON.

Decode and prefill are measured over the model alone: greedy steps of full lanes, and a prompt by
chunks, without scheduler and sampler, whose packages such a machine may not have.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from agent.models.folder import ModelFolder
from agent.models.onnx_runtime import onnxruntime
from agent.worker.model_runner import ModelRunner
from agent.worker.provider import NoGpuError, probe_cuda
from agent.worker.turns import MAX_CHUNK_TOKENS
from bench.gpu_checks import CHECKS, CheckFailed, NotPossible
from bench.process_memory import MIB, ProcessMemory
from bench.prompts import prompts
from bus.errors import SuperfluidError

WIDTHS = (1, 2, 4, 8, 16, 32)
PROMPTS = (512, 2048)
CONTEXT_TOKENS = 256
ROUNDS = 3
#: What a round of steps or chunks takes at least, in seconds; a CPU does fewer of them.
ROUND_S = 1.0
KV_BYTES = {"cuda": 8 << 30, "cpu": 1 << 30}
LOADS = 3

Part = Callable[[ModelFolder, str], Mapping[str, Any]]


def environment(folder: ModelFolder, device: str) -> Mapping[str, Any]:
    """Versions, the GPU, and what the model is."""
    found: dict[str, Any] = {
        "onnxruntime": onnxruntime.__version__,
        "providers": onnxruntime.get_available_providers(),
        "processors": len(os.sched_getaffinity(0)),
        "model": folder.name,
        "model_bytes": folder.size_bytes,
    }
    try:
        gpu = probe_cuda()
    except NoGpuError as reason:
        found["no_gpu"] = str(reason)
    else:
        found["gpu"] = f"{gpu.name}, compute capability {gpu.capability}"
        found["driver"] = _driver()
    return found


def load(folder: ModelFolder, device: str) -> Mapping[str, Any]:
    """Seconds to load with warm files, and memory."""
    seconds = []
    for _ in range(LOADS):
        start = time.perf_counter()
        runner = _runner(folder, device, 8)
        seconds.append(time.perf_counter() - start)
        described = runner.target.description
        used = _gpu_used() if device == "cuda" else None
        memory = ProcessMemory.of(os.getpid())
        del runner
    return {
        "device": described,
        "first_s": round(seconds[0], 2),
        "later_s": round(median(seconds[1:]), 2),
        "gpu_used_mib": used,
        "host_proportional_mib": memory.proportional // MIB,
        "host_anonymous_mib": memory.anonymous // MIB,
    }


def decode(folder: ModelFolder, device: str) -> Mapping[str, Any]:
    """Tokens/s of greedy steps by how many lanes run."""
    return _decode(folder, device, graphs=True)


def decode_without_graphs(folder: ModelFolder, device: str) -> Mapping[str, Any]:
    """The same with every kernel launched by itself."""
    if device == "cpu":
        raise NotPossible("a CPU has no graphs")
    return _decode(folder, device, graphs=False)


def prefill(folder: ModelFolder, device: str) -> Mapping[str, Any]:
    """Prompt tokens/s by the prompt's length."""
    runner = _runner(folder, device, 1)
    found: dict[str, Any] = {"chunk_tokens": MAX_CHUNK_TOKENS}
    for tokens in PROMPTS:
        if tokens > runner.window:
            found[f"skipped_{tokens}"] = f"a lane holds {runner.window} tokens"
            continue
        ids = prompts(folder.signature.vocab, 1, tokens, seed=tokens)[0].tolist()
        rates = []
        # A CPU needs neither warmth nor rounds: there it is enough that it runs.
        if device == "cuda":
            _prefill(runner, 0, ids)
        for _ in range(ROUNDS if device == "cuda" else 1):
            start = time.perf_counter()
            _prefill(runner, 0, ids)
            rates.append(tokens / (time.perf_counter() - start))
        found[f"p{tokens}"] = round(median(rates), 1)
    return found


def _decode(folder: ModelFolder, device: str, *, graphs: bool) -> Mapping[str, Any]:
    runner = _runner(folder, device, max(WIDTHS), graphs=graphs)
    found: dict[str, Any] = {"graphs": runner.graphs, "window": runner.window}
    context = min(CONTEXT_TOKENS, runner.window // 4)
    for lane, ids in enumerate(prompts(folder.signature.vocab, max(WIDTHS), context, seed=1)):
        _prefill(runner, lane, ids.tolist())
    for width in WIDTHS:
        found[f"b{width}"] = round(_decode_rate(runner, width, context), 1)
    return found


def _decode_rate(runner: ModelRunner, width: int, context: int) -> float:
    most = runner.window - context
    rates = []
    for _ in range(ROUNDS):
        ids, steps = [1] * width, 0
        start = time.perf_counter()
        while time.perf_counter() - start < ROUND_S and steps < most:
            steps += 1
            logits = runner.decode(ids, [context + steps] * width)
            ids = logits.argmax(axis=1).tolist()
        rates.append(width * steps / (time.perf_counter() - start))
    return median(rates)


def _prefill(runner: ModelRunner, lane: int, ids: list[int]) -> None:
    for past in range(0, len(ids), MAX_CHUNK_TOKENS):
        runner.prefill_chunk(lane, ids[past : past + MAX_CHUNK_TOKENS], past)


def _runner(folder: ModelFolder, device: str, lanes: int, *, graphs: bool = True) -> ModelRunner:
    runner = ModelRunner(
        folder, device=device, lanes=lanes, kv_bytes=KV_BYTES[device], graphs=graphs
    )
    runner.self_test()
    return runner


def _driver() -> str:
    try:
        return Path("/proc/driver/nvidia/version").read_text("ascii").splitlines()[0]
    except OSError:
        return "its version is not shown"


def _gpu_used() -> int | str:
    """MiB of the first GPU's memory in use, by whomever."""
    words = ["nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True)
        return int(said.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return f"not known ({error!r})"


PARTS: Mapping[str, Part] = {
    **{part.__name__: part for part in (environment, load, decode, decode_without_graphs, prefill)},
    **CHECKS,
}


def main() -> int:
    """Run one and print what came of it, also of one that failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--model-folder", type=Path)
    options = parser.parse_args()
    try:
        # Imported here: the default model is made with packages that may not be there.
        if options.model_folder is not None:
            folder = ModelFolder.open(options.model_folder)
        else:
            from bench.models import open_model

            folder = open_model(None)
        result = {"outcome": "ok", **PARTS[options.part](folder, options.device)}
    except NotPossible as reason:
        result = {"outcome": "skipped", "why": str(reason)}
    except CheckFailed as fault:
        result = {"outcome": "failed", "why": str(fault)}
    except SuperfluidError as error:
        result = {"outcome": "failed", "why": error.message}
    except ImportError as error:
        result = {
            "outcome": "failed",
            "why": f"{error}; give a model folder that is made already by --model-folder",
        }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

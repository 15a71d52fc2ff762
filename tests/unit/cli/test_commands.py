"""Commands in messages: as they can be typed here, and only those that belong here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from head.cli.context import CliContext


@pytest.mark.parametrize(
    ("typed", "called"),
    [
        (".venv/bin/sfctl", ".venv/bin/sfctl"),
        ("./sfctl", "./sfctl"),
        ("sfctl", "./sfctl"),
        ("/opt/x/sfctl", "/opt/x/sfctl"),
        ("../a b/sfctl", "'../a b/sfctl'"),
        ("/x/head/cli/__main__.py", "sfctl"),
    ],
)
def test_the_program_is_named_as_it_was_typed(
    typed: str, called: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(sys, "argv", [typed])
    assert CliContext(None, None, None).command("up") == f"{called} up"
    assert CliContext(Path("my s"), None, None).command("up") == f"{called} --state 'my s' up"


def test_one_that_the_shell_finds_is_named_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sfctl").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "sfctl")])
    assert CliContext(None, None, None).command("up") == "sfctl up"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("start it with `sfctl up`, or", "start it with `sfctl --state s up`, or"),
        ("see: sfctl logs node-1", "see: sfctl --state s logs node-1"),
        ("make one on the head with: sfctl token new", None),
        ("import it on the head's machine: sfctl model import FILE", None),
        ("see `sfctl status` on its machine", None),
        ("sfctl is there", None),
    ],
)
def test_a_sentence_of_ours_can_be_pasted(
    said: str, shown: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["pytest"])
    assert CliContext(Path("s"), None, None).pasteable(said) == (shown or said)


@pytest.mark.parametrize("typed", [".venv/bin/sfctl", "./sfctl", "../a/sfctl", "/opt/x/sfctl"])
@pytest.mark.parametrize("state", [None, Path("s"), Path("/a b")])
def test_a_command_that_is_pasteable_already_stays(
    typed: str, state: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(sys, "argv", [typed])
    context = CliContext(state, None, None)
    text = f"look with: {context.command('status')}  end with: {context.command('down')}"
    assert context.pasteable(text) == text


def test_one_on_the_path_that_is_pasteable_already_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sfctl").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "sfctl")])
    for state in (None, Path("s")):
        text = CliContext(state, None, None).command("up")
        assert CliContext(state, None, None).pasteable(text) == text

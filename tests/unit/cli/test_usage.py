"""Exit codes and the one line that a failed command prints."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from bus.errors import NotFound, QueueFull, SuperfluidError
from bus.version import __version__
from head.cli import ErrorGroup, cli


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def _one_error_line(result: Result) -> str:
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["status", "--colour"],
        ["status", "-o", "yaml"],
        ["up", "--nodes", "0"],
        ["up", "--head-only", "--agent-only"],
        ["run"],
        ["run", "m", "p", "--top-p", "2"],
        ["run", "m", "p", "--raw", "--system", "s"],
        ["--timeout", "0", "status"],
        ["model", "import"],
    ],
)
def test_wrong_usage_is_2_and_names_the_help(arguments: list[str]) -> None:
    result = _run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "--help" in _one_error_line(result)


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["up"],
        ["down"],
        ["status"],
        ["node", "ls"],
        ["model", "pull"],
        ["model", "import"],
        ["model", "ls"],
        ["run"],
        ["chat"],
        ["token", "new"],
        ["logs"],
        ["version"],
        ["doctor"],
        ["demo"],
    ],
)
def test_every_command_has_help(command: list[str]) -> None:
    result = _run(*command, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


def test_version_in_both_formats() -> None:
    assert _run("version").stdout == f"superfluid {__version__}\n"
    assert json.loads(_run("version", "-o", "json").stdout) == {"version": __version__}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFound("no model\nx"), 5),
        (QueueFull("full"), 7),
        (KeyboardInterrupt(), 130),
        (click.ClickException("odd"), 1),
    ],
)
def test_an_error_is_one_line_and_its_exit_code(error: BaseException, code: int) -> None:
    @click.group(cls=ErrorGroup)
    def group() -> None:
        pass

    @group.command()
    def fail() -> None:
        raise error

    result = CliRunner().invoke(group, ["fail"])
    assert result.exit_code == code
    (line,) = [text for text in result.stderr.splitlines() if text]
    assert line.startswith("error: ")


def test_an_empty_prompt_is_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["--state", str(tmp_path), "run", "m"], input=" \n")
    assert result.exit_code == 2
    assert "prompt" in _one_error_line(result)


def test_the_exit_codes_are_the_documented_ones() -> None:
    """conventions: 1 failed, 2 usage, 3 not healthy, 4 no head, 5 not found, 6, 7, 8."""

    def walk(cls: type[SuperfluidError]) -> set[int]:
        return {cls.exit_code}.union(*(walk(sub) for sub in cls.__subclasses__()))

    assert walk(SuperfluidError) == {1, 2, 3, 4, 5, 6, 7, 8}

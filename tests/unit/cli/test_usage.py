"""Exit codes and the one line that a failed command prints."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from bus.errors import NotFound, QueueFull, SuperfluidError
from bus.version import __version__
from head.cli.command_line import ErrorGroup, cli


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
        ["up", "--head-only", "--nodes", "2"],
        ["up", "--head-only", "--device", "cpu"],
        ["up", "--device", "gpu"],
        ["run", "m", "p", "--seed", "18446744073709551616"],
        ["run", "m", "p", "--seed", "-1"],
        ["run", "m", "p\udcff"],
        ["run", "m\udcff", "p"],
        ["run", "m", "p", "--system", "\udcff"],
        ["run"],
        ["run", "m", "p", "--top-p", "2"],
        ["run", "m", "p", "--raw", "--system", "s"],
        ["run", "m", "p", "--logit-bias", "5"],
        ["run", "m", "p", "--logit-bias", "x=1"],
        ["run", "m", "p", "--logit-bias", "5=inf"],
        ["run", "m", "p", "--logit-bias", "-5=1"],
        ["run", "m", "p", "--logprobs", "21"],
        ["run", "m", "p", "--stop", "\udcff"],
        ["run", "m", "p", "--schema", "{"],
        ["run", "m", "p", "--schema", "/nowhere/at/all.json"],
        ["run", "m", "p", "--schema", "/"],
        ["run", "m", "p", "--grammar", "/"],
        ["run", "m", "p", "--grammar", "/nowhere/at/all.lark"],
        ["run", "m", "p", "--schema", "{}", "--regex", "a"],
        ["run", "m", "p", "--repetition-penalty", "0"],
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
    ("arguments", "said"),
    [
        (["up", "--nodes", "x"], "'--nodes': 'x' is not a whole number from 1 to 256."),
        (["logs", "--lines", "x"], "'x' is not a whole number of at least 0."),
        (["--timeout", "x", "status"], "'--timeout': 'x' is not a number of at least 0.1."),
    ],
)
def test_what_is_no_number_is_told_the_range(arguments: list[str], said: str) -> None:
    assert said in _one_error_line(_run(*arguments))


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
        ["embed"],
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
        (ZeroDivisionError("division by\nzero"), 1),
        (FileNotFoundError(2, "No such file or directory", "/x"), 1),
        (OSError(28, "No space left on device"), 1),
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


def test_a_fault_of_ours_asks_for_a_report_and_keeps_the_traceback_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @click.command()
    def fail() -> None:
        raise KeyError("x")

    group = ErrorGroup(commands={"fail": fail})
    monkeypatch.delenv("SUPERFLUID_LOG_LEVEL", raising=False)
    result = CliRunner().invoke(group, ["fail"])
    assert "SUPERFLUID_LOG_LEVEL=debug" in _one_error_line(result)
    monkeypatch.setenv("SUPERFLUID_LOG_LEVEL", "debug")
    assert "Traceback" in CliRunner().invoke(group, ["fail"]).stderr


def test_what_helps_comes_after_the_error() -> None:
    @click.command()
    def fail() -> None:
        error = QueueFull("full")
        error.add_note("last lines:")
        raise error

    result = CliRunner().invoke(ErrorGroup(commands={"fail": fail}), ["fail"])
    assert result.stderr == "error: full\nlast lines:\n"


@pytest.mark.parametrize("command", [[], ["model"], ["node"], ["token"]])
def test_a_bare_group_shows_its_help(command: list[str]) -> None:
    result = _run(*command)
    assert result.exit_code in (0, 2)
    assert "error:" not in result.output
    assert "\nCommands:\n" in result.output


def test_the_help_tells_defaults() -> None:
    for command in ("run", "chat"):
        text = " ".join(_run(command, "--help").stdout.split())
        for default in ("[default: (256);", "[default: 0.2;", "[default: (1.0);", "(drawn)"):
            assert default in text, text
    assert "600 for an answer" in " ".join(_run("--help").stdout.split())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--state", "/proc/nope", "status"], 4),
        (["--state", "/proc/nope", "token", "new"], 1),
        (["--state", "/proc/nope", "up"], 1),
        (["--state", "/proc/nope", "down"], 0),
        (["--state", "/proc/nope", "model", "ls"], 0),
        (["--state", "/proc/nope", "logs"], 5),
        (["--api", "foo", "status"], 2),
        (["--api", "tcp://h", "run", "m", "p"], 2),
    ],
)
def test_odd_places_are_one_line(arguments: list[str], code: int) -> None:
    result = _run(*arguments)
    assert result.exit_code == code, result.output
    if code:
        _one_error_line(result)


@pytest.mark.parametrize("command", [["status"], ["model", "ls"], ["doctor"], ["logs"], ["down"]])
def test_looking_makes_no_state_folder(tmp_path: Path, command: list[str]) -> None:
    _run("--state", str(tmp_path / "s"), *command)
    assert not (tmp_path / "s").exists()


def test_a_prompt_that_is_no_text_is_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["--state", str(tmp_path), "run", "m"], input=b"a\xff")
    assert result.exit_code == 2
    assert "UTF-8" in _one_error_line(result)


def test_a_wrong_model_name_is_2(tmp_path: Path) -> None:
    file = tmp_path / "x.gguf"
    file.touch()
    where = ["--state", str(tmp_path / "s")]
    result = _run(*where, "model", "import", str(file), "--name", "my/bad")
    assert result.exit_code == 2
    assert _one_error_line(result).startswith("error: 'my/bad' is no model name")


def test_an_empty_prompt_is_2(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["--state", str(tmp_path), "run", "m"], input=" \n")
    assert result.exit_code == 2
    assert "prompt" in _one_error_line(result)


def test_the_exit_codes_are_the_documented_ones() -> None:
    """conventions: 1 failed, 2 usage, 3 not healthy, 4 no head, 5 not found, 6, 7, 8."""

    def walk(cls: type[SuperfluidError]) -> set[int]:
        return {cls.exit_code}.union(*(walk(sub) for sub in cls.__subclasses__()))

    assert walk(SuperfluidError) == {1, 2, 3, 4, 5, 6, 7, 8}

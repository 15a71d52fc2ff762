"""`sfctl` commands that show and change a fleet, against a scripted head."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from head.cli.command_line import cli
from tests.e2e.scripted_fleet import MODEL, NODE, Served, served, sfctl


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as made:
        yield made


def test_an_unload_of_a_name_that_one_of_two_nodes_knows_is_done(fleet: Served) -> None:
    script, head = fleet
    script.others = [NODE | {"identity": "node-2-abc"}]
    script.unknown_on = {"node-2-abc"}
    asked = ("model", "unload", "new", "--all")
    assert sfctl(head, *asked).exit_code == 0
    script.unknown_on.add("node-1-abc")
    result = sfctl(head, *asked)
    assert result.exit_code == 5
    assert "knows no model" in result.stderr


def test_status_of_a_healthy_fleet(fleet: Served) -> None:
    result = sfctl(fleet[1], "status")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "head h1  version 0.1.0  up 5 s  placement load-aware" in result.stdout
    assert "node-1-abc  up     toy (ready)  1            1/4    12.3      -" in result.stdout


def test_status_of_a_degraded_fleet_is_3(fleet: Served) -> None:
    fleet[0].node |= {"state": "down", "reason": "silent for 30 s"}
    fleet[0].ready = False
    result = sfctl(fleet[1], "status")
    assert result.exit_code == 3
    assert "problem: node node-1-abc is down: silent for 30 s" in result.stderr
    shown = json.loads(sfctl(fleet[1], "status", "-o", "json").stdout)
    assert len(shown["problems"]) == 2


def test_nodes_and_models_as_json_are_the_heads_own(fleet: Served) -> None:
    assert json.loads(sfctl(fleet[1], "node", "ls", "-o", "json").stdout) == [NODE]
    assert json.loads(sfctl(fleet[1], "model", "ls", "--fleet", "-o", "json").stdout) == [MODEL]


@pytest.mark.parametrize("command", [["status"], ["node", "ls"], ["run", "m", "p"]])
def test_without_a_head_it_is_4_with_the_remedy(tmp_path: Path, command: list[str]) -> None:
    result = CliRunner().invoke(cli, ["--state", str(tmp_path), *command])
    assert result.exit_code == 4
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert f"`sfctl --state {tmp_path} up`" in line


def test_a_node_that_left_on_purpose_is_no_problem(fleet: Served) -> None:
    fleet[0].more = [NODE | {"identity": "node-2-def", "state": "left", "reason": "stopped"}]
    result = sfctl(fleet[1], "status")
    assert (result.exit_code, result.stderr) == (0, "")


def test_sessions_are_listed_page_by_page_as_far_as_asked(fleet: Served) -> None:
    result = sfctl(fleet[1], "session", "ls", "-n", "2")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "SESSION  MODEL  STATE  FINISH  TOKENS  ANSWER  AGE",
        "s-98-0   toy    ended  stop    3       2       1 min",
        "s-97-0   toy    ended  stop    3       2       1 min",
    ]
    assert "show more with: " in result.stderr
    assert [body.get("limit") for body in fleet[1].requests] == [3]
    shown = json.loads(sfctl(fleet[1], "session", "ls", "-n", "60", "-o", "json").stdout)
    assert [row["session"] for row in shown] == [f"s-{n}-0" for n in range(98, 38, -1)]

"""Tables and JSON."""

from __future__ import annotations

import json

import pytest

from head.cli.output import fitting_table, one_line, plain_table, print_rows, progress_bars

ROWS = [
    {"name": "smollm2", "ready": True, "nodes": ["a", "b"], "rate": 12.345},
    {"name": "toy\x1b[2J", "ready": False, "nodes": [], "rate": None, "more": 1},
]
COLUMNS = ("name", "ready", "nodes", "rate")


def test_a_pipe_gets_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, COLUMNS, "table")
    assert capsys.readouterr().out == (
        "NAME     READY  NODES  RATE\nsmollm2  yes    a, b   12.3\ntoy [2J  no     -      -\n"
    )


def test_json_is_all_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, COLUMNS, "json")
    assert json.loads(capsys.readouterr().out) == ROWS


def test_no_rows_still_name_the_columns() -> None:
    assert list(plain_table(("name", "ready"), [])) == ["NAME  READY"]


def test_one_line_forges_no_second() -> None:
    assert one_line("a\nerror: b\x1b[0m\t") == "a error: b [0m"


def test_no_bars_outside_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bars() as report:
        report("download", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_table_is_taken_only_when_nothing_has_to_be_cut() -> None:
    cells = [["vm-8247ec", "smollm2 (ready)"]]
    # Two columns of 9 and 15, with a border and a space on each side of each.
    assert fitting_table(("identity", "models"), cells, 31) is not None
    assert fitting_table(("identity", "models"), cells, 30) is None

"""How many agents `up` starts when nobody says."""

from __future__ import annotations

from pathlib import Path

import pytest

from bus.errors import StartError
from bus.state import StateFolder
from head.cli.last_up import UP_FILE, last_nodes, note_nodes
from head.cli.services import Services


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    return StateFolder.resolve(tmp_path / "s", {})


def test_a_first_start_has_one(state: StateFolder) -> None:
    assert last_nodes(state) == 1


def test_a_later_one_has_as_many_as_the_last(state: StateFolder) -> None:
    note_nodes(state, 3)
    assert last_nodes(state) == 3
    note_nodes(state, 2)
    assert last_nodes(state) == 2


def test_a_start_of_the_head_alone_leaves_the_number(state: StateFolder) -> None:
    note_nodes(state, 3)
    note_nodes(state, 0)
    assert last_nodes(state) == 3


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"nodes": 0}', '{"nodes": 257}', '{"nodes": true}']
)
def test_a_damaged_note_is_named_with_what_to_do(state: StateFolder, text: str) -> None:
    (state.path / UP_FILE).write_text(text)
    with pytest.raises(StartError, match=r"up\.json can not be read .*--nodes, or remove"):
        last_nodes(state)


def test_what_up_needs_names_the_number_as_its_default_may_differ() -> None:
    assert Services(heads=1, nodes=1).options == "up --nodes 1"
    assert Services(heads=0, nodes=2).options == "up --agent-only --nodes 2"
    assert Services(heads=1, nodes=0).options == "up --head-only"

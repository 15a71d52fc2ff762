"""An agent's own folder: one holder, a key that stays, a boot number that rises."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agent.node_folder import NodeFolder, check_name
from bus.errors import ConfigInvalid, StartError
from bus.ids import NodeIdentity


def test_the_key_stays_and_the_boot_number_rises(tmp_path: Path) -> None:
    path = tmp_path / "nodes" / "node-1"
    with NodeFolder(path) as first:
        public, boot = first.key.public, first.boot
        assert first.incarnations.next() == boot << 32 | 1
    with NodeFolder(path) as second:
        assert second.key.public == public
        assert second.boot == boot + 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in path.iterdir())


def test_a_second_holder_is_told_the_first_ones_process_id(tmp_path: Path) -> None:
    with NodeFolder(tmp_path / "n"), pytest.raises(StartError) as caught:
        NodeFolder(tmp_path / "n")
    assert f"process id {os.getpid()} has the node folder {tmp_path / 'n'};" in str(caught.value)
    NodeFolder(tmp_path / "n").close()


def test_two_agents_of_one_fleet_on_a_machine_can_not_share_an_identity(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with NodeFolder(tmp_path / "a") as one, NodeFolder(tmp_path / "b") as two:
        one.hold_identity(NodeIdentity("gpu-1"), "fleet", run)
        two.hold_identity(NodeIdentity("gpu-2"), "fleet", run)
        two.hold_identity(NodeIdentity("gpu-1"), "another fleet", run)
        with pytest.raises(StartError) as caught:
            two.hold_identity(NodeIdentity("gpu-1"), "fleet", run)
        assert f"process id {os.getpid()} has the identity gpu-1 on this" in caught.value.message


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "x" * 33, "a/b"])
def test_what_can_not_name_an_agent_is_refused(name: str) -> None:
    with pytest.raises(ConfigInvalid, match="can not name an agent"):
        check_name(name)
    assert check_name("node-1") == "node-1"

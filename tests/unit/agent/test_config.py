"""The agent's configuration: the shipped file, identities, addresses, threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.config import AgentConfig, default_identity, share_threads
from bus.address import is_local, split_address
from bus.config import load_config
from bus.errors import ConfigInvalid

SHIPPED = Path(__file__).parents[3] / "conf" / "agent.toml"


def load(tmp_path: Path, text: str) -> AgentConfig:
    path = tmp_path / "agent.toml"
    path.write_text(text)
    config = load_config(AgentConfig, path, {}, {})
    config.check()
    return config


def test_the_shipped_file_holds_every_key_at_its_default() -> None:
    assert load_config(AgentConfig, SHIPPED, {}, {}) == AgentConfig()
    lines = [line for line in SHIPPED.read_text().splitlines() if "=" in line.split("#")[0]]
    keys = [
        f"{section}.{key}"
        for section in ("node", "models", "worker", "blobs", "log")
        for key in getattr(AgentConfig(), section).__dataclass_fields__
    ]
    assert len(lines) == len(keys)
    assert all("#" in line for line in lines)


def test_two_agents_on_one_host_have_identities_of_their_own(tmp_path: Path) -> None:
    one = default_identity(tmp_path / "nodes" / "node-1", "gpu-1.example")
    two = default_identity(tmp_path / "nodes" / "node-2", "gpu-1.example")
    assert one != two
    assert one == default_identity(tmp_path / "nodes" / "node-1", "gpu-1.example")
    name, _, suffix = one.rpartition("-")
    assert name == "gpu-1"
    assert len(suffix) == 6
    int(suffix, 16)


def test_join_and_listen_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="remove one of them"):
        load(tmp_path, '[node]\njoin = ["tcp://h:1"]\nlisten = "tcp://*:1"\n')


@pytest.mark.parametrize(
    ("address", "host", "local"),
    [
        ("tcp://127.0.0.1:8454", "127.0.0.1", True),
        ("tcp://127.8.0.1:1", "127.8.0.1", True),
        ("tcp://localhost:0", "localhost", True),
        ("tcp://[::1]:8454", "::1", True),
        ("ipc:///run/x.sock", "", True),
        ("tcp://*:8454", "*", False),
        ("tcp://0.0.0.0:8454", "0.0.0.0", False),
        ("tcp://head:8454", "head", False),
        ("tcp://[fe80::1]:8454", "fe80::1", False),
    ],
)
def test_addresses_are_taken_apart(address: str, host: str, local: bool) -> None:
    assert split_address(address)[0] == host
    assert is_local(address) is local


def test_a_wrong_address_is_found_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="'head:8454' is no address"):
        load(tmp_path, '[node]\njoin = ["head:8454"]\n')


def test_traffic_off_the_machine_is_noticed(tmp_path: Path) -> None:
    assert not load(tmp_path, "").off_loopback
    assert not load(tmp_path, '[node]\njoin = ["tcp://127.0.0.1:1"]\n').off_loopback
    assert load(tmp_path, '[node]\njoin = ["tcp://127.0.0.1:1", "tcp://b:1"]\n').off_loopback
    assert load(tmp_path, '[node]\nlisten = "tcp://*:8454"\n').off_loopback


@pytest.mark.parametrize(
    ("configured", "cores", "workers", "threads"),
    [(0, 8, 2, 4), (0, 2, 3, 1), (3, 8, 2, 3), (0, 4, 0, 4)],
)
def test_cores_are_divided_over_the_workers(
    configured: int, cores: int, workers: int, threads: int
) -> None:
    assert share_threads(configured, cores, workers) == threads

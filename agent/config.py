"""The node agent's configuration: sections and keys of agent.toml (conf/agent.toml)."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from agent.core import AgentPolicy
from agent.worker_watch import WatchPolicy
from bus.address import is_local, split_address
from bus.config import load_config
from bus.errors import ConfigInvalid
from bus.fields import OneOf, Range
from bus.ids import NodeIdentity
from bus.log import LogConfig
from bus.state import StateFolder

Seconds = Annotated[float, Range(0.0, 1e9)]
Interval = Annotated[float, Range(0.05, 3600.0)]
CONFIG_FILE = "agent.toml"
#: Where a head listens when nothing says otherwise.
DEFAULT_HEAD = "tcp://127.0.0.1:8454"
MAX_IDENTITY_BYTES = 128
_SUFFIX_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSection:
    """The node and its way to the head.

    A node joins a head (`join`) or waits to be called by one (`listen`), not both. With neither it
    joins the head of its own state folder.
    """

    identity: str = ""
    join: tuple[str, ...] = ()
    listen: str = ""
    token_file: str = ""
    insecure_no_auth: bool = False
    silence_s: Seconds = 30.0
    status_interval_s: Interval = 2.0
    stop_grace_s: Annotated[float, Range(0.1, 600.0)] = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsSection:
    """What is served. No names means every model in the folder."""

    folder: str = ""
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSection:
    """Every worker process.

    0 threads means the usable cores divided over this host's workers; a limit of 0 is none.
    `prepack` keeps a copy of a model's weights beside it as they are computed with, which this
    host's workers of it share. `kv_host_bytes` 0 saves no prefixes and lets no request take
    another's lane. `memory_bytes` is what all models of the node may take together, where one is
    loaded while it runs; 0 is 80% of what the host has free at the agent's start, divided over
    this host's agents. `park_bytes` is what files of parked sessions may take, 0 to write none,
    and `park_age_s` how long one is kept that nobody asks for.
    """

    device: Annotated[str, OneOf(frozenset({"auto", "cuda", "cpu"}))] = "auto"
    lanes: Annotated[int, Range(1, 1024)] = 8
    kv_bytes: Annotated[int, Range(1 << 20, 1 << 50)] = 1 << 30
    kv_host_bytes: Annotated[int, Range(0, 1 << 50)] = 512 << 20
    threads: Annotated[int, Range(0, 1024)] = 0
    prepack: bool = True
    memory_bytes: Annotated[int, Range(0, 1 << 50)] = 0
    park_bytes: Annotated[int, Range(0, 1 << 50)] = 4 << 30
    park_age_s: Seconds = 604_800.0
    ping_interval_s: Interval = 5.0
    load_limit_s: Seconds = 1800.0
    stall_limit_s: Seconds = 60.0
    stall_hard_s: Seconds = 600.0

    def watch_policy(self) -> WatchPolicy:
        """When a worker counts as hung."""
        return WatchPolicy(
            load_limit_s=self.load_limit_s,
            stall_limit_s=self.stall_limit_s,
            stall_hard_s=self.stall_hard_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobsSection:
    """Files that requests bring."""

    budget_bytes: Annotated[int, Range(0, 1 << 50)] = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """All of agent.toml."""

    node: NodeSection = NodeSection()
    models: ModelsSection = ModelsSection()
    worker: WorkerSection = WorkerSection()
    blobs: BlobsSection = BlobsSection()
    log: LogConfig = LogConfig()

    def policy(self) -> AgentPolicy:
        """The core's times."""
        return AgentPolicy(
            status_interval_s=self.node.status_interval_s,
            ping_interval_s=self.worker.ping_interval_s,
        )

    def check(self) -> None:
        """What no single key shows.

        Raises:
            ConfigInvalid: join and listen exclude each other, or a name does not fit.
        """
        if self.node.join and self.node.listen:
            raise ConfigInvalid(
                "node.join and node.listen are both set; a node joins a head or waits for one, "
                "so remove one of them",
                param="node.listen",
            )
        if len(self.node.identity.encode()) > MAX_IDENTITY_BYTES:
            raise ConfigInvalid(
                f"node.identity is longer than {MAX_IDENTITY_BYTES} bytes; choose a shorter one",
                param="node.identity",
            )
        if not self.node.identity.isprintable():
            raise ConfigInvalid(
                f"node.identity {self.node.identity!a} has characters that can not be "
                "printed; choose another",
                param="node.identity",
            )
        for address in self.node.join:
            split_address(address, "node.join")
        if self.node.listen:
            split_address(self.node.listen, "node.listen")

    @property
    def off_loopback(self) -> bool:
        """Whether its traffic leaves this machine."""
        addresses = (self.node.listen,) if self.node.listen else self.node.join
        return not all(is_local(address) for address in addresses)


def load_agent_config(
    state: Path,
    name: str,
    *,
    file: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    overrides: Mapping[str, object] | None = None,
) -> AgentConfig:
    """The checked configuration of an agent.

    Args:
        state: the state folder's path.
        name: of the agent.
        file: None takes `<state>/nodes/<name>/agent.toml`, else `<state>/agent.toml`, if any.
        environment: goes over the file.
        overrides: options, over all.

    Raises:
        ConfigInvalid: a file, key or value is wrong.
    """
    candidates = (state / "nodes" / name / CONFIG_FILE, state / CONFIG_FILE)
    path = file or next((each for each in candidates if each.is_file()), None)
    config = load_config(AgentConfig, path, environment, overrides or {})
    config.check()
    return config


def default_identity(node_folder: Path, host: str | None = None) -> NodeIdentity:
    """Host name and six hex digits of the state folder's path: two agents on a host differ."""
    digest = hashlib.blake2b(str(node_folder.resolve()).encode()).hexdigest()[:_SUFFIX_DIGITS]
    name = (socket.gethostname() if host is None else host).split(".")[0]
    return NodeIdentity(f"{name}-{digest}")


def models_root(config: AgentConfig, state: StateFolder) -> Path:
    """The folder of the model folders."""
    return Path(config.models.folder) if config.models.folder else state.models


def share_threads(configured: int, cores: int, workers: int) -> int:
    """Threads of each worker: what is configured, else its share of the cores, at least 1."""
    return configured or max(1, cores // max(1, workers))

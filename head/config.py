"""The head's configuration: sections and keys of head.toml, with defaults (conf/head.toml)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from bus.address import is_local
from bus.fields import OneOf, Range
from bus.log import LogConfig
from head.core import CorePolicy
from head.enrolment import WAYS, Way
from head.fleet import RETURN_S
from head.placement import DEFAULT_OPTIONS, POLICIES, PlacementOptions
from head.queueing import DEFAULT_LIMIT
from head.reserve import MIB, RoomPolicy
from head.runs import RunPolicy
from head.waiting import WaitingPolicy

PositiveInt = Annotated[int, Range(1, 2**31 - 1)]
Seconds = Annotated[float, Range(0.0, 1e9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSection:
    """The bus. An empty `bind` takes no joins; `nodes` are dialed.

    An empty `enrolment` is open where only this machine can join, else approve.
    """

    bind: str = "tcp://127.0.0.1:8454"
    token_file: str = ""
    enrolment: Annotated[str, OneOf(WAYS | {""})] = ""
    nodes: tuple[str, ...] = ()
    silence_s: Seconds = 30.0
    insecure_no_auth: bool = False

    @property
    def way(self) -> Way:
        """The way of enrolment that is configured.

        Raises:
            ConfigInvalid: `bind` is no address.
        """
        if self.enrolment:
            return cast("Way", self.enrolment)
        return "open" if not self.bind or is_local(self.bind) else "approve"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSection:
    """The client API's socket; empty is run/api.sock of the state folder."""

    socket: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementSection:
    """How a node is chosen. What a node holds of prompts counts with `load-aware` only."""

    policy: Annotated[str, OneOf(frozenset(POLICIES))] = "load-aware"
    pool_high_pct: Annotated[float, Range(1.0, 100.0)] = DEFAULT_OPTIONS.pool_high_pct
    status_fresh_s: Seconds = DEFAULT_OPTIONS.status_fresh_s
    affinity_limit_s: Seconds = DEFAULT_OPTIONS.affinity_limit_s
    return_s: Seconds = RETURN_S

    @property
    def options(self) -> PlacementOptions:
        return PlacementOptions(
            pool_high_pct=self.pool_high_pct,
            status_fresh_s=self.status_fresh_s,
            affinity_limit_s=self.affinity_limit_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSection:
    limit: PositiveInt = DEFAULT_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsSection:
    """How long sessions wait for nodes, and nodes for the head."""

    lease_s: Annotated[float, Range(1.0, 86400.0)] = 20.0
    reattach_s: Seconds = 0.5
    adopt_s: Seconds = 5.0
    failover_wait_s: Seconds = 30.0
    idle_s: Seconds = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSection:
    """How long what has ended is kept, and room on the store's disk; 0 is none."""

    retain_s: Seconds = 3600.0
    reserve_mib: Annotated[int, Range(0, 1 << 20)] = 64
    min_free_mib: Annotated[int, Range(0, 1 << 20)] = 64

    @property
    def room_policy(self) -> RoomPolicy:
        return RoomPolicy(
            reserve_bytes=self.reserve_mib * MIB, min_free_bytes=self.min_free_mib * MIB
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSection:
    processes: Annotated[int, Range(1, 64)] = 2
    cpu_s: PositiveInt = 10
    memory_bytes: Annotated[int, Range(256 * 1024 * 1024, 2**60)] = 2 * 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobsSection:
    """Files that clients put, and the pace at which they go to each node; 0 is none."""

    budget_bytes: Annotated[int, Range(0, 1 << 50)] = 4 << 30
    link_bytes_per_s: Annotated[int, Range(0, 1 << 50)] = 32_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """All of head.toml."""

    fleet: FleetSection = FleetSection()
    api: ApiSection = ApiSection()
    placement: PlacementSection = PlacementSection()
    queue: QueueSection = QueueSection()
    sessions: SessionsSection = SessionsSection()
    store: StoreSection = StoreSection()
    text: TextSection = TextSection()
    blobs: BlobsSection = BlobsSection()
    log: LogConfig = LogConfig()

    def core_policy(self) -> CorePolicy:
        sessions = self.sessions
        return CorePolicy(
            runs=RunPolicy(
                waiting=WaitingPolicy(
                    placement=self.placement.policy,
                    options=self.placement.options,
                    return_s=self.placement.return_s,
                    queue_limit=self.queue.limit,
                ),
                lease_s=sessions.lease_s,
                grace_s=self.fleet.silence_s or 30.0,
                reattach_s=sessions.reattach_s,
                adopt_s=sessions.adopt_s,
                failover_wait_s=sessions.failover_wait_s,
                idle_s=sessions.idle_s,
                link_bytes_per_s=self.blobs.link_bytes_per_s,
            ),
            retain_s=self.store.retain_s,
            enrolment=self.fleet.way,
        )

"""What nodes have of stages, by their statuses: which can be in a chain now, and why others not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bus.capabilities import STAGES
from bus.ids import ModelName, NodeIdentity, WorkerIncarnation
from bus.messages.parts import ModelStatus, StageStatus
from head.fleet import Fleet
from head.fleet_node import Node
from head.stage_paths import Offer

#: Phase of a driver's worker that waits for its chain.
WAITS = "stages"

#: Names a model on a node.
Key = tuple[NodeIdentity, ModelName]


@dataclass(frozen=True, slots=True)
class Rest:
    """Why a worker is left alone for a while, behind its node's name."""

    worker: WorkerIncarnation
    until_s: float
    why: str


def drives(status: ModelStatus) -> bool:
    """Whether it is of a last stage, under the name of the whole model."""
    return status.stage is not None and status.stage.is_last and status.name == status.stage.model


def waits(status: ModelStatus) -> bool:
    """Whether it is of a driver whose worker is loaded and has no chain."""
    return drives(status) and status.phase == "loading" and status.worker_phase == WAITS


def signature(node: Node) -> object:
    """Equal as long as nothing changed that chains go by; `()` for a node that has no stages."""
    found = tuple(
        (status.name, status.worker, status.phase, waits(status), status.stage)
        for status in node.models.values()
        if status.stage is not None
    )
    return (found, node.draining) if found else ()


def offers(fleet: Fleet, rests: Mapping[Key, Rest]) -> list[Offer]:
    """The workers of all stages, those that are not to be had among them.

    Args:
        rests: workers that are left alone.
    """
    return [
        _offer(node, status, status.stage, rests.get((node.identity, status.name)))
        for node in fleet.nodes
        for status in node.models.values()
        if status.stage is not None
    ]


def executors(found: list[Offer], *, soon: bool = False) -> list[Offer]:
    """Those that may be in a chain before its driver; with `soon` also those that are loading."""
    return [
        each
        for each in found
        if not each.stage.is_last and (not each.why_not or (soon and each.may_come))
    ]


def _offer(node: Node, status: ModelStatus, stage: StageStatus, rest: Rest | None) -> Offer:
    why_not, may_come = _objection(node, status, rest)
    return Offer(
        node=node.identity,
        status=status,
        stage=stage,
        why_not=why_not,
        may_come=may_come,
        chains=node.chains[status.name],
        free_bytes=node.host.memory_free_bytes,
    )


def _objection(node: Node, status: ModelStatus, rest: Rest | None) -> tuple[str, bool]:
    """Why a worker can be in no chain now, and whether that passes by itself."""
    if not node.up:
        return (f"is down ({node.down_reason})" if node.down_reason else "is down"), False
    if node.draining:
        return "is draining", False
    if STAGES not in node.capabilities:
        return f"runs a version that does not know '{STAGES}': update it", False
    if rest is not None and rest.worker == status.worker:
        return rest.why, False
    if status.phase == "ready" or waits(status):
        return "", False
    if status.phase == "failed":
        return f"failed to load them: {status.problem}", False
    return f"has them in phase {status.phase}", status.phase == "loading"

"""What `status`, `nodes`, `models` and `hello` answer, as API maps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bus.ids import ModelName
from bus.messages.api import DEFAULT_CREDIT, MAX_BODY_BYTES, MAX_CREDIT
from bus.messages.parts import ModelStatus
from bus.version import __version__
from head.fleet import Fleet
from head.fleet_node import DialedAddress, Node
from head.model_kinds import STAGE
from head.stage_workers import waits
from head.texts import TextDesk
from head.weights import Weights

if TYPE_CHECKING:
    from head.operation import Core

API_VERSION = 1


def hello(operations: list[str]) -> dict[str, Any]:
    """Versions, limits and what this head can do."""
    return {
        "api": API_VERSION,
        "version": __version__,
        "operations": operations,
        "limits": {
            "body_bytes": MAX_BODY_BYTES,
            "credit_default": DEFAULT_CREDIT,
            "credit_max": MAX_CREDIT,
        },
        "scope": "admin",
    }


def everything(core: Core, now: float) -> dict[str, Any]:
    """All that `status` shows beside the head itself."""
    return {
        "nodes": nodes(core.fleet, now, core.texts.digest),
        "dialed": dialed(core.dialed()),
        "enrolment": core.enrolment.report(),
        "models": models(core.fleet, core.texts, core.runs.queued()),
        "chains": core.pipelines.report(),
        "store": core.storage.report(),
        "answers": {
            "running": core.runs.running,
            "queued": sum(core.runs.waiting.counts().values()),
            "kept": len(core.book),
        },
        "jobs": {
            "running": core.runs.jobs.running,
            "queued": sum(core.runs.jobs.counts().values()),
        },
    }


def nodes(
    fleet: Fleet, now: float, digest: Callable[[ModelName], int] = lambda _: 0
) -> list[dict[str, Any]]:
    """One map per node, by identity.

    Args:
        digest: of a model's tokenizer in this fleet; 0 when it is not known.
    """
    in_order = sorted(fleet.nodes, key=lambda node: node.identity)
    theirs = {
        (status.name, status.tokenizer_digest)
        for node in in_order
        if node.up
        for status in node.models.values()
    }
    weights = Weights(in_order)
    return [_node(node, now, digest, theirs, weights) for node in in_order]


def dialed(addresses: Iterable[DialedAddress]) -> list[dict[str, Any]]:
    """One map per address that the head dials, in the order of the configuration."""
    return [
        {
            "address": each.address,
            "node": each.node,
            "state": "up" if each.up else "down",
            "reason": each.why_not,
        }
        for each in addresses
    ]


def _node(
    node: Node,
    now: float,
    digest: Callable[[ModelName], int],
    theirs: Collection[tuple[ModelName, int]],
    weights: Weights,
) -> dict[str, Any]:
    return {
        "identity": node.identity,
        "state": node.state,
        "draining": node.draining,
        "labels": dict(node.mark.labels),
        "reason": node.down_reason,
        "since_s": round(now - node.since_s, 3),
        "status_age_s": round(now - node.status_at_s, 3),
        "incarnation": node.incarnation,
        "software": node.software,
        "generations": len(node.claims),
        "jobs": node.jobs.total(),
        "placed": node.sessions_placed,
        "host": {
            "memory_total_bytes": node.host.memory_total_bytes,
            "memory_free_bytes": node.host.memory_free_bytes,
            "gpu_total_bytes": node.host.gpu_total_bytes,
            "gpu_free_bytes": node.host.gpu_free_bytes,
            "load_average": node.host.load_average,
        },
        "models": [
            _model_on_node(
                node,
                status,
                wanted,
                is_odd=wanted != 0 and (status.name, wanted) not in theirs,
                weights_problem=weights.problem(node, status),
            )
            for status in node.models.values()
            for wanted in (digest(status.name),)
        ],
    }


def _problem(status: ModelStatus, digest: int, is_odd: bool) -> str:
    """What keeps a node from serving a model; `is_odd` when only the head has this digest."""
    theirs = status.tokenizer_digest
    if status.problem or not digest or not theirs or theirs == digest:
        return status.problem
    remedy = "import the same model file there, unload it and load it again"
    if is_odd:
        remedy = (
            "no node has that of the head's own folder: remove that folder, and the head fetches "
            f"theirs (on the head's machine: sfctl model rm {status.name}), or {remedy}"
        )
    return (
        f"its tokenizer for {status.name} ({theirs:016x}) differs from the fleet's "
        f"({digest:016x}), so it gets no requests for it; {remedy}"
    )


def _model_on_node(
    node: Node, status: ModelStatus, digest: int, *, is_odd: bool, weights_problem: str
) -> dict[str, Any]:
    return {
        "name": status.name,
        "phase": status.phase,
        "problem": _missing(node, status) or _problem(status, digest, is_odd),
        "weights_problem": weights_problem,
        "device": status.device,
        "window_tokens": status.window_tokens,
        "lanes_total": status.lanes_total,
        "lanes_used": status.lanes_used,
        "queued": status.queued,
        "in_flight": node.in_flight(status.name),
        "kv_live_tokens": status.kv_live_tokens,
        "kv_total_tokens": status.kv_total_tokens,
        "decode_rate": round(status.decode_rate, 3),
        "prefill_rate": round(status.prefill_rate, 3),
        "tokenizer_digest": f"{status.tokenizer_digest:016x}",
        "weights_digest": f"{status.weights_digest:016x}",
        "numerics": status.numerics,
        "worker": status.worker,
        "worker_phase": status.worker_phase,
        "steps": status.steps,
        "kind": status.kind,
        "stage": _stage(node, status),
    }


def _missing(node: Node, status: ModelStatus) -> str:
    """Why a last stage of a model has no chain; empty for what has one, or is something else."""
    missing = node.missing.get(status.name)
    return f"it {missing.words}" if missing is not None else ""


def _stage(node: Node, status: ModelStatus) -> dict[str, Any] | None:
    """Which part of a model it is; None of a whole one."""
    stage = status.stage
    if stage is None:
        return None
    return {
        "folder": stage.folder,
        "model": stage.model,
        "whole": stage.whole,
        "index": stage.index,
        "stages": stage.stages,
        "first_layer": stage.first,
        "end_layer": stage.end,
        "layers": stage.layers,
        "chains": node.chains[status.name],
        "loaded": status.phase == "ready" or waits(status),
    }


def models(fleet: Fleet, texts: TextDesk, queued: Mapping[ModelName, int]) -> list[dict[str, Any]]:
    """One map per model that the head has a folder of, or a node that is up serves, by name."""
    names = set(texts.folders) | {name for node in fleet.nodes if node.up for name in node.models}
    return [_model(name, fleet, texts, queued) for name in sorted(names)]


def _model(
    name: ModelName, fleet: Fleet, texts: TextDesk, queued: Mapping[ModelName, int]
) -> dict[str, Any]:
    serving = [
        (node.identity, status)
        for node in fleet.nodes
        if node.up and (status := node.models.get(name)) and status.phase == "ready"
    ]
    described, kind = texts.described(name), texts.kind(name)
    return {
        "name": name,
        # Nobody asks a stage for texts, so the head needs no tokenizer of it.
        "ready": bool(serving) and (described is not None or kind == STAGE),
        "nodes": sorted(identity for identity, _ in serving),
        "on": [
            {
                "node": node.identity,
                "phase": status.phase,
                "problem": _missing(node, status) or status.problem,
            }
            for node in sorted(fleet.nodes, key=lambda node: node.identity)
            if node.up and (status := node.models.get(name)) is not None
        ],
        "window_tokens": max((status.window_tokens for _, status in serving), default=0),
        "lanes_total": sum(status.lanes_total for _, status in serving),
        "queued": queued.get(name, 0),
        "head_folder": texts.folders.get(name),
        "tokenizer": texts.source.state(name),
        "tokenizer_problem": texts.source.problem(name),
        "kind": kind or None,
        "chat_template": bool(described and described.has_template),
        "tokenizer_digest": f"{described.digest:016x}" if described else None,
    }

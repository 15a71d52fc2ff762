"""Why a job is not done: as its node says, or with the reason of each node that does not do it."""

from __future__ import annotations

from collections.abc import Mapping

from bus.errors import (
    ERROR_TABLE,
    Internal,
    Invalid,
    ModelIncomplete,
    NodeLost,
    NoHead,
    NoNode,
    QueueFull,
    StartError,
    SuperfluidError,
    UnsupportedOnFleet,
    WireError,
)
from bus.ids import ModelName, NodeIdentity
from bus.messages.link_jobs import JobEnd
from head.fleet import Fleet
from head.job_kinds import lacking, wrong_kind
from head.job_records import Job


def line_full(model: ModelName, waiting: int) -> QueueFull:
    """The error of a job behind which there is no place in line."""
    return QueueFull(
        f"{waiting} jobs wait for {model} already; try again in a second, or add a node",
        retry_after_ms=1000,
    )


def no_place(fleet: Fleet, job: Job, objections: Mapping[NodeIdentity, str]) -> SuperfluidError:
    """The error of a job that no node can do.

    Args:
        objections: the reason of each node.
    """
    spec = job.spec
    said = "; ".join(f"{node}: {why}" for node, why in sorted(objections.items()))
    details = {"nodes": dict(objections)}
    if job.failure:
        return NodeLost(
            f"{job.failure}, and no node could take it over ({said or 'there is none'}); ask again",
            details=details,
        )
    if job.full:
        return QueueFull(
            f"the nodes that could do this for {spec.model} have no room ({said}); try again in a "
            "second, or add a node",
            retry_after_ms=1000,
            details=details,
        )
    serving = [node for node in fleet.nodes if node.view(spec.model).serving is not None]
    kinds = sorted({kind for node in serving if (kind := wrong_kind(node, spec))})
    if serving and all(lacking(node, spec) for node in serving):
        return UnsupportedOnFleet(f"no node can do this for {spec.model} ({said})", details=details)
    if kinds and all(wrong_kind(node, spec) or lacking(node, spec) for node in serving):
        return Invalid(
            f"{spec.model} is a model of kind {', '.join(kinds)} and makes no "
            f"{spec.of_kind.makes or spec.kind}; list the models with: sfctl model ls --fleet",
            param="model",
        )
    return NoNode(
        f"no node can do this for {spec.model} now ({said or 'there is no node'}); look at them "
        "with: sfctl node ls",
        details=details,
    )


def error_of(end: JobEnd, node: NodeIdentity) -> SuperfluidError:
    """The error of a job that a node has ended with a code.

    One that is of no job, such as of a message or a process that starts, is a fault of the node.
    """
    error = ERROR_TABLE.get(end.code, SuperfluidError)
    details = {"length": end.length, "max": end.max} if end.max else None
    why = end.message or end.code
    is_odd = issubclass(error, (WireError, StartError, NoHead)) or error is SuperfluidError
    if is_odd and error is not ModelIncomplete:
        return Internal(
            f"node {node} ended the job with {end.code} ({why}); its log may say more",
            details={"node": node},
        )
    return error(why, param=end.param or None, details=details)

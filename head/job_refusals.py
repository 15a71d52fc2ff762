"""Why no node does a job, as one error with the reason of each node."""

from __future__ import annotations

from collections.abc import Mapping

from bus.errors import Invalid, NodeLost, NoNode, SuperfluidError, UnsupportedOnFleet
from bus.ids import NodeIdentity
from head.fleet import Fleet
from head.job_kinds import JobSpec, lacking, wrong_kind


def no_place(
    fleet: Fleet, spec: JobSpec, objections: Mapping[NodeIdentity, str], failure: str
) -> SuperfluidError:
    """The error of a job that no node can do.

    Args:
        objections: the reason of each node.
        failure: how it was lost before, if it was.
    """
    said = "; ".join(f"{node}: {why}" for node, why in sorted(objections.items()))
    details = {"nodes": dict(objections)}
    if failure:
        return NodeLost(
            f"{failure}, and no node could take it over ({said or 'there is none'}); ask again",
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

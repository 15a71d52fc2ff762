"""What nodes offer to a plan of stages, from what the head reports of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bus.errors import Invalid, NotFound
from head.stage_plan import StageNode

#: Of what a machine has free; the agents of a machine share it, as they do when they start.
SHARE_OF_FREE = 0.8

Map = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Offers:
    """Nodes that may take a stage, by name.

    Attributes:
        measured: the nodes' rates are bytes a second; else they say only who is faster.
        left_out: nodes that were not asked for by name and can take nothing, each with why.
    """

    nodes: tuple[StageNode, ...]
    measured: bool
    left_out: tuple[str, ...]


def measured_models(report: Map) -> set[str]:
    """Models that nodes that are up have decoded with."""
    return {name for node in _up(report) for name in _decode_rates(node)}


def stage_offers(report: Map, wanted: Sequence[str], work: Mapping[str, int]) -> Offers:
    """Memory and rates of nodes.

    Args:
        report: what the head answers to `nodes`.
        wanted: identities; all nodes that are up when it is empty.
        work: bytes of weights that a step of a model goes through, for models where it is known.

    Raises:
        NotFound: a wanted node that the head does not know.
        Invalid: one that is not up, or does not say what memory it has.
    """
    known = {node["identity"]: node for node in report.get("nodes", [])}
    reasons = {name: why for name, node in known.items() if (why := _why_not(node))}
    for name in wanted:
        if name not in known:
            raise NotFound(f"no node {name} is known; list them with: sfctl node ls", param="node")
        if name in reasons:
            raise Invalid(
                f"node {name} {reasons[name]}; leave it out, or see: sfctl node ls", param="node"
            )
    chosen = sorted(set(wanted or known) - reasons.keys())
    rates = _Rates([known[name] for name in chosen], work)
    shares = _sharing(report)
    return Offers(
        nodes=tuple(
            StageNode(
                name=name,
                memory_bytes=int(_free(known[name]) * SHARE_OF_FREE) // shares[name],
                rate=rates.of(known[name]),
            )
            for name in chosen
        ),
        measured=rates.measured,
        left_out=()
        if wanted
        else tuple(f"node {name} {why}" for name, why in sorted(reasons.items())),
    )


class _Rates:
    """Rates in bytes a second where a node decoded with a model whose bytes are known.

    Where no node did, in steps of the model that most of them decoded with.
    """

    def __init__(self, nodes: Sequence[Map], work: Mapping[str, int]) -> None:
        measured = Counter(name for node in nodes for name in _decode_rates(node))
        self.measured = bool(measured.keys() & {name for name, size in work.items() if size > 0})
        if self.measured:
            self._work = {name: size for name, size in work.items() if size > 0}
        else:
            most = min(measured, key=lambda name: (-measured[name], name), default="")
            self._work = {most: 1}

    def of(self, node: Map) -> float:
        """A node's best rate; 0 where none is known."""
        rates = _decode_rates(node).items()
        return max((rate * self._work.get(name, 0) for name, rate in rates), default=0.0)


def _decode_rates(node: Map) -> dict[str, float]:
    """Steps a second of the whole models that a node has decoded with."""
    return {
        model["name"]: rate
        for model in node.get("models", [])
        if (rate := float(model.get("decode_rate", 0.0))) > 0 and not model.get("stage")
    }


def _up(report: Map) -> Iterator[Map]:
    return (node for node in report.get("nodes", []) if node["state"] == "up")


def _free(node: Map) -> int:
    return int(node.get("host", {}).get("memory_free_bytes", 0))


def _why_not(node: Map) -> str:
    if node["state"] != "up":
        return f"is {node['state']}"
    return "" if _free(node) > 0 else "does not say what memory its machine has free"


def _sharing(report: Map) -> Counter[str]:
    """For each node, how many nodes that are up its machine has, itself among them."""
    keys = report.get("enrolment", {}).get("keys", [])
    hosts = {key["identity"]: key["host"] for key in keys if key["state"] == "enrolled"}
    machines = {node["identity"]: hosts.get(node["identity"], "") for node in _up(report)}
    counts = Counter(machines.values())
    return Counter({name: counts[host] if host else 1 for name, host in machines.items()})

"""Which nodes serve other weights than others under the name of one model, for people."""

from __future__ import annotations

from collections.abc import Iterable

from bus.ids import ModelName, NodeIdentity
from bus.messages.parts import ModelStatus
from head.fleet_node import Node

#: How many others are named.
_NAMED = 4


class Weights:
    """What nodes that are up serve, by their statuses.

    Args:
        nodes: of the fleet.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        #: Of each model, who has which weights; names in order.
        self._having: dict[ModelName, dict[int, list[NodeIdentity]]] = {}
        for node in sorted(nodes, key=lambda node: node.identity):
            for status in node.models.values():
                if node.up and _says(status):
                    having = self._having.setdefault(status.name, {})
                    having.setdefault(status.weights_digest, []).append(node.identity)

    def problem(self, node: Node, status: ModelStatus) -> str:
        """What is to be said of a node's weights of a model; empty when all others have the same.

        A node that does not say which it has says nothing of others either.
        """
        if not (node.up and _says(status)):
            return ""
        mine, having = status.weights_digest, self._having[status.name]
        others = [names for digest, names in having.items() if digest != mine]
        if not others:
            return ""
        named = sorted(name for names in others for name in names[:_NAMED])[:_NAMED]
        left = sum(map(len, others)) - len(named)
        more = f" and {left} more" if left else ""
        return (
            f"its weights of {status.name} ({mine:016x}) are others than those on "
            f"{', '.join(named)}{more}, so what a request gets depends on its node; import the "
            "same file on all, or give one of them another name"
        )


def _says(status: ModelStatus) -> bool:
    # Those of a stage are of some layers alone.
    return status.phase == "ready" and status.weights_digest != 0 and status.stage is None

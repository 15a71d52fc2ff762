"""What nodes have of a model's tokenizer, as their statuses say."""

from __future__ import annotations

from bus.capabilities import JOBS
from bus.ids import ModelName
from bus.messages.parts import ModelStatus
from head.fleet import Fleet
from head.fleet_node import Node
from head.kept_tokenizers import TokenizerKey
from head.model_kinds import STAGE


def offers_of(fleet: Fleet, model: ModelName) -> dict[TokenizerKey, list[Node]]:
    """What nodes that are up can give of a model, and which; who came first is first.

    What only nodes that drain have counts where no other has the model.
    """
    found: dict[TokenizerKey, list[Node]] = {}
    for node in fleet.nodes:
        status = node.models.get(model) if node.up else None
        if status is not None and _can_give(node, status):
            key = TokenizerKey(model, status.tokenizer_digest, status.text_digest)
            found.setdefault(key, []).append(node)
    stays = {key: nodes for key, nodes in found.items() if not all(n.draining for n in nodes)}
    return stays or found


def may_come(fleet: Fleet, model: ModelName) -> bool:
    """Whether a node may have the model in a moment: it loads it, or was there with it."""
    return fleet.loading(model) or any(
        not node.up and not node.left and model in node.models for node in fleet.nodes
    )


def had_by_any(fleet: Fleet, model: ModelName, digest: int) -> bool:
    """Whether any node has a model with this tokenizer, or had when it was last there."""
    statuses = (node.models.get(model) for node in fleet.nodes)
    return any(each is not None and each.tokenizer_digest == digest for each in statuses)


def _can_give(node: Node, status: ModelStatus) -> bool:
    return (
        status.phase == "ready"
        and status.kind != STAGE
        and status.tokenizer_digest != 0
        and status.text_digest != 0
        and JOBS in node.capabilities
    )

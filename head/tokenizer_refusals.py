"""Why the head has no tokenizer of a model, as one error with the remedy."""

from __future__ import annotations

from collections.abc import Mapping

from bus.errors import NoNode, SuperfluidError, TokenizerUnavailable
from bus.ids import ModelName, NodeIdentity
from head.fleet import Fleet
from head.fleet_node import Node
from head.kept_tokenizers import LIMIT, TokenizerKey

#: When what failed for now may be asked again.
RETRY_AFTER_MS = 1000


def not_fetched(
    model: ModelName, fleet: Fleet, failures: Mapping[NodeIdentity, str], adopted: int
) -> SuperfluidError | None:
    """The error of a model that nodes of the fleet have; None when none does.

    Args:
        failures: what kept nodes that are up from giving it.
        adopted: how many fetched tokenizers are in use.
    """
    having = [node for node in fleet.nodes if model in node.models or _has_stage(node, model)]
    ready = sorted(node.identity for node in having if node.view(model).serving is not None)
    command = f"sfctl model import FILE --name {model}"
    if failures:
        said = "; ".join(f"{name}: {why}" for name, why in sorted(failures.items()))
        return TokenizerUnavailable(
            f"the tokenizer of {model} could not be fetched ({said}); it is tried again, or import "
            f"the model on the head's machine: {command}",
            retry_after_ms=RETRY_AFTER_MS,
        )
    if ready:
        full = f" (it keeps {LIMIT} already)" if adopted >= LIMIT else ""
        return TokenizerUnavailable(
            f"the head can not get the tokenizer of {model} from {', '.join(ready)}{full}: update "
            "nodes that are older than the head, or import the model on the head's machine: "
            f"{command}"
        )
    if having:
        reasons = {node.identity: node.view(model).why_not for node in having}
        said = "; ".join(f"{name}: {why}" for name, why in sorted(reasons.items()))
        return NoNode(
            f"no node can serve {model} now ({said}); ask again when one has loaded it",
            details={"nodes": reasons},
            retry_after_ms=RETRY_AFTER_MS,
        )
    return None


def files_gone(model: ModelName) -> TokenizerUnavailable:
    """The error of a text whose tokenizer was damaged on the head's disk."""
    return TokenizerUnavailable(
        f"the files that the head kept of the tokenizer of {model} are damaged; they are fetched "
        "from a node again: ask again in a moment",
        retry_after_ms=RETRY_AFTER_MS,
    )


def not_kept(key: TokenizerKey) -> TokenizerUnavailable:
    """The error of what was kept and is damaged."""
    return TokenizerUnavailable(
        f"this is of another tokenizer of {key.model} ({key.digest:016x}) than the head has now, "
        "and what it kept of that one is damaged; import the file that the model was made of "
        "before, under this name or on another head"
    )


def other_digest(key: TokenizerKey) -> TokenizerUnavailable:
    """The error of files whose vocabulary is not the one that they were fetched for."""
    return TokenizerUnavailable(
        f"the tokenizer of {key.model} that a node gave is not the one that its status names; load "
        "the model on that node again"
    )


def says_nothing(stall_s: float) -> TokenizerUnavailable:
    """The error of a node that took the job, and then gave nothing of it."""
    return TokenizerUnavailable(
        f"it gave nothing for {stall_s:.0f} s; look at its log, and restart it when this goes on"
    )


def takes_long(model: ModelName) -> TokenizerUnavailable:
    """The error of what waited as long as it may while a tokenizer was fetched."""
    return TokenizerUnavailable(
        f"the tokenizer of {model} is still not fetched: its node is slow, or others are before "
        "it; it goes on: ask again, or look at the nodes with: sfctl node ls",
        retry_after_ms=RETRY_AFTER_MS,
    )


def _has_stage(node: Node, model: ModelName) -> bool:
    """Whether a node has layers of a model, under another name."""
    stages = (status.stage for status in node.models.values())
    return any(stage is not None and stage.model == model for stage in stages)

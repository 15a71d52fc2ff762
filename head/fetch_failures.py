"""Nodes that did not give a model's tokenizer: why, and when each is asked again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bus.errors import SuperfluidError
from bus.ids import ModelName, NodeIdentity
from head.fleet import Fleet
from head.fleet_node import Node
from head.kept_tokenizers import TokenizerKey

#: A node whose tokenizer could not be fetched is asked again after this long, twice as long after
#: each further failure.
FIRST_RETRY_S = 1.0
MAX_RETRY_S = 60.0
#: Failures that are known; beyond it the oldest are forgotten. Models are named by nodes.
MAX_KEPT = 4096


@dataclass(slots=True)
class _Failure:
    """Why a node gave nothing of a model, and when it is asked for the same again."""

    key: TokenizerKey
    incarnation: int
    error: SuperfluidError
    again_s: float
    times: int


class FetchFailures:
    """Owned by the desk of tokenizers."""

    def __init__(self) -> None:
        #: The one that failed last is last.
        self._failures: dict[tuple[ModelName, NodeIdentity], _Failure] = {}

    def add(
        self,
        key: TokenizerKey,
        node: NodeIdentity,
        incarnation: int,
        error: SuperfluidError,
        now: float,
    ) -> float:
        """A node failed once more; gives when it may be asked again."""
        before = self._failures.pop((key.model, node), None)
        times = before.times + 1 if before is not None else 1
        again_s = now + min(FIRST_RETRY_S * 2.0 ** min(times - 1, 10), MAX_RETRY_S)
        self._failures[key.model, node] = _Failure(key, incarnation, error, again_s, times)
        if len(self._failures) > MAX_KEPT:
            del self._failures[next(iter(self._failures))]
        return again_s

    def remove(self, model: ModelName, node: NodeIdentity) -> None:
        """A node gave a model's tokenizer."""
        self._failures.pop((model, node), None)

    def may_ask(self, key: TokenizerKey, node: Node, now: float) -> bool:
        """Whether a node may be asked for this now. What is new there is asked for at once."""
        failure = self._failures.get((key.model, node.identity))
        if failure is None or (failure.key, failure.incarnation) != (key, node.incarnation):
            return True
        return now >= failure.again_s

    def of(self, model: ModelName, fleet: Fleet) -> Mapping[NodeIdentity, str]:
        """What kept nodes that are up from giving a model's tokenizer."""
        return {
            name: failure.error.message
            for (failed, name), failure in self._failures.items()
            if failed == model and (node := fleet.get(name)) is not None and node.up
        }

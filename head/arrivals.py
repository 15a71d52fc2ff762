"""Models of which no node is known, and that nodes may bring which are on their way.

While the head is new, or a link is, that is any model; and longer those that stored answers go on
with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bus.ids import ModelName
from bus.timers import Timers

#: Stands for all models.
ANY = ModelName("")


class Arrivals:
    """Owned by the desk of tokenizers.

    Args:
        over: called with a model, or `ANY`, that is not expected any more.
    """

    def __init__(self, timers: Timers, over: Callable[[ModelName, float], None]) -> None:
        self._timers = timers
        self._over = over
        self._until_s: dict[ModelName, float] = {}

    def expect(self, model: ModelName, until_s: float) -> None:
        """Nodes may bring a model, or `ANY`, until then at least."""
        before_s = self._until_s.get(model)
        if before_s is None:
            self._timers.at(until_s, partial(self._look, model))
        self._until_s[model] = max(until_s, before_s or until_s)

    def are_due(self, model: ModelName) -> bool:
        """Whether any node at all may come, and have the model."""
        return ANY in self._until_s or model in self._until_s

    def is_promised(self, model: ModelName) -> bool:
        """Whether the model itself is expected: nodes had it before the head began."""
        return model in self._until_s

    def _look(self, model: ModelName, now: float) -> None:
        until_s = self._until_s[model]
        if now < until_s:
            self._timers.at(until_s, partial(self._look, model))
            return
        del self._until_s[model]
        self._over(model, now)

"""How long what needs a model's tokenizer waits while it is fetched from nowhere."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from bus.ids import ModelName
from bus.timers import Timers
from head.arrivals import ANY, Arrivals
from head.fleet import Fleet
from head.tokenizer_offers import may_come

#: Is called for a model when it is time to look for its tokenizer again.
Look = Callable[[ModelName, float], None]


class TokenizerPatience:
    """Owned by the desk of tokenizers.

    Args:
        node_wait_s: how long something waits for a node that may come.
        now: this moment; nodes may be on their way.
        awaited: gives the models for whose tokenizers something waits.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        timers: Timers,
        node_wait_s: float,
        now: float,
        look: Look,
        awaited: Callable[[], Collection[ModelName]],
    ) -> None:
        self._fleet = fleet
        self._timers = timers
        self._node_wait_s = node_wait_s
        self._look = look
        self._awaited = awaited
        #: Models that are waited for while no node has them, and until when.
        self._until_s: dict[ModelName, float] = {}
        self._arrivals = Arrivals(timers, self._no_more_come)
        self._arrivals.expect(ANY, now + node_wait_s)

    def node_gone(self, now: float) -> None:
        """A node's link ended; it may come back."""
        self._arrivals.expect(ANY, now + self._node_wait_s)

    def expect(self, model: ModelName, until_s: float) -> None:
        """Something waits for a node to come back with a model, until then at least."""
        self._arrivals.expect(model, until_s)

    def is_due(self, model: ModelName, *, is_offered: bool) -> bool:
        """Whether a node of which nothing is known may come, and give a model's tokenizer."""
        arrivals = self._arrivals
        return arrivals.is_promised(model) or (not is_offered and arrivals.are_due(model))

    def lasts(self, model: ModelName, now: float, *, is_offered: bool) -> bool:
        """Whether what waits for a model goes on to do so; it is looked for again in time."""
        if may_come(self._fleet, model):
            if model not in self._until_s:
                self._until_s[model] = now + self._node_wait_s
                self._timers.at(self._until_s[model], partial(self._look, model))
            if now < self._until_s[model]:
                return True
        if self.is_due(model, is_offered=is_offered):
            return True  # Until `_no_more_come`.
        self.over(model)
        return False

    def over(self, model: ModelName) -> None:
        """Nothing waits for it any more, or it is on its way."""
        self._until_s.pop(model, None)

    def _no_more_come(self, model: ModelName, now: float) -> None:
        for waiting in self._awaited() if model == ANY else (model,):
            self._look(waiting, now)

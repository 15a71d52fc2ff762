"""When tokens leave the worker. Pure: told of tokens and the time, it says what to send.

A generation's first token and every end leave at once, since someone waits for them. The rest
leave when one generation has 16 tokens, or after 25 ms or three steps, whichever is longer, but at
the first step that is over 100 ms later: each message wakes two more processes on the same
processors, and costs them an engine thread's time, and nobody sees text come more often. A flush
takes what all generations have.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agent.worker.work import Emission
from bus.ids import GenerationId, pack_ids
from bus.messages.parts import Finish
from bus.messages.worker import OutputRun

FLUSH_TOKENS = 16
FLUSH_AFTER_S = 0.025
FLUSH_AFTER_STEPS = 3
FLUSH_WITHIN_S = 0.1


@dataclass(slots=True)
class _Pending:
    first_index: int
    cached: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[bytes] = field(default_factory=list)
    finish: Finish | None = None


class OutputBuffer:
    """Holds tokens that have not left yet. Driven by the worker's loop."""

    def __init__(self) -> None:
        self._pending: dict[GenerationId, _Pending] = {}
        self._urgent = False
        #: When the oldest token in here came.
        self._since = 0.0

    def add(self, emission: Emission, now: float) -> None:
        """Take in a token or an end."""
        if not self._pending:
            self._since = now
        pending = self._pending.get(emission.generation)
        if pending is None:
            cached = 0 if emission.index else emission.cached
            pending = self._pending[emission.generation] = _Pending(emission.index, cached)
        if emission.token is not None:
            pending.ids.append(emission.token)
            pending.logprobs.append(emission.logprobs)
        pending.finish = emission.finish
        first = emission.index == 0
        self._urgent |= first or emission.finish is not None or len(pending.ids) >= FLUSH_TOKENS

    def due_at(self, step_s: float) -> float | None:
        """When to flush; None while there is nothing. A time in the past means now.

        Args:
            step_s: how long a decode step takes of late.
        """
        if not self._pending:
            return None
        if self._urgent:
            return self._since
        return self._since + max(FLUSH_AFTER_S, min(FLUSH_AFTER_STEPS * step_s, FLUSH_WITHIN_S))

    def take(self) -> tuple[OutputRun, ...]:
        """All that is in here, one run for each generation."""
        runs = tuple(
            OutputRun(
                generation=generation,
                first_index=pending.first_index,
                ids=pack_ids(pending.ids),
                finish=pending.finish,
                logprobs=b"".join(pending.logprobs),
                cached=pending.cached,
            )
            for generation, pending in self._pending.items()
        )
        self._pending.clear()
        self._urgent = False
        return runs

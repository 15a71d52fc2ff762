"""The generations of a node: numbered, kept until acknowledged, paced so that all is bounded.

    start ──▶ running ──finish──▶ finished ──acknowledged──▶ gone
                 │                    │
                 └───── end, lost ────┴────▶ gone

What a worker still says of one that is gone counts for nothing. A generation that is ended while
its worker runs it is *ending* until the worker has said its last word: its id is not taken again
before, since late output would be taken for the new one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bus.agent_records import Generation, ToWorker
from bus.event_window import PAUSE_AT, RESUME_BELOW
from bus.ids import GenerationId, ModelName, SessionId
from bus.messages import parts, worker

#: What a node keeps unacknowledged in all. Most of it can wait only while no head is there.
RETAINED_BYTES = 32 * 1024 * 1024
#: Generations that one session may have unacknowledged; what a HeldView can name.
GENERATIONS_PER_SESSION = 16


class NodeGenerations:
    """Every generation that runs, or finished and is not acknowledged to its end.

    Owned by `AgentSession`. Invariant: at most one generation of a session runs, and
    `retained_bytes` is the sum over all windows.

    Args:
        do: takes what a worker is to be told.
        retained_limit: bytes; nothing is dropped above it, the generations pause before.
    """

    def __init__(
        self, do: Callable[[ToWorker], None], *, retained_limit: int = RETAINED_BYTES
    ) -> None:
        self._do = do
        self._limit = retained_limit
        self._known: dict[GenerationId, Generation] = {}
        self._of_session: dict[SessionId, dict[GenerationId, Generation]] = {}
        self._running: dict[GenerationId, Generation] = {}
        #: Ended here, and the worker of that model has not said its last word yet.
        self._ending: dict[GenerationId, ModelName] = {}
        self._is_full = False
        #: Bytes that all windows keep.
        self.retained_bytes = 0

    # --- what it shows ------------------------------------------------------------------------

    @property
    def is_generating(self) -> bool:
        """Whether any has not finished yet."""
        return bool(self._running)

    def __iter__(self) -> Iterator[Generation]:
        """All of them."""
        return iter(tuple(self._known.values()))

    def get(self, generation: GenerationId) -> Generation | None:
        """The generation, running or unacknowledged."""
        return self._known.get(generation)

    def of_session(self, session: SessionId) -> tuple[Generation, ...]:
        """Those of a session, oldest first."""
        return tuple(self._of_session.get(session, {}).values())

    def running_of(self, session: SessionId) -> Generation | None:
        """The one of a session that runs."""
        return next((g for g in self.of_session(session) if g.is_running), None)

    def running_on(self, model: ModelName) -> tuple[Generation, ...]:
        """Those that run on a model's worker."""
        return tuple(g for g in self._running.values() if g.model == model)

    def on_worker(self, model: ModelName) -> tuple[GenerationId, ...]:
        """All that a model's worker may have: those that run, and those that were ended here."""
        ending = (one for one, owner in self._ending.items() if owner == model)
        return (*(found.generation for found in self.running_on(model)), *ending)

    def is_used(self, generation: GenerationId) -> bool:
        """Whether the id stands for something here, so that no other may have it."""
        return generation in self._known or generation in self._ending

    # --- a generation's life ------------------------------------------------------------------

    def start(self, found: Generation) -> None:
        """Take in a generation whose submit goes out."""
        self._known[found.generation] = found
        self._of_session.setdefault(found.session, {})[found.generation] = found
        self._running[found.generation] = found

    def heard_from(self, model: ModelName, run: worker.OutputRun) -> Generation | None:
        """The running generation that a worker's run is of, or None."""
        if run.finish is not None and self._ending.get(run.generation) == model:
            del self._ending[run.generation]
        found = self._running.get(run.generation)
        return found if found is not None and found.model == model else None

    def add(self, found: Generation, run: worker.OutputRun) -> parts.TokenRun:
        """Keep a run under its event numbers; `pace` is to follow."""
        first_seq = found.window.tokens
        found.accepted = True
        if first_seq == 0:
            found.cached = run.cached
        found.window.add(run.ids, run.finish, run.logprobs)
        if run.finish is not None:
            del self._running[found.generation]
        self._count(found)
        return found.token_run(first_seq, run.ids, run.finish, run.logprobs)

    def acknowledge(self, found: Generation, committed: int) -> None:
        """Let go of events below `committed`, of all when that is the end."""
        found.window.acknowledge(committed)
        if found.window.is_acknowledged:
            self.forget(found)
        else:
            self._count(found)
            self.pace(found)

    def cancel(self, found: Generation) -> None:
        """Ask the worker to end it; its finish follows."""
        if found.is_running and not found.cancelled:
            found.cancelled = True
            self._do(
                ToWorker(model=found.model, message=worker.Cancel(generation=found.generation))
            )

    def end(self, found: Generation) -> None:
        """Stop it and forget it: no event of it goes out any more."""
        if found.is_running:
            self.cancel(found)
            self._ending[found.generation] = found.model
        self.forget(found)

    def end_session(self, session: SessionId) -> None:
        """End every generation of a session, finished ones too."""
        for found in self.of_session(session):
            self.end(found)

    def forget(self, found: Generation) -> None:
        """Let go of one that its worker has nothing more to say about."""
        del self._known[found.generation]
        self._running.pop(found.generation, None)
        siblings = self._of_session[found.session]
        del siblings[found.generation]
        if not siblings:
            del self._of_session[found.session]
        self.retained_bytes -= found.counted_bytes
        self._relieve()

    def rejected(self, generation: GenerationId) -> Generation | None:
        """A worker does not take a submit; the generation, when it still counts here."""
        self._ending.pop(generation, None)
        found = self._running.get(generation)
        return None if found is None or found.accepted else found

    def worker_died(self, model: ModelName) -> None:
        """A model's worker says nothing more about those that were ending."""
        self._ending = {g: owner for g, owner in self._ending.items() if owner != model}

    # --- bounds -------------------------------------------------------------------------------

    def pace(self, found: Generation) -> None:
        """Pause it when too much is kept of it, or in all; let it go on when there is room."""
        window = found.window
        if window.wants_resume() and not self._is_full:
            window.paused = False
            resume = worker.Resume(generation=found.generation)
            self._do(ToWorker(model=found.model, message=resume))
        elif window.wants_pause() or (self._is_full and found.is_running and not window.paused):
            window.paused = True
            pause = worker.Pause(generation=found.generation)
            self._do(ToWorker(model=found.model, message=pause))

    def pace_all(self) -> None:
        """After much was added: pause everything once the whole is nearly full."""
        if not self._is_full and self.retained_bytes >= PAUSE_AT * self._limit:
            self._is_full = True
            for found in self._running.values():
                self.pace(found)

    def _relieve(self) -> None:
        if self._is_full and self.retained_bytes < RESUME_BELOW * self._limit:
            self._is_full = False
            for found in self._running.values():
                self.pace(found)

    def _count(self, found: Generation) -> None:
        kept = found.window.retained_bytes
        self.retained_bytes += kept - found.counted_bytes
        found.counted_bytes = kept
        self._relieve()

    def validate_state(self) -> None:
        """Check the invariants; for tests.

        Raises:
            ValueError: one does not hold.
        """
        for found in self._known.values():
            found.window.validate_state()
            if found.window.is_acknowledged:
                raise ValueError(f"generation {found.generation} is kept beyond its end")
            if found.is_running != (found.generation in self._running):
                raise ValueError(f"generation {found.generation} is counted wrongly as running")
            if self._of_session[found.session].get(found.generation) is not found:
                raise ValueError(f"generation {found.generation} is unknown to its session")
        for session, siblings in self._of_session.items():
            if not siblings or sum(g.is_running for g in siblings.values()) > 1:
                raise ValueError(f"session {session} has none or two running generations")
        if self._known.keys() & self._ending.keys():
            raise ValueError("a generation id is taken again before its worker let go of it")
        if sum(map(len, self._of_session.values())) != len(self._known):
            raise ValueError("a generation is filed under two sessions")
        kept = sum(found.window.retained_bytes for found in self._known.values())
        if kept != self.retained_bytes:
            raise ValueError(f"{kept} bytes are kept and {self.retained_bytes} counted")

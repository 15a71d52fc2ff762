"""One model that this node serves: the state of its worker and what the head is told of it.

failed ──started──▶ loading ──ready──▶ ready
  ▲                    │                 │
  └───exited or hung───┴─exited or hung──┘      (the pool starts it again, later each time)

One that is being unloaded is told of as `unloading`, whatever its worker does.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace
from typing import Literal

from agent.load import RateMeter
from bus.agent_status import AgentModel
from bus.ids import ModelName, WorkerIncarnation
from bus.messages.parts import ModelStatus, WorkerBeat
from bus.messages.worker import Failed, Ready, WorkerStats

Phase = Literal["loading", "ready", "failed"]
NO_WORKER = WorkerIncarnation(0)
_PROBLEM_BYTES = 1024


#: A model whose workers died so often in a row, without a word, counts as failed.
DEATHS_TO_FAIL = 3


@dataclass(slots=True)
class ServedModel:
    """A model and its worker. Owned by the core.

    Invariant: `ready` is set exactly in phase ready; `incarnation` is set except in phase failed.
    """

    name: ModelName
    phase: Phase = "loading"
    incarnation: WorkerIncarnation = NO_WORKER
    ready: Ready | None = None
    stats: WorkerStats = WorkerStats()
    meter: RateMeter = field(default_factory=RateMeter)
    #: Digests of prefixes that the worker holds, as it last said.
    prefixes: tuple[bytes, ...] = ()
    #: Why the last worker ended; kept until one is ready.
    problem: str = ""
    #: Code of the error that the last worker named; empty when it just ended.
    problem_code: str = ""
    #: Workers that ended since one was last ready.
    failures: int = 0
    #: What the worker said before it ended.
    last_words: Failed | None = None
    #: Whether the worker was given up and is being killed.
    is_hung: bool = False
    #: What a worker takes of the host's memory, estimated; 0 is not known.
    needed_bytes: int = 0
    #: It is being unloaded: until when what runs may finish.
    unload_at: float | None = None
    #: What a worker of it said that it makes, as in `ModelStatus`.
    kind: str = ""
    #: Its worker was told to end.
    is_stopping: bool = False

    @property
    def is_unloading(self) -> bool:
        """Whether it begins nothing any more and will be gone."""
        return self.unload_at is not None

    @property
    def shown_phase(self) -> str:
        """Its phase, as others are told."""
        return "unloading" if self.is_unloading else self.phase

    def started(self, incarnation: WorkerIncarnation) -> None:
        """A new worker process loads the model."""
        self.phase = "loading"
        self.incarnation = incarnation
        self.ready = None
        self.stats = WorkerStats()
        self.prefixes = ()
        self.last_words = None
        self.is_hung = False
        self.meter.restart()

    def became_ready(self, ready: Ready) -> None:
        """The worker has loaded the model and tried it."""
        self.phase = "ready"
        self.ready = ready
        self.kind = ready.kind
        self.problem = self.problem_code = ""
        self.failures = 0

    def said(self, failed: Failed) -> None:
        """The worker says why it is about to end."""
        self.last_words = failed

    def counted(self, stats: WorkerStats) -> None:
        """The worker's counters of now."""
        self.stats = stats
        self.meter.add(stats)

    def exited(self, returncode: int) -> str:
        """The worker is gone; returns why."""
        self._give_up(describe_exit(returncode), self.last_words)
        return self.problem

    def hung(self, reason: str) -> None:
        """The worker is given up, and is being killed; what it still says counts no more."""
        self._give_up(reason)
        self.is_hung = True

    def _give_up(self, reason: str, said: Failed | None = None) -> None:
        self.failures += 1
        # One that just died is started again in a moment, and requests may wait for that.
        self.phase = "failed" if said or self.failures >= DEATHS_TO_FAIL else "loading"
        self.ready = None
        self.incarnation = NO_WORKER
        self.stats = WorkerStats()
        self.prefixes = ()
        self.problem = said.message if said else reason
        self.problem_code = said.code if said else ""

    def local_status(self) -> AgentModel:
        """What this machine is told."""
        return AgentModel(
            name=self.name,
            phase=self.shown_phase,
            problem=self.problem,
            code=self.problem_code,
            failures=self.failures,
            device=self.ready.device if self.ready else "",
        )

    def status(self) -> ModelStatus:
        """What the head is told."""
        common = ModelStatus(
            name=self.name,
            phase=self.shown_phase,
            problem=_cut(self.problem, _PROBLEM_BYTES),
            decode_rate=self.meter.decode_rate,
            prefill_rate=self.meter.prefill_rate,
            worker=self.incarnation,
            worker_phase=self._worker_phase(),
            kind=self.kind,
        )
        if self.ready is None:
            return common
        return replace(
            common,
            window_tokens=self.ready.window_tokens,
            lanes_total=self.ready.lanes,
            lanes_used=self.stats.lanes_used,
            queued=self.stats.queued,
            kv_live_tokens=self.stats.kv_live_tokens,
            kv_total_tokens=self.ready.kv_total_tokens,
            tokenizer_digest=self.ready.tokenizer_digest,
            text_digest=self.ready.text_digest,
            weights_digest=self.ready.weights_digest,
            numerics=self.ready.numerics,
            device=self.ready.device,
            prefixes=self.prefixes,
            steps=self.stats.steps,
        )

    def beat(self) -> WorkerBeat:
        """The worker's progress, for a heartbeat."""
        return WorkerBeat(
            model=self.name,
            worker=self.incarnation,
            phase=self._worker_phase(),
            steps=self.stats.steps,
        )

    def _worker_phase(self) -> str:
        """failed, hung, loading, or what a worker that is ready does: prefill, decode, idle."""
        if self.is_hung:
            return "hung"
        return self.stats.phase if self.phase == "ready" else self.phase


def describe_exit(returncode: int) -> str:
    """How a process ended, for a person. Negative is a signal's number, as Popen has it."""
    if returncode >= 0:
        return f"the worker ended with exit status {returncode}; its log says why"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = "unknown"
    return f"the worker was ended by signal {-returncode} ({name})"


def _cut(text: str, limit: int) -> str:
    return text.encode()[:limit].decode(errors="ignore")

"""One model that this node serves: the state of its worker and what the head is told of it.

failed ──started──▶ loading ──ready──▶ ready
  ▲                    │                 │
  └───exited or hung───┴─exited or hung──┘      (the pool starts it again, later each time)

One that is being unloaded is told of as `unloading`, whatever its worker does. The last stage of a
model stays in `loading` when its worker is loaded, until its chain is open (agent/stages.py).
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field, replace
from typing import Literal

from agent.load import RateMeter
from bus.agent_status import AgentModel
from bus.ids import ModelName, WorkerIncarnation
from bus.messages.parts import ModelStatus, StageStatus, WorkerBeat
from bus.messages.worker import Failed, Ready, WorkerStats
from bus.messages.worker_stages import StageOpened

Phase = Literal["loading", "ready", "failed"]
NO_WORKER = WorkerIncarnation(0)
#: Kind of a stage that is not the last, which serves nothing by itself.
STAGE_KIND = "stage"
#: Phase of the worker of a last stage that has no chain.
WAITS_FOR_STAGES = "stages"
_PROBLEM_BYTES = 1024

#: A model whose workers died so often in a row, without a word, counts as failed.
DEATHS_TO_FAIL = 3


@dataclass(slots=True)
class ServedModel:
    """A model and its worker. Owned by the core.

    Invariant: `ready` is set exactly in phase ready; `incarnation` is set except in phase failed;
    `loaded` is set in phase ready, and where a last stage waits for its chain.
    """

    name: ModelName
    phase: Phase = "loading"
    incarnation: WorkerIncarnation = NO_WORKER
    ready: Ready | None = None
    #: What the worker said when it was loaded; `ready` has what its chain gives.
    loaded: Ready | None = None
    #: Which part of a model it is; None of a whole one.
    stage: StageStatus | None = None
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

    @property
    def drives(self) -> bool:
        """Whether it is the last stage of a model, which is served by its worker."""
        return self.stage is not None and self.stage.is_last

    def started(self, incarnation: WorkerIncarnation) -> None:
        """A new worker process loads the model."""
        self.phase = "loading"
        self.incarnation = incarnation
        self.ready = self.loaded = None
        self.stats = WorkerStats()
        self.prefixes = ()
        self.last_words = None
        self.is_hung = False
        self.meter.restart()

    def became_ready(self, ready: Ready) -> None:
        """The worker has loaded the model and tried it, which it says once."""
        if self.loaded is not None:
            return
        self.loaded = ready
        self.stage = ready.stage
        self.kind = ready.kind if self.stage is None or self.drives else STAGE_KIND
        self.problem = self.problem_code = ""
        self.failures = 0
        if self.drives:
            self.problem = "it waits for the other stages of its model"
        else:
            self.phase, self.ready = "ready", ready

    def chain_opened(self, opened: StageOpened) -> None:
        """The chain of a last stage is open: it serves the whole model."""
        if self.loaded is None:
            return
        self.phase, self.problem = "ready", ""
        self.ready = replace(
            self.loaded,
            window_tokens=opened.window,
            lanes=opened.lanes,
            kv_total_tokens=opened.window * opened.lanes,
            numerics=opened.numerics,
        )

    def chain_closed(self, reason: str) -> None:
        """Its chain is over; the worker waits for the next one, if it lives."""
        if self.loaded is not None:
            self.phase, self.ready = "loading", None
            self.problem = reason
            self.prefixes = ()

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
        self.ready = self.loaded = None
        self.incarnation = NO_WORKER
        self.stats = WorkerStats()
        self.prefixes = ()
        self.problem = said.message if said else reason
        self.problem_code = said.code if said else ""

    def local_status(self) -> AgentModel:
        """What this machine is told."""
        return AgentModel(
            name=self.name,
            # On this machine nothing is left to be done for a stage that is loaded.
            phase="ready" if self._waits and not self.is_unloading else self.shown_phase,
            problem=self.problem,
            code=self.problem_code,
            failures=self.failures,
            device=self.loaded.device if self.loaded else "",
        )

    def status(self, shown: ModelName) -> ModelStatus:
        """What the head is told, under the name by which it knows the model."""
        common = ModelStatus(
            name=shown,
            phase=self.shown_phase,
            problem=_cut(self.problem, _PROBLEM_BYTES),
            decode_rate=self.meter.decode_rate,
            prefill_rate=self.meter.prefill_rate,
            worker=self.incarnation,
            worker_phase=self._worker_phase(),
            kind=self.kind,
            stage=self.stage and replace(self.stage, folder=self.name),
        )
        if self.ready is None and self.loaded is not None:
            # What a chain of it could have.
            return replace(
                common,
                window_tokens=self.loaded.window_tokens,
                lanes_total=self.loaded.lanes,
                device=self.loaded.device,
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

    def beat(self, shown: ModelName) -> WorkerBeat:
        """The worker's progress, for a heartbeat."""
        return WorkerBeat(
            model=shown,
            worker=self.incarnation,
            phase=self._worker_phase(),
            steps=self.stats.steps,
        )

    @property
    def _waits(self) -> bool:
        """Whether it is a last stage that is loaded and has no chain."""
        return self.loaded is not None and self.ready is None

    def _worker_phase(self) -> str:
        """failed, hung, loading, stages, or what a worker that is ready does: prefill and so on."""
        if self.is_hung:
            return "hung"
        if self._waits:
            return WAITS_FOR_STAGES
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

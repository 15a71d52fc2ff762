"""What the head keeps of a job until its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from bus.errors import SuperfluidError
from bus.ids import GenerationId, NodeIdentity, WorkerIncarnation
from bus.messages.link_jobs import FIRST_PARTS, JobStart
from head.effects import LinkKey
from head.fleet_node import Node
from head.job_kinds import JobDone, JobSpec, objection
from head.job_line import WaitingJob

#: Takes the body of a part.
OnPart = Callable[[bytes, float], None]
#: Takes the one end of a job.
OnEnd = Callable[[JobDone | SuperfluidError, float], None]


@dataclass(slots=True, kw_only=True)
class Try:
    """A job on a node. `parts` came of it, and the node may send those below `granted`.

    `weights` names the model's there, as in `ModelStatus`.
    """

    number: GenerationId
    node: Node
    link: LinkKey
    request: JobStart
    weights: int
    parts: int = 0
    granted: int = FIRST_PARTS

    @property
    def is_still(self) -> bool:
        """Whether the node has sent all that it may."""
        return self.parts == self.granted

    @property
    def worker(self) -> WorkerIncarnation | None:
        """The worker that has it, as the node's last status has it; None when that has none."""
        status = self.node.models.get(self.request.model)
        return None if status is None else status.worker


@dataclass(slots=True, kw_only=True)
class Job:
    """A job until its end. It waits in line exactly while `on` is None."""

    number: int
    spec: JobSpec
    on_part: OnPart
    on_end: OnEnd
    since_s: float
    on: Try | None = None
    #: Parts that its owner has.
    delivered: int = 0
    #: The weights that made them; 0 where the node does not say.
    weights: int = 0
    #: How often it was lost, when it was last, and how.
    lost: int = 0
    failed_s: float | None = None
    failure: str = ""
    #: Nodes that are left alone for a moment, and how often each was.
    resting: dict[NodeIdentity, str] = field(default_factory=dict)
    rests: Counter[NodeIdentity] = field(default_factory=Counter)
    #: Nodes that can not do it, and those of them that were full all the time.
    tried: dict[NodeIdentity, str] = field(default_factory=dict)
    full: set[NodeIdentity] = field(default_factory=set)
    #: When a node that works had no room for it, the first time.
    refused_s: float | None = None
    #: Its owner takes no further parts now.
    held: bool = False
    wall_timer: int | None = None

    @property
    def in_line(self) -> WaitingJob:
        """The job as it waits."""
        spec = self.spec
        return WaitingJob(job=self.number, client=spec.client, qos=spec.qos, queued_s=self.since_s)

    def request(self, number: GenerationId, now: float) -> JobStart:
        """What a node is asked that is to do it from here on.

        Args:
            number: of this try.
        """
        spec = self.spec
        body = spec.body
        if self.delivered and spec.resume is not None and not spec.of_kind.repeats:
            body = spec.resume(body, self.delivered)
        left_ms = spec.wall_ms - round((now - self.since_s) * 1000)
        return JobStart(
            job=number,
            model=spec.model,
            kind=spec.kind,
            body=body,
            blobs=spec.blobs,
            qos=spec.qos,
            wall_ms=max(left_ms, 1) if spec.wall_ms else 0,
        )

    def objection(self, node: Node) -> str:
        """Why a node can not do the rest of it now, however much room it has."""
        name, spec = node.identity, self.spec
        found = self.tried.get(name) or self.resting.get(name) or objection(node, spec)
        if found or not self.delivered or spec.of_kind.repeats:
            return found
        if node.models[spec.model].weights_digest == self.weights:
            return ""
        return f"its weights of {spec.model} are others than those that the job began with"

"""Jobs of nodes, from the first place in line to the one end, over all losses in between.

    submit ──▶ waits ──a node has room──▶ runs ──JobEnd──▶ on_end
                 ▲                         │  link or worker lost, the node is busy
                 └─────────────────────────┘

A job has begun when its JobStart has left, behind its files; until then it is not lost with a node,
nor left on one that drains. One that is lost begins again, anywhere, at most `MAX_STARTS` times;
its owner sees each part once and in order. One that no node can do waits as long for one as a
request for text does (head/waiting.py). Only what fits goes to nodes, everything else waits here,
by class and fairly by client (head/job_line.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from bus.errors import BlobMissing, Expired, NodeLost, QueueFull, SuperfluidError
from bus.ids import GenerationId, ModelName, NodeIdentity
from bus.messages.link_jobs import (
    MODEL_NOT_READY,
    MODEL_NOT_SERVED,
    UNKNOWN_KIND,
    WORKER_BEHIND,
    WORKER_LOST,
    JobCancel,
    JobEnd,
    JobPart,
)
from bus.timers import Timers
from head.blobs import BlobDesk
from head.effects import NOBODY, ClientKey, LinkKey
from head.fleet import Fleet
from head.fleet_node import Node
from head.job_credit import JobCredit
from head.job_kinds import JobDone, JobSpec
from head.job_line import JobLine
from head.job_records import Job, OnEnd, OnPart, Try
from head.job_refusals import error_of, line_full, no_place
from head.job_room import JobRoom
from head.job_waits import JobWaits
from head.outbox import Outbox
from head.waiting import MAX_RESTS, REST_S, WaitingPolicy

__all__ = ["JobDesk", "JobDone", "JobSpec"]

#: How often a job is begun before it counts as lost.
MAX_STARTS = 3
#: Bytes of bodies of all jobs.
MAX_BODIES_BYTES = 128 * 1024 * 1024
#: Lines of models of which no job is known may stay while there are fewer lines than this.
MAX_IDLE_LINES = 256
#: Jobs that are looked at behind ones that no node takes now.
LOOK_AHEAD = 64
#: A node can not now, and may a moment later.
PASSING_CODES = frozenset({MODEL_NOT_READY, MODEL_NOT_SERVED, WORKER_BEHIND, QueueFull.code})
#: Those of a node that is full: while it works, it will have room.
FULL_CODES = frozenset({WORKER_BEHIND, QueueFull.code})


class JobDesk:
    """Owned by the core's runs.

    Invariants: every job that runs is in `_by_try` under its try's number, and every other one in
    its model's line; each node's `jobs` counts what runs there. `room` says where one may begin.

    Args:
        policy: how many may wait, and how long for a node that may come.
        failover_wait_s: how long one that was lost waits for another node.
        now: this moment; nodes may be on their way.
        next_number: gives generation numbers.
    """

    def __init__(
        self,
        *,
        policy: WaitingPolicy,
        failover_wait_s: float,
        now: float,
        outbox: Outbox,
        fleet: Fleet,
        blobs: BlobDesk,
        timers: Timers,
        next_number: Callable[[], int],
    ) -> None:
        self._policy = policy
        self._outbox = outbox
        self._fleet = fleet
        self._blobs = blobs
        self.timers = timers
        self._next_number = next_number
        self.room = JobRoom(fleet, timers, self.schedule)
        self._waits = JobWaits(fleet, policy, failover_wait_s, now, timers, self.schedule_all)
        self._credit = JobCredit(outbox, self.room.holds)
        self._last_job = 0
        self._jobs: dict[int, Job] = {}
        self._by_try: dict[GenerationId, Job] = {}
        self._lines: dict[ModelName, JobLine] = {}

    def submit(self, spec: JobSpec, on_part: OnPart, on_end: OnEnd, now: float) -> int:
        """Have a job done. Its end may come before this returns.

        Returns:
            The job's number, for `cancel`.

        Raises:
            QueueFull: too many wait.
        """
        line = self._line(spec.model)
        size = sum(len(job.spec.body) for job in self._jobs.values()) + len(spec.body)
        if len(line) >= self._policy.queue_limit or size > MAX_BODIES_BYTES:
            raise line_full(spec.model, len(line))
        self._last_job += 1
        job = Job(number=self._last_job, spec=spec, on_part=on_part, on_end=on_end, since_s=now)
        self._jobs[job.number] = job
        if spec.wall_ms:
            due = now + spec.wall_ms / 1000
            job.wall_timer = self.timers.at(due, lambda at: self._expire(job, at))
        line.push(job.in_line)
        self.schedule(spec.model, now)
        return job.number

    def cancel(self, number: int, now: float) -> None:
        """Nobody waits for a job any more; it gives nothing from now on. Fine when it is over."""
        if (job := self._jobs.get(number)) is not None:
            self._forget(job, now)

    def hold(self, number: int, *, held: bool) -> None:
        """Whether a job's owner takes no further parts now; some are on their way anyhow."""
        if (job := self._jobs.get(number)) is not None:
            job.held = held
            self._credit.grant(job)

    def node_of(self, number: int | None) -> NodeIdentity | None:
        """The node that a job is on."""
        job = None if number is None else self._jobs.get(number)
        return None if job is None or job.on is None else job.on.node.identity

    def blobs_in_use(self) -> set[bytes]:
        """Hashes of the files that jobs name."""
        return {blob.sha256 for job in self._jobs.values() for blob in job.spec.blobs}

    @property
    def running(self) -> int:
        return len(self._by_try)

    def counts(self) -> dict[ModelName, int]:
        """How many jobs wait, by model."""
        return {model: len(line) for model, line in self._lines.items() if len(line)}

    # --- clients ------------------------------------------------------------------------------

    def client_gone(self, client: ClientKey, now: float) -> None:
        """End what a client's connection asked for."""
        self._credit.gone(client)
        for job in [job for job in self._jobs.values() if job.spec.client == client != NOBODY]:
            self._forget(job, now)

    def client_stalled(self, client: ClientKey) -> None:
        """A client takes nothing: its jobs send no further parts."""
        self._credit.stall(client)

    def client_reads(self, client: ClientKey, now: float) -> None:
        """It reads again."""
        self._credit.reads(client, self._by_try.values())
        self.schedule_released(now)

    # --- nodes --------------------------------------------------------------------------------

    def link_down(self, link: LinkKey, reason: str, now: float, *, left: bool) -> None:
        """A node's link ended, with all jobs there; `left` when it said goodbye."""
        self._waits.link_down(now)
        for job in list(self._by_try.values()):
            if job.on is None or job.on.link != link:
                continue
            if self._blobs.is_waiting(job.on.number):
                self._wait_again(job, now)
            else:
                why = f"the link to {job.on.node.identity} ended ({reason})"
                self._lose(job, why, now, counts=not left)

    def leave_drained(self, now: float) -> None:
        """What a node that drains has not begun waits in line again."""
        for job in list(self._by_try.values()):
            on = job.on
            if on is not None and on.node.draining and self._blobs.is_waiting(on.number):
                self._wait_again(job, now)

    def receive(self, link: LinkKey, message: JobPart | JobEnd, now: float) -> None:
        """What a node says of a job; of one that is not there any more it is passed over."""
        job = self._by_try.get(message.job)
        if job is None or job.on is None or job.on.link != link:
            return
        if isinstance(message, JobPart):
            self._part(job, job.on, message, now)
        elif message.code:
            self._failed(job, job.on, message, now)
        elif message.parts != job.on.parts:
            self._outbox.close_link(link, f"job {message.job} ended without all of its parts")
        else:
            done = JobDone(body=message.body, node=job.on.node.identity)
            self._take_off(job, now)
            self._end(job, done, now)

    def _part(self, job: Job, on: Try, message: JobPart, now: float) -> None:
        if message.seq != on.parts or message.seq >= on.granted:
            why = f"part {message.seq} of job {message.job} where {on.parts} was due"
            self._outbox.close_link(on.link, why)
            return
        on.parts += 1
        self._credit.grant(job)
        if job.number in self.room.holds.still:
            self.timers.at(now, lambda at: self.schedule(job.spec.model, at))
        # Of a job that was begun anew its owner has the first ones.
        if not job.spec.of_kind.repeats or message.seq >= job.delivered:
            job.delivered += 1
            job.weights = on.weights
            job.on_part(message.body, now)

    def _failed(self, job: Job, on: Try, end: JobEnd, now: float) -> None:
        name, why = on.node.identity, end.message or end.code
        if end.code == WORKER_LOST:
            if (worker := on.worker) is not None:
                self._fleet.worker_lost(name, job.spec.model, worker, now)
            self._lose(job, f"the worker of {job.spec.model} on {name} died ({why})", now)
        elif end.code in PASSING_CODES:
            self._rest(job, on.node, end.code, why, now)
        elif end.code == UNKNOWN_KIND:
            self._leave(job, on.node, why, now)
        elif end.code == BlobMissing.code:
            if on.node.draining:
                self._wait_again(job, now)
            elif not self._blobs.missing(on.link, on.request, self._file_failed(job, on), now):
                self._leave(job, on.node, why, now)
        else:
            self._take_off(job, now)
            self._end(job, error_of(end, name), now)

    def _file_failed(self, job: Job, on: Try) -> Callable[[str, str, float], None]:
        def failed(code: str, message: str, now: float) -> None:
            if job.on is on:
                self._leave(job, on.node, f"a file did not reach it: {message}", now)

        return failed

    # --- from node to node ----------------------------------------------------------------------

    def _lose(self, job: Job, why: str, now: float, *, counts: bool = True) -> None:
        """What ran is gone: begin again, where that is possible."""
        self._take_off(job, now)
        job.lost += counts
        job.failed_s, job.failure = now, why
        spec = job.spec
        if job.lost >= MAX_STARTS:
            self._end(job, NodeLost(f"{why}; it was begun {job.lost} times; ask again"), now)
        elif job.delivered and not spec.of_kind.repeats and spec.resume is None:
            self._end(job, NodeLost(f"{why}, and it can not go on in its middle; ask again"), now)
        else:
            self._wait_again(job, now)

    def _rest(self, job: Job, node: Node, code: str, why: str, now: float) -> None:
        """Leave a node alone for a moment that could not take the job now."""
        identity = node.identity
        self._take_off(job, now, makes_room=False)
        if code in FULL_CODES and self.room.refused(node, job, now):
            self._wait_again(job, now)
            return
        job.rests[identity] += 1
        if job.rests[identity] > MAX_RESTS:
            if code in FULL_CODES:
                job.full.add(identity)
            self._leave(job, node, why, now)
            return

        def rested(at: float) -> None:
            job.resting.pop(identity, None)
            self.schedule(job.spec.model, at)

        job.resting[identity] = why
        self.timers.at(now + REST_S, rested)
        self._wait_again(job, now)

    def _leave(self, job: Job, node: Node, why: str, now: float) -> None:
        """A node can not do this job."""
        job.tried[node.identity] = why
        self._wait_again(job, now)

    def _wait_again(self, job: Job, now: float) -> None:
        self._take_off(job, now)
        self._lines[job.spec.model].put_back(job.in_line)
        self.schedule(job.spec.model, now)

    def _take_off(self, job: Job, now: float, *, makes_room: bool = True) -> None:
        on, job.on = job.on, None
        self.room.holds.goes_on(job)
        if on is not None:
            del self._by_try[on.number]
            on.node.jobs[job.spec.model] -= 1
            if makes_room:
                self.room.ended(on.node, job.spec.model)
            self._blobs.drop(on.link, on.number, now)

    # --- placing ------------------------------------------------------------------------------

    def schedule_all(self, now: float) -> None:
        """Something changed that may let jobs begin."""
        for model in list(self._lines):
            self.schedule(model, now)

    def schedule_released(self, now: float) -> None:
        """Clients take results again, which may let further jobs of theirs begin."""
        for model in self.room.holds.take_released():
            self.schedule(model, now)

    def _line(self, model: ModelName) -> JobLine:
        if model not in self._lines:
            if len(self._lines) >= MAX_IDLE_LINES:
                used = {job.spec.model for job in self._jobs.values()}
                self._lines = {name: self._lines[name] for name in used}
            self._lines[model] = JobLine(lambda: self.room.holds.of(model))
        return self._lines[model]

    def schedule(self, model: ModelName, now: float) -> None:
        """Begin what can begin of a model's jobs, in their turn."""
        line = self._lines.get(model)
        if not line or self.room.is_none(model):
            return
        while self._begin_some(line, now):
            pass
        for number in [*line.candidates(LOOK_AHEAD), *line.held(LOOK_AHEAD)]:
            # What ends has an owner, who may ask for more at once.
            if (job := self._jobs.get(number)) is not None and job.on is None:
                self._refuse_hopeless(job, now)

    def _begin_some(self, line: JobLine, now: float) -> bool:
        """Begin what can begin of the next jobs; False when none can."""
        begun = False
        for number in line.candidates(LOOK_AHEAD):
            # One that begins may fail at once, and let others begin or wait again.
            job = self._jobs.get(number)
            if job is not None and job.on is None and self._place(job, now):
                begun = True
        return begun

    def _place(self, job: Job, now: float) -> bool:
        """Begin a job where least of its model runs; False when no node can do it now."""
        node = self.room.best(job)
        if node is None or node.link is None:
            return False
        self._begin(job, node, node.link, now)
        return True

    def _begin(self, job: Job, node: Node, link: LinkKey, now: float) -> None:
        model = job.spec.model
        self._lines[model].take(job.number)
        request = job.request(GenerationId(self._next_number()), now)
        weights = node.models[model].weights_digest
        on = job.on = Try(
            number=request.job, node=node, link=link, request=request, weights=weights
        )
        self._by_try[on.number] = job
        node.jobs[model] += 1
        self._blobs.generate(link, request, self._file_failed(job, on), now)

    def _refuse_hopeless(self, job: Job, now: float) -> None:
        """End a job that waits when no node can do it, and none may come in time."""
        objections = {node.identity: job.objection(node) for node in self._fleet.nodes}
        if job.resting or not all(objections.values()):
            return
        if (until := self._waits.until(job, now)) is None:
            self._end(job, no_place(self._fleet, job, objections), now)
        else:
            self._waits.look_by(until, now)

    # --- ends ---------------------------------------------------------------------------------

    def _expire(self, job: Job, now: float) -> None:
        job.wall_timer = None
        text = f"the wall budget of {job.spec.wall_ms} ms ended before the job; give it more"
        if job.number in self._jobs:  # Another timer of this moment may have ended it.
            self._end(job, Expired(text), now)

    def _end(self, job: Job, result: JobDone | SuperfluidError, now: float) -> None:
        self._forget(job, now)
        job.on_end(result, now)

    def _forget(self, job: Job, now: float) -> None:
        """Take a job out; the node that has it is told."""
        model, on = job.spec.model, job.on
        del self._jobs[job.number]
        self.timers.cancel(job.wall_timer)
        if on is None:
            self._lines[model].remove(job.number)
        else:
            self._take_off(job, now)
            self._outbox.send(on.link, JobCancel(job=on.number))
        if len(self._lines[model]):
            self.timers.at(now, lambda at: self.schedule(model, at))

    def validate_state(self) -> None:
        """Check the invariants; for tests.

        Raises:
            ValueError: one does not hold.
        """
        running = {job.on.number: job for job in self._jobs.values() if job.on is not None}
        counted = Counter(
            (job.on.node.identity, job.spec.model) for job in running.values() if job.on
        )
        kept = {
            (node.identity, model): count
            for node in self._fleet.nodes
            for model, count in node.jobs.items()
            if count
        }
        still = {job.number for job in running.values() if job.on and job.on.is_still}
        if running != self._by_try or counted != kept or still != self.room.holds.still:
            raise ValueError("what runs is not what is counted")
        if sum(map(len, self._lines.values())) != len(self._jobs) - len(running):
            raise ValueError("a job neither runs nor waits, or does both")

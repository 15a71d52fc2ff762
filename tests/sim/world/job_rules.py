"""Jobs: none for nobody, none twice at once, and each goes on where what was delivered ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bus.ids import GenerationId
from bus.messages.job_bodies import EMBED, EmbedBody, EmbedPart, TranscribeBody, TranscribePart
from bus.messages.job_bodies import unpack_body as unpack
from bus.messages.link_jobs import (
    FIRST_PARTS,
    WORKER_LOST,
    JobCancel,
    JobEnd,
    JobMore,
    JobPart,
    JobStart,
)
from bus.text.tokenizer_export import TOKENIZER_JOB
from head.effects import CloseLink, Effects, Reply, SendLink
from head.job_room import MAX_IN_FLIGHT
from head.jobs import MAX_STARTS
from tests.sim.world.job_plans import JobAsk, JobPlan
from tests.sim.world.job_service import JobService
from tests.sim.world.record import Record, Violation
from tests.sim.world.verdicts import DRIFT

if TYPE_CHECKING:
    from tests.sim.world.world import World
#: A head ends a request whose budget is over within this.
EXPIRED_S = 1.0


@dataclass(slots=True)
class _Try:
    """A job on a node; `ask` is None for what the head itself wants."""

    start: JobStart
    node: str
    ask: JobAsk | None
    #: Parts that came, and that may come.
    parts: int = 0
    allowed: int = FIRST_PARTS
    has_stood_still: bool = False

    @property
    def stands_still(self) -> bool:
        """Whether all has come that may, since nobody takes it: it keeps no place on its node."""
        return self.parts >= self.allowed


class JobRules:
    """Args: the world, the record, and how long jobs wait for nodes."""

    def __init__(
        self, world: World, record: Record, *, node_wait_s: float, failover_wait_s: float
    ) -> None:
        self._world = world
        self._record = record
        self.service = JobService(world, record)
        self._node_wait_s = node_wait_s
        self._failover_wait_s = failover_wait_s
        #: By client and request.
        self.asks: dict[tuple[bytes, bytes], JobAsk] = {}
        self._tries: dict[GenerationId, _Try] = {}
        self._numbers: set[GenerationId] = set()
        #: By node: jobs that it was given on its present link, and those that nobody waits for.
        self._taken: dict[str, set[GenerationId]] = {}
        self._over: dict[str, set[GenerationId]] = {}

    # --- the head -----------------------------------------------------------------------------

    def head_died(self) -> None:
        self._tries.clear()
        self.asks.clear()

    def effects(self, effects: Effects) -> None:
        """What the head decided in one round."""
        if not self.asks and not self._tries and not self._world.profile.jobs:
            return
        for tagged in effects.outputs:
            match tagged.output:
                case SendLink(link=link, message=JobStart() as start):
                    self._begin(start, link)
                case SendLink(message=JobCancel(job=job)):
                    self._tries.pop(job, None)
                case SendLink(message=JobMore(job=job, parts=parts)):
                    if (known := self._tries.get(job)) is not None:
                        known.allowed = parts
                case Reply(client=client, body=body):
                    self._reply(client, body)
                case CloseLink(reason=reason) if "job" in reason:
                    raise Violation(f"the head closes a link: {reason}")
        self._look_who_stands_still()
        for one in self._tries.values():
            if one.ask is not None and (one.ask.gone or one.ask.ended):
                raise Violation(f"a job of {one.ask.plan.name} runs on for nobody")

    def _begin(self, start: JobStart, link: int) -> None:
        head = self._world.fleet.head
        assert head is not None
        node = head.names[link]
        if start.job in self._numbers or start.job in self._record.runs:
            raise Violation(f"job {start.job:x} is a number that was used before")
        self._numbers.add(start.job)
        # Giving a tokenizer is no work that drained nodes are spared.
        is_work = start.kind != TOKENIZER_JOB
        if is_work and self._record.node(node).drain_told_s is not None:
            raise Violation(f"a job begins on {node}, which is drained")
        ask = self._ask_of(start)
        if not head.has_link(link):
            # Its link ended in the round that it was decided in.
            if ask is not None:
                ask.starts, ask.losses = ask.starts + 1, ask.losses + 1
            return
        self._tries[start.job] = _Try(start, node, ask)
        self._look_who_stands_still()
        running = self._running_on(node, start)
        if running > MAX_IN_FLIGHT:
            raise Violation(f"{node} has {running} jobs of {start.model} at once")
        asked = [one for one in self._tries.values() if one.ask is ask]
        if len(asked) > 1:
            raise Violation(f"{len(asked)} jobs run at once for {ask and ask.plan.name}")
        if ask is not None:
            self._check_begin(ask, start)

    def _ask_of(self, start: JobStart) -> JobAsk | None:
        if start.kind == TOKENIZER_JOB:
            return None
        plans = self._world.job_plans
        if start.kind == EMBED:
            inputs = unpack(EmbedBody, start.body).inputs
            found = [plan for plan in plans if plan.texts and plan.inputs[-1] == inputs[-1]]
        else:
            found = [p for p in plans if p.sound and p.sha256 == start.blobs[0].sha256]
        if len(found) != 1 or found[0].ask is None:
            raise Violation(f"a job begins that nobody asked for: {start.kind}")
        return found[0].ask

    def _running_on(self, node: str, start: JobStart) -> int:
        """How many jobs keep a place of their model there, with one that begins now.

        While its file was on its way, jobs may have gone on that had left it their place.
        """
        return sum(
            not (one.has_stood_still if start.blobs else one.stands_still)
            for one in self._tries.values()
            if (one.node, one.start.model) == (node, start.model)
        )

    def _look_who_stands_still(self) -> None:
        """At jobs whose nodes wait for leave, since nobody takes what came."""
        for one in self._tries.values():
            one.has_stood_still = one.has_stood_still or one.stands_still

    def _check_begin(self, ask: JobAsk, start: JobStart) -> None:
        """It is still wanted, and goes on behind what came."""
        plan = ask.plan
        ask.starts += 1
        if ask.losses >= MAX_STARTS:
            raise Violation(f"{plan.name} begins again after {ask.losses} losses")
        if ask.starts > 1:
            self._record.count(f"{plan.kind} again{' in its middle' if ask.parts else ''}")
        if plan.texts:
            left = plan.inputs[min(ask.given, len(plan.texts) - 1) :]
            if list(unpack(EmbedBody, start.body).inputs) != left:
                raise Violation(f"{plan.name} goes on with others than its last {len(left)} texts")
            return
        language, from_s = plan.language, plan.from_s
        if ask.parts:
            last = unpack(TranscribePart, ask.parts[-1])
            language, from_s = language or last.language, last.next_s
        if unpack(TranscribeBody, start.body) != TranscribeBody(language=language, from_s=from_s):
            raise Violation(f"{plan.name} does not go on at {from_s} s in {language!r}")

    def _reply(self, client: bytes, body: dict[str, Any]) -> None:
        ask = self.asks.get((client, body.get("id") or b""))
        if ask is None:
            return
        if ask.ended:
            raise Violation(f"{ask.plan.name} is told {body} after its end")
        if body["kind"] == "event":
            ask.events += 1
        else:
            ask.ended = True

    def look(self, now: float, acting_since: float) -> None:
        """At requests whose budget is over, of a head that is there since."""
        for ask in self.asks.values():
            # Its error comes after what waits for credit.
            if not ask.plan.wall_ms or ask.ended or ask.gone or len(ask.parts) > ask.events:
                continue
            # A head that was stopped heard of it when it went on.
            heard_s = max(ask.asked_s, acting_since)
            due_s = heard_s + ask.plan.wall_ms / 1000 * (1 + DRIFT)
            if now > due_s + EXPIRED_S:
                raise Violation(f"{ask.plan.name} has outlived its budget by {now - due_s:.1f} s")

    # --- links --------------------------------------------------------------------------------

    def head_took(self, node: str, message: object) -> None:
        if not isinstance(message, JobPart | JobEnd):
            return
        one = self._tries.get(message.job)
        if one is None or one.node != node:
            return
        if isinstance(message, JobEnd):
            del self._tries[message.job]
            if one.ask is not None and message.code:
                one.ask.losses += message.code == WORKER_LOST
                self._record.count(f"job {message.code}")
            return
        one.parts += 1
        if one.ask is not None:
            self._part(one.ask, message)

    def _part(self, ask: JobAsk, part: JobPart) -> None:
        ask.parts.append(part.body)
        if ask.plan.texts:
            ask.given = min(ask.given + unpack(EmbedPart, part.body).count, len(ask.plan.texts))
        # What may be on its way when a job begins, or when its parts begin to wait for credit.
        if len(ask.parts) - ask.events > FIRST_PARTS * (ask.starts + 1):
            raise Violation(f"{len(ask.parts)} parts came for {ask.plan.name}, who reads slowly")

    def link_down(self, node: str) -> None:
        """The head lost a node's link, and all that it had there."""
        for number in [number for number, one in self._tries.items() if one.node == node]:
            ask = self._tries.pop(number).ask
            if ask is not None:
                ask.losses += 1

    # --- nodes --------------------------------------------------------------------------------

    def node_took(self, node: str, message: object) -> None:
        if isinstance(message, JobStart):
            self._taken.setdefault(node, set()).add(message.job)
        elif isinstance(message, JobCancel):
            self._over.setdefault(node, set()).add(message.job)

    def node_unlinked(self, node: str) -> None:
        """What a node had was of its link."""
        self._over.setdefault(node, set()).update(self._taken.pop(node, ()))

    def computed(self, node: str, message: object) -> None:
        """A worker has done something of a job."""
        job = getattr(message, "job", 0)
        if job in self._over.get(node, ()):
            raise Violation(f"{node} works on job {job:x} for nobody")

    # --- ends ---------------------------------------------------------------------------------

    def judge(self, plan: JobPlan, error: dict[str, Any], now: float) -> str:
        """Why an error is no legitimate end; empty when it is one."""
        ask, code = plan.ask, error["code"]
        if ask is None:
            return "it was not asked for"
        if code == "expired":
            return self.service.expired(plan.wall_ms, now - ask.asked_s)
        if code == "node_lost":
            if ask.losses >= MAX_STARTS:
                return ""
            if not ask.losses:
                return "nothing of it was lost"
            return self.service.unserved(plan.model, self._failover_wait_s, now)
        if code == "no_node":
            return self.service.unserved(plan.model, self._node_wait_s, now)
        return f"{code} is never an end of it"

    def check_quiet(self) -> None:
        """Nothing of any job is left anywhere."""
        head = self._world.fleet.head
        if self._tries:
            raise Violation(f"jobs are left: {[one.start.kind for one in self._tries.values()]}")
        if head is None:
            return
        desk, requests = head.core.runs.jobs, head.core._api.jobs
        desk.validate_state()
        if desk.counts() or desk.running or desk._jobs or desk.blobs_in_use():
            raise Violation(f"the desk still has {desk.counts()} jobs and runs {desk.running}")
        if requests._open or requests._kept or +requests._waiting_bytes:
            raise Violation(f"the head keeps requests of jobs: {list(requests._open)}")
        if head.core.tokenizers._fetches:
            raise Violation("the head still fetches tokenizers")
        for node in self._world.fleet.nodes:
            for model, made in node.side.workers.items():
                if made.jobs:
                    raise Violation(f"the worker of {model} on {node.name} has jobs")

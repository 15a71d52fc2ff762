"""One run: a fleet, callers, faults and the oracle, all of one seed."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from bus.errors import Internal
from bus.ids import PackedIds, SessionId, pack_ids
from bus.link import LinkLimits
from head.core import CorePolicy
from head.runs import RunPolicy
from head.waiting import WaitingPolicy
from tests.harness.memory_fleet import MemoryFleet
from tests.harness.memory_node import NodeHost
from tests.harness.memory_worker import MadeUpModel
from tests.sim.world.callers import Caller
from tests.sim.world.chat_text import chat_reply, slow_texts
from tests.sim.world.chats import ChatConversation
from tests.sim.world.clients import Clients
from tests.sim.world.conversations import Conversation, served
from tests.sim.world.drainer import Drainer
from tests.sim.world.faults import RESPAWN_S, Faults
from tests.sim.world.figures import set_figures
from tests.sim.world.job_callers import JobCaller
from tests.sim.world.job_fleet import set_up_jobs
from tests.sim.world.job_plans import JobPlan
from tests.sim.world.job_plans import draw_plan as draw_job
from tests.sim.world.operator import Operator
from tests.sim.world.oracle import Oracle
from tests.sim.world.poison import draw as draw_poison
from tests.sim.world.profiles import Profile, choose
from tests.sim.world.record import Plan, Record, Violation, drawn_sampling
from tests.sim.world.verdicts import Verdicts

#: All calls end so long after everything is mended; most of it is waiting for the next dial.
HEALED_S = 120.0
#: Then leases run out and statuses come, before nothing may be left.
QUIET_S = 4.0
#: Events of one run; more is a livelock.
MAX_EVENTS = 200_000
NODE_WAIT_S = 30.0
GRACE_S = 5.0
EXPIRED_GRACE_S = 4.0


@dataclass(slots=True)
class Outcome:
    """What came of a run."""

    seed: int
    profile: str
    events: int = 0
    virtual_s: float = 0.0
    #: What was violated; empty when nothing was.
    violation: str = ""
    #: `oracle`, `invariant` (a core's own check) or `crash`.
    kind: str = ""
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def replay(self) -> str:
        return f"python -m tests.sim --seed {self.seed} --profile {self.profile} --trace"


class World:
    """A run that is set up; `run` lets it happen.

    Args:
        seed: decides everything.
        profile: what goes wrong.
        trace: takes a line for each thing that happens.
    """

    def __init__(
        self, seed: int, profile: Profile, trace: Callable[[str], None] | None = None
    ) -> None:
        self.seed = seed
        self.profile = profile
        self.rng = random.Random(f"{seed} {profile.name}")
        self._trace = trace
        self.record = Record()
        rng = self.rng
        self.step_s = rng.choice(profile.step_s)
        runs, verdicts = self._policies()
        self.fleet: MemoryFleet = None  # type: ignore[assignment]
        self.oracle = Oracle(self, verdicts, self.record)
        nodes = rng.randint(*profile.nodes)
        self.fleet = QuietFleet(
            seed=rng.getrandbits(64),
            nodes=nodes,
            commit_s=rng.choice(profile.commit_s),
            policy=CorePolicy(runs=runs, disconnect_grace_s=GRACE_S),
            limits=LinkLimits(
                silence_s=rng.choice(profile.silence_s),
                reject_retry_s=5.0,
                rekey_s=rng.choice(profile.rekey_s),
            ),
            listening=rng.randint(0, nodes),
            watch=self.oracle,
            files=profile.jobs > 0,
        )
        self.callers = Clients(self)
        self.oracle.callers = self.callers
        self.operator = Operator(self)
        self.callers.add(self.operator)
        self.drainer = Drainer(self)
        self.callers.add(self.drainer)
        self.conversations: list[Conversation] = []
        self.job_plans: list[JobPlan] = []
        self._set_up_fleet()
        self.faults = Faults(self, profile)
        self._plan_calls()

    def _policies(self) -> tuple[RunPolicy, Verdicts]:
        rng, profile = self.rng, self.profile
        times = {
            "reattach_s": rng.choice(profile.reattach_s),
            "adopt_s": rng.choice(profile.adopt_s),
            "failover_wait_s": rng.choice(profile.failover_wait_s),
        }
        queue_limit = rng.choice(profile.queue_limit)
        runs = RunPolicy(
            waiting=WaitingPolicy(node_wait_s=NODE_WAIT_S, queue_limit=queue_limit),
            lease_s=rng.choice(profile.lease_s),
            grace_s=EXPIRED_GRACE_S,
            **times,
        )
        verdicts = Verdicts(
            self.record,
            node_wait_s=NODE_WAIT_S,
            grace_s=GRACE_S,
            queue_limit=queue_limit,
            open_calls=lambda: self.callers.asked,
            **times,
        )
        return runs, verdicts

    def _set_up_fleet(self) -> None:
        fleet, rng, profile = self.fleet, self.rng, self.profile
        network = fleet.network
        network.delay_s = rng.choice(profile.delay_s)
        network.drop = rng.choice(profile.drop)
        network.duplicate = rng.choice(profile.duplicate)
        network.reorder = rng.choice(profile.reorder)
        network.misdirect = rng.choice(profile.misdirect)
        fleet.step_s, fleet.burst = self.step_s, rng.choice(profile.bursts)
        fleet.repeat = rng.choice(profile.repeat)
        fleet.respawn_s = rng.choice(RESPAWN_S)
        fleet.mark = self.record.mark
        model = MadeUpModel(seeded=True, ends=profile.ends)
        self.record.model = model.answer
        set_figures(fleet, self.seed)
        if profile.chats:
            fleet.text_reply = chat_reply
            texts = random.Random(f"texts {self.seed}")
            fleet.text_s = slow_texts(texts, texts.choice(profile.text_s))
        drift = profile.drift
        fleet.head_clock = (1 + rng.uniform(-drift, drift), rng.uniform(0, 1e4))
        for number, node in enumerate(fleet.nodes):
            node.rate, node.offset_s = 1 + rng.uniform(-drift, drift), rng.uniform(0, 1e4)
            node.model = model
            node.load_s = rng.choice((0.0, 0.3, 1.0))
            node.window = 1 << 20
            node.is_deaf = (self.seed + number) % 4 == 0
        if profile.jobs:
            set_up_jobs(self)

    # --- calls --------------------------------------------------------------------------------

    def _plan_calls(self) -> None:
        rng, profile = self.rng, self.profile
        self.faulty_s = rng.uniform(*profile.faulty_s)
        for number in range(rng.randint(*profile.calls)):
            if profile.jobs and rng.random() < profile.jobs:
                self._plan_job(f"job-{number}")
                continue
            if profile.chats and rng.random() < profile.chats:
                self._plan_conversation(f"chat-{number}", ChatConversation)
                continue
            if served() and rng.random() < profile.sessions:
                self._plan_conversation(f"talk-{number}")
                continue
            caller = Caller(self, self._plan(f"call-{number}"))
            self.callers.add(caller)
            self._let_come(caller)

    def _let_come(self, caller: Caller | JobCaller) -> None:
        rng, profile = self.rng, self.profile
        begin_s = rng.uniform(0.0, 0.8 * self.faulty_s)
        self.fleet.after(begin_s, caller.start)
        if rng.random() < profile.cancelled:
            self.fleet.after(begin_s + rng.expovariate(0.5), caller.cancel)
        if rng.random() < profile.dropped:
            self.fleet.after(begin_s + rng.expovariate(0.5), caller.drop)

    def _plan_job(self, name: str) -> None:
        plan = draw_job(self.rng, name, self.profile)
        self.job_plans.append(plan)
        caller = JobCaller(self, plan)
        self.callers.add(caller)
        self._let_come(caller)

    def _plan_conversation(self, name: str, kind: type[Conversation] = Conversation) -> None:
        talk = kind(self, name, self.rng.randint(2, 4))
        self.add_conversation(talk)
        self.fleet.after(self.rng.uniform(0.0, 0.6 * self.faulty_s), talk.start)

    def add_conversation(self, talk: Conversation) -> None:
        """One that begins, or goes on from another's context."""
        self.callers.add(talk)
        self.conversations.append(talk)

    def _plan(self, name: str) -> Plan:
        rng, profile = self.rng, self.profile
        ids = [rng.randrange(32, 126) for _ in range(rng.randint(8, 24))]
        poison = rng.random() < profile.poisoned
        max_new = rng.randint(*profile.tokens)
        if poison:
            draw_poison(rng, ids, max_new)
        prompt = PackedIds(pack_ids(ids))
        seed = rng.getrandbits(63)
        key = f"key {name}" if rng.random() < profile.keyed else None
        plan = Plan(
            name=name,
            prompt=prompt,
            max_new=max_new,
            seed=seed,
            expected=[],
            reason="",
            key=key,
            keep=key is not None or rng.random() < 0.3,
            poison=poison,
            wall_ms=rng.randint(500, 8000) if rng.random() < profile.budgeted else 0,
            credit=rng.choice((2, 5)) if rng.random() < profile.small_credit else 4096,
            **drawn_sampling(seed),
        )
        plan.expect(self.record.model)
        self.record.plans[bytes(prompt)] = plan
        return plan

    # --- the run ------------------------------------------------------------------------------

    def run(self) -> None:
        """Let it happen.

        Raises:
            Violation: a rule was broken.
        """
        fleet = self.fleet
        fleet.start()
        self.faults.start()
        self._pass(self.faulty_s)
        self.say("HEALED")
        self.faults.stop()
        healed = fleet.now
        while self.callers.open:
            if fleet.now - healed > HEALED_S:
                names = [caller.name for caller in self.callers.open]
                raise Violation(f"{names} have not ended {HEALED_S:g} s after all was mended")
            self._pass(1.0)
        self._pass(QUIET_S)
        self._settle()
        self.say("QUIET")
        self.oracle.check_quiet()
        self._agree()

    def _settle(self) -> None:
        """Wait for what may still be running for nobody, such as an answer of a caller that is
        gone, and for nodes to have their links."""
        until = self.fleet.now + HEALED_S
        while self.fleet.now < until and not self._is_quiet():
            self._pass(1.0)

    def _is_quiet(self) -> bool:
        try:
            self.oracle.check_quiet()
        except Violation:
            return False
        return True

    def _agree(self) -> None:
        """Make every link again, twice: nodes and head must have nothing to set right."""
        for _ in range(2):
            self.oracle.nodes.must_agree = True
            self.oracle.nodes.reconciled.clear()
            for node in self.fleet.nodes:
                node.cut_connection()
            until = self.fleet.now + HEALED_S
            while len(self.oracle.nodes.reconciled) < len(self.fleet.nodes):
                if self.fleet.now > until:
                    raise Violation("a node does not reconcile when everything is over")
                self._pass(0.5)
        self.oracle.check_quiet()

    def _pass(self, seconds: float) -> None:
        self.fleet.run(seconds)
        if self.oracle.events > MAX_EVENTS:
            raise Violation(f"more than {MAX_EVENTS} events: something goes round in circles")

    # --- for the parts ------------------------------------------------------------------------

    def node(self, name: str) -> NodeHost:
        return next(node for node in self.fleet.nodes if node.name == name)

    def is_harmed(self, name: str) -> bool:
        """Whether something keeps a node from serving, beside its processes and link."""
        blocked = self.fleet.network.is_blocked(name, "head")
        # The head places nothing there from when it was asked to unload, or to drain.
        is_out = name in self.operator.absent or name in self.drainer.drained
        return blocked or self.node(name).worker_paused or is_out

    def is_made(self, session: SessionId) -> bool:
        """Whether a session is one that a caller made and has not finished."""
        return any(talk.session == session and not talk.finished for talk in self.conversations)

    def say(self, what: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.fleet.now - 1000:10.4f} {what}")


class QuietFleet(MemoryFleet):
    """A fleet that is started by its owner."""

    _begun = False

    def start(self) -> None:
        if self._begun:
            super().start()
        self._begun = True


def run_seed(
    seed: int, profile: str | None = None, trace: Callable[[str], None] | None = None
) -> Outcome:
    """One run.

    Args:
        seed: of everything.
        profile: its name; the seed chooses without.
        trace: takes a line for each thing that happens.
    """
    chosen = choose(seed, profile)
    outcome = Outcome(seed, chosen.name)
    world = None
    try:
        world = World(seed, chosen, trace)
        if trace is not None:
            from tests.sim.world.trace import trace_fleet

            trace_fleet(world)
        world.run()
    except Violation as violation:
        outcome.violation, outcome.kind = str(violation), "oracle"
    except Exception as error:  # noqa: BLE001 - whatever a core raises is a finding
        outcome.violation = f"{type(error).__name__}: {error}"
        outcome.kind = "invariant" if _is_own_check(error) else "crash"
        if trace is not None:
            trace(traceback.format_exc())
    if world is not None:
        outcome.events = world.oracle.events
        outcome.virtual_s = world.fleet.now - 1000
        outcome.counts = world.record.counts | {
            f"frames {what}": count for what, count in world.fleet.network.harm.items()
        }
    return outcome


def _is_own_check(error: Exception) -> bool:
    """Whether a core found the fault itself, by a check that is there for that."""
    frames = traceback.extract_tb(error.__traceback__)
    names = {frame.name for frame in frames}
    checks = {"validate_state", "check_integrity", "validate"}
    return isinstance(error, Internal) or bool(names & checks)

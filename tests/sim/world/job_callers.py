"""Callers of jobs: they put a file, ask, read slowly, leave and ask anew, and cancel.

A caller checks what it gets: each vector, or window, once and in order, and one end.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.harness.memory_worker import VECTOR_BYTES, made_up_vector
from tests.sim.world.callers import GONE_S, RETRY_S, STALLS_S
from tests.sim.world.job_plans import JobAsk, JobPlan
from tests.sim.world.record import Violation

if TYPE_CHECKING:
    from tests.harness.memory_head import HeadHost
    from tests.sim.world.world import World


class JobCaller:
    """One request, over all the times that it takes to ask for it."""

    #: It takes no lane.
    is_asked = False

    def __init__(self, world: World, plan: JobPlan) -> None:
        self._world = world
        self._rng = world.rng
        self.plan = plan
        self.closed = False
        self._begun = False
        self._client = b""
        self._request = b""
        self._put = b""
        self._given = 0
        self._credit = 0
        self._is_granting = False
        #: It does not come back when it leaves.
        self._leaves = self._rng.random() < 0.4
        self._stall_s = self._rng.choice(STALLS_S) if plan.credit < 10 else 0.0

    @property
    def name(self) -> str:
        return self.plan.name

    # --- asking -------------------------------------------------------------------------------

    def start(self) -> None:
        """Ask, as soon as there is a head; a sound is put first."""
        if self.closed or self._client:
            return
        self._begun = True
        if self._world.fleet.head is None:
            self._world.fleet.after(self._rng.uniform(*RETRY_S), self.start)
            return
        self._client = self._world.callers.connect(self)
        if self.plan.sound:
            self._put_sound()
        else:
            self._ask()

    def _put_sound(self) -> None:
        sound = self.plan.sound
        self._put = self._world.callers.request()
        keys = {"sha256": self.plan.sha256, "length": len(sound), "offset": 0}
        self._world.fleet.to_head(self._client, {"op": "put_blob", "id": self._put, **keys}, sound)

    def _ask(self) -> None:
        world, plan = self._world, self.plan
        world.say(f"{plan.name} asks for {plan.kind}")
        self._request = world.callers.request()
        self._given, self._credit, self._is_granting = 0, plan.credit, False
        plan.ask = JobAsk(plan=plan, asked_s=world.fleet.now)
        world.oracle.jobs.asks[self._client, self._request] = plan.ask
        world.fleet.to_head(self._client, {"id": self._request, **plan.body})

    def head_died(self) -> None:
        """Nothing of it is kept: it is asked anew."""
        self._client = self._request = b""
        if self._begun and not self.closed:
            self._world.fleet.after(self._rng.uniform(*RETRY_S), self.start)

    def drop(self) -> None:
        """Its connection ends; it asks anew after a while, or never."""
        world = self._world
        if self.closed or not self._client or world.fleet.head is None:
            return
        world.say(f"{self.plan.name} drops its connection")
        client, self._client, self._request = self._client, b"", b""
        world.callers.forget(client)
        # What it sent before is on its way.
        gone = partial(self._gone, world.fleet.head, client, self.plan.ask)
        world.fleet.after(world.fleet.delay_s, gone)
        if self._leaves:
            self.closed = True
        else:
            world.fleet.after(self._rng.choice(GONE_S), self.start)

    @staticmethod
    def _gone(head: HeadHost, client: bytes, ask: JobAsk | None) -> None:
        """The head hears that a client is there no more."""
        head.client_gone(client)
        if ask is not None:
            head.post(partial(setattr, ask, "gone", True))

    def cancel(self) -> None:
        """It wants no more of it."""
        ask = self.plan.ask
        if self.closed or not self._request or ask is None:
            return
        self._world.say(f"{self.plan.name} cancels")
        ask.cancelled = True
        request = self._world.callers.request()
        about = {"op": "cancel", "id": request, "about": self._request}
        self._world.fleet.to_head(self._client, about)

    # --- replies ------------------------------------------------------------------------------

    def replied(self, body: dict[str, Any]) -> None:
        if body.get("id") == self._put and body["kind"] != "event":
            self._put = b""
            if body["kind"] == "error":
                raise Violation(f"{self.name} could not put its sound: {body['error']}")
            self._ask()
        if body.get("id") != self._request or not self._request:
            return
        if self.closed:
            raise Violation(f"{self.name} got {body} after its end")
        if body["kind"] == "event":
            self._event(body)
            return
        self.closed = True
        if body["kind"] == "end":
            self._ended(body)
        else:
            self._failed(body["error"])

    def _event(self, body: dict[str, Any]) -> None:
        self._credit -= 1
        if self._credit < 0:
            raise Violation(f"{self.name} got events without credit")
        if self.plan.texts:
            self._vectors(body)
        else:
            self._window(body)
        if self._credit <= self.plan.credit // 2 and not self._is_granting:
            self._is_granting = True
            # Once all is mended nobody stalls for long.
            stall_s = self._stall_s if self._world.faults.going else 0.0
            self._world.fleet.after(stall_s, partial(self._grant, self._request))

    def _grant(self, about: bytes) -> None:
        if self.closed or about != self._request or not self._client:
            return
        self._is_granting = False
        more, self._credit = self.plan.credit - self._credit, self.plan.credit
        asked = {"op": "more", "about": about, "credit": more}
        self._world.fleet.to_head(self._client, {"id": self._world.callers.request(), **asked})

    def _vectors(self, body: dict[str, Any]) -> None:
        first, count = body["index"], body["count"]
        inputs = self.plan.inputs[first : first + count]
        made = b"".join(map(made_up_vector, inputs))
        is_next = first == self._given and count == len(inputs) > 0
        if not is_next or body["vectors"] != made or 4 * body["dimension"] != VECTOR_BYTES:
            raise Violation(f"{self.name} got {count} vectors at {first} with {self._given}")
        self._given += count

    def _window(self, body: dict[str, Any]) -> None:
        windows = self.plan.windows
        due = windows[self._given] if self._given < len(windows) else None
        told = [(s["start_s"], s["end_s"], s["text"]) for s in body["segments"]]
        said = (told, body["next_s"], body["language"])
        if due is None or said != (
            [(s.start_s, s.end_s, s.text) for s in due.segments],
            due.next_s,
            due.language,
        ):
            raise Violation(f"{self.name} got {said} where {due} was due")
        self._given += 1

    def _ended(self, body: dict[str, Any]) -> None:
        plan, finish = self.plan, body["finish"]
        self._world.record.count(f"{plan.kind} {finish}")
        self._world.say(f"{plan.name} ends {finish} at {self._given}")
        if finish == "cancelled":
            if plan.ask is None or not plan.ask.cancelled:
                raise Violation(f"{plan.name} ended cancelled, and nobody cancelled it")
            return
        whole = len(plan.texts) if plan.texts else len(plan.windows)
        if finish != "done" or self._given != whole:
            raise Violation(f"{plan.name} ended {finish} with {self._given} of {whole}")
        if plan.texts and body["usage"] != {"prompt": sum(map(len, plan.texts))}:
            raise Violation(f"{plan.name} ended with the usage {body['usage']}")
        heard = [plan.language, *(window.language for window in plan.windows)]
        if not plan.texts and body["language"] != heard[-1]:
            raise Violation(f"{plan.name} ended in the language {body['language']}")

    def _failed(self, error: dict[str, Any]) -> None:
        plan = self.plan
        self._world.record.count(f"{plan.kind} {error['code']}")
        self._world.say(f"{plan.name} fails {error['code']}: {error['message']}")
        if why := self._world.oracle.jobs.judge(plan, error, self._world.fleet.now):
            raise Violation(f"{plan.name} failed {error}: {why}")

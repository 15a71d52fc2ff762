"""Conversations: one session, several turns; a cancelled turn is followed by the next at once.

Between two turns, or in one, the session may be parked: then it takes nothing until it is resumed.
It may also be forked; the fork goes on as a conversation of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bus.ids import PackedIds, SessionId
from head.api import OPERATIONS
from tests.harness.memory_parts import MODEL
from tests.sim.world.callers import RETRY_S, Caller
from tests.sim.world.record import Plan, Violation, drawn_sampling

if TYPE_CHECKING:
    from tests.sim.world.world import World

#: What a conversation needs of the head.
NEEDED = {"session.create", "session.append", "session.generate", "session.finish"}
#: Why a resume may be refused for now.
PASSING = frozenset({"no_node"})
RESUME_AGAIN_S = 1.0
#: How long a person thinks between turns, in seconds.
THINKS_S = (0.0, 0.0, 1.0, 4.0)


def served() -> bool:
    """Whether this head has sessions for several turns."""
    return OPERATIONS.keys() >= NEEDED


class Turn(Caller):
    """One turn of a conversation; it has a key, so it goes on over everything."""

    def __init__(
        self, world: World, plan: Plan, before: Turn | None, over: Callable[[Turn], None]
    ) -> None:
        super().__init__(world, plan)
        self._before = before
        self._over = over

    def _about(self) -> dict[str, Any]:
        return {"op": "session.generate", "session": self.plan.session}

    def come_back(self) -> None:
        """After its turn: a cancel of the one before may have been lost with the head."""
        if self._before is not None and not self._before.closed:
            self._world.fleet.after(self._rng.uniform(*RETRY_S), self.come_back)
        else:
            super().come_back()

    def replied(self, body: dict[str, Any]) -> None:
        was_closed = self.closed
        code = body["error"]["code"] if body["kind"] == "error" else ""
        if self.plan.answer is None and body.get("id") == self._request:
            if code == "not_found":
                self._ask()  # The head died before it had stored the turn.
                return
            if code == "parked":  # The same, and its session was parked since.
                self._world.fleet.after(self._rng.uniform(*RETRY_S), self._ask_again)
                return
        super().replied(body)
        if self.closed and not was_closed:
            self._over(self)

    def _ask_again(self) -> None:
        if not self.closed and self._client:
            self._ask()


Handler = Callable[[dict[str, Any]], None]


class Conversation:
    """Makes a session, has turns in it, and mostly finishes it.

    Args:
        session: one that was forked; None makes a new one.
    """

    #: What is asked of a session that is parked, to be refused.
    TAKES: tuple[str, ...] = ("session.append", "session.generate")

    def __init__(
        self, world: World, name: str, turns: int, session: SessionId | None = None
    ) -> None:
        self._world = world
        self._rng = world.rng
        self.name = name
        self._turns_left = turns
        self._number = 0
        self.session: SessionId | None = session
        self.finished = False
        self.closed = False
        #: Its turns are what the head has of it.
        self.is_asked = False
        self._turn: Turn | None = None
        self._client = b""
        #: What takes the end, and the error, of each request.
        self._handlers: dict[bytes, tuple[Handler, Handler]] = {}
        self._is_parking = False
        self._parks = 0
        self._forks = 0
        #: What to do again when the head died before it answered.
        self._again: Callable[[], None] | None = None

    # --- asking -------------------------------------------------------------------------------

    def _ask(self, handler: Handler, failed: Handler | None = None, **body: Any) -> None:
        clients = self._world.callers
        if not self._client:
            self._client = clients.connect(self)
        request = clients.request()
        self._handlers[request] = handler, failed or self._refused
        self._world.fleet.to_head(self._client, {"id": request, **body})

    def replied(self, body: dict[str, Any]) -> None:
        handlers = self._handlers.pop(body.get("id") or b"", None)
        if handlers is not None:
            handlers[body["kind"] == "error"](body)

    def _refused(self, body: dict[str, Any]) -> None:
        raise Violation(f"{self.name}: the head refused {body['error']}")

    def head_died(self) -> None:
        self._client = b""
        self._handlers.clear()
        if not self.closed and self._again is not None:
            self._world.fleet.after(self._rng.uniform(*RETRY_S), self._retry)

    def _retry(self) -> None:
        if self._client or self._again is None:
            return  # Asked again meanwhile.
        if self._world.fleet.head is None:
            self._world.fleet.after(self._rng.uniform(*RETRY_S), self._retry)
        else:
            self._again()

    # --- the course of it -----------------------------------------------------------------------

    def start(self) -> None:
        """Make the session."""
        self._again = self.start
        if self._world.fleet.head is None:
            self._world.fleet.after(self._rng.uniform(*RETRY_S), self._retry)
            return
        self._world.say(f"{self.name} begins")
        self._ask(self._made, op="session.create", model=MODEL)

    def _made(self, body: dict[str, Any]) -> None:
        self.session = SessionId(body["session"])
        self._again = self._first
        self._first()

    def _first(self) -> None:
        self._append(self._first_appended)

    def _first_appended(self, body: dict[str, Any]) -> None:
        self._again = None
        self._begin_turn()

    def _append(self, handler: Callable[[dict[str, Any]], None]) -> None:
        ids = [self._rng.randrange(32, 126) for _ in range(self._rng.randint(2, 9))]
        assert self.session is not None
        self._world.record.appended.setdefault(self.session, []).append(ids)
        self._ask(handler, op="session.append", session=self.session, tokens=ids)

    def _begin_turn(self) -> None:
        self._turns_left -= 1
        self._number += 1
        turn = self._turn = self._make_turn(self._plan())
        self._world.callers.add(turn)
        turn.start()
        if self._turns_left > 0 and self._rng.random() < self._world.profile.cancelled:
            self._world.fleet.after(self._rng.expovariate(1.0), lambda: self._cut_short(turn))
        elif self._rng.random() < self._world.profile.parked / 2:
            self._world.fleet.after(self._rng.expovariate(1.0), lambda: self._park_turn(turn))
        elif self._rng.random() < self._world.profile.dropped:
            self._world.fleet.after(self._rng.expovariate(1.0), turn.drop)

    def _make_turn(self, plan: Plan) -> Turn:
        return Turn(self._world, plan, self._turn, self._turn_over)

    def _plan(self) -> Plan:
        name = f"{self.name} turn {self._number}"
        rng = self._rng
        max_new, seed = rng.randint(*self._world.profile.tokens), rng.getrandbits(63)
        plan = Plan(
            name=name,
            prompt=PackedIds(b""),
            max_new=max_new,
            seed=seed,
            expected=[],
            reason="",
            key=f"key {name}",
            keep=True,
            session=self.session,
            credit=rng.choice((2, 5)) if rng.random() < 0.1 else 4096,
            **drawn_sampling(seed),
        )
        self._world.record.turns[plan.key or ""] = plan
        return plan

    def _cut_short(self, turn: Turn) -> None:
        """Cancel, append and generate in one breath: all must be taken, in this order."""
        if turn.closed or turn is not self._turn or not turn.is_heard:
            return
        turn.cancel()
        self._append(lambda body: None)
        self._begin_turn()

    def _turn_over(self, turn: Turn) -> None:
        if turn is self._turn and not self._is_parking:
            self._go_on()

    def _go_on(self) -> None:
        if self._turns_left > 0:
            parked = self._rng.random() < self._world.profile.parked
            follows = self._park if parked else self._next_turn
            self._world.fleet.after(self._rng.choice(THINKS_S), follows)
        elif self._rng.random() < 0.6:
            self._again = self._finish
            self._retry_or_finish()
        else:
            self.closed = True

    def _next_turn(self) -> None:
        if self._world.fleet.head is None:
            self._world.fleet.after(self._rng.uniform(*RETRY_S), self._next_turn)
            return
        if self._rng.random() < self._world.profile.forked:
            self._fork()
        self._append(lambda body: None)
        self._begin_turn()

    # --- parked and forked ----------------------------------------------------------------------

    def _repeated(self, again: Callable[[], None]) -> bool:
        """Have a step done again when the head dies; False while there is none."""
        self._again = again
        if self._world.fleet.head is None:
            self._world.fleet.after(self._rng.uniform(*RETRY_S), self._retry)
            return False
        return True

    def _park_turn(self, turn: Turn) -> None:
        """Park in the middle of a turn, which is cancelled by it."""
        if turn.closed or turn is not self._turn or self._is_parking or not turn.is_heard:
            return
        turn.plan.cancelled_s = self._world.fleet.now
        self._park()

    def _park(self) -> None:
        self._is_parking = True
        self._parks += 1
        if self._repeated(self._park):
            self._world.say(f"{self.name} parks")
            self._ask(self._parked, op="session.park", session=self.session)

    def _parked(self, body: dict[str, Any]) -> None:
        if self.session not in self._world.record.parked:
            raise Violation(f"{self.name} is parked and that is not durable")
        self._again = self._resume
        if self._rng.random() < 0.5:
            op = self._rng.choice(self.TAKES)
            asked: dict[str, Any] = {"op": op, "session": self.session}
            asked |= {"tokens": [65]} if op == "session.append" else {"max_new": 3}
            if op == "session.chat":
                asked["messages"] = [{"role": "user", "content": "too late"}]
            self._ask(self._taken_while_parked, self._must_be_parked, **asked)
        self._resume_after(self._rng.choice(THINKS_S))

    def _taken_while_parked(self, body: dict[str, Any]) -> None:
        raise Violation(f"{self.name} is parked, and the head took {body}")

    def _must_be_parked(self, body: dict[str, Any]) -> None:
        if body["error"]["code"] != "parked":
            raise Violation(f"{self.name} is parked, and the head said {body['error']}")

    def _resume_after(self, seconds: float) -> None:
        parks = self._parks

        def resume() -> None:
            # A retry may have resumed it meanwhile, and it may be parked again.
            if self._parks == parks:
                self._resume()

        self._world.fleet.after(seconds, resume)

    def _resume(self) -> None:
        if self._is_parking and self._repeated(self._resume):
            self._world.say(f"{self.name} resumes")
            self._ask(self._resumed, self._not_resumed, op="session.resume", session=self.session)

    def _not_resumed(self, body: dict[str, Any]) -> None:
        code = body["error"]["code"]
        if code == "invalid" and self.session not in self._world.record.parked:
            self._resumed(body)  # Done already, by a head that died before it could say so.
        elif code in PASSING:
            self._resume_after(RESUME_AGAIN_S)
        else:
            self._refused(body)

    def _resumed(self, body: dict[str, Any]) -> None:
        if not self._is_parking:
            return
        self._again = None
        if self.session in self._world.record.parked:
            raise Violation(f"{self.name} is resumed and that is not durable")
        self._is_parking = False
        if self._turn is None or self._turn.closed:
            self.go_on()

    def _fork(self) -> None:
        """Have the context go on in another session, too; lost with the head."""
        self._ask(self._forked, op="session.fork", session=self.session)

    def _forked(self, body: dict[str, Any]) -> None:
        self._forks += 1
        session = SessionId(body["session"])
        if session not in self._world.record.contexts:
            raise Violation(f"{self.name} was forked and that is not durable")
        self._world.record.count("forks")
        talk = type(self)(self._world, f"{self.name} fork {self._forks}", 1, session)
        self._world.add_conversation(talk)
        self._world.fleet.after(self._rng.choice(THINKS_S), talk.go_on)

    def go_on(self) -> None:
        """Append and have a turn, one after the other: the head may not know the model yet."""
        if self._repeated(self.go_on):
            self._append(self._first_appended)

    def _retry_or_finish(self) -> None:
        if self._world.fleet.head is None:
            self._world.fleet.after(self._rng.uniform(*RETRY_S), self._retry_or_finish)
        else:
            self._finish()

    def _finish(self) -> None:
        self._ask(self._finish_said, op="session.finish", session=self.session)

    def _finish_said(self, body: dict[str, Any]) -> None:
        self._again = None
        self.finished = self.closed = True
        if self.session not in self._world.record.ended:
            raise Violation(f"{self.name} is finished and that is not durable")

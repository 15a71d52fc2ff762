"""Conversations by `session.chat`: turns that bring messages, and answers read in channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bus.ids import PackedIds, SessionId
from head.text.channels import Pieces
from tests.harness.memory_worker import POISON
from tests.sim.world.chat_text import ChatAsk, draw_ask
from tests.sim.world.conversations import Conversation, Handler, Turn
from tests.sim.world.record import Plan, Violation, drawn_sampling

if TYPE_CHECKING:
    from tests.sim.world.world import World

#: Ids of a context that are asked for at its end.
ALL_IDS = 4096
LOOK_AGAIN_S = 0.5
#: A head has described its models by then.
NEW_HEAD_S = 1.0


class ChatTurn(Turn):
    """One turn. What a reader is shown up to a cursor is what the tokens before it say."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: What the present reader was shown, and would have been before its cursor.
        self._pieces = Pieces()
        #: By index: each call, as any reader got it.
        self._calls: dict[int, tuple[str, str, str]] = {}

    @property
    def asked(self) -> ChatAsk:
        assert self.plan.chat is not None
        return self.plan.chat

    def _about(self) -> dict[str, Any]:
        return {"op": "session.chat", "session": self.plan.session, **self.asked.body}

    def _ask(self) -> None:
        self._pieces = Pieces()
        super()._ask()

    def _first_offset(self) -> int:
        """Read on from anywhere, also in the middle of what came at once."""
        offset = self._rng.choice((len(self.got), self._rng.randint(0, len(self.got))))
        self._pieces = self.asked.pieces(self.got[:offset])
        return offset

    def _add_pieces(self, body: dict[str, Any]) -> None:
        self._show(body)
        self._compare(self.asked.pieces(self.got[: self._cursor]))

    def _check_text(self, body: dict[str, Any]) -> None:
        self._show(body)
        is_cut = body["finish"] not in ("stop", "tool_calls")
        whole = self.asked.pieces(self.got, cut=is_cut)
        self._compare(whole)
        has_calls = self.asked.reads_calls and bool(whole.calls)
        if not is_cut and (body["finish"] == "tool_calls") != has_calls:
            raise Violation(f"{self.name} ended {body['finish']} with the calls {whole.calls}")
        if self._pieces.calls:
            self._world.record.count("answers with calls")
        if self._pieces.reasoning:
            self._world.record.count("answers with reasoning")

    def _is_end(self, durable: str, told: str) -> bool:
        """A head that has only begun may not know yet how its model's answers are read."""
        answer = self.plan.answer
        is_new = answer is not None and answer.head_age_s < NEW_HEAD_S
        return durable == told or (is_new and (durable, told) == ("stop", "tool_calls"))

    def _show(self, body: dict[str, Any]) -> None:
        before, calls = self._pieces, body.get("tool_calls", [])
        for call in calls:
            known = (call["id"], call["name"], call["arguments"])
            if self._calls.setdefault(call["index"], known) != known:
                raise Violation(f"{self.name} got {call} after {self._calls[call['index']]}")
        if len({ident for ident, _, _ in self._calls.values()}) != len(self._calls):
            raise Violation(f"{self.name} got two calls of one id: {self._calls}")
        self._pieces = Pieces(
            before.text + body["text"],
            before.reasoning + body.get("reasoning", ""),
            before.calls + tuple(calls),
        )

    def _compare(self, due: Pieces) -> None:
        """All that was shown is what the tokens up to the cursor say."""
        shown = self._pieces
        calls = [(_key(call, "name"), _key(call, "arguments")) for call in shown.calls]
        wanted = [(call.name, call.arguments) for call in due.calls]
        if (shown.text, shown.reasoning, calls) != (due.text, due.reasoning, wanted):
            raise Violation(f"{self.name} was shown {shown} at {self._cursor}, not {due}")


def _key(call: Any, name: str) -> str:
    return str(call[name] if isinstance(call, dict) else getattr(call, name))


class ChatConversation(Conversation):
    """Turns that bring their own messages; at the end its whole context is looked at."""

    TAKES = ("session.append", "session.generate", "session.chat")

    def __init__(
        self, world: World, name: str, turns: int, session: SessionId | None = None
    ) -> None:
        super().__init__(world, name, turns, session)
        record = world.record
        #: What a fork began with.
        self._base = list(record.contexts[session]) if session is not None else []
        self._turns: list[ChatTurn] = []

    def _append(self, handler: Handler) -> None:
        """Its messages come with the turn."""
        handler({})

    def _make_turn(self, plan: Plan) -> Turn:
        turn = ChatTurn(self._world, plan, self._turn, self._turn_over)
        self._turns.append(turn)
        return turn

    def _plan(self) -> Plan:
        rng, name = self._rng, f"{self.name} turn {self._number}"
        max_new, seed = rng.randint(*self._world.profile.tokens), rng.getrandbits(63)
        poisoned = rng.random() < self._world.profile.poisoned
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
            chat=draw_ask(rng, name, poison=chr(POISON) if poisoned else ""),
            **{k: v for k, v in drawn_sampling(seed).items() if k in ("others", "exact")},
        )
        assert self.session is not None
        self._world.record.turns[plan.key or ""] = plan
        self._world.record.chats.setdefault(self.session, []).append(plan)
        return plan

    def _go_on(self) -> None:
        if self._turns_left > 0 or self._is_looked_at:
            super()._go_on()
        else:
            self._look()

    # --- its context --------------------------------------------------------------------------

    _is_looked_at = False

    def _look(self) -> None:
        if not all(turn.closed for turn in self._turns):
            self._world.fleet.after(LOOK_AGAIN_S, self._look)  # One is read slowly to its end.
        elif self._repeated(self._look):
            self._ask(self._seen, op="session.get", session=self.session, limit=ALL_IDS)

    def _seen(self, body: dict[str, Any]) -> None:
        self._again = None
        self._is_looked_at = True
        wanted = self._context()
        assert self.session is not None
        if wanted != self._world.record.contexts[self.session]:
            raise Violation(f"what is durable of {self.name} is not its turns and answers")
        if body["ids"] != wanted or body["tokens"] != len(wanted):
            raise Violation(f"{self.name} has the context {body['ids']}, not {wanted}")
        self._world.record.count("contexts looked at")
        super()._go_on()

    def _context(self) -> list[int]:
        """Its turns and what they brought their reader, one after the other."""
        context = list(self._base)
        for turn in self._turns:
            answer = turn.plan.answer
            if answer is None or (answer.error is not None and not turn.got):
                continue  # It was never begun, or failed and took its messages along.
            context += turn.asked.joined(context)
            context += turn.got
        return context

"""Chats: messages join their session's context once each, with the turn that they are of."""

from __future__ import annotations

from bus.ids import SessionId
from head.rows import CutContent
from tests.harness.memory_worker import POISON
from tests.sim.world.record import Plan, Record, Violation


class ChatRules:
    """Args: the record."""

    def __init__(self, record: Record) -> None:
        self._record = record
        #: Turns whose messages joined a context in the commit that is under way.
        self._fresh: list[Plan] = []

    def joins(self, session: SessionId, tokens: list[int]) -> bool:
        """Whether these tokens are the messages of a turn, which join the context now."""
        context = self._record.contexts[session]
        for plan in self._record.chats.get(session, []):
            asked = plan.chat
            if asked is not None and plan.joined_at is None and asked.joined(context) == tokens:
                plan.joined_at = len(context)
                self._fresh.append(plan)
                return True
        return False

    def cut(self, row: CutContent) -> None:
        """What joined last is taken back: its turn failed before its first token."""
        record = self._record
        context = record.contexts[row.session]
        plan = self._last(row.session)
        if plan is None or plan.joined_at != row.first or row.first > len(context):
            raise Violation(f"{row.session} is cut at {row.first}, where no turn began")
        answer = plan.answer
        if answer is not None and (answer.error is None or answer.tokens):
            raise Violation(f"{plan.name} did not fail at once, and its messages are gone")
        del context[row.first :]
        del record.by_step[row.session][row.first :]
        plan.joined_at = None
        record.count("messages taken back")

    def committed(self) -> None:
        """All rows of a commit are known: what joined has its turn."""
        for plan in self._fresh:
            if plan.joined_at is not None and plan.answer is None:
                raise Violation(f"the messages of {plan.name} are durable and its turn is not")
        self._fresh.clear()

    def begins(self, plan: Plan) -> None:
        """A turn is stored."""
        if plan.chat is None or plan.session is None:
            return
        if plan.joined_at is None:
            raise Violation(f"{plan.name} began without its messages")
        for before in self._record.chats[plan.session]:
            if before is not plan and is_stale(before):
                raise Violation(f"{plan.name} began behind messages of {before.name}, which failed")
        # A context goes on to kill workers when it has begun to.
        plan.poison = POISON in self._record.contexts[plan.session]

    def _last(self, session: SessionId) -> Plan | None:
        joined = [p for p in self._record.chats.get(session, []) if p.joined_at is not None]
        return max(joined, key=lambda plan: plan.joined_at or 0, default=None)


def is_stale(plan: Plan) -> bool:
    """Whether messages are in a context although nothing came of them but an error."""
    answer = plan.answer
    failed = answer is not None and answer.error is not None and not answer.tokens
    return failed and plan.joined_at is not None

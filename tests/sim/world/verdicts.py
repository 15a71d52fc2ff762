"""Whether an early end or a move had a reason, by the oracle's own record of faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bus.ids import Epoch, SessionId
from tests.sim.world.poison import PoisonRules, may_be_served
from tests.sim.world.record import Answer, Plan, Record, Run, Violation

#: Clocks drift by 4% at most, so times of different clocks agree to this share, and a moment.
DRIFT = 0.09
MOMENT_S = 0.3
#: A node's status is so old at most; a head that restarted knows nothing for as long.
STATUS_S = 3.0


class Verdicts:
    """Judges. Args: the record, the policy, and how many calls have not ended."""

    def __init__(
        self,
        record: Record,
        *,
        reattach_s: float,
        adopt_s: float,
        failover_wait_s: float,
        node_wait_s: float,
        grace_s: float,
        queue_limit: int,
        open_calls: Callable[[], int],
    ) -> None:
        self._record = record
        self.poison = PoisonRules(record)
        self._reattach_s = reattach_s
        self._adopt_s = adopt_s
        self.failover_wait_s = failover_wait_s
        self.node_wait_s = node_wait_s
        self._grace_s = grace_s
        self._queue_limit = queue_limit
        self._open_calls = open_calls
        self._errors: dict[str, Callable[[Answer | None, Plan, float], str]] = {
            "request_kills_workers": self._kills_workers,
            "node_lost": self._node_lost,
            "no_node": self._no_node,
            "queue_full": self._queue_full,
            "expired": lambda _, plan, now: self._expired(plan, now),
        }

    # --- ends ---------------------------------------------------------------------------------

    def judge_end(
        self, answer: Answer, finish: str, error: dict[str, Any] | None, now: float
    ) -> None:
        """An answer's end is durable.

        Raises:
            Violation: it had no reason to end so.
        """
        plan = answer.plan
        if plan is None:
            raise Violation("the end of an answer that nobody asked for")
        tokens = len(answer.tokens)
        if finish in ("length", "stop", "tool_calls"):
            expected = "stop" if plan.reason == "eos" else plan.reason
            # With nothing left to ask a model for, nobody asks whether it would have ended.
            at_limit = finish == "length" and tokens == plan.max_new
            if not (self._is_by_model(plan, finish, expected) or at_limit) or tokens != len(
                plan.expected
            ):
                raise Violation(f"{plan.name} ended {finish} at {tokens}: {len(plan.expected)}")
            is_odd = plan.poison and not may_be_served(plan)
            why = "a poisoned request was served" if is_odd else ""
        elif finish == "cancelled":
            why = self._cancelled(plan, now)
        elif finish == "expired":
            why = self._expired(plan, now)
        else:
            why = self.judge_error(answer, plan, error or {}, now)
        if why:
            raise Violation(f"{plan.name} ended {finish} {error or ''} at token {tokens}: {why}")

    @staticmethod
    def _is_by_model(plan: Plan, finish: str, expected: str) -> bool:
        """Whether an answer ended as its model has it; with calls that is `tool_calls`."""
        reads_calls = plan.chat is not None and plan.chat.reads_calls
        if finish == "tool_calls" and reads_calls and expected == "stop":
            return bool(plan.chat and plan.chat.pieces(plan.expected, cut=False).calls)
        return finish == expected

    def judge_error(
        self, answer: Answer | None, plan: Plan, error: dict[str, Any], now: float
    ) -> str:
        """Why an error is not a legitimate end; empty when it is."""
        code = str(error.get("code"))
        judge = self._errors.get(code)
        if judge is None:
            return f"{code} is never an end here"
        self._record.count(f"error {code}")
        return judge(answer, plan, now)

    def _cancelled(self, plan: Plan, now: float) -> str:
        if plan.cancelled_s is not None:
            return ""
        gone_s = plan.unread_s + (now - plan.unread_since if plan.unread_since is not None else 0)
        if not plan.keep and gone_s >= self._grace_s * (1 - DRIFT):
            return ""
        return "nobody cancelled it"

    def _expired(self, plan: Plan, now: float) -> str:
        if plan.wall_ms and now - plan.asked_s >= plan.wall_ms / 1000 * (1 - DRIFT):
            return ""
        return "its budget was not used up"

    def _kills_workers(self, answer: Answer | None, plan: Plan, now: float) -> str:
        deaths = answer.deaths if answer is not None else 0
        if deaths < 2:
            return f"{deaths} workers died with it"
        return self.poison.judge_guilt(answer, plan)

    def _node_lost(self, answer: Answer | None, plan: Plan, now: float) -> str:
        return self._unserved(self.failover_wait_s, now)

    def _no_node(self, answer: Answer | None, plan: Plan, now: float) -> str:
        return self._unserved(min(self.node_wait_s, self.failover_wait_s), now)

    def _queue_full(self, answer: Answer | None, plan: Plan, now: float) -> str:
        calls = self._open_calls()
        return "" if calls >= self._queue_limit else f"{calls} calls are open"

    def _unserved(self, wait_s: float, now: float) -> str:
        since = self._record.served_since
        if since is None or now - since < STATUS_S:
            unserved_s = (since or now) - self._record.unserved_since
            if unserved_s >= wait_s * (1 - DRIFT) - MOMENT_S:
                return ""
            return f"no node could serve it, but for {unserved_s:.1f} of {wait_s} s only"
        return f"a node could serve it for {now - since:.1f} s"

    # --- moves --------------------------------------------------------------------------------

    def judge_move(self, answer: Answer, run: Run, now: float) -> None:
        """A new epoch of an answer is durable, while `run` was its latest.

        Raises:
            Violation: nothing had happened to that.
        """
        if not self._may_move(answer, run, now):
            name = answer.plan.name if answer.plan else "?"
            raise Violation(
                f"{name} was moved off {run.row.node} without a reason "
                f"(epoch {run.row.epoch:x}, {run.watermark} events durable)"
            )

    def _may_move(self, answer: Answer, run: Run, now: float) -> bool:
        record, since = self._record, run.at_s - MOMENT_S
        facts = record.node(run.row.node)
        if run.given_up or max(facts.broken_s, facts.worker_died_s, facts.started_s) >= since:
            return True
        if facts.drain_asked or facts.undrained_s >= since:
            return True
        if run.row.worker != facts.worker:
            return True  # Placed on a worker that was dead already.
        if (run.row.session, run.row.epoch) not in record.assigned:
            return True  # The node was never told of it.
        if self._lease_over((facts.name, run.row.session, run.row.epoch), now):
            return True
        if self._was_away(facts.outages, since, self._reattach_s):
            return True
        if facts.linked_since is None and self._long_enough(
            now - facts.link_down_s, self._reattach_s
        ):
            return True
        if record.head_started_s >= since:
            back_s = facts.linked_since if facts.linked_since is not None else now
            return self._long_enough(back_s - record.head_started_s, self._adopt_s)
        return False

    def _was_away(self, outages: list[tuple[float, float]], since: float, limit_s: float) -> bool:
        return any(up >= since and self._long_enough(up - down, limit_s) for down, up in outages)

    def _long_enough(self, took_s: float, limit_s: float) -> bool:
        return took_s >= limit_s * (1 - DRIFT) - 0.05

    def _lease_over(self, lease: tuple[str, SessionId, Epoch], now: float) -> bool:
        until = self._record.leases.get(lease)
        is_over = until is not None and now >= until - MOMENT_S
        return is_over or lease in self._record.lapsed

"""Usage figures: tokens of the prompt, those of it that a cache had, and those made again."""

from __future__ import annotations

from typing import Any

from bus.ids import GenerationId
from bus.messages.worker import Submit
from head.effects import Persist
from head.rows import PutFinish
from tests.sim.world.figures import cached_tokens
from tests.sim.world.record import Answer, Plan, Record, Run, Violation


class UsageRules:
    """Args: the record."""

    def __init__(self, record: Record) -> None:
        self._record = record
        #: By generation: tokens of its context that its worker says that it had.
        self._cached: dict[GenerationId, int] = {}

    def submitted(self, submit: Submit) -> None:
        self._cached[submit.generation] = cached_tokens(submit)

    def committed(self, persist: Persist) -> None:
        for row in persist.rows:
            if isinstance(row, PutFinish):
                answer = self._record.answers.get(row.answer)
                if answer is not None and answer.plan is not None:
                    self._check_row(answer, answer.plan, row)

    def replied(self, plan: Plan, body: dict[str, Any]) -> None:
        """An end says what is kept."""
        row = plan.answer.finish if plan.answer is not None else None
        if body["kind"] != "end" or "usage" not in body or row is None:
            return
        kept = {
            "prompt": row.prompt_tokens,
            "cached": row.cached_tokens,
            "completion": row.completion_tokens,
            "replayed": row.replayed_tokens,
        }
        if dict(body["usage"]) != kept:
            raise Violation(f"{plan.name} was told {body['usage']}, and {kept} is kept")

    def _check_row(self, answer: Answer, plan: Plan, row: PutFinish) -> None:
        prompt = len(plan.prompt) // 4
        if row.prompt_tokens != prompt:
            raise Violation(f"{plan.name} has a prompt of {prompt}, not {row.prompt_tokens}")
        took = [run for run in answer.runs if run.committed]
        cached = {min(self._had(run), prompt) for run in took[:1]} or {0}
        if not took or took[0] is not answer.runs[0]:
            # One that came to its end at once has said it, too; one that moved before has not.
            cached |= {0, *(min(self._had(run), prompt) for run in answer.runs[-1:])}
        if row.cached_tokens not in cached:
            raise Violation(f"{row.cached_tokens} tokens of {plan.name} were cached, not {cached}")
        last = answer.runs[-1] if answer.runs else None
        if last is not None and not last.committed and plan.reason == "eos":
            is_whole = row.finish in ("stop", "tool_calls") and row.completion_tokens == len(
                plan.expected
            )
            took += [last] if is_whole else []
        self._check_replayed(answer, plan, row, took)

    def _check_replayed(self, answer: Answer, plan: Plan, row: PutFinish, took: list[Run]) -> None:
        """Each later run computes again what its worker had not; an early one may be the first."""
        prompt = len(plan.prompt) // 4
        least = most = 0
        for run in took:
            again = max(prompt + run.row.first_offset - self._had(run), 0)
            if run.row.first_offset:
                least, most = least + again, most + again
            elif run is not answer.runs[0]:
                most += again
        if row.replayed_tokens not in (least, most):
            raise Violation(
                f"{row.replayed_tokens} tokens of {plan.name} were made again, not "
                f"{least} or {most}"
            )

    def _had(self, run: Run) -> int:
        return self._cached.get(run.row.generation, 0)

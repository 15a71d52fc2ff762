"""`moved` events: a reader gets one for each move that it lives to see, and it tells the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.harness.memory_worker import TOKEN_BITS
from tests.sim.world.record import Answer, Plan, Record, Run, Violation


@dataclass(slots=True)
class Reader:
    """One request. The run that made its last token, when it got that, and moves since."""

    run: Run | None = None
    got_s: float = 0.0
    moves: list[tuple[str, int]] = field(default_factory=list)


class MoveRules:
    """Args: the record, and which numerics a node has."""

    def __init__(self, record: Record, numerics: Callable[[str], str]) -> None:
        self._record = record
        self._numerics = numerics
        self._readers: dict[tuple[bytes, bytes], Reader] = {}

    def head_died(self) -> None:
        self._readers.clear()

    def released(self, client: bytes, plan: Plan, body: dict[str, Any], now: float) -> None:
        """An event leaves the head for a reader."""
        answer = plan.answer
        if body["kind"] != "event" or answer is None:
            return
        reader = self._readers.setdefault((client, body["id"]), Reader())
        if body["type"] == "moved":
            reader.moves.append((body["to"], body["offset"]))
            self._check_moved(answer, plan, body)
        elif body["type"] == "token":
            runs = [self._maker(answer, token) for token in (body["tokens"][0], body["tokens"][-1])]
            self._check_told(reader, plan, runs[0])
            reader.run, reader.got_s = runs[-1], now
            reader.moves.clear()

    def _maker(self, answer: Answer, token: int) -> Run | None:
        marks = self._record.marks
        mark = token >> TOKEN_BITS
        return next((run for run in answer.runs if marks.get(run.row.generation) == mark), None)

    def _check_told(self, reader: Reader, plan: Plan, run: Run | None) -> None:
        """Tokens of another run than before come after the news of it."""
        before = reader.run
        if run is None or before is None or run is before or plan.is_slow:
            return
        if reader.got_s > run.at_s:
            return  # It may have begun to read after that was decided.
        move = (str(run.row.node), run.row.first_offset)
        if move not in reader.moves:
            raise Violation(f"{plan.name} moved to {move} and was told of {reader.moves}")

    def _check_moved(self, answer: Answer, plan: Plan, body: dict[str, Any]) -> None:
        offset, exact = body["offset"], body["exact"]
        moves = [
            (place, run)
            for place, run in enumerate(answer.runs)
            if place and run.row.node == body["to"] and run.row.first_offset == offset
            if any(before.row.node == body["from"] for before in answer.runs[:place])
        ]
        if not moves:
            raise Violation(f"{plan.name} was told of {body}, and did not move so")
        if exact and not plan.exact:
            raise Violation(f"{plan.name} did not ask for exact moves, and had one: {body}")
        # What made the tokens up to there; with none, the one that it came from.
        made = self._maker(answer, answer.tokens[offset - 1]) if offset else None
        one = str(made.row.node) if made is not None else body["from"]
        same = self._numerics(one) == self._numerics(body["to"])
        if exact and not same:
            raise Violation(f"{plan.name} moved from {one} exactly, to other numerics: {body}")
        knew = made is not None and made.at_s >= self._record.head_started_s
        if plan.exact and same and knew and not exact:
            raise Violation(f"{plan.name} moved from {one} to equal numerics: {body}")

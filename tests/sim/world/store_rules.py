"""What may become durable, in which order, and what may leave the head on top of it."""

from __future__ import annotations

from typing import Any

import msgpack

from bus.ids import count_ids, pack_ids, unpack_ids
from bus.messages.link import (
    GenerateReq,
    Reconcile,
    SessionAssign,
    WatermarkAck,
)
from head.effects import Effects, Output, Persist, Reply, SendLink
from head.rows import (
    CutContent,
    EndSession,
    PurgeAnswers,
    PutAnswer,
    PutContent,
    PutFinish,
    PutGeneration,
    PutParked,
    PutSession,
    PutTokens,
)
from tests.harness.memory_text import DIGEST
from tests.harness.memory_worker import TOKEN_BITS, made_up_record
from tests.sim.world.chat_rules import ChatRules
from tests.sim.world.record import Answer, Plan, Record, Run, Violation
from tests.sim.world.verdicts import Verdicts

TOKEN_MASK = (1 << TOKEN_BITS) - 1
#: Errors of requests that may be asked again under the same key, when no node had them.
PASSING = ("no_node", "queue_full", "rate_limited")


class StoreRules:
    """The output-commit rule, unique numbers, one end, and tokens that are the model's.

    Args:
        record: what is known.
        verdicts: judges ends and moves.
    """

    def __init__(self, record: Record, verdicts: Verdicts) -> None:
        self._record = record
        self._verdicts = verdicts
        self._chats = ChatRules(record)
        self._durable = 0
        #: By output: the lsn of the rows of its round or before, counted here.
        self._needs: dict[int, tuple[Output, int]] = {}
        self._submitted = 0
        #: By lsn that is not durable yet: when its rows were decided.
        self._decided_s: dict[int, float] = {}
        #: By client and request: what a reply is about.
        self.requests: dict[tuple[bytes, bytes], Plan] = {}

    def head_started(self) -> None:
        self._durable = self._submitted = 0
        self._needs.clear()
        self._decided_s.clear()

    # --- commits ------------------------------------------------------------------------------

    def effects(self, effects: Effects, now: float) -> None:
        if effects.persist is not None:
            self._submitted += 1
            self._decided_s[self._submitted] = now
            if effects.persist.lsn != self._submitted:
                raise Violation(f"lsn {effects.persist.lsn} after {self._submitted - 1}")
        for tagged in effects.outputs:
            self._needs[id(tagged.output)] = (tagged.output, self._submitted)

    def committed(self, persist: Persist, now: float) -> None:
        self._durable = persist.lsn
        decided_s = self._decided_s.pop(persist.lsn, now)
        for row in persist.rows:
            match row:
                case PutAnswer():
                    self._put_answer(row, now)
                case PutGeneration():
                    self._put_generation(row, now, decided_s)
                case PutTokens():
                    self._put_tokens(row)
                case PutFinish():
                    self._put_finish(row, now, decided_s)
                case PutSession():
                    self._put_session(row)
                case PutContent():
                    self._put_content(row)
                case CutContent():
                    self._chats.cut(row)
                case PutParked():
                    self._put_parked(row)
                case EndSession():
                    self._record.ended.add(row.session)
                    self._record.parked.pop(row.session, None)
                case PurgeAnswers():
                    self._purge(row)
        self._chats.committed()

    def _purge(self, row: PurgeAnswers) -> None:
        """An answer goes before its time when its key is to be tried again."""
        for number in row.answers:
            answer = self._record.answers[number]
            code = answer.error["code"] if answer.error else ""
            if answer.row.key is None or answer.runs or code not in PASSING:
                raise Violation(f"answer {number:x} was purged long before its time")
            if answer.plan is not None:
                answer.plan.answer = None

    def _put_answer(self, row: PutAnswer, now: float) -> None:
        record = self._record
        if row.answer in record.answers:
            raise Violation(f"answer {row.answer:x} was stored twice")
        plan = record.plans.get(bytes(row.prompt)) if row.prompt else self._turn(row)
        if plan is None:
            raise Violation(f"answer {row.answer:x} has a prompt that nobody asked for")
        if plan.answer is not None:
            raise Violation(f"{plan.name} was begun twice")
        answer = record.answers[row.answer] = Answer(row, plan, now)
        plan.answer = answer
        record.sessions.setdefault(row.session, []).append(answer)

    def _turn(self, row: PutAnswer) -> Plan | None:
        """The turn of a made session that is stored now: from here on its answer is known."""
        record = self._record
        plan = record.turns.get(row.key or "")
        if plan is None or plan.session != row.session:
            return None
        context = record.contexts[row.session]
        if row.context_tokens != len(context):
            raise Violation(f"a turn on {row.context_tokens} tokens; {len(context)} are durable")
        if row.session in record.parked:
            raise Violation(f"{plan.name} began while its session is parked")
        if any(before.finish is None for before in record.sessions.get(row.session, [])):
            raise Violation(f"{plan.name} began before the end of the turn before it")
        left = [a for a in record.sessions.get(row.session, []) if a.tokens]
        if any(before.row.answer not in record.joined for before in left):
            raise Violation(f"{plan.name} began without what the turn before it delivered")
        self._chats.begins(plan)
        plan.prompt = pack_ids(context)
        plan.by_step = record.generated[row.session]
        plan.expect(record.model)
        return plan

    # --- made sessions ------------------------------------------------------------------------

    def _put_session(self, row: PutSession) -> None:
        if row.session in self._record.contexts:
            raise Violation(f"session {row.session} was made twice")
        record = self._record
        record.contexts[row.session] = []
        record.by_step[row.session] = []
        record.generated[row.session] = 0
        if row.parent is not None:
            parent = zip(record.contexts[row.parent], record.by_step[row.parent], strict=True)
            record.inherited[row.session] = list(parent)

    def _put_parked(self, row: PutParked) -> None:
        record = self._record
        if row.session in record.ended:
            raise Violation(f"session {row.session} is parked or resumed after its end")
        before = record.sessions.get(row.session, [])
        if any(answer.finish is None for answer in before):
            raise Violation(f"session {row.session} is parked while its turn runs")
        if row.parked:
            record.parked[row.session] = row.file_on
            record.count("parks")
        elif record.parked.pop(row.session, None) is None:
            raise Violation(f"session {row.session} was resumed and not parked")
        else:
            record.resumed.add(row.session)
            record.count("resumes")

    def _put_inherited(self, row: PutContent, tokens: list[int]) -> None:
        """What a fork takes over is the beginning of its parent's context, computed alike."""
        record = self._record
        wanted = record.inherited[row.session]
        taken = [wanted.pop(0) for _ in tokens[: len(wanted)]]
        if [token for token, _ in taken] != tokens:
            raise Violation(f"{row.session} is no fork of its parent at {row.first}")
        if any(by_step != bool(row.answer) for _, by_step in taken):
            raise Violation(f"{row.session} computes tokens at {row.first} in another way")
        if row.answer:
            record.generated[row.session] += len(tokens)

    def _put_content(self, row: PutContent) -> None:
        record, tokens = self._record, list(unpack_ids(row.ids))
        context = record.contexts[row.session]
        if row.first != len(context):
            raise Violation(f"content at {row.first} of a session with {len(context)} tokens")
        if row.session in record.ended:
            raise Violation(f"content of {row.session} after its end")
        if row.tokenizer_digest != DIGEST:
            raise Violation(f"content of {row.session} without its tokenizer's digest")
        if row.session in record.parked:
            raise Violation(f"content of {row.session} while it is parked")
        if record.inherited.get(row.session):
            self._put_inherited(row, tokens)
        elif row.answer:
            if self._answer(row.answer).tokens != tokens:
                raise Violation(f"what joins {row.session} is not what its turn delivered")
            record.joined.add(row.answer)
            record.generated[row.session] += len(tokens)
        elif not self._chats.joins(row.session, tokens):
            asked = record.appended.get(row.session, [])
            if tokens not in asked:
                raise Violation(f"what joins {row.session} was not asked for, or twice")
            asked.remove(tokens)
        context += tokens
        record.by_step[row.session] += [bool(row.answer)] * len(tokens)

    def _put_generation(self, row: PutGeneration, now: float, decided_s: float) -> None:
        record = self._record
        answer = self._answer(row.answer)
        if row.generation in record.runs:
            raise Violation(f"generation id {row.generation:x} was used twice")
        self._check_epoch(row, answer)
        latest = answer.latest
        if latest is not None:
            if row.epoch <= latest.row.epoch:
                raise Violation(f"epoch {row.epoch:x} came after {latest.row.epoch:x}")
            self._verdicts.judge_move(answer, latest, now)
            self._verdicts.poison.decided(answer, decided_s)
            record.count("moves")
        if answer.finish is not None:
            raise Violation(f"answer {row.answer:x} was placed after its end")
        if row.session in record.parked:
            raise Violation(f"answer {row.answer:x} was placed while its session is parked")
        if row.first_offset != len(answer.tokens):
            raise Violation(f"placed from {row.first_offset}; {len(answer.tokens)} are durable")
        told_s = record.node(row.node).drain_told_s
        if told_s is not None and decided_s > told_s:
            raise Violation(f"placed on {row.node}, which is drained")
        late = row.worker != record.node(row.node).worker
        run = Run(row, answer, decided_s, was_late=late)
        record.runs[row.generation] = record.runs.get(row.generation, run)
        record.epochs[row.epoch] = row.generation
        answer.runs.append(run)

    def _check_epoch(self, row: PutGeneration, answer: Answer) -> None:
        """An epoch is one assignment; on it may follow turns, each after the end of the last."""
        before = self._record.epochs.get(row.epoch)
        if before is None:
            epochs = [run.row.epoch for old in self._earlier(row, answer) for run in old.runs]
            if epochs and row.epoch < max(epochs):
                raise Violation(f"epoch {row.epoch:x} of {row.session} came after a higher one")
            return
        run = self._record.runs[before]
        ended = run.answer.finish.finish if run.answer.finish is not None else ""
        same = (run.row.session, run.row.node) == (row.session, row.node)
        if not same or run.answer is answer or ended not in ("length", "stop", "tool_calls"):
            raise Violation(f"epoch {row.epoch:x} was used twice")

    def _earlier(self, row: PutGeneration, answer: Answer) -> list[Answer]:
        return [old for old in self._record.sessions[row.session] if old is not answer]

    def _put_tokens(self, row: PutTokens) -> None:
        answer = self._answer(row.answer)
        run = answer.latest
        if run is None or run.row.generation != row.generation:
            raise Violation(f"tokens of generation {row.generation:x} after it was replaced")
        if answer.finish is not None:
            raise Violation("tokens after the end of their answer")
        if row.offset != len(answer.tokens):
            raise Violation(f"tokens at {row.offset}; {len(answer.tokens)} is next")
        mark = self._record.marks.get(row.generation)
        for place, token in enumerate(unpack_ids(row.ids), start=row.offset):
            if token >> TOKEN_BITS != mark:
                raise Violation(
                    f"token {place} is said to be of generation {row.generation:x} and is not"
                )
            self._check_token(answer, place, token)
            answer.tokens.append(token)
        self._check_logprobs(answer, row)
        run.committed += count_ids(row.ids)

    def _check_token(self, answer: Answer, place: int, token: int) -> None:
        plan = answer.plan
        if plan is None or place >= len(plan.expected):
            raise Violation(f"token {place} of an answer that has no such token")
        if token & TOKEN_MASK != plan.expected[place]:
            raise Violation(
                f"token {place} of {plan.name} is {token & TOKEN_MASK}, not {plan.expected[place]}"
            )

    def _check_logprobs(self, answer: Answer, row: PutTokens) -> None:
        others = None if answer.plan is None else answer.plan.others
        expected = b""
        if others is not None:
            expected = b"".join(
                made_up_record(token, row.offset + place, others)
                for place, token in enumerate(unpack_ids(row.ids))
            )
        if row.logprobs != expected:
            raise Violation(f"log-probabilities at {row.offset} are not those of their tokens")

    def _put_finish(self, row: PutFinish, now: float, decided_s: float) -> None:
        answer = self._record.answers.get(row.answer)
        if answer is None:
            return  # It was never stored: it ended before it was placed.
        if answer.finish is not None:
            raise Violation(f"answer {row.answer:x} ended twice")
        answer.finish = row
        answer.head_age_s = decided_s - self._record.head_started_s
        if row.error:
            answer.error = msgpack.unpackb(row.error)
        if answer.latest is not None:
            answer.latest.finished = True
            self._verdicts.poison.decided(answer, decided_s)
        if row.completion_tokens != len(answer.tokens):
            raise Violation(f"{row.completion_tokens} tokens at the end, not {len(answer.tokens)}")
        stop = answer.plan.stop if answer.plan is not None and row.finish == "stop" else ""
        if row.stop != stop:
            raise Violation(f"answer {row.answer:x} ended at the stop {row.stop!r}, not {stop!r}")
        self._verdicts.judge_end(answer, row.finish, answer.error, now)

    def _answer(self, number: int) -> Answer:
        answer = self._record.answers.get(number)
        if answer is None:
            raise Violation(f"rows for answer {number:x}, which is not stored")
        return answer

    # --- what leaves --------------------------------------------------------------------------

    def released(self, output: Output) -> None:
        known, lsn = self._needs.pop(id(output), (None, 0))
        if known is not output:
            raise Violation(f"{output} left twice, or was never decided")
        if lsn > self._durable:
            raise Violation(f"{output} left at lsn {self._durable}; it rests on {lsn}")
        match output:
            case SendLink(message=message):
                self._check_message(message)
            case Reply(client=client, body=body):
                self._check_reply(client, body)

    def _check_message(self, message: object) -> None:
        record = self._record
        match message:
            case WatermarkAck():
                for mark in message.watermarks:
                    run = record.runs.get(mark.generation)
                    self._check_watermark(run, mark.committed)
            case GenerateReq():
                run = record.runs.get(message.generation)
                if run is None or run.row.epoch != message.epoch:
                    raise Violation(f"{message} left before its row was durable")
            case SessionAssign():
                placed = record.resumed | record.sessions.keys()
                if message.epoch not in record.epochs and message.session not in placed:
                    raise Violation(f"{message} left before its row was durable")
            case Reconcile():
                for view in message.sessions:
                    for known in view.generations:
                        self._check_watermark(record.runs.get(known.generation), known.committed)

    def _check_watermark(self, run: Run | None, committed: int) -> None:
        if run is None:
            raise Violation("a generation is acknowledged that was never placed")
        over = run.answer.finish is not None or run.answer.latest is not run
        if committed > run.watermark and not over:
            raise Violation(f"{committed} events are acknowledged; {run.watermark} are durable")

    def _check_reply(self, client: bytes, body: dict[str, Any]) -> None:
        plan = self.requests.get((client, body.get("id") or b""))
        if plan is None:
            return
        answer = plan.answer
        if body["kind"] == "event" and body["type"] == "token":
            have = 0 if answer is None else len(answer.tokens)
            if body["offset"] + len(body["tokens"]) > have:
                raise Violation(f"tokens left for {plan.name} before they were durable")
        if body["kind"] == "end" and answer is not None and answer.finish is None:
            raise Violation(f"the end of {plan.name} left before it was durable")

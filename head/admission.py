"""A new answer's way from its request to the waiting line: ids, vocabulary, constraint."""

from __future__ import annotations

from dataclasses import dataclass

from bus.errors import ContextLengthExceeded, Invalid, SuperfluidError, TokenizerUnavailable
from bus.ids import ModelName, PackedIds, count_ids, pack_ids
from bus.messages.text import CheckConstraint, Described, Encoded
from head.answers import Answer
from head.chat_request import ChatPlan
from head.chat_turns import fresh_ids, renumbered
from head.constraint_errors import Told
from head.description_waits import ID_BYTES
from head.effects import ClientKey
from head.operation import Core
from head.pending_texts import Continue
from head.sampling_request import check_below, check_ids
from head.sessions import Session
from head.texts import MakeJob


def tokenizer_changed(model: ModelName) -> TokenizerUnavailable:
    """The error of a text whose ids are of another tokenizer than the model has by now."""
    return TokenizerUnavailable(
        f"the tokenizer of {model} was replaced while this text was read; ask again",
        param="model",
        retry_after_ms=1000,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """One answer before it waits for a node. Whatever is wrong with it ends it, by name.

    Args:
        core: the head's.
        client: who asked.
        answer: in the book, in stage PREPARING.
        constraint_param: what the client called its constraint.
        plan: of a chat; it is to be made true of the answer.
        talk: the made session that a chat's new messages join, when nothing is wrong with them.
        behind: how many messages that the client did not send are rendered before them.
    """

    core: Core
    client: ClientKey
    answer: Answer
    constraint_param: str
    plan: ChatPlan | None = None
    talk: Session | None = None
    behind: int = 0

    def encode(self, make_job: MakeJob, size_bytes: int) -> None:
        """Admit the answer with the ids that a text job gives.

        Args:
            make_job: of the job's number and the model's folder.
            size_bytes: of its text.
        """

        def encoded(reply: object, now: float) -> None:
            if isinstance(reply, Encoded):
                self.core.texts.used(self.answer.model, reply.digest)
                self._when_described(lambda known, at: self._with_encoded(known, reply, at), now)

        self._submit(make_job, encoded, size_bytes, self.answer.accepted_s)

    def take_ids(self, ids: tuple[int, ...], now: float) -> None:
        """Admit the answer with the ids that the client gave."""

        def then(known: object, at: float) -> None:
            try:
                if isinstance(known, Described):
                    check_below(ids, len(known.vocabulary), "tokens", self.answer.model)
            except SuperfluidError as error:
                self._fail(error, at)
                return
            self._with_prompt(known, pack_ids(ids), at)

        self._when_described(then, now, ID_BYTES * len(ids))

    def take_context(self, session: Session, now: float) -> None:
        """Admit a turn, which begins with its session's context."""

        def then(known: object, at: float) -> None:
            try:
                if isinstance(known, Described):
                    session.goes_by(known.digest)
            except SuperfluidError as error:
                self._fail(error, at)
                return
            self._check(known, at)

        self._when_described(then, now)

    # --- steps --------------------------------------------------------------------------------

    def _with_encoded(self, known: object, encoded: Encoded, now: float) -> None:
        if isinstance(known, Described) and encoded.digest not in (0, known.digest):
            self._fail(tokenizer_changed(self.answer.model), now)
            return
        ids = encoded.ids
        try:
            if self.plan is not None and not self.answer.ended:
                self.plan.begin(self.answer, encoded)
            if self.talk is not None and isinstance(known, Described):
                self.talk.goes_by(known.digest)
                ids = fresh_ids(self.talk, ids, known.eos)
        except SuperfluidError as error:
            self._fail(error, now)
            return
        self._with_prompt(known, ids, now)

    def _with_prompt(self, known: object, ids: PackedIds, now: float) -> None:
        if isinstance(known, Described) and not ids:
            self._fail(Invalid("the prompt has no tokens; give at least one", param="prompt"), now)
            return
        if not self.answer.ended:
            self.answer.prompt = ids
            self.answer.prompt_tokens = count_ids(ids)
        self._check(known, now)

    def _check(self, known: object, now: float) -> None:
        """See that what the request asks for can be had, then let it wait."""
        answer = self.answer
        if answer.ended:
            return
        try:
            if isinstance(known, SuperfluidError):
                raise known
            if isinstance(known, Described):
                check_ids(answer.sampling, answer.model, len(known.vocabulary))
                answer.tokenizer_digest = known.digest
        except SuperfluidError as error:
            self._fail(error, now)
            return
        if answer.sampling.constraint is None:
            self._wait(now)
        else:
            self._check_constraint(now)

    def _check_constraint(self, now: float) -> None:
        """Compile the constraint once, away from every node."""
        constraint = self.answer.sampling.constraint
        if constraint is None:
            raise ValueError("an answer without a constraint")

        def make_job(job: int, folder: str) -> object:
            return CheckConstraint(job=job, folder=folder, constraint=constraint)

        self._submit(make_job, lambda _, at: self._wait(at), len(constraint.source), now)

    def _wait(self, now: float) -> None:
        if self.answer.ended:
            return
        try:
            if self.talk is not None:
                self._join(self.talk)
            self.core.runs.waiting.add(self.answer, now)
        except SuperfluidError as error:
            self._fail(error, now)

    def _join(self, session: Session) -> None:
        """The new messages become part of their session's context; the answer begins with that."""
        answer = self.answer
        ids, answer.prompt = answer.prompt, PackedIds(b"")
        length = len(session.context) + count_ids(ids)
        window = self.core.fleet.largest_window(answer.model)
        if window and length > window:
            raise ContextLengthExceeded(
                f"with these messages session {session.id} would have {length} tokens, and the "
                f"largest window for {answer.model} is {window}; send less, or begin a new session",
                param="messages",
                details={"length": length, "max": window},
            )
        self.core.runs.made.join(session, answer, ids)

    # --- parts --------------------------------------------------------------------------------

    def _submit(self, make_job: MakeJob, then: Continue, size_bytes: int, now: float) -> None:
        answer = self.answer

        def done(reply: object, at: float) -> None:
            answer.text_job = None
            if isinstance(reply, SuperfluidError):
                self._fail(reply, at)
            else:
                then(reply, at)

        try:
            answer.text_job = self.core.texts.submit(
                answer.model, make_job, done, client=self.client, size_bytes=size_bytes
            )
        except SuperfluidError as error:
            self._fail(error, now)

    def _when_described(self, then: Continue, now: float, size_bytes: int = 0) -> None:
        """Go on, or end the answer when its model's folder is gone, or too much waits."""
        try:
            self.core.texts.when_described(
                self.answer.model, then, now, client=self.client, size_bytes=size_bytes
            )
        except SuperfluidError as error:
            self._fail(error, now)

    def _fail(self, error: SuperfluidError, now: float) -> None:
        if error.param == "constraint":
            told = Told(error.message, self.constraint_param)
            if self.plan is not None:
                told = self.plan.told(told)
            error = type(error)(
                told.message,
                param=told.param,
                details=error.details,
                retry_after_ms=error.retry_after_ms,
            )
        self.core.book.end(self.answer, "error", now, renumbered(error, self.behind))

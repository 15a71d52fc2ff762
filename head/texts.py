"""Text work as the core sees it: which model folders are here, and jobs at text processes.

The core never tokenizes; it hands jobs out and goes on when their replies come. What it needs in
its own loop, the bytes of each token, comes once per model with `Described`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from bus.errors import (
    ERROR_TABLE,
    Internal,
    NotFound,
    QueueFull,
    SuperfluidError,
    TokenizerUnavailable,
)
from bus.ids import ModelName
from bus.messages.sampling import SamplingParams
from bus.messages.text import Describe, Described, TextFailed
from bus.text.stops import AnswerText
from head.effects import ClientKey
from head.outbox import Outbox

#: What may wait at the text processes, and of it what one client may have; more is refused with a
#: hint to come back.
MAX_PENDING_JOBS = 1024
MAX_PENDING_BYTES = 64 * 1024 * 1024
MAX_CLIENT_BYTES = 16 * 1024 * 1024
#: Tokenizers that answers may still be read by after another took their model's name.
MAX_FORMER = 4
#: A model whose description failed for a reason that may pass is described again after this long,
#: twice as long after each further failure.
FIRST_RETRY_S = 1.0
MAX_RETRY_S = 60.0

Reply = object
Continue = Callable[[Reply | SuperfluidError, float], None]
MakeJob = Callable[[int, str], object]


@dataclass(slots=True)
class _Job:
    then: Continue
    client: ClientKey
    size_bytes: int
    #: Its reply is for the client's connection alone.
    until_gone: bool = False


@dataclass(slots=True)
class _Failure:
    """Why a model has no description."""

    error: SuperfluidError
    #: When to try again; None for what only another model folder mends.
    again_s: float | None
    times: int

    def at(self, now: float) -> SuperfluidError:
        """The error, with how long it still lasts."""
        if self.again_s is None:
            return self.error
        wait_ms = max(1, ceil((self.again_s - now) * 1000))
        return type(self.error)(self.error.message, param=self.error.param, retry_after_ms=wait_ms)


class TextDesk:
    """Owned by the core. `models` maps each model of the head's models folder to its path."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._folders: dict[ModelName, str] = {}
        self._described: dict[ModelName, Described] = {}
        #: Bytes of each model's longest token.
        self._longest: dict[ModelName, int] = {}
        self._failed: dict[ModelName, _Failure] = {}
        #: What is told apart by it has changed when it has.
        self._stamps: dict[ModelName, object] = {}
        #: Models whose description is of files that are no longer there.
        self._stale: set[ModelName] = set()
        #: Descriptions asked for so far; the reply to the last one counts.
        self._asked: dict[ModelName, int] = {}
        #: What models were before, by their tokenizers' digests.
        self._former: OrderedDict[tuple[ModelName, int], Described] = OrderedDict()
        self._waiting: dict[ModelName, list[Continue]] = {}
        self._jobs: dict[int, _Job] = {}
        self._pending_bytes: dict[ClientKey, int] = {}
        self._last_job = 0
        #: Gives the tokenizer digest of a model that the head has no copy of; 0 for unknown.
        self.other_digest: Callable[[ModelName], int] = lambda _: 0

    @property
    def folders(self) -> Mapping[ModelName, str]:
        return self._folders

    def described(self, model: ModelName) -> Described | None:
        return self._described.get(model)

    def vocabulary_size(self, model: ModelName, digest: int = 0) -> int:
        """How many token ids a model has, as the head's own copy says; 0 while it is not known.

        Args:
            digest: of the tokenizer that is meant; 0 for the one that the model has now.
        """
        known = self._with_digest(model, digest)
        return len(known.vocabulary) if known else 0

    def kind(self, model: ModelName) -> str:
        """`decoder` or `encoder`; empty while it is not known."""
        known = self._described.get(model)
        return known.kind if known else ""

    def digest(self, model: ModelName) -> int:
        """The tokenizer digest that a model has in this fleet; 0 while it is not known.

        It is that of the head's own copy, and without one what `other_digest` says.
        """
        known = self._described.get(model)
        return known.digest if known else self.other_digest(model)

    def models_found(
        self, folders: Mapping[ModelName, str], stamps: Mapping[ModelName, object] | None = None
    ) -> None:
        """The models folder was read: describe new and changed models, forget those that are gone.

        Args:
            folders: path of each model's folder.
            stamps: of each model, something that changes when its tokenizer's files do.
        """
        stamps = stamps or {}
        for model in [m for m, path in self._folders.items() if folders.get(m) != path]:
            self._keep_former(model)
            self._longest.pop(model, None)
            self._failed.pop(model, None)
            self._stale.discard(model)
            del self._folders[model]
        for model, path in folders.items():
            is_new = model not in self._folders
            if is_new or self._stamps.get(model) != stamps.get(model):
                self._stamps[model] = stamps.get(model)
                self._folders[model] = path
                self._changed(model)

    def used(self, model: ModelName, digest: int) -> None:
        """A job of a model went by the tokenizer with this digest; 0 for unknown.

        When it is another than the one described, the files have changed: `when_described` waits
        for the new description from now on.
        """
        known = self._described.get(model)
        fresh = known is not None and model not in self._stale
        if digest and fresh and known is not None and known.digest != digest:
            self._changed(model)

    def _changed(self, model: ModelName) -> None:
        """Describe a model again; what is known of it is not for new texts."""
        self._failed.pop(model, None)
        if model in self._described:
            self._stale.add(model)
        if model in self._folders:
            self._describe(model)

    def _keep_former(self, model: ModelName) -> None:
        """A model's description is replaced, or its folder is gone."""
        before = self._described.pop(model, None)
        if before is not None:
            self._former[model, before.digest] = before
            self._former.move_to_end((model, before.digest))
            while len(self._former) > MAX_FORMER:
                self._former.popitem(last=False)

    def folder(self, model: ModelName) -> str:
        """The path of a model's folder.

        Raises:
            NotFound: this head has none, with what it has.
        """
        if model not in self._folders:
            have = ", ".join(sorted(self._folders)) or "none"
            raise NotFound(
                f"this head has no model folder {model!r} (it has: {have}); "
                f"import it on the head's machine too: sfctl model import FILE --name {model}",
                param="model",
            )
        return self._folders[model]

    def when_described(self, model: ModelName, then: Continue, now: float) -> None:
        """Go on with `Described`, or with the error that keeps the tokenizer from loading.

        Raises:
            NotFound: no such folder.
        """
        self.folder(model)
        known, failure = self._described.get(model), self._failed.get(model)
        if known is not None and model not in self._stale:
            then(known, now)
            return
        if failure is not None and (failure.again_s is None or now < failure.again_s):
            then(failure.at(now), now)
            return
        if failure is not None and model not in self._waiting:
            self._describe(model)
        self._waiting.setdefault(model, []).append(then)

    def submit(
        self,
        model: ModelName,
        make_job: MakeJob,
        then: Continue,
        *,
        client: ClientKey,
        size_bytes: int,
        until_gone: bool = False,
    ) -> int:
        """Hand out a job; `then` gets its reply or an error.

        Args:
            client: who waits for it; clients take turns.
            size_bytes: of its text.
            until_gone: drop it when the client's connection ends.

        Returns:
            The job's number, for `drop`.

        Raises:
            NotFound: no such model folder.
            QueueFull: too much waits already.
        """
        folder = self.folder(model)
        theirs = self._pending_bytes.get(client, 0)
        total = sum(self._pending_bytes.values())
        if (
            len(self._jobs) >= MAX_PENDING_JOBS
            or total + size_bytes > MAX_PENDING_BYTES
            or (theirs and theirs + size_bytes > MAX_CLIENT_BYTES)
        ):
            raise QueueFull(
                f"{len(self._jobs)} texts of {total} bytes wait to be tokenized; try again in a "
                "second",
                retry_after_ms=1000,
            )
        return self._hand_out(
            _Job(then, client, size_bytes, until_gone), lambda job: make_job(job, folder)
        )

    def drop(self, job: int) -> None:
        """Nobody waits for a job any more; fine when it is done."""
        if self._settle(job) is not None:
            self._outbox.drop_text(job)

    def client_gone(self, client: ClientKey) -> None:
        """Drop what only this client's connection waited for."""
        jobs = [n for n, job in self._jobs.items() if job.client == client and job.until_gone]
        for number in jobs:
            self.drop(number)

    def reply(self, message: object, now: float) -> None:
        """A reply of a text process, or the `TextFailed` that stands for its death."""
        found = self._settle(getattr(message, "job", 0))
        if found is not None:
            found.then(_error(message) if isinstance(message, TextFailed) else message, now)

    def _hand_out(self, job: _Job, make: Callable[[int], object]) -> int:
        self._last_job += 1
        self._jobs[self._last_job] = job
        pending = self._pending_bytes
        pending[job.client] = pending.get(job.client, 0) + job.size_bytes
        self._outbox.text_job(make(self._last_job), job.client)
        return self._last_job

    def _settle(self, number: int) -> _Job | None:
        job = self._jobs.pop(number, None)
        if job is not None:
            left = self._pending_bytes.pop(job.client) - job.size_bytes
            if left or any(other.client == job.client for other in self._jobs.values()):
                self._pending_bytes[job.client] = left
        return job

    def least_tokens(self, model: ModelName, text_bytes: int) -> int:
        """As few tokens as a text of so many bytes can have; 0 while that is not known."""
        longest = self._longest.get(model, 0)
        return -(-text_bytes // longest) if longest else 0

    def vocabulary(self, model: ModelName, digest: int = 0) -> Sequence[bytes]:
        """What each token id adds to a text.

        Args:
            digest: of the tokenizer that is meant; 0 for the one that the model has now.

        Raises:
            TokenizerUnavailable: there is no description of it.
        """
        return self._known(model, digest).vocabulary

    def description(self, model: ModelName, digest: int = 0) -> Described:
        """A tokenizer.

        Args:
            digest: of the one that is meant; 0 for the one that the model has now.

        Raises:
            TokenizerUnavailable: there is no description of it.
        """
        return self._known(model, digest)

    def new_answer_text(
        self, model: ModelName, sampling: SamplingParams, digest: int = 0
    ) -> AnswerText:
        """What makes an answer's text of its tokens, from their start.

        Args:
            digest: of the tokenizer that its ids are of; 0 for the one that the model has now.

        Raises:
            TokenizerUnavailable: there is no description of it.
        """
        known = self._known(model, digest)
        return AnswerText(known.vocabulary, known.special, sampling.stop, sampling.min_tokens)

    def check_readable(self, model: ModelName, digest: int) -> None:
        """See that texts of ids of a tokenizer can be made.

        Raises:
            TokenizerUnavailable: there is no description of it.
        """
        self._known(model, digest)

    def _with_digest(self, model: ModelName, digest: int) -> Described | None:
        known = self._described.get(model)
        if not digest or (known is not None and known.digest == digest):
            return known
        return self._former.get((model, digest))

    def _known(self, model: ModelName, digest: int) -> Described:
        known = self._with_digest(model, digest)
        if known is not None:
            return known
        if model in self._described:
            raise TokenizerUnavailable(
                f"this is of another tokenizer of {model} ({digest:016x}) than the head has now; "
                f"import the file that {model} was made of before, under this name or on another "
                "head"
            )
        raise TokenizerUnavailable(
            f"the head has no tokenizer for {model}; import the model on the head's machine"
        )

    def _describe(self, model: ModelName) -> None:
        turn = self._asked[model] = self._asked.get(model, 0) + 1

        def then(reply: object, now: float) -> None:
            if self._asked[model] != turn:
                return  # It may be of older files; who waits gets the later one.
            if isinstance(reply, Described):
                self._keep_former(model)
                self._described[model] = reply
                self._former.pop((model, reply.digest), None)
                self._stale.discard(model)
                self._longest[model] = max(map(len, reply.vocabulary), default=0)
                self._failed.pop(model, None)
                known: Reply = reply
            else:
                error = reply if isinstance(reply, SuperfluidError) else Internal("no description")
                known = self._note_failure(model, error, now).at(now)
            for waiter in self._waiting.pop(model, []):
                waiter(known, now)

        folder = self._folders[model]
        self._hand_out(_Job(then, b"", 0), lambda job: Describe(job=job, folder=folder))

    def _note_failure(self, model: ModelName, error: SuperfluidError, now: float) -> _Failure:
        before = self._failed.get(model)
        times = before.times + 1 if before else 1
        wait_s = min(FIRST_RETRY_S * 2 ** min(times - 1, 10), MAX_RETRY_S)
        again_s = None if error.retry_after_ms is None else now + wait_s
        self._failed[model] = _Failure(error, again_s, times)
        return self._failed[model]


def _error(failed: TextFailed) -> SuperfluidError:
    cls = ERROR_TABLE.get(failed.code, Internal)
    return cls(
        failed.message,
        param=failed.param or None,
        retry_after_ms=failed.retry_after_ms or None,
    )

"""Text work as the core sees it: which model folders are here, and jobs at text processes.

The core never tokenizes; it hands jobs out and goes on when their replies come. What it knows of a
tokenizer itself comes once per model (head/known_tokenizers.py).

A folder is one of the head's models folder, or has what was fetched from a node
(head/tokenizers.py). Jobs of a model that is being fetched wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bus.errors import Internal, ModelIncomplete, NotFound, SuperfluidError
from bus.ids import ModelName
from bus.messages.text import Describe, Described, TextFailed
from head.description_waits import DescriptionWaits
from head.effects import NOBODY, ClientKey
from head.known_tokenizers import KnownTokenizers
from head.outbox import Outbox
from head.pending_texts import Continue, PendingText, PendingTexts
from head.text_failures import DescriptionFailure, error_of, failed_again
from head.tokenizer_source import OwnFolders, TokenizerSource

#: What jobs end with when a folder's files are gone, or are none.
_NO_FILES = frozenset({NotFound.code, ModelIncomplete.code})

Reply = object
MakeJob = Callable[[int, str], object]


class TextDesk(KnownTokenizers):
    """Owned by the core.

    Invariant: what waits for a model's tokenizer is in `_awaiting` and `_waiting`, and each of
    `_fetched` has a folder and a description.
    """

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox
        self._folders: dict[ModelName, str] = {}
        self._failed: dict[ModelName, DescriptionFailure] = {}
        #: What is told apart by it has changed when it has.
        self._stamps: dict[ModelName, object] = {}
        #: Models whose description is of files that are no longer there.
        self._stale: set[ModelName] = set()
        #: Descriptions asked for so far; the reply to the last one counts.
        self._asked: dict[ModelName, int] = {}
        self._waiting = DescriptionWaits[ModelName]()
        #: Paths of the head's models folder, and the digests of what they had last.
        self._own: dict[ModelName, str] = {}
        self._own_digests: dict[ModelName, int] = {}
        #: Models whose folder has what was fetched.
        self._fetched: set[ModelName] = set()
        #: Jobs that wait for a model's folder.
        self._awaiting: dict[ModelName, dict[int, MakeJob]] = {}
        self._pending = PendingTexts()
        #: Gives the tokenizer digest of a model that the head has no copy of; 0 for unknown.
        self.other_digest: Callable[[ModelName], int] = lambda _: 0
        #: The same for its kind.
        self.other_kind: Callable[[ModelName], str] = lambda _: ""
        self.source: TokenizerSource = OwnFolders(lambda: self.folders, self.no_folder)

    @property
    def folders(self) -> Mapping[ModelName, str]:
        """Path of each model's folder in the head's models folder."""
        return self._own

    def own_digest(self, model: ModelName) -> int:
        """Of the tokenizer in the head's own folder of a model; 0 while it is not known."""
        return self._own_digests.get(model, 0) if model in self._own else 0

    def kind(self, model: ModelName) -> str:
        """As in head/model_kinds.py; empty while it is not known, or only of a decoder's node."""
        known = self._described.get(model)
        return known.kind if known else self.other_kind(model)

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
        for model in [m for m, path in self._own.items() if folders.get(m) != path]:
            del self._own[model]
            if model not in self._fetched:
                self._forget(model)
        for model, path in folders.items():
            is_new = model not in self._own
            if is_new or self._stamps.get(model) != stamps.get(model):
                self._fetched.discard(model)
                self._own_digests.pop(model, None)
                self._stamps[model] = stamps.get(model)
                self._own[model] = self._folders[model] = path
                self._changed(model)
                if is_new:
                    self._hand_out_awaiting(model)

    def describe(self, folder: str, then: Continue) -> None:
        """Describe a folder that is none of a model yet; `then` gets `Described` or an error."""
        self._hand_out(PendingText(then, b"", 0), lambda job: Describe(job=job, folder=folder))

    def adopt(self, model: ModelName, folder: str, described: Described, now: float) -> None:
        """What was fetched of a model is its folder from now on; the head's own one is not."""
        # What is asked about the own one counts no more.
        self._asked[model] = self._asked.get(model, 0) + 1
        self._fetched.add(model)
        self._folders[model] = folder
        self._note_description(model, described)
        self._hand_out_awaiting(model)
        for waiter in self._waiting.take(model):
            waiter(described, now)

    def disown(self, model: ModelName) -> None:
        """What was fetched of a model is its folder no more; the head's own one is, if there is."""
        if model not in self._fetched:
            return
        self._fetched.discard(model)
        if model in self._own:
            self._folders[model] = self._own[model]
            self._changed(model)
        else:
            self._forget(model)

    def has_folder(self, model: ModelName) -> bool:
        """Whether a model's texts can be worked on now."""
        return model in self._folders

    def give_up(self, model: ModelName, error: SuperfluidError, now: float) -> None:
        """A model's tokenizer does not come: what waits for it fails."""
        if model in self._folders:
            return
        for number in self._awaiting.pop(model, {}):
            if (job := self._pending.settle(number)) is not None:
                job.then(error, now)
        for waiter in self._waiting.take(model):
            waiter(error, now)

    @property
    def awaited(self) -> set[ModelName]:
        """Models for whose folder something waits."""
        return {*self._awaiting, *self._waiting.names} - self._folders.keys()

    def _hand_out_awaiting(self, model: ModelName) -> None:
        for number, make in self._awaiting.pop(model, {}).items():
            if (job := self._pending.get(number)) is not None:
                self._outbox.text_job(make(number, self._folders[model]), job.client)

    def _forget(self, model: ModelName) -> None:
        self._keep_former(model)
        self._failed.pop(model, None)
        self._stale.discard(model)
        del self._folders[model]

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

    def check(self, model: ModelName) -> None:
        """See that texts of a model can be worked on, now or when its tokenizer has come.

        Raises:
            SuperfluidError: they can not, and why.
        """
        if model not in self._folders and (error := self.source.begin(model)) is not None:
            raise error

    def no_folder(self, model: ModelName) -> NotFound:
        """Why a model of which nobody knows has no texts."""
        have = ", ".join(sorted(self._folders)) or "none"
        return NotFound(
            f"there is no model {model!r}: no node serves it, and the head has no folder of it (it "
            f"has: {have}); get one with: sfctl model import FILE --name {model}",
            param="model",
        )

    def when_described(
        self,
        model: ModelName,
        then: Continue,
        now: float,
        digest: int = 0,
        *,
        client: ClientKey = NOBODY,
        size_bytes: int = 0,
    ) -> None:
        """Go on with `Described`, or with the error that keeps the tokenizer from loading.

        Args:
            digest: of a tokenizer that the model may have had before and that is to be known by
                then, where the head still has it.
            client: who waits for it.
            size_bytes: of what it holds while it waits.

        Raises:
            SuperfluidError: as `check`.
            RateLimited, QueueFull: too much waits already.
        """
        if digest:
            if (meant := self._with_digest(model, digest)) is not None:
                then(meant, now)
                return
            if self.source.recall(model, digest, then, client, size_bytes):
                return
        self.check(model)
        known, failure = self._described.get(model), self._failed.get(model)
        if known is not None and model not in self._stale:
            then(known, now)
            return
        if failure is not None and not failure.is_over(now):
            then(failure.at(now), now)
            return
        is_first = model not in self._waiting
        self._waiting.add(model, then, client, size_bytes)
        if failure is not None and is_first:
            self._describe(model)

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
            SuperfluidError: as `check`.
            QueueFull: too much waits already.
        """
        self.check(model)
        self._pending.check_room(client, size_bytes)
        job = PendingText(then, client, size_bytes, until_gone, model)
        if (folder := self._folders.get(model)) is not None:
            return self._hand_out(job, lambda number: make_job(number, folder))
        number = self._pending.add(job)
        self._awaiting.setdefault(model, {})[number] = make_job
        return number

    def drop(self, job: int) -> None:
        """Nobody waits for a job any more; fine when it is done."""
        if (found := self._pending.settle(job)) is None:
            return
        awaiting = self._awaiting.get(found.model, {})
        if awaiting.pop(job, None) is None:
            self._outbox.drop_text(job)
        elif not awaiting:
            del self._awaiting[found.model]

    def client_gone(self, client: ClientKey) -> None:
        """Drop what only this client's connection waited for."""
        for number in self._pending.until_gone(client):
            self.drop(number)

    def reply(self, message: object, now: float) -> None:
        """A reply of a text process, or the `TextFailed` that stands for its death."""
        found = self._pending.settle(getattr(message, "job", 0))
        if found is None:
            return
        if not isinstance(message, TextFailed):
            found.then(message, now)
        elif message.code in _NO_FILES and self.source.state(found.model).startswith("fetch"):
            found.then(self.source.damaged(found.model, now), now)
        else:
            found.then(error_of(message), now)

    def _hand_out(self, job: PendingText, make: Callable[[int], object]) -> int:
        number = self._pending.add(job)
        self._outbox.text_job(make(number), job.client)
        return number

    def _describe(self, model: ModelName) -> None:
        turn = self._asked[model] = self._asked.get(model, 0) + 1

        def then(reply: object, now: float) -> None:
            if self._asked[model] != turn:
                return  # It may be of older files; who waits gets the later one.
            if isinstance(reply, Described):
                self._note_description(model, reply)
                if model not in self._fetched:
                    self._own_digests[model] = reply.digest
                known: Reply = reply
            else:
                error = reply if isinstance(reply, SuperfluidError) else Internal("no description")
                failure = failed_again(error, self._failed.get(model), now)
                self._failed[model], known = failure, failure.at(now)
            for waiter in self._waiting.take(model):
                waiter(known, now)
            if known is reply:
                self.source.described(model, now)

        folder = self._folders[model]
        self._hand_out(PendingText(then, b"", 0), lambda job: Describe(job=job, folder=folder))

    def _note_description(self, model: ModelName, described: Described) -> None:
        self._note(model, described)
        self._stale.discard(model)
        self._failed.pop(model, None)
        if model not in self._folders:
            self._keep_former(model)  # Its folder went meanwhile.

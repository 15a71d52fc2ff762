"""Text work as the core sees it: which model folders are here, and jobs at text processes.

The core never tokenizes; it hands jobs out and goes on when their replies come. What it needs in
its own loop, the bytes of each token, comes once per model with `Described`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bus.errors import (
    ERROR_TABLE,
    Internal,
    NotFound,
    QueueFull,
    SuperfluidError,
    TokenizerUnavailable,
)
from bus.ids import ModelName
from bus.messages.text import Describe, Described, TextFailed
from bus.text.detokenizer import Detokenizer
from head.outbox import Outbox

#: Jobs that may wait at the text processes; more are refused with a hint to come back.
MAX_PENDING_JOBS = 1024

Reply = object
Continue = Callable[[Reply | SuperfluidError, float], None]
MakeJob = Callable[[int, str], object]


class TextDesk:
    """Owned by the core. `models` maps each model of the head's models folder to its path."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._folders: dict[ModelName, str] = {}
        self._described: dict[ModelName, Described] = {}
        self._failed: dict[ModelName, SuperfluidError] = {}
        self._waiting: dict[ModelName, list[Continue]] = {}
        self._jobs: dict[int, Continue] = {}
        self._last_job = 0

    @property
    def folders(self) -> Mapping[ModelName, str]:
        return self._folders

    def described(self, model: ModelName) -> Described | None:
        return self._described.get(model)

    def digest(self, model: ModelName) -> int:
        """The tokenizer digest of the head's own copy; 0 while it is not known."""
        known = self._described.get(model)
        return known.digest if known else 0

    def models_found(self, folders: Mapping[ModelName, str]) -> None:
        """The models folder was read: describe new models, forget those that are gone."""
        for model in [m for m, path in self._folders.items() if folders.get(m) != path]:
            self._described.pop(model, None)
            self._failed.pop(model, None)
            del self._folders[model]
        for model in folders.keys() - self._folders.keys():
            self._folders[model] = folders[model]
            self._describe(model)

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
        known = self._described.get(model) or self._failed.get(model)
        if known is not None:
            then(known, now)
        else:
            self._waiting.setdefault(model, []).append(then)

    def submit(self, model: ModelName, make_job: MakeJob, then: Continue) -> None:
        """Hand out a job; `then` gets its reply or an error.

        Raises:
            NotFound: no such model folder.
            QueueFull: too many jobs wait.
        """
        folder = self.folder(model)
        if len(self._jobs) >= MAX_PENDING_JOBS:
            raise QueueFull(
                f"{len(self._jobs)} texts wait to be tokenized; try again in a second",
                retry_after_ms=1000,
            )
        self._last_job += 1
        self._jobs[self._last_job] = then
        self._outbox.text_job(make_job(self._last_job, folder))

    def reply(self, message: object, now: float) -> None:
        """A reply of a text process, or the `TextFailed` that stands for its death."""
        then = self._jobs.pop(getattr(message, "job", 0), None)
        if then is None:
            return
        then(_error(message) if isinstance(message, TextFailed) else message, now)

    def new_detokenizer(self, model: ModelName) -> Detokenizer:
        """An incremental detokenizer at the start of an answer.

        Raises:
            TokenizerUnavailable: the model's tokenizer has not been described.
        """
        known = self._described.get(model)
        if known is None:
            raise TokenizerUnavailable(
                f"the head has no tokenizer for {model}; import the model on the head's machine"
            )
        return Detokenizer(known.vocabulary, known.special)

    def _describe(self, model: ModelName) -> None:
        def then(reply: object, now: float) -> None:
            if isinstance(reply, Described):
                self._described[model] = reply
            else:
                error = reply if isinstance(reply, SuperfluidError) else Internal("no description")
                self._failed[model] = error
            for waiter in self._waiting.pop(model, []):
                waiter(self._described.get(model) or self._failed[model], now)

        self._last_job += 1
        self._jobs[self._last_job] = then
        self._outbox.text_job(Describe(job=self._last_job, folder=self._folders[model]))


def _error(failed: TextFailed) -> SuperfluidError:
    cls = ERROR_TABLE.get(failed.code, Internal)
    return cls(failed.message, param=failed.param or None)

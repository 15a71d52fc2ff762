"""Where tokenizers come from of models that the head has no folder of."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from bus.errors import SuperfluidError
from bus.ids import ModelName
from head.effects import ClientKey
from head.pending_texts import Continue


class TokenizerSource(Protocol):
    """Gets tokenizers for the text desk."""

    def begin(self, model: ModelName) -> SuperfluidError | None:
        """None when it will come, by `TextDesk.adopt` or `give_up`; else why it will not."""

    def recall(
        self, model: ModelName, digest: int, then: Continue, client: ClientKey, size_bytes: int
    ) -> bool:
        """Have a tokenizer again that a model had before; False when that is not possible.

        Raises:
            RateLimited, QueueFull: too much waits already.
        """

    def described(self, model: ModelName, now: float) -> None:
        """What a model's folder has is known; it may be the head's own folder."""

    def damaged(self, model: ModelName, now: float) -> SuperfluidError:
        """The files of a model that was adopted are gone; gives the error of who needed them."""

    def state(self, model: ModelName) -> str:
        """Where a model's tokenizer is: `own`, `fetched`, `fetching`, or empty for nowhere."""

    def problem(self, model: ModelName) -> str:
        """Why there is none; empty when there is, or will be in a moment."""


class OwnFolders:
    """The source of a head that has its models folder alone.

    Args:
        have: gives the models that have a folder.
        none: gives the error for one that has none.
    """

    def __init__(
        self,
        have: Callable[[], Collection[ModelName]],
        none: Callable[[ModelName], SuperfluidError],
    ) -> None:
        self._have = have
        self._none = none

    def begin(self, model: ModelName) -> SuperfluidError | None:
        return self._none(model)

    def recall(
        self, model: ModelName, digest: int, then: Continue, client: ClientKey, size_bytes: int
    ) -> bool:
        return False

    def described(self, model: ModelName, now: float) -> None:
        return

    def damaged(self, model: ModelName, now: float) -> SuperfluidError:
        return self._none(model)

    def state(self, model: ModelName) -> str:
        return "own" if model in self._have() else ""

    def problem(self, model: ModelName) -> str:
        return "" if self.state(model) else self._none(model).message

"""Tokenizers that models had before, read again of what the head keeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from bus.errors import SuperfluidError
from bus.ids import ModelName
from bus.messages.text import Described
from head.description_waits import DescriptionWaits
from head.effects import ClientKey
from head.kept_tokenizers import TokenizerKey, TokenizerStore
from head.pending_texts import Continue
from head.texts import TextDesk
from head.tokenizer_refusals import not_kept


class Recalls:
    """Owned by the desk of tokenizers.

    Args:
        settled: takes what is to be done at the desk's next `settle`.
    """

    def __init__(
        self,
        texts: TextDesk,
        store: TokenizerStore,
        settled: Callable[[Callable[[float], None]], None],
    ) -> None:
        self._texts = texts
        self._store = store
        self._settled = settled
        self._waiting = DescriptionWaits[TokenizerKey]()

    def recall(
        self, model: ModelName, digest: int, then: Continue, client: ClientKey, size_bytes: int
    ) -> bool:
        """Read what is kept of a tokenizer that a model had before; False when nothing is.

        Args:
            then: gets its description, which the text desk has by then, or an error.
            client: who waits for it.
            size_bytes: of what it holds while it waits.

        Raises:
            RateLimited, QueueFull: too much waits already.
        """
        keys = [key for key in self._store.kept() if key.model == model]
        key = next((key for key in keys if key.digest == digest), None)
        is_next = not self._texts.has_folder(model) and key == next(iter(keys), None)
        if key is None or is_next:
            # What is kept last is what the model has next.
            return False
        is_first = key not in self._waiting
        self._waiting.add(key, then, client, size_bytes)
        if is_first:
            read = partial(self._read, key)
            self._store.find(key, lambda found: self._settled(partial(read, found)))
        return True

    def _read(self, key: TokenizerKey, found: Path | SuperfluidError | None, now: float) -> None:
        if isinstance(found, Path):
            self._texts.describe(str(found), partial(self._tell, key))
        else:
            self._tell(key, not_kept(key), now)

    def _tell(self, key: TokenizerKey, reply: object, now: float) -> None:
        if isinstance(reply, Described):
            self._texts.remember(key.model, reply)
        for waiter in self._waiting.take(key):
            waiter(reply, now)

"""A `TokenizerStore` in memory, whose work is done when the owner settles."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from bus.errors import SuperfluidError
from bus.text.tokenizer_export import TokenizerIntake
from head.kept_tokenizers import Found, TokenizerKey


class MemoryTokenizers:
    """`whole` has what is kept; `damaged` are found to be so when they are looked at."""

    def __init__(self) -> None:
        self.whole: list[TokenizerKey] = []
        self.damaged: set[TokenizerKey] = set()
        self.written: dict[TokenizerKey, dict[str, bytes]] = {}
        self.removed: list[TokenizerKey] = []
        self.in_use: tuple[TokenizerKey, ...] = ()
        self._done: list[Callable[[], None]] = []

    @property
    def is_due(self) -> bool:
        """Whether `settle` has something to do."""
        return bool(self._done)

    def kept(self) -> tuple[TokenizerKey, ...]:
        return tuple(reversed(self.whole))

    def restart(self) -> None:
        """Another head's: what was under way is lost."""
        self._done.clear()

    def settle(self) -> None:
        done, self._done = self._done, []
        for each in done:
            each()

    def find(self, key: TokenizerKey, then: Found) -> None:
        if key in self.damaged:
            self.damaged.discard(key)
            self.whole.remove(key)
            self._done.append(partial(then, None))
        else:
            self._done.append(partial(then, Path(key.folder) if key in self.whole else None))

    def write(
        self,
        key: TokenizerKey,
        intake: TokenizerIntake,
        in_use: Collection[TokenizerKey],
        then: Found,
    ) -> None:
        self.in_use = tuple(in_use)
        try:
            self.written[key] = intake.finish()
        except SuperfluidError as error:
            self._done.append(partial(then, error))
        else:
            self._done.append(partial(then, Path(key.folder)))

    def confirm(self, key: TokenizerKey) -> None:
        self.whole.append(key)

    def remove(self, key: TokenizerKey) -> None:
        self.removed.append(key)
        if key in self.whole:
            self.whole.remove(key)

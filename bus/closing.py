"""Leaving a `with` closes what was opened for it."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """Gives a class that has `close` the `with` statement; `close` may be called again."""

    __slots__ = ()

    def close(self) -> None:
        """Give back what is held."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

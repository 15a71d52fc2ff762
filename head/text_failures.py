"""How texts fail: descriptions of models that did not come, and errors of text processes."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from bus.errors import ERROR_TABLE, Internal, SuperfluidError
from bus.messages.text import TextFailed

#: A model whose description failed for a reason that may pass is described again after this long,
#: twice as long after each further failure.
FIRST_RETRY_S = 1.0
MAX_RETRY_S = 60.0


@dataclass(slots=True)
class DescriptionFailure:
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

    def is_over(self, now: float) -> bool:
        """Whether it is time to try again."""
        return self.again_s is not None and now >= self.again_s


def failed_again(
    error: SuperfluidError, before: DescriptionFailure | None, now: float
) -> DescriptionFailure:
    """A failure, with when to try again after those before it."""
    times = before.times + 1 if before else 1
    wait_s = min(FIRST_RETRY_S * 2 ** min(times - 1, 10), MAX_RETRY_S)
    return DescriptionFailure(error, None if error.retry_after_ms is None else now + wait_s, times)


def error_of(failed: TextFailed) -> SuperfluidError:
    """What a text process said, as an error."""
    cls = ERROR_TABLE.get(failed.code, Internal)
    return cls(
        failed.message,
        param=failed.param or None,
        retry_after_ms=failed.retry_after_ms or None,
    )

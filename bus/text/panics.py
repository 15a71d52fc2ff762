"""Panics of compiled packages, made into errors of ours.

Where such code fails it panics, and what reaches Python then is no `Exception`: nobody would catch
it, and it would end the process with all that others wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: The class is made by the compiled code, and is not to be had by its name.
_PANIC = ("pyo3_runtime", "PanicException")


def is_panic(error: BaseException) -> bool:
    """Whether compiled code panicked. What it says may quote a user's text: it is not told."""
    kind = type(error)
    return (kind.__module__, kind.__name__) == _PANIC


@contextmanager
def panics_as(make: Callable[[], Exception]) -> Iterator[None]:
    """What panics inside is this error.

    Args:
        make: makes it.
    """
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        raise make() from None

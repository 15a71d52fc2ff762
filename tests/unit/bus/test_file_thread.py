"""Work on files in a thread: what goes wrong in it is told, and does not end it."""

from __future__ import annotations

import errno
import select

from bus.file_thread import FileThread


def test_a_fault_of_the_work_is_told_and_what_comes_later_is_done() -> None:
    told: list[OSError | None] = []

    def fails() -> None:
        raise ValueError("not a fault of the disk")

    with FileThread("test") as thread:
        thread.submit(fails, told.append)
        thread.submit(lambda: None, told.append)
        while len(told) < 2:
            assert select.select([thread], [], [], 30)[0]
            thread.finish()
    first, second = told
    assert first is not None
    assert first.errno == errno.EIO
    assert "ValueError" in str(first)
    assert second is None

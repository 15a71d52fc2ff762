"""A disk of a few MiB that really fills up: a tmpfs, for tests that run as root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class _SmallDisk:
    @contextmanager
    def __call__(self, path: Path, size_bytes: int) -> Iterator[Path]:
        """A disk of this size at a path, which is made; the test is skipped where none can be."""
        if os.geteuid() != 0:
            pytest.skip("only root can mount a small disk")
        path.mkdir(parents=True)
        options = f"size={size_bytes},mode=0700"
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", path],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            pytest.skip(f"no disk can be mounted here: {made.stderr.strip()}")
        try:
            yield path
        finally:
            subprocess.run(["umount", "-l", path], check=True)

    @contextmanager
    def only_readable(self, path: Path) -> Iterator[None]:
        """Nothing can be written to it for a while."""
        subprocess.run(["mount", "-o", "remount,ro", path], check=True)
        try:
            yield
        finally:
            subprocess.run(["mount", "-o", "remount,rw", path], check=True)


small_disk = _SmallDisk()


def fill(folder: Path, leave_bytes: int = 0) -> Path:
    """Fill the disk of a folder with a file, down to so many bytes; gives the file."""
    file = folder / "filler"
    status = os.statvfs(folder)
    size = status.f_bavail * status.f_frsize - leave_bytes
    descriptor = os.open(file, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, max(size, 1))
    finally:
        os.close(descriptor)
    return file

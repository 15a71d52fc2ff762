"""What the kernel says of this process's memory."""

from __future__ import annotations

from pathlib import Path


def anonymous_bytes() -> int:
    """Anonymous memory of this process that is resident."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not say")

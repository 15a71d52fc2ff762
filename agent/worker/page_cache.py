"""A mapped file's pages in large pieces of memory.

A file that was written or read in small portions lies scattered over memory, page by page, and
whoever runs through a mapping of it waits for a translation of each: a decode step reads all
weights once, and was 10 to 20% faster over 2 MiB pieces than over 4 KiB pages (SmolLM2, one lane).
Linux reads a file in pieces of 2 MiB when its mapping asks for huge pages, where the file system
can; all mappings of the file have them then, of every process.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
from pathlib import Path

import numpy as np

from agent.load import memory_bytes

#: Stands beside a file that can not be had in large pieces; holds the boot in which that was tried.
MARK = "small_pages"
#: With at least this share in large pieces a file stays as it is.
LEAST_SHARE = 0.5

_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MEMORY = Path("/proc/meminfo")
_MAPPINGS = Path("/proc/self/smaps")
_KIB = 1024


def gather_pages(file: Path) -> float | None:
    """Have a file in memory in large pieces, read anew where it is there in small ones.

    What other processes have mapped stays as it is. Content does not change, and no failure is
    one of the caller's: the file is then mapped as well, and slower.

    Args:
        file: what will be mapped; written back, since pages that are not can not be dropped.

    Returns:
        The share that is in large pieces now; None when it was not tried: no Linux, a file of more
        than half of the memory that is available, or one that could not be had so since the
        machine started.
    """
    try:
        boot = _BOOT.read_text("ascii")
        available = memory_bytes(_MEMORY.read_text("ascii"))[1]
        if _ADVICE is None or _has_mark(file, boot) or 2 * file.stat().st_size > available:
            return None
        with file.open("rb") as opened:
            share = _read(opened.fileno())
            if share < LEAST_SHARE:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                share = _read(opened.fileno())
        if share < LEAST_SHARE:
            file.with_name(MARK).write_text(boot, "ascii")
    except (OSError, ValueError):
        return None
    return share


def _has_mark(file: Path, boot: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return file.with_name(MARK).read_text("ascii") == boot
    return False


def _read(descriptor: int) -> float:
    """Read a file through a mapping that asks for huge pages; gives the share that has them."""
    with mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as memory:
        memory.madvise(int(_ADVICE or 0))
        view = np.frombuffer(memory, np.uint8)
        begin, size = view.ctypes.data, view.size
        view[:: mmap.PAGESIZE].max()
        del view  # or the mapping can not be closed
        return _huge_bytes(begin) / size


def _huge_bytes(begin: int) -> int:
    """Bytes of the mapping at an address that are mapped in huge pages."""
    mapping = _MAPPINGS.read_text("utf-8", "replace").partition(f"\n{begin:x}-")[2]
    figures = mapping.partition("VmFlags:")[0]
    found = re.findall(r"^(?:File|Shmem)PmdMapped: +(\d+) kB$", figures, re.MULTILINE)
    return sum(int(kib) for kib in found) * _KIB

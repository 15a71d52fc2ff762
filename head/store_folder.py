"""The folder that the store lives in: private, on a local disk, and held by one head."""

from __future__ import annotations

import re
from pathlib import Path

from bus.errors import StartError
from bus.file_lock import FileLock, LockHeld
from bus.state import private_folder

LOCK = "head.lock"

#: File systems whose locks and shared memory do not hold between machines: two heads could write
#: one file (https://www.sqlite.org/wal.html: "WAL does not work over a network filesystem").
NETWORK_TYPES = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "ceph", "glusterfs"),
        *("lustre", "beegfs", "gpfs", "ocfs2", "gfs2", "pvfs2"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.rclone", "fuse.juicefs"),
    }
)


def claim_folder(folder: Path) -> FileLock:
    """Make the folder when it is missing and hold it.

    Returns:
        The lock, which holds the folder until it is closed, or the process ends.

    Raises:
        StartError: others can enter it, it is on a network file system, or a head holds it.
    """
    private_folder(folder)
    kind = filesystem_type(folder, Path("/proc/self/mounts").read_text("utf-8", "surrogateescape"))
    if kind in NETWORK_TYPES:
        raise StartError(
            f"the store's folder {folder} is on a network file system ({kind}), where two heads "
            "could write at once; choose a folder on a local disk (SUPERFLUID_STATE)"
        )
    return _lock(folder)


def _lock(folder: Path) -> FileLock:
    try:
        return FileLock(folder / LOCK)
    except LockHeld as error:
        raise StartError(
            f"a head with process id {error.pid or 'unknown'} has the state folder {folder}; stop "
            "it with `sfctl down`, or give this one a folder of its own (SUPERFLUID_STATE)"
        ) from None


def filesystem_type(path: Path, mounts: str) -> str:
    """The type of the file system that a path is on.

    Args:
        mounts: what /proc/self/mounts says; of equal mount points the last is on top.
    """
    resolved = path.resolve()
    best, kind = -1, ""
    for line in mounts.splitlines():
        _, point, this_kind, *_ = line.split(" ")
        # Spaces and the like are written as octal numbers there (proc(5), getmntent(3)).
        mounted = Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point))
        if resolved.is_relative_to(mounted) and len(mounted.parts) >= best:
            best, kind = len(mounted.parts), this_kind
    return kind

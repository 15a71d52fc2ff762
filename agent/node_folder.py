"""The folder of one agent, `<state>/nodes/<name>`: its lock, key and boot counter."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from bus.closing import Closing
from bus.crypto import KeyPair
from bus.errors import ConfigInvalid, StartError
from bus.file_lock import FileLock, LockHeld
from bus.ids import BootCounter, NodeIdentity
from bus.keys import load_or_create_static_key, next_boot
from bus.state import private_folder

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")


class NodeFolder(Closing):
    """Held by one process until `close` or its end.

    Args:
        path: made 0700 when missing.

    Raises:
        StartError: another agent holds it, or others can enter it.
        TokenRefused: its key is damaged or open to others.
        StoreCorrupt: its boot counter is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = private_folder(path)
        self._locks = [_hold(path / "agent.lock", f"the node folder {path}")]
        try:
            self.key: KeyPair = load_or_create_static_key(path / "node.key")
            #: Worker incarnations of this start.
            self.incarnations = BootCounter(next_boot(path / "boot"))
        except BaseException:
            self.close()
            raise

    @property
    def boot(self) -> int:
        """This start's number."""
        return self.incarnations.boot

    def hold_identity(self, identity: NodeIdentity, fleet: str, locks: Path) -> None:
        """See that no other agent of this machine goes by the same identity in the same fleet.

        Args:
            fleet: tells the fleet from others.
            locks: a folder that all agents here share.

        Raises:
            StartError: one does.
        """
        digest = hashlib.blake2b(f"{fleet}\0{identity}".encode(), digest_size=8).hexdigest()
        lock = private_folder(locks) / f"identity-{digest}.lock"
        self._locks.append(_hold(lock, f"the identity {identity} on this machine"))

    def close(self) -> None:
        """Let go. May be called again."""
        while self._locks:
            self._locks.pop().close()


def check_name(name: str) -> str:
    """A name that can be a folder and part of a socket's path.

    Raises:
        ConfigInvalid: it can not.
    """
    if not _NAME.fullmatch(name):
        raise ConfigInvalid(
            f"{name!r} can not name an agent; use 1 to 32 letters, digits, dots, dashes and "
            "underscores, such as node-1",
            param="name",
        )
    return name


def _hold(path: Path, what: str) -> FileLock:
    try:
        return FileLock(path)
    except LockHeld as error:
        holder = "another agent" if error.pid is None else f"the agent with process id {error.pid}"
        raise StartError(
            f"{holder} has {what}; end it, or start this one with another --name and identity"
        ) from error

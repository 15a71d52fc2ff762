"""The one head of a node that runs without a fleet token, remembered by its key.

A token names its head's key. Without one (`insecure_no_auth`) the first head is taken at its
word, and from then on no other.
"""

from __future__ import annotations

from pathlib import Path

from bus.errors import StartError
from bus.keys import INSECURE_TOKEN
from bus.link import HandshakeRefused, PeerInfo, Refusal
from bus.state import write_atomically

PIN_FILE = "head.pin"


class HeadPin:
    """The key's fingerprint, in a file of the agent's folder.

    The file is read at each handshake, so that removing it needs no restart.

    Args:
        path: made when the first head has linked.

    Raises:
        StartError: the file can not be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read()

    def check(self, peer: PeerInfo) -> None:
        """See that a head is the one that was there first.

        Raises:
            HandshakeRefused: it is another one.
        """
        if peer.token_id != INSECURE_TOKEN.token_id:
            return
        try:
            pinned = self._read()
        except StartError as error:
            raise HandshakeRefused(Refusal.PEER_KEY_DIFFERS, error.message) from error
        if pinned and pinned != peer.fingerprint:
            raise HandshakeRefused(
                Refusal.PEER_KEY_DIFFERS,
                f"the head has the key {peer.fingerprint}, and the head that this node knows has "
                f"{pinned}; if it is to serve this one from now on, remove {self._path}",
            )

    def note(self, peer: PeerInfo) -> None:
        """A head that `check` let pass has linked."""
        if peer.token_id == INSECURE_TOKEN.token_id and not self._read():
            write_atomically(self._path, peer.fingerprint + "\n")

    def _read(self) -> str:
        try:
            return self._path.read_text("ascii").strip()
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as error:
            raise StartError(
                f"can not read {self._path}, which names this node's head: {error}; remove it to "
                "take the next head that comes"
            ) from error

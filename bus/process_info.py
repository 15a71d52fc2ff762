"""Which run of a program this process is, as its peers are told."""

from __future__ import annotations

import os
import socket
import time

from bus.crypto import Entropy
from bus.messages.parts import ProcessInfo

NONCE_BYTES = 16
#: The field takes 128 bytes.
_HOST_BYTES = 100


def this_process(entropy: Entropy = os.urandom) -> ProcessInfo:
    """This process under a nonce that no other has; make it once, at the start.

    Args:
        entropy: gives the nonce.
    """
    host = socket.gethostname().encode()[:_HOST_BYTES].decode(errors="ignore")
    return ProcessInfo(
        nonce=entropy(NONCE_BYTES), pid=os.getpid(), host=host, started_at_s=time.time()
    )

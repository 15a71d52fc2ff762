"""Return addresses of a ROUTER: libzmq gives them out, and nobody may choose one.

An address is a zero byte and a counter of 32 bits, one higher for each connection; but a peer may
also choose its own. When libzmq comes to give out one that a peer has chosen before, it aborts the
whole process (4.3.5, reproduced). And its counter begins with C's `rand()`, which nothing seeds: at
the same number in each process. So two connections of any stranger were enough to end a head.

Hence `rand` is seeded before the socket is made, which leaves a stranger to guess one of 2^32; and
who chose its address is told from others, and cut as soon as it says something.
"""

from __future__ import annotations

import ctypes
import os

import zmq

_BYTES = 5
_SPACE = 2**32


def seed_routing_ids() -> None:
    """Let the counter of ROUTERs that are made from now on begin at a random number."""
    ctypes.CDLL(None).srand(ctypes.c_uint(int.from_bytes(os.urandom(4), "little")))


class RoutingIds:
    """Tells the addresses that a ROUTER gave out from those that peers chose.

    Takes the first one for itself, to know where the counter stands.

    Args:
        router: before anybody else can connect.
    """

    def __init__(self, router: zmq.Socket[bytes]) -> None:
        address = f"inproc://superfluid-first-{id(router)}-{os.urandom(4).hex()}"
        router.bind(address)
        with router.context.socket(zmq.DEALER) as first:
            first.setsockopt(zmq.LINGER, 0)
            first.connect(address)
            first.send(b"")
            given, _ = router.recv_multipart()
        router.unbind(address)
        self._first = int.from_bytes(given[1:], "big")

    def gave(self, address: bytes, connections: int) -> bool:
        """Whether an address was given out, after so many connections were accepted."""
        if len(address) != _BYTES or address[0] != 0:
            return False
        return 0 < (int.from_bytes(address[1:], "big") - self._first) % _SPACE <= connections

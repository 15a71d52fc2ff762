"""The socket options of Link-F, each with its reason. What is off is as telling as what is on."""

from __future__ import annotations

import random

import zmq

#: A part is 128 KiB and a frame little more; room for a later, larger part size.
MAX_FRAME_BYTES = 300 * 1024
#: Frames per peer inside libzmq, on their way out, and in at a connecting DEALER. What we receive
#: is read at once anyway.
SEND_FRAMES = 64
RECEIVE_FRAMES = 16
SEND_BUFFER_BYTES = 512 * 1024
#: Milliseconds that a Goodbye gets to leave when a socket is closed in order.
GOODBYE_LINGER_MS = 500
#: Bounds of the wait before a connection is made again, in ms.
RECONNECT_MS = (100, 300)
#: A refused frame is tried again after this; a ROUTER can not wait for one peer.
RETRY_S = 0.005
#: Flags of a send that does not wait, of a part that others follow and of the last: as plain
#: numbers, since `|` of two enums takes as long as half a send.
MORE = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
LAST = int(zmq.NOBLOCK)


def configure_link_socket(socket: zmq.Socket[bytes]) -> None:
    """Options that both ends of a link have."""
    set_option = socket.setsockopt
    set_option(zmq.SNDHWM, SEND_FRAMES)
    set_option(zmq.RCVHWM, RECEIVE_FRAMES)
    # Nobody has proved anything when the first frame is read into memory.
    set_option(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    # Large enough for a fast link, small enough that bulk does not stand before a heartbeat.
    set_option(zmq.SNDBUF, SEND_BUFFER_BYTES)
    # A link that ended is made again and sessions reconcile; old frames are of no use.
    set_option(zmq.LINGER, 0)
    # Someone who connects and does not speak ZMTP is cut after this, in ms.
    set_option(zmq.HANDSHAKE_IVL, 5_000)
    reap_dead_connections(socket)


def reap_dead_connections(socket: zmq.Socket[bytes]) -> None:
    """Have the system end TCP connections whose other side vanished, after some 30 s.

    libzmq's own heartbeats stay off. They say nothing about the peer, since its I/O thread answers
    them even when Python is stuck, and they end our process: libzmq 4.3.5 aborts (`!_io_error`)
    when one is due on a connection that its peer closed while more was received than was read,
    which is what a process that was suspended finds when it goes on. (libzmq issue 4841)
    """
    set_option = socket.setsockopt
    set_option(zmq.HEARTBEAT_IVL, 0)
    set_option(zmq.TCP_KEEPALIVE, 1)
    set_option(zmq.TCP_KEEPALIVE_IDLE, 15)
    set_option(zmq.TCP_KEEPALIVE_INTVL, 5)
    set_option(zmq.TCP_KEEPALIVE_CNT, 3)


def configure_router(router: zmq.Socket[bytes]) -> None:
    """Options of a listening ROUTER. It binds only: one that connects keeps the first identity."""
    configure_link_socket(router)
    # Without a limit, since libzmq 4.3.5 aborts the process (`!_io_error`) when a peer closes while
    # its input waits for room and a ZMTP ping lies behind what waits: two packets of anybody's.
    # `Strangers` bounds what a peer sends, by the bytes that the kernel counts. (libzmq issue 4841)
    router.setsockopt(zmq.RCVHWM, 0)
    # Without it frames to a peer that left or is full vanish in silence.
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    # A stranger that chose another peer's routing id is refused and does not take its place.
    router.setsockopt(zmq.ROUTER_HANDOVER, 0)


def configure_dealer(dealer: zmq.Socket[bytes], rng: random.Random) -> None:
    """Options of a connecting DEALER.

    Args:
        rng: spreads the processes that connect again after their peer's restart.
    """
    configure_link_socket(dealer)
    # Frames wait in our own queue until a connection stands; else stale ones would reach the
    # peer's next incarnation.
    dealer.setsockopt(zmq.IMMEDIATE, 1)
    # Drawn once per process. RECONNECT_IVL_MAX stays unset: it switches libzmq's jitter off.
    dealer.setsockopt(zmq.RECONNECT_IVL, rng.randint(*RECONNECT_MS))
    # An empty first message would be taken for a frame.
    dealer.setsockopt(zmq.PROBE_ROUTER, 0)

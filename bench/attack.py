"""Strangers in a process of their own that say bad Hellos to a head, for benches.

    python -m bench.attack --address tcp://127.0.0.1:8454 --hello FILE --rate 1000 --seconds 5

A bad Hello is a whole one whose last byte was changed: everything is computed for it before it
is found out. Prints one JSON line: `hellos_per_s` said.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from tests.harness.strangers import GREETING, READY, Stranger, zmtp_frame

CONNECTIONS = 50
#: Connections that are not answered yet, when each says one Hello only.
MAX_OPEN = 200
GIVE_UP_S = 1.0
#: ZMTP's greeting and READY of a ROUTER; what comes behind them is the answer to the Hello.
ANSWERED_BYTES = 64 + 28


def source_of(number: int) -> str:
    """A loopback address of a stranger's own."""
    return f"127.0.{1 + number // 250 % 250}.{2 + number % 250}"


def standing(address: str, hello: bytes, rate: float, seconds: float) -> int:
    """Hellos from `CONNECTIONS` connections in turn; a connection that was cut is made again."""
    strangers = [Stranger(address, source_of(n)).greet() for n in range(CONNECTIONS)]
    frame, said, start = zmtp_frame(hello), 0, time.monotonic()
    while (passed_s := time.monotonic() - start) < seconds:
        if said >= passed_s * rate:
            time.sleep(0.001)
            continue
        place = said % CONNECTIONS
        if strangers[place].is_cut:
            strangers[place].close()
            strangers[place] = Stranger(address, source_of(place)).greet()
        strangers[place].say(frame)
        said += 1
    for stranger in strangers:
        stranger.close()
    return said


@dataclass(slots=True)
class _Caller:
    connection: socket.socket
    since_s: float
    received: int = 0
    said: bool = False


def newcomers(address: str, hello: bytes, rate: float, seconds: float) -> int:
    """One Hello from each new connection, or as many a second as this process can make."""
    host, port = address.removeprefix("tcp://").split(":")
    rest = READY + zmtp_frame(hello)
    callers: dict[int, _Caller] = {}
    poller = select.epoll()
    said = opened = 0
    start = time.monotonic()
    while (now := time.monotonic() - start) < seconds:
        while opened < now * rate and len(callers) < MAX_OPEN:
            connection = socket.create_connection(
                (host, int(port)), source_address=(source_of(opened % CONNECTIONS), 0)
            )
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # libzmq takes nothing beyond the first signature before it has sent its own.
            connection.send(GREETING[:10])
            connection.send(GREETING[10:])
            callers[connection.fileno()] = _Caller(connection, now)
            poller.register(connection, select.EPOLLIN)
            opened += 1
        for fd, _ in poller.poll(0.001):
            said += _answer(callers[fd], rest)
        for fd, caller in list(callers.items()):
            if caller.received > ANSWERED_BYTES or now - caller.since_s > GIVE_UP_S:
                poller.unregister(fd)
                callers.pop(fd).connection.close()
    for caller in callers.values():
        caller.connection.close()
    return said


def _answer(caller: _Caller, rest: bytes) -> bool:
    """Go on with ZMTP's handshake; True when the Hello was said."""
    try:
        caller.received += len(caller.connection.recv(4096)) or ANSWERED_BYTES + 1
        if caller.said or caller.received < len(GREETING):
            return False
        caller.said = True
        caller.connection.send(rest)
    except OSError:
        caller.received = ANSWERED_BYTES + 1
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description="bad Hellos for a head")
    parser.add_argument("--address", required=True)
    parser.add_argument("--hello", type=Path, required=True, help="file with a Hello frame")
    parser.add_argument("--rate", type=float, default=1000.0, help="a second")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--new", action="store_true", help="a new connection for each Hello")
    options = parser.parse_args()
    attack = newcomers if options.new else standing
    said = attack(options.address, options.hello.read_bytes(), options.rate, options.seconds)
    print(json.dumps({"hellos_per_s": round(said / options.seconds, 1)}))


if __name__ == "__main__":
    main()

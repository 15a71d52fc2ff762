"""A relay between one node and its head that notes when heartbeats pass, a process of its own.

Frames go on unchanged and unread: a heartbeat is known by its clear header, which has it on
the first channel. With leases that are not renewed meanwhile nothing else is, once the link is up.

    {"do": "beats"}     times since the last such line, {"head": [...], "node": [...]} by sender

    python -m bench.link_relay --head tcp://127.0.0.1:8454
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import zmq

from bus.errors import DecodeError
from bus.frames import FrameKind, parse_frame
from bus.transport import clock

#: The channel of what keeps links alive.
ALIVE = 0


class Relay:
    """Carries frames both ways, one after the other.

    Args:
        head: where the head takes nodes.
    """

    def __init__(self, head: str) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._node = context.socket(zmq.ROUTER)
        self.port = self._node.bind_to_random_port("tcp://127.0.0.1")
        self._head = context.socket(zmq.DEALER)
        self._head.connect(head)
        for socket in (self._node, self._head):
            socket.setsockopt(zmq.LINGER, 0)
        self._name = b""
        self.beats: dict[str, list[float]] = {"head": [], "node": []}

    def serve(self) -> None:
        """Carry frames until there are no more lines on stdin."""
        poller = zmq.Poller()
        for source in (self._node, self._head, sys.stdin.fileno()):
            poller.register(source, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._node in ready:
                self._name, frame = self._node.recv_multipart()
                self._note("node", frame)
                self._head.send(frame)
            if self._head in ready:
                frame = self._head.recv()
                self._note("head", frame)
                self._node.send_multipart([self._name, frame])
            if sys.stdin.fileno() in ready:
                if not sys.stdin.readline():
                    return
                print(json.dumps(self.beats), flush=True)
                self.beats = {"head": [], "node": []}

    def _note(self, sender: str, data: bytes) -> None:
        try:
            frame = parse_frame(data)
        except DecodeError:
            return
        if frame.kind is FrameKind.DATA and frame.channel == ALIVE:
            self.beats[sender].append(clock.now())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--head", required=True)
    relay = Relay(parser.parse_args().head)
    said: dict[str, Any] = {"address": f"tcp://127.0.0.1:{relay.port}"}
    print(json.dumps(said), flush=True)
    relay.serve()


if __name__ == "__main__":
    main()

"""The receiving side of `bench.bus`, a process of its own: bare sockets, sealed links, and files.

It is told what comes by lines on stdin and answers each with one JSON line:

    raw N         N bare frames: seconds from the first to the last
    frames N      N sealed frames, verified and in order: the same
    sealed N      N sealed messages: the same
    blobs         serves files until the link is closed
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from bus.acceptor import Acceptor
from bus.blob_folder import BlobFolder
from bus.blob_receiver import BlobReceiver
from bus.crypto import KeyPair
from bus.endpoint import Endpoint
from bus.frames import FrameOpener, derive_frame_keys, parse_frame
from bus.ids import NodeIdentity
from bus.keys import new_token, parse_token
from bus.link import LinkDown, LinkIdentity, LinkUp, MessageReceived
from bus.messages.link import HeadConfirm, NodeConfirm
from bus.transport import clock
from bus.transport.addresses import shared_context
from bus.transport.limits import keep_freed_memory
from bus.transport.link_options import configure_router
from bus.transport.loop import Loop
from bus.transport.reading import MAX_FRAMES
from bus.transport.router import RouterLinks

#: The bench's two processes know each other's keys; nothing here is secret.
HEAD_KEY = KeyPair.from_secret(bytes(range(32)))
NODE_KEY = KeyPair.from_secret(bytes(range(1, 33)))
TOKEN = parse_token(new_token(HEAD_KEY.public, bytes), source="the bench")
FRAME_KEYS = derive_frame_keys(bytes(64), bytes(64), from_initiator=True)
WAIT_MS = 30_000


def head_identity() -> LinkIdentity:
    return LinkIdentity(
        role="head",
        name="head",
        static=HEAD_KEY,
        tokens=(TOKEN,),
        incarnation=1,
        confirm=lambda: HeadConfirm(identity="head", boot=1, software="bench"),
    )


def node_identity() -> LinkIdentity:
    return LinkIdentity(
        role="node",
        name="node",
        static=NODE_KEY,
        tokens=(TOKEN,),
        incarnation=1,
        confirm=lambda: NodeConfirm(identity=NodeIdentity("node"), incarnation=1, software="bench"),
    )


class Receiver:
    """One ROUTER with the options of a link, read as fast as it can be."""

    def __init__(self) -> None:
        self._router = shared_context().socket(zmq.ROUTER)
        configure_router(self._router)
        self._router.bind("tcp://127.0.0.1:0")
        self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._endpoint = Endpoint(head_identity(), initiator=False, entropy=os.urandom)

    def shake_hands(self) -> None:
        """Answer until the link is up."""
        while self._endpoint.state != "up":
            self._take(self._receive())
        self._send_all()

    def raw(self, count: int) -> float:
        """Seconds for `count` bare frames."""
        return self._timed(count, len)

    def frames(self, count: int) -> float:
        """Seconds for `count` sealed frames, each verified and the next of its channel."""
        opener = FrameOpener(FRAME_KEYS)

        def take(frames: list[bytes]) -> int:
            return sum(opener.open(parse_frame(frame)) is not None for frame in frames)

        return self._timed(count, take)

    def sealed(self, count: int) -> float:
        """Seconds for `count` messages of the link."""
        return self._timed(count, self._take)

    def close(self) -> None:
        self._router.close(0)

    def _timed(self, count: int, take: Callable[[list[bytes]], int]) -> float:
        got = take(self._receive())
        start = clock.now()
        while got < count:
            got += take(self._receive())
        return clock.now() - start

    def _receive(self) -> list[bytes]:
        """All frames that are there, as one turn of a loop takes them; waits for the first."""
        found: list[bytes] = []
        while len(found) < MAX_FRAMES:
            try:
                self._address = self._router.recv(zmq.NOBLOCK)
            except zmq.Again:
                if found:
                    break
                if not self._router.poll(WAIT_MS):
                    raise TimeoutError("nothing came from the bench") from None
            else:
                found.append(self._router.recv(zmq.NOBLOCK))
        return found

    def _take(self, frames: list[bytes]) -> int:
        now = clock.now()
        for frame in frames:
            self._endpoint.receive(frame, now)
        events = self._endpoint.events()
        if self._endpoint.state != "up":
            self._send_all()
        return sum(isinstance(event, MessageReceived) for event in events)

    def _send_all(self) -> None:
        while (frame := self._endpoint.next_frame(clock.now())) is not None:
            self._router.send_multipart([self._address, frame])


class FileServer:
    """Takes files over a link in a loop, as a node does."""

    def __init__(self, folder: Path) -> None:
        self._loop = Loop()
        self._store = BlobFolder(folder, 1 << 40)
        self._receiver = BlobReceiver(self._store, tuple)
        acceptor = Acceptor(head_identity(), entropy=os.urandom)
        self._links = RouterLinks("tcp://127.0.0.1:0", acceptor)
        self._links.attach(self._loop)
        self._loop.add_reader(self._store.fileno(), self._receiver.settle)
        self._loop.on_turn(self._turn)
        self._peer = b""
        self.address = self._links.address

    def run(self) -> None:
        """Until the peer's link ends."""
        self._loop.run()
        self._links.close("the bench is over")
        self._loop.close()
        self._store.close()

    def _turn(self, now: float) -> None:
        for address, event in self._links.events():
            if isinstance(event, LinkUp):
                self._peer = address
            elif isinstance(event, LinkDown):
                self._loop.stop()
            elif isinstance(event, MessageReceived):
                self._receiver.receive(event.message, now)
        self._receiver.settle()
        for message in self._receiver.messages():
            self._links.send(self._peer, message)
        self._links.flush(now)


def say(**found: Any) -> None:
    print(json.dumps(found), flush=True)


def main() -> None:
    receiver = Receiver()
    say(address=receiver.address)
    receiver.shake_hands()
    for line in sys.stdin:
        what, *rest = line.split()
        if what == "raw":
            say(seconds=receiver.raw(int(rest[0])))
        elif what == "frames":
            say(seconds=receiver.frames(int(rest[0])))
        elif what == "sealed":
            say(seconds=receiver.sealed(int(rest[0])))
        else:
            keep_freed_memory()
            with tempfile.TemporaryDirectory(prefix="sf-bench-") as folder:
                server = FileServer(Path(folder) / "blobs")
                say(address=server.address)
                server.run()
    receiver.close()


if __name__ == "__main__":
    main()

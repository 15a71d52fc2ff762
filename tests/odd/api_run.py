"""Odd requests as raw frames to a head whose one node has one worker, ordinary streams beside them.

A request is done by the one `end` or `error` with its id; one without an id that can be read, when
a ping after it was answered.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from bench.cluster import Cluster
from bus.messages.api import MARK
from bus.transport.api_client import ApiSocket
from tests.odd.api_bodies import id_of, odd_frames
from tests.odd.neighbours import COUNT
from tests.odd.tally import Tally
from tests.odd.worker_run import LANES, OPEN, STALL_S, TOKEN_BYTES, WINDOW

SETTINGS = {
    "SUPERFLUID_WORKER_KV_BYTES": str(LANES * WINDOW * TOKEN_BYTES),
    "SUPERFLUID_WORKER_KV_HOST_BYTES": str(6 * WINDOW * TOKEN_BYTES),
    "SUPERFLUID_LOG_LEVEL": "error",
}
#: One that is not done is granted credit after so long, and cancelled after twice that.
PATIENCE_S = 1.0
Reply = dict[str, Any]


@dataclass
class _Open:
    number: int
    since: float
    granted: bool = False


class ApiRun:
    """Drives one run. Owns what waits for an answer.

    Args:
        cluster: a head with one node, made with `SETTINGS` and `LANES`.
        seed: of the requests.
    """

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.tally = Tally()
        self._cluster = cluster
        self._model = cluster.model
        self._seed = seed
        self._socket: ApiSocket
        self._open: dict[bytes, _Open] = {}
        self._streams: dict[bytes, int] = {}
        self._tokens: dict[bytes, list[int]] = {}
        self._wanted: dict[int, list[int]] = {}
        self._rounds = 0
        self._keep_going = False
        self._done_at = 0.0

    def run(self, requests: int) -> Tally:
        """Send so many requests, and see what comes of them."""
        workers = self._cluster.workers("node-1")
        with ApiSocket(f"ipc://{self._cluster.state}/run/api.sock") as self._socket:
            self._run(requests)
        self.tally.worker_deaths += self._cluster.workers("node-1") != workers
        self.tally.neighbour_rounds = self._rounds
        return self.tally

    def _run(self, requests: int) -> None:
        self._start_streams()
        self._wait(lambda: not self._streams)
        self._keep_going = True
        self._start_streams()
        for number in range(requests):
            self._wait(lambda: len(self._open) < OPEN)
            self._send_odd(number)
        self._wait(lambda: not self._open)
        self._keep_going = False
        self._wait(lambda: not self._streams)

    # --- what is sent ---------------------------------------------------------------------

    def _start_streams(self) -> None:
        for place in range(COUNT):
            self._start(place)

    def _start(self, place: int) -> None:
        name = b"n%d-%d" % (place, self._rounds)
        self._rounds += 1
        length = 30 + place if place < COUNT // 2 else 140 + place
        self._streams[name] = place
        self._tokens[name] = []
        self._send(
            op="generate",
            id=name,
            credit=4096,
            model=self._model,
            tokens=[32 + (7 * place + position * position) % 95 for position in range(length)],
            temperature=0.8,
            seed=place,
            ignore_eos=True,
            max_new=60 + place,
            exact=True,
        )

    def _send(self, **body: Any) -> None:
        self._socket.send([MARK, msgpack.packb(body)])

    def _send_odd(self, number: int) -> None:
        self.tally.requests += 1
        rng = random.Random(f"{self._seed}:api:{number}")
        name = b"odd %d" % number
        frames = odd_frames(rng, name, self._model, WINDOW)
        self._socket.send(frames)
        found = id_of(frames)
        if found != name:
            # Also one with another id: the ping is answered behind it, and its reply is nobody's.
            name = b"ping %d" % number
            self._send(op="ping", id=name)
        self._open[name] = _Open(number, time.monotonic())

    # --- what comes -----------------------------------------------------------------------

    def _wait(self, condition: Callable[[], bool]) -> None:
        self._done_at = time.monotonic()
        while not condition():
            frames = self._socket.recv(0.01)
            while frames is not None:
                self._hear(msgpack.unpackb(frames[1]))
                frames = self._socket.recv(0.0)
            now = time.monotonic()
            self._hurry(now)
            if now - self._done_at > STALL_S:
                left = sorted(one.number for one in self._open.values())
                raise TimeoutError(f"nothing came for {STALL_S:.0f} s; of {left} nothing is known")

    def _hurry(self, now: float) -> None:
        for name, one in list(self._open.items()):
            if not one.granted and now - one.since > PATIENCE_S:
                one.granted = True
                self._send(op="more", id=b"more " + name, about=name, credit=4096)
            elif one.granted and now - one.since > 2 * PATIENCE_S:
                one.since = now
                self._send(op="cancel", id=b"cancel " + name, about=name)

    def _hear(self, reply: Reply) -> None:
        name, kind = reply.get("id"), reply.get("kind")
        if name in self._streams:
            self._of_stream(name, kind, reply)
        elif name in self._open and kind in ("end", "error"):
            self._done_at = time.monotonic()
            one = self._open.pop(name)
            if kind == "error":
                code = reply["error"]["code"]
                self.tally.error(code)
                if code == "internal":
                    self.tally.faults.append(f"request {one.number}: {reply['error']}")
            elif name.startswith(b"ping"):
                self.tally.error("unreadable")
            else:
                self.tally.answer()

    def _of_stream(self, name: bytes, kind: Any, reply: Reply) -> None:
        if kind == "event":
            if reply.get("type") == "token":
                self._tokens[name] += reply["tokens"]
            return
        place, tokens = self._streams.pop(name), self._tokens.pop(name)
        wanted = self._wanted.setdefault(place, tokens)
        if kind == "error" or tokens != wanted or len(tokens) != 60 + place:
            self.tally.neighbours_equal = False
            self.tally.faults.append(f"neighbour {name!r} gave {tokens}, not {wanted}: {reply}")
        if self._keep_going:
            self._start(place)


def api_run(model_folder: Path, seed: int, requests: int) -> Tally:
    """A run against a fleet of its own."""
    with Cluster(model_folder, threads=1, lanes=LANES, settings=SETTINGS) as cluster:
        return ApiRun(cluster, seed).run(requests)

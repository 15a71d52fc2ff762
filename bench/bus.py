"""The bus beside bare pyzmq, in one run: the same sockets and options, two processes, loopback.

    handshake_cpu_ms              CPU of both sides for one handshake, Hello to both Confirms
    sealed_100b_ratio             frames of 100 bytes, sealed and sent, received, parsed, verified
                                  and held to their order, over bare ones of 100 bytes: frames/s
    sealed_message_ratio          flat messages of 100 bytes (Lost), through codec, Endpoint and
                                  socket, over the same: messages/s
    sealed_run_ratio              the same for TokenEvents of 100 bytes with one run
    sealed_batch16_ratio          TokenEvents with 16 runs of 100 bytes, over the same bare frames
                                  of 100 bytes: runs/s, as tokens of 16 lanes go out together
    blob_ratio                    files read, sealed, sent under credit, opened, hashed, written and
                                  synced, over bare frames of 128 KiB: bytes/s
    heartbeat_p99_ms_during_blob  from a probe to its answer on the link that carries the files

Rates are the receiver's, from its first to its last. Rounds alternate; medians. Files go last, and
from then on both processes keep freed memory, as head and agent do.

    python -m bench.bus --rounds 7
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import zmq

from bench.bus_peer import FRAME_KEYS, head_identity, node_identity
from bench.program import Program
from bus.blob_folder import BlobFolder
from bus.blob_sender import BlobSender
from bus.endpoint import Endpoint
from bus.frames import FrameKind, FrameSealer
from bus.ids import Epoch, GenerationId, PackedIds, SessionId, WorkerIncarnation
from bus.link import MessageReceived
from bus.messages.link import LINK, Lost, TokenEvents
from bus.messages.parts import BlobRef, TokenRun
from bus.transfer import CHUNK_BYTES
from bus.transport import clock
from bus.transport.addresses import shared_context
from bus.transport.dealer import DealerLink
from bus.transport.limits import keep_freed_memory
from bus.transport.link_options import configure_dealer
from bus.transport.loop import Loop

FRAME_BYTES = 100
RUNS = 16
FRAMES = 20_000
LARGE_FRAMES = 2_000
MESSAGES = 5_000
BATCHES = 1_500
#: Messages of one turn of a loop, which are queued first and sent at its end.
BURST = 64
HANDSHAKES = 100
FILE_BYTES = 64 << 20
PROBE_EVERY_S = 0.02
WAIT_MS = 30_000


def lost(number: int) -> Lost:
    """A message of 100 bytes without parts of its own."""
    return Lost(
        session=SessionId(f"{number:032d}"),
        epoch=Epoch((1 << 32) + 1),
        generation=GenerationId((1 << 32) + number),
        worker=WorkerIncarnation((1 << 32) + 1),
        reason="its worker process ended with -9...",
    )


def token_events(runs: int, number: int) -> TokenEvents:
    """A message of 100 bytes for one run; of more, each takes some 97."""
    return TokenEvents(
        runs=tuple(
            TokenRun(
                session=SessionId(f"{lane:064d}"),
                epoch=Epoch((1 << 32) + 1),
                generation=GenerationId((1 << 32) + lane),
                first_seq=100_000 + number,
                ids=PackedIds(b"\x01\x02\x03\x04"),
            )
            for lane in range(runs)
        )
    )


def handshake_cpu_ms(count: int) -> float:
    """CPU milliseconds of both sides of a handshake, in this thread."""
    heads, nodes = head_identity(), node_identity()
    start = time.thread_time()
    for number in range(count):
        now = float(number)
        one = Endpoint(nodes, initiator=True, entropy=os.urandom)
        other = Endpoint(heads, initiator=False, entropy=os.urandom)
        one.connect(now)
        while one.state != "up" or other.state != "up":
            for here, there in ((one, other), (other, one)):
                while (frame := here.next_frame(now)) is not None:
                    there.receive(frame, now)
    return 1000 * (time.thread_time() - start) / count


class Peer(Program):
    """bench/bus_peer.py as a child process, and a DEALER to it whose link is up."""

    def __init__(self) -> None:
        super().__init__("bench.bus_peer")
        self._dealer = shared_context().socket(zmq.DEALER)
        configure_dealer(self._dealer, random.Random(1))
        self._dealer.connect(self.answer()["address"])
        self._endpoint = Endpoint(node_identity(), initiator=True, entropy=os.urandom)
        self._endpoint.connect(clock.now())
        while self._endpoint.state != "up":
            self._send_sealed()
            if not self._dealer.poll(WAIT_MS):
                raise TimeoutError("the bench's peer does not answer")
            self._endpoint.receive(self._dealer.recv(), clock.now())

    def raw(self, size: int, count: int) -> float:
        """Bare frames of one size, a second."""
        self.ask(f"raw {count}")
        frame = bytes(size)
        for _ in range(count):
            self._send(frame)
        return count / float(self.answer()["seconds"])

    def frames(self, size: int, count: int) -> float:
        """Sealed frames of one size, a second."""
        sealer = FrameSealer(FRAME_KEYS, 1)
        part = bytes(size)
        self.ask(f"frames {count}")
        for _ in range(count):
            self._send(sealer.seal(FrameKind.DATA, 1, part))
        return count / float(self.answer()["seconds"])

    def sealed(self, make: Callable[[int], Any], count: int) -> float:
        """Messages a second."""
        messages = [make(number) for number in range(count)]
        self.ask(f"sealed {count}")
        for start in range(0, count, BURST):
            for message in messages[start : start + BURST]:
                self._endpoint.send(message)
            self._send_sealed()
        return count / float(self.answer()["seconds"])

    def file_address(self) -> str:
        """Where files are taken, until the link there ends."""
        self.ask("blobs")
        return str(self.answer()["address"])

    def _send_sealed(self) -> None:
        while (frame := self._endpoint.next_frame(clock.now())) is not None:
            self._send(frame)

    def _send(self, frame: bytes) -> None:
        while True:
            try:
                self._dealer.send(frame, zmq.NOBLOCK)
            except zmq.Again:
                self._dealer.poll(WAIT_MS, zmq.POLLOUT)
            else:
                return

    def close(self) -> None:
        self._dealer.close(0)
        super().close()


class Files:
    """Sends files over a link in a loop, as a head does, and probes the link meanwhile."""

    def __init__(self, address: str, store: BlobFolder) -> None:
        self._loop = Loop()
        self._sender = BlobSender(store, itertools.count(1))
        self._endpoint = Endpoint(node_identity(), initiator=True, entropy=os.urandom)
        self._link = DealerLink(address, lambda: self._endpoint, rng=random.Random(1))
        self._link.attach(self._loop)
        self._loop.on_turn(self._turn)
        self._done = 0
        self._probed_at: float | None = None
        self._next_probe = 0.0
        self.waits_ms: list[float] = []
        self._until(lambda: self._link.is_up)

    def send(self, blob: BlobRef) -> float:
        """Bytes a second."""
        start, before = clock.now(), self._done
        self._sender.offer("request", blob)
        self._until(lambda: self._done > before)
        return blob.length / (clock.now() - start)

    def close(self) -> None:
        self._link.close("the bench is over")
        self._loop.close()

    def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._loop.turn(0.0 if self._sender.ready else 0.002)

    def _turn(self, now: float) -> None:
        for event in self._link.events():
            if isinstance(event, MessageReceived):
                self._sender.receive(event.message, now)
        self._probe(now)
        if self._sender.ready:
            for message in self._sender.next_messages(now):
                self._link.send(message)
        for outcome in self._sender.outcomes():
            if outcome.failed or outcome.had:
                raise RuntimeError(f"a file was not sent: {outcome}")
            self._done += 1
        self._link.flush(now)

    def _probe(self, now: float) -> None:
        link = self._endpoint.link
        if not self._link.is_up or link is None:
            return
        if self._probed_at is not None and link.probe_answered:
            self.waits_ms.append(1000 * (now - self._probed_at))
            self._probed_at = None
        if self._probed_at is None and now >= self._next_probe:
            link.probe()
            self._probed_at, self._next_probe = now, now + PROBE_EVERY_S


def put_files(store: BlobFolder, count: int) -> list[BlobRef]:
    """Files with bytes of their own, in a sender's store."""
    blobs = []
    for _ in range(count):
        data = os.urandom(FILE_BYTES)
        blobs.append(BlobRef(sha256=hashlib.sha256(data).digest(), length=len(data)))
        partial = store.begin(blobs[-1], ())
        store.write(partial, data)
        store.keep(partial)
        while not store.settled():
            time.sleep(0.001)  # Nothing is measured yet.
    return blobs


def percentile_99(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[int(0.99 * (len(ordered) - 1))]


def measure(rounds: int) -> dict[str, float]:
    """Everything, round by round."""
    seen: dict[str, list[float]] = {}
    sizes = {len(LINK.encode(message)) for message in (lost(0), token_events(1, 0))}
    if sizes != {FRAME_BYTES}:
        raise RuntimeError(f"messages of {sizes} bytes, not of {FRAME_BYTES}; not a bench")
    with (
        Peer() as peer,
        tempfile.TemporaryDirectory(prefix="sf-bench-") as folder,
        BlobFolder(Path(folder) / "blobs", 1 << 40) as store,
    ):
        blobs = put_files(store, rounds + 1)
        raw_large = [peer.raw(CHUNK_BYTES, LARGE_FRAMES) for _ in range(rounds + 1)]
        for _ in range(rounds + 1):
            found = {
                "raw": peer.raw(FRAME_BYTES, FRAMES),
                "frames": peer.frames(FRAME_BYTES, FRAMES),
                "sealed": peer.sealed(lost, MESSAGES),
                "runs": peer.sealed(functools.partial(token_events, 1), MESSAGES),
                "batches": peer.sealed(functools.partial(token_events, RUNS), BATCHES),
                "handshake": handshake_cpu_ms(HANDSHAKES),
            }
            for name, value in found.items():
                seen.setdefault(name, []).append(value)
        keep_freed_memory()
        files = Files(peer.file_address(), store)
        rates = [files.send(blob) for blob in blobs]
        files.close()
    # The first round of each warms up.
    raw, frames, sealed, single, batches, handshake = (seen[name][1:] for name in seen)
    return {
        "handshake_cpu_ms": round(median(handshake), 3),
        "sealed_100b_ratio": round(_ratio(frames, raw), 3),
        "sealed_message_ratio": round(_ratio(sealed, raw), 3),
        "sealed_run_ratio": round(_ratio(single, raw), 3),
        "sealed_batch16_ratio": round(RUNS * _ratio(batches, raw), 3),
        "blob_ratio": round(median(rates[1:]) / (CHUNK_BYTES * median(raw_large[1:])), 3),
        "heartbeat_p99_ms_during_blob": round(percentile_99(files.waits_ms), 2),
        "raw_100b_per_s": round(median(raw)),
        "sealed_100b_per_s": round(median(frames)),
        "sealed_messages_per_s": round(median(sealed)),
        "sealed_runs_per_s": round(RUNS * median(batches)),
        "raw_128k_mb_per_s": round(CHUNK_BYTES * median(raw_large[1:]) / 1e6),
        "blob_mb_per_s": round(median(rates[1:]) / 1e6),
        "probes": len(files.waits_ms),
    }


def _ratio(ours: list[float], bare: list[float]) -> float:
    return median(one / other for one, other in zip(ours, bare, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description="the bus beside bare pyzmq")
    parser.add_argument("--rounds", type=int, default=7, help="after one for warmth [default: 7]")
    options = parser.parse_args()
    found = measure(options.rounds)
    for name, value in found.items():
        print(f"{name:>30} {value}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""What strangers cost a head, and whether its nodes notice: bad Hellos, and silent crowds.

A head of its own process is attacked from another one, while a node in this process asks it for a
sign of life every 20 ms. CPU is the head's whole process, as a share of one core, less what it
takes without an attack.

    python -m bench.strangers --seconds 5
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent.models.toy import write_toy
from bench.attack import source_of
from bench.cluster import TICKS_PER_S, Cluster
from bus.crypto import KeyPair
from bus.endpoint import Endpoint
from bus.ids import NodeIdentity
from bus.keys import FleetToken, load_token
from bus.link import LinkIdentity
from bus.messages.link import NodeConfirm
from bus.transport import clock
from bus.transport.dealer import DealerLink
from bus.transport.loop import Loop
from tests.harness.strangers import Stranger, hello_of

RATE_PER_S = 1000.0
CROWD = 200
BEAT_EVERY_S = 0.02
JOIN_LIMIT_S = 30.0


class GoodNode:
    """A node that joins, and measures how long the head takes to give a sign of life."""

    def __init__(self, address: str, name: str, token: FleetToken) -> None:
        self._loop = Loop()
        identity = _identity(name, token)
        self._endpoints: list[Endpoint] = []
        self._link = DealerLink(address, lambda: self._endpoint(identity), rng=random.Random(1))
        self._link.attach(self._loop)
        self._loop.on_turn(self._turn)

    def join(self) -> float:
        """Seconds until the link is up."""
        start = clock.now()
        while not self._link.is_up:
            if clock.now() - start > JOIN_LIMIT_S:
                raise RuntimeError("the node did not join; see the head's log")
            self._loop.turn(0.01)
        return clock.now() - start

    def beats(self, seconds: float) -> list[float]:
        """Milliseconds of each sign of life, asked for every 20 ms."""
        found: list[float] = []
        until = clock.now() + seconds
        while clock.now() < until:
            start = clock.now()
            link = self._endpoints[-1].link
            if link is None:
                raise RuntimeError("the node lost its link under the attack")
            link.probe()
            self._link.flush(start)
            while not link.probe_answered:
                self._loop.turn(0.1)
                if clock.now() - start > JOIN_LIMIT_S:
                    raise RuntimeError("the head gave no sign of life")
            found.append(1000 * (clock.now() - start))
            while (left_s := start + BEAT_EVERY_S - clock.now()) > 0:
                self._loop.turn(left_s)
        return found

    def close(self) -> None:
        self._link.close("the bench is over")
        self._loop.close()

    def _endpoint(self, identity: LinkIdentity) -> Endpoint:
        self._endpoints.append(Endpoint(identity, initiator=True, entropy=os.urandom))
        return self._endpoints[-1]

    def _turn(self, now: float) -> None:
        self._link.events()
        self._link.flush(now)


class Head:
    """The head's process, by its numbers."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far by thread: the loop's, and libzmq's for I/O."""
        used: dict[str, float] = {}
        for task in Path(f"/proc/{self._pid}/task").iterdir():
            name, fields = (task / "comm").read_text().strip(), (task / "stat").read_text()
            ticks = fields.rsplit(")", 1)[1].split()
            used[name] = used.get(name, 0.0) + (int(ticks[11]) + int(ticks[12])) / TICKS_PER_S
        return used

    def memory_mb(self) -> float:
        """Resident memory."""
        pages = int(Path(f"/proc/{self._pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextlib.contextmanager
def head_alone() -> Iterator[tuple[Head, str, FleetToken]]:
    """A head without agents: its process, its fleet address, its token."""
    with tempfile.TemporaryDirectory(prefix="sf-bench-") as folder:
        cluster = Cluster(write_toy(Path(folder) / "toy").path, threads=1)
        try:
            cluster.sfctl("token", "new")
            cluster.start_head()
            cluster.connect().close()
            found = json.loads((cluster.state / "run" / "head.json").read_text())
            token = load_token(cluster.state / "keys" / "fleet.token")
            yield Head(cluster.pid("head")), found["fleet"], token
        finally:
            cluster.close()


def bad_hello(token: FleetToken) -> bytes:
    """A Hello under the right token id whose last tag does not verify."""
    hello = hello_of(_identity("stranger", token))
    return hello[:-1] + bytes([hello[-1] ^ 1])


def _identity(name: str, token: FleetToken) -> LinkIdentity:
    return LinkIdentity(
        role="node",
        name=name,
        static=KeyPair.generate(os.urandom),
        tokens=(token,),
        incarnation=1,
        confirm=lambda: NodeConfirm(identity=NodeIdentity(name), incarnation=1, software="bench"),
    )


class Bench:
    """One head under attack."""

    def __init__(self, head: Head, address: str, token: FleetToken, seconds: float) -> None:
        self._head = head
        self._address = address
        self._token = token
        self._seconds = seconds
        self._nodes = 0
        self._node = self._new_node()
        self._node.join()
        self._memory_mb = head.memory_mb()
        self._idle, _ = self._watched()

    def _new_node(self) -> GoodNode:
        self._nodes += 1
        return GoodNode(self._address, f"good-{self._nodes}", self._token)

    def _watched(self) -> tuple[dict[str, float], list[float]]:
        """CPU share by thread and the node's beats, over the bench's time."""
        before, start = self._head.cpu_s(), time.monotonic()
        beats = self._node.beats(self._seconds)
        passed_s, after = time.monotonic() - start, self._head.cpu_s()
        return {name: (after[name] - before.get(name, 0.0)) / passed_s for name in after}, beats

    def attack(self, hello: Path, *, new: bool) -> dict[str, Any]:
        """Bad Hellos at 1,000 a second for a little longer than is measured."""
        command = [sys.executable, "-m", "bench.attack", "--address", self._address]
        command += ["--hello", str(hello), "--rate", str(RATE_PER_S)]
        command += ["--seconds", str(self._seconds + 2.0), *(["--new"] if new else [])]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attacker:
            self._node.beats(1.0)
            shares, beats = self._watched()
            newcomer = self._new_node()
            join_s = newcomer.join()
            newcomer.close()
            out, _ = attacker.communicate()
        shares = {name: share - self._idle.get(name, 0.0) for name, share in shares.items()}
        return {
            "cpu_share": round(sum(shares.values()), 4),
            "cpu_share_by_thread": {n: round(s, 4) for n, s in shares.items() if s > 0.0005},
            "heartbeat_p99_ms": round(sorted(beats)[int(0.99 * len(beats))], 2),
            "join_s": round(join_s, 3),
            "memory_growth_mb": round(self._head.memory_mb() - self._memory_mb, 1),
            **json.loads(out),
        }

    def crowd(self) -> dict[str, Any]:
        """200 connections from as many addresses that say nothing, and a node that joins."""
        with contextlib.ExitStack() as stack:
            for number in range(CROWD):
                stack.enter_context(Stranger(self._address, source_of(number)))
            newcomer = self._new_node()
            join_s = newcomer.join()
            newcomer.close()
            growth_mb = self._head.memory_mb() - self._memory_mb
        return {"join_s": round(join_s, 3), "memory_growth_mb": round(growth_mb, 1)}

    def close(self) -> None:
        self._node.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="what strangers cost a head")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each attack [default: 5]")
    options = parser.parse_args()
    with head_alone() as (head, address, token), tempfile.TemporaryDirectory() as folder:
        hello = Path(folder) / "hello"
        hello.write_bytes(bad_hello(token))
        bench = Bench(head, address, token, options.seconds)
        standing = bench.attack(hello, new=False)
        fresh = bench.attack(hello, new=True)
        silent = bench.crowd()
        bench.close()
    for name, found in (("standing", standing), ("new connections", fresh), ("silent", silent)):
        print(f"{name}: {found}")
    parts = (standing, fresh, silent)
    print(
        json.dumps(
            {
                "cpu_share": standing["cpu_share"],
                "heartbeat_p99_ms": standing["heartbeat_p99_ms"],
                "cpu_share_new_connections": fresh["cpu_share"],
                "heartbeat_p99_ms_new_connections": fresh["heartbeat_p99_ms"],
                "memory_growth_mb": max(part["memory_growth_mb"] for part in parts),
                "join_s": max(part["join_s"] for part in parts),
                "hellos_per_s": standing["hellos_per_s"],
                "hellos_per_s_new_connections": fresh["hellos_per_s"],
            }
        )
    )


if __name__ == "__main__":
    main()

"""How soon a fleet is back that lost its head, in virtual time, by real cores and real links.

Real: the head's core, gate and acceptor with all its limits, the nodes' cores, both ends of every
link with handshakes and sealing, the waits before a Hello and after a link's end. Simulated: the
wire (0.5 to 2 ms), libzmq's tries to connect (one in 0.1 to 0.3 s), commits of 2 ms, workers of a
made-up model, and that computing takes no time: what it took here is given beside.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from bus.ids import NodeIdentity
from tests.harness.memory_fleet import MemoryFleet, Stream

#: How long the head is away.
AWAY_S = 1.0
#: Seconds of a worker's step, and tokens of the answer that each node is working on.
STEP_S = 0.2
ANSWER_TOKENS = 400
#: All nodes call from one address, which an acceptor counts handshakes by.
ONE_ADDRESS = b"192.0.2.1"
LIMIT_S = 60.0


class Rejoin:
    """A fleet of nodes that each work on one answer."""

    def __init__(self, nodes: int, seed: int) -> None:
        self._fleet = MemoryFleet(seed=seed, nodes=nodes)
        self._fleet.step_s, self._fleet.peer_key = STEP_S, ONE_ADDRESS
        self._fleet.run_until(self._all_up, LIMIT_S)
        self._streams = [
            self._fleet.generate(f"prompt {number}", ANSWER_TOKENS, key=f"key {number}")
            for number in range(nodes)
        ]
        self._fleet.run_until(lambda: all(stream.tokens for stream in self._streams), LIMIT_S)

    def cut(self) -> float:
        """All cables are out for a second, so that answers lose their nodes.

        Returns:
            Seconds from then until every node is back and every answer goes on.
        """
        for node in self._fleet.nodes:
            node.cut = True
            node.cut_connection()
        self._fleet.run(AWAY_S)
        for node in self._fleet.nodes:
            node.cut = False
        return self._until_all_goes_on()

    def kill_head(self) -> float:
        """The head is killed and starts a second later, and clients attach again.

        Returns:
            Seconds from its start until every node is back and every answer goes on.
        """
        self._fleet.kill_head()
        self._fleet.run(AWAY_S)
        self._fleet.start_head()
        for place, stream in enumerate(self._streams):
            offset = stream.offset + len(stream.tokens)
            found = self._fleet.request("attach", session=stream.session, offset=offset)
            found.session = stream.session
            self._streams[place] = found
        return self._until_all_goes_on()

    def _until_all_goes_on(self) -> float:
        start, had = self._fleet.now, [len(stream.tokens) for stream in self._streams]
        self._fleet.run_until(self._all_up, LIMIT_S)
        self._fleet.run_until(lambda: all(map(_goes_on, self._streams, had)), LIMIT_S)
        return self._fleet.now - start

    def _all_up(self) -> bool:
        head = self._fleet.head
        return head is not None and all(
            (known := head.core.fleet.get(NodeIdentity(node.name))) is not None and known.up
            for node in self._fleet.nodes
        )


def _goes_on(stream: Stream, had: int) -> bool:
    if stream.error is not None:
        raise ValueError(f"an answer failed: {stream.error}")
    return len(stream.tokens) > had


def rejoin(nodes: int, seeds: tuple[int, ...]) -> dict[str, float]:
    """The longest of both ways to lose the head, of each the median over all seeds."""
    cut_s: list[float] = []
    killed_s: list[float] = []
    cpu_s: list[float] = []
    for seed in seeds:
        cut_s.append(_timed(Rejoin(nodes, seed).cut, cpu_s))
        killed_s.append(_timed(Rejoin(nodes, seed).kill_head, cpu_s))
    slowest_s = max(median(cut_s), median(killed_s))
    return {
        f"rejoin_s_{nodes}": round(slowest_s, 3),
        f"rejoin_s_{nodes}_cut": round(median(cut_s), 3),
        f"rejoin_s_{nodes}_head_killed": round(median(killed_s), 3),
        f"rejoin_s_{nodes}_worst": round(max(cut_s + killed_s), 3),
        f"rejoin_cpu_s_{nodes}": round(median(cpu_s), 3),
    }


def _timed(lose_head: Callable[[], float], cpu_s: list[float]) -> float:
    start = time.thread_time()
    found = lose_head()
    cpu_s.append(time.thread_time() - start)
    return found

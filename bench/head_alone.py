"""What the head alone can do: its real process over real sockets, against nodes without models.

The nodes are real agents' cores with made-up workers, in a process of their own; the client is a
real client's session in this one. All figures are per CPU-second of the head's process, with its
I/O and writer threads, and say nothing of the machine's other load:

    head_rps_per_core             requests of one token, 32 at a time on two nodes
    head_tokens_per_s_per_core    tokens of 16 streams on one node, in messages of a run for each of
                                  them, 16 tokens a run: what a worker sends at full speed
    short_runs_per_core           the same with 2 tokens a run, as from a worker with slow steps
    idle_core                     share of a core with 100 nodes linked and nothing to do
    mb_per_10k_reconnects         growth of the head's memory, also mb_per_10k_requests; finished
                                  answers are kept for no time here, since they are kept on purpose

    python -m bench.fleet --head --quick
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent.models.toy import write_toy
from bench.cluster import Cluster
from bench.fake_node import TOKEN
from bench.program import Program
from bench.strangers import Head
from bus.client_events import Ended, Failed
from bus.client_session import ClientSession
from bus.ids import RequestId
from bus.messages.api import TokenEvent
from bus.transport import clock
from bus.transport.api_client import ApiSocket

NODES, LANES = 2, 16
PROMPT_TOKENS = 24
STREAM_TOKENS = 4000
RUN_TOKENS, SHORT_RUN_TOKENS = 16, 2
IDLE_NODES = 100
#: The head looks every 10 s for what is past its retention.
PURGED_AFTER_S = 12.0
#: Until then the head's memory grows to what the work takes at all.
WARM_RECONNECTS, WARM_REQUESTS = 2_400, 20_000
SILENCE_LIMIT_S = 60.0


class Load:
    """One client with many requests at a time."""

    def __init__(self, address: str, model: str) -> None:
        self._model = model
        self._socket = ApiSocket(address)
        self._session = ClientSession(os.urandom)
        self._open: dict[RequestId, int] = {}

    def run(self, requests: int, at_once: int, max_new: int) -> int:
        """Run requests to their ends; gives the tokens that came.

        Raises:
            RuntimeError: one failed, lacked tokens, or the head says nothing.
        """
        started, tokens = 0, 0
        while started < requests or self._open:
            while started < requests and len(self._open) < at_once:
                self._start(max_new)
                started += 1
            self._flush()
            self._receive()
            tokens += self._take(max_new)
        self._flush()
        return tokens

    def close(self) -> None:
        self._socket.close()

    def _start(self, max_new: int) -> None:
        body = {
            "model": self._model,
            "tokens": [TOKEN] * PROMPT_TOKENS,
            "max_new": max_new,
            "ignore_eos": True,
            "temperature": 0.0,
        }
        self._open[self._session.start("generate", body, now=clock.now())] = 0

    def _flush(self) -> None:
        for frames in self._session.frames_to_send():
            self._socket.send(frames)

    def _receive(self) -> None:
        frames = self._socket.recv(SILENCE_LIMIT_S)
        if frames is None:
            raise RuntimeError("the head says nothing; see its log")
        while frames is not None:
            self._session.receive(frames, clock.now())
            frames = self._socket.recv(0)

    def _take(self, max_new: int) -> int:
        came = 0
        for request in list(self._open):
            for event in self._session.take(request):
                if isinstance(event, TokenEvent):
                    came += len(event.tokens)
                    self._open[request] += len(event.tokens)
                elif isinstance(event, Failed):
                    raise RuntimeError(f"a request failed: {event.error}")
                elif isinstance(event, Ended) and self._open.pop(request) != max_new:
                    raise RuntimeError(f"a request ended without its {max_new} tokens")
        return came


class Bench:
    """One head, its fake nodes and its load."""

    def __init__(self, head: Head, nodes: Program, load: Load) -> None:
        self._head = head
        self._nodes = nodes
        self._load = load

    def requests(self, count: int) -> float:
        """Requests of one token for each CPU-second of the head."""
        self._link(NODES, 1)
        self._load.run(count // 10, NODES * LANES, 1)
        before = self._cpu_s()
        self._load.run(count, NODES * LANES, 1)
        used_s = self._cpu_s() - before
        self._do("end")
        return count / used_s

    def tokens(self, streams: int, run_tokens: int) -> float:
        """Tokens in runs for each CPU-second of the head."""
        self._link(1, run_tokens)
        self._load.run(LANES, LANES, STREAM_TOKENS // 10)
        before = self._cpu_s()
        tokens = self._load.run(streams, LANES, STREAM_TOKENS)
        used_s = self._cpu_s() - before
        self._do("end")
        return tokens / used_s

    def idle(self, seconds: float) -> float:
        """CPU share with many nodes and no work."""
        self._link(IDLE_NODES, 1)
        time.sleep(3.0)
        before, start = self._cpu_s(), time.monotonic()
        time.sleep(seconds)
        share = (self._cpu_s() - before) / (time.monotonic() - start)
        self._do("end")
        return share

    def reconnect_growth_mb(self, count: int) -> float:
        """Memory that 10,000 reconnects take and do not give back."""
        self._do("reconnect", count=WARM_RECONNECTS)
        before = self._settled_mb()
        self._do("reconnect", count=count)
        return (self._settled_mb() - before) * 10_000 / count

    def request_growth_mb(self, count: int) -> float:
        """Memory that 10,000 requests take and do not give back."""
        self._link(NODES, 1)
        self._load.run(WARM_REQUESTS, NODES * LANES, 1)
        before = self._settled_mb()
        self._load.run(count, NODES * LANES, 1)
        growth_mb = self._settled_mb() - before
        self._do("end")
        return growth_mb * 10_000 / count

    def _settled_mb(self) -> float:
        time.sleep(PURGED_AFTER_S)
        return self._head.memory_mb()

    def _cpu_s(self) -> float:
        return sum(self._head.cpu_s().values())

    def _link(self, count: int, run_tokens: int) -> None:
        self._do("link", count=count, lanes=LANES, run_tokens=run_tokens)

    def _do(self, what: str, **more: int) -> None:
        self._nodes.ask(json.dumps({"do": what, **more}))
        self._nodes.answer()


@contextlib.contextmanager
def open_bench() -> Iterator[Bench]:
    """A head that keeps no finished answers, with nothing linked to it yet."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sf-bench-")))
        toy = write_toy(folder / "toy")
        cluster = Cluster(toy.path, threads=1, settings={"SUPERFLUID_STORE_RETAIN_S": "0"})
        stack.callback(cluster.close)
        cluster.sfctl("token", "new")
        cluster.start_head()
        cluster.connect().close()
        found = json.loads((cluster.state / "run" / "head.json").read_text())
        token = cluster.state / "keys" / "fleet.token"
        nodes = Program(
            *("bench.fake_nodes", "--address", found["fleet"]),
            *("--token", str(token), "--model", cluster.model),
        )
        stack.callback(nodes.close)
        load = Load(found["api"], cluster.model)
        stack.callback(load.close)
        yield Bench(Head(cluster.pid("head")), nodes, load)


def measure(bench: Bench, *, quick: bool) -> dict[str, Any]:
    """All figures, as the JSON line has them."""
    share = 10 if quick else 1
    found: dict[str, Any] = {
        "head_rps_per_core": round(bench.requests(10_000 // share), 1),
        "head_tokens_per_s_per_core": round(bench.tokens(10 * LANES // share, RUN_TOKENS)),
        "short_runs_per_core": round(bench.tokens(LANES, SHORT_RUN_TOKENS)),
        "idle_core": round(bench.idle(60.0 / share), 4),
    }
    reconnects, requests = 10_000 // share, 100_000 // share
    found["mb_per_10k_reconnects"] = round(bench.reconnect_growth_mb(reconnects), 3)
    found["mb_per_10k_requests"] = round(bench.request_growth_mb(requests), 3)
    return found | {"reconnects": reconnects, "requests": requests}


def report(*, quick: bool) -> None:
    """Measure and print.

    Args:
        quick: a tenth of it, in a few minutes.
    """
    with open_bench() as bench:
        found = measure(bench, quick=quick)
    print(f"requests of one token: {found['head_rps_per_core']} per CPU-second of the head")
    print(
        f"tokens of {LANES} streams: {found['head_tokens_per_s_per_core']} per CPU-second in runs "
        f"of {RUN_TOKENS}, {found['short_runs_per_core']} in runs of {SHORT_RUN_TOKENS}"
    )
    print(f"idle with {IDLE_NODES} nodes: {found['idle_core']} of a core")
    print(
        f"memory: {found['mb_per_10k_reconnects']} MB per 10,000 of {found['reconnects']} "
        f"reconnects, {found['mb_per_10k_requests']} MB per 10,000 of {found['requests']} requests"
    )
    print(json.dumps(found))

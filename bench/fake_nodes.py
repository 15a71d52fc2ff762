"""Fake nodes in a process of their own, for `bench.head_alone`: told what to do by lines of JSON.

{"do": "link", "count": 2, "lanes": 16, "run_tokens": 16}   answered once all are up
{"do": "end"}                                               ends them
{"do": "reconnect", "count": 1000}                          as many links, each ended again

python -m bench.fake_nodes --address tcp://127.0.0.1:8454 --token FILE --model toy
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.fake_node import FakeNode
from bus.crypto import KeyPair
from bus.ids import ModelName
from bus.keys import load_token
from bus.transport import clock
from bus.transport.limits import raise_open_files
from bus.transport.loop import Loop

LINK_LIMIT_S = 120.0
#: The least between two turns while tokens are made: a worker's steps.
STEP_S = 0.002
#: Nodes that reconnect side by side.
TOGETHER = 16


class FakeNodes:
    """All nodes of the process and the loop that turns them."""

    def __init__(self, address: str, token: Path, model: ModelName) -> None:
        self._address = address
        self._token = load_token(token)
        self._model = model
        self._loop = Loop()
        self._nodes: list[FakeNode] = []
        self._input = b""
        self._lines: deque[str] = deque()
        self._closed = False
        #: Keys by name, and how often each was started: a node keeps its key over all its lives.
        self._keys: dict[str, KeyPair] = {}
        self._boots: Counter[str] = Counter()
        self._loop.add_reader(0, self._read)
        self._loop.on_turn(self._turn)

    def run(self) -> None:
        """Until the input ends."""
        while not self._closed:
            self._step()
            while self._lines:
                asked = json.loads(self._lines.popleft())
                print(json.dumps(self._do(asked)), flush=True)
        self.end()

    def link(self, count: int, lanes: int, run_tokens: int) -> None:
        """Join with so many nodes."""
        self._nodes += [
            self._node(f"fake-{number}", lanes=lanes, run_tokens=run_tokens)
            for number in range(1, count + 1)
        ]
        self._until_up(self._nodes)

    def end(self) -> None:
        """End all nodes."""
        now = clock.now()
        for node in self._nodes:
            node.close(now)
        self._nodes = []
        self._step()

    def reconnect(self, count: int) -> None:
        """So many links, one after the other of each node: every other one ends without a word."""
        nodes = [self._node(f"again-{number}", lanes=1) for number in range(TOGETHER)]
        self._nodes = nodes
        for number in range(count // TOGETHER):
            self._until_up(nodes)
            now = clock.now()
            for node in nodes:
                node.close(now, cut=number % 2 == 0)
            nodes[:] = [self._node(node.name, lanes=1) for node in nodes]
        self._until_up(nodes)
        self.end()

    # --- inside -------------------------------------------------------------------------------

    def _do(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        match asked["do"]:
            case "link":
                self.link(asked["count"], asked["lanes"], asked["run_tokens"])
            case "end":
                self.end()
            case "reconnect":
                self.reconnect(asked["count"])
        return {"done": asked["do"]}

    def _node(self, name: str, *, lanes: int, run_tokens: int = 1) -> FakeNode:
        self._boots[name] += 1
        return FakeNode(
            self._loop,
            self._address,
            self._token,
            name=name,
            model=self._model,
            lanes=lanes,
            run_tokens=run_tokens,
            boot=self._boots[name],
            key=self._keys.setdefault(name, KeyPair.generate(os.urandom)),
        )

    def _until_up(self, nodes: list[FakeNode]) -> None:
        until = clock.now() + LINK_LIMIT_S
        while not all(node.is_up for node in nodes):
            if clock.now() > until:
                raise RuntimeError("the nodes did not join; see the head's log")
            self._step()

    def _step(self) -> None:
        working = any(node.worker.is_running for node in self._nodes)
        self._loop.turn(STEP_S if working else 1.0)

    def _turn(self, now: float) -> None:
        for node in self._nodes:
            node.turn(now)

    def _read(self) -> None:
        data = os.read(0, 65536)
        self._closed |= not data
        *lines, self._input = (self._input + data).split(b"\n")
        self._lines += [line.decode() for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description="fake nodes for a bench of the head")
    parser.add_argument("--address", required=True)
    parser.add_argument("--token", type=Path, required=True)
    parser.add_argument("--model", required=True)
    options = parser.parse_args()
    raise_open_files()
    FakeNodes(options.address, options.token, ModelName(options.model)).run()


if __name__ == "__main__":
    main()

"""A head and two agents over fault proxies: one agent joins the head, the other is dialed by it."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any, Self

from bench.cluster import Cluster
from bus.agent_status import read_agent_status
from bus.call import Call
from tests.harness.fault_proxy import FaultProxy
from tests.harness.models import toy_model_folder

#: By dial direction, the agent whose link is made that way.
JOINED, DIALED = "node-1", "node-2"
#: Everything that is waited for comes far sooner.
LIMIT_S = 60.0


class FaultCluster(Cluster):
    """Real processes with the toy model; `proxies` by agent, what is between it and the head.

    Args:
        silence_s: the silence limit of both sides, 30 s where nobody sets it.
    """

    def __init__(self, silence_s: float, **settings: str) -> None:
        self.proxies = {JOINED: FaultProxy(), DIALED: FaultProxy()}
        self._stack = contextlib.ExitStack()
        super().__init__(
            toy_model_folder().path,
            threads=1,
            lanes=4,
            nodes=2,
            settings={
                "SUPERFLUID_FLEET_NODES": self.proxies[DIALED].address,
                "SUPERFLUID_FLEET_SILENCE_S": str(silence_s),
                "SUPERFLUID_NODE_SILENCE_S": str(silence_s),
                "SUPERFLUID_WORKER_KV_BYTES": str(8 << 20),
                "SUPERFLUID_TEXT_PROCESSES": "1",
                "SUPERFLUID_PLACEMENT_POLICY": "round-robin",
                # Requests go to both agents in turn, also to one whose link has just come back.
                "SUPERFLUID_PLACEMENT_RETURN_S": "0",
                "SUPERFLUID_LOG_JSON": "true",
                **settings,
            },
        )
        self._configure(JOINED, f'join = ["{self.proxies[JOINED].address}"]')
        self._configure(DIALED, 'listen = "tcp://127.0.0.1:0"')

    def __enter__(self) -> Self:
        for proxy in self.proxies.values():
            self._stack.enter_context(proxy)
        return super().__enter__()

    def close(self) -> None:
        """End every process, then the proxies."""
        super().close()
        self._stack.close()

    def start_node(self, name: str) -> None:
        """Start an agent, and let its proxy lead to whoever listens."""
        super().start_node(name)
        if name == JOINED:
            head = json.loads((self.state / "run" / "head.json").read_text())
            self.proxies[name].set_target(head["fleet"])
            return
        until = time.monotonic() + LIMIT_S
        while (told := read_agent_status(self.state / "nodes" / name)) is None:
            assert time.monotonic() < until, self.log(name)
            time.sleep(0.02)
        self.proxies[name].set_target(told.link.address)

    @property
    def api(self) -> str:
        """Where the head's clients connect."""
        return f"ipc://{self.state}/run/api.sock"

    def is_up(self, name: str) -> bool:
        """Whether the head has a link to an agent."""
        states = {node["identity"]: node["state"] for node in self.client.nodes()}
        return states.get(name) == "up"

    def heal(self, proxy: FaultProxy) -> None:
        """Wait until what was to happen has, and both agents are linked; then nothing is slow."""
        until = time.monotonic() + LIMIT_S
        while not (proxy.struck and self.is_up(JOINED) and self.is_up(DIALED)):
            assert time.monotonic() < until, (proxy.struck, self.client.nodes())
            time.sleep(0.02)
        proxy.now(lambda link: link.slow(0))

    def begin(self, prompts: list[list[int]], max_new: int, tokens: int) -> list[Call]:
        """Greedy streams of given prompts, each `tokens` long by now."""
        options: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "exact": True}
        calls = [
            self.client.generate(self.model, prompt, max_new=max_new, **options)
            for prompt in prompts
        ]
        for call in calls:
            while len(call.tokens) < tokens:
                call.next_event(None)
        return calls

    def _configure(self, name: str, line: str) -> None:
        folder = self.state / "nodes" / name
        folder.mkdir(parents=True, mode=0o700)
        (folder / "agent.toml").write_text(f'[node]\nidentity = "{name}"\n{line}\n')

"""A client with one made session on a head with one node, by its requests and replies."""

from __future__ import annotations

from typing import Any

from bus.messages.api import MARK, encode_body
from bus.messages.link import GenerateReq
from head.core import CorePolicy
from tests.harness.head_bench import CLIENT, TOY, Bench


class Talk:
    """A client with one made session on a head with one node."""

    def __init__(self, policy: CorePolicy | None = None) -> None:
        self.bench = Bench(policy=policy)
        self.bench.node(1)
        self.number = 0
        self.session = self.call("session.create", model=TOY)["session"]

    def send(self, op: str, **body: Any) -> bytes:
        self.number += 1
        request = f"q{self.number}".encode()
        frames = [MARK, encode_body({"op": op, "id": request, **body})]
        self.bench.core.client_request(CLIENT, frames, self.bench.now)
        self.bench.settle()
        return request

    def reply(self, request: bytes) -> dict[str, Any]:
        return next(r for r in reversed(self.bench.replies) if r["id"] == request)

    def call(self, op: str, **body: Any) -> dict[str, Any]:
        return self.reply(self.send(op, **body))

    def append(self, text: str) -> dict[str, Any]:
        return self.call("session.append", session=self.session, text=text)

    def get(self, **body: Any) -> dict[str, Any]:
        return self.call("session.get", session=self.session, **body)

    def turn(self, **body: Any) -> GenerateReq:
        """Begin a turn; what the node is asked for."""
        body = {"session": self.session, "max_new": 10, **body}
        self.send("session.generate", **body)
        request: GenerateReq = self.bench.last(GenerateReq)
        return request

"""A ROUTER that answers as a test says: the API's frames without a fleet behind them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

import zmq

from bus.closing import Closing
from bus.messages.api import MARK, decode_body, encode_body

Body = dict[str, Any]
#: Gets a request's body, gives the replies' bodies; `id` is filled in where it is missing.
Script = Callable[[Body], list[Body]]

USAGE: Body = {"prompt": 3, "cached": 1, "completion": 2, "replayed": 0}
TIMING: Body = {"queued_ms": 1.0, "first_token_ms": 20.0, "total_ms": 30.0, "tokens_per_s": 50.0}


def token(offset: int, ids: list[int], text: str) -> Body:
    """A token event."""
    return {"kind": "event", "type": "token", "offset": offset, "tokens": ids, "text": text}


def placed(session: str = "s1") -> Body:
    """A placed event."""
    return {"kind": "event", "type": "placed", "node": "node-1-abc", "session": session}


def end(offset: int, *, finish: str = "stop", text: str = "") -> Body:
    """The end of an answer."""
    return {
        "kind": "end",
        "finish": finish,
        "usage": USAGE,
        "timing": TIMING,
        "node": "node-1-abc",
        "session": "s1",
        "offset": offset,
        "text": text,
    }


def answer_of(*parts: str) -> list[Body]:
    """A whole answer: token i is `i` and has the i-th text."""
    tokens = [token(i, [i], text) for i, text in enumerate(parts)]
    return [placed(), *tokens, end(len(parts))]


class ScriptedHead(Closing):
    """Serves in a thread of its own inside `with`. `requests` is all that came, in order."""

    def __init__(self, address: str, script: Script) -> None:
        self.address = address
        self.requests: list[Body] = []
        self._script = script
        self._stop = threading.Event()
        self._bound = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="scripted-head")

    def ops(self) -> list[str]:
        """The operations asked for, without the pings of idle clients."""
        return [str(body["op"]) for body in self.requests if body["op"] != "ping"]

    def close(self) -> None:
        """End it as a process would: its connections are closed when it returns."""
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._bound.wait(10)
        return self

    def _serve(self) -> None:
        # Of its own, so that its end can be awaited: a socket is closed only after its `close`.
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 200)
        try:
            socket.bind(self.address)
            self._bound.set()
            while not self._stop.is_set():
                if not socket.poll(20):
                    continue
                client, *frames = socket.recv_multipart()
                body = decode_body(frames)
                self.requests.append(body)
                for reply in self._replies(body):
                    socket.send_multipart([client, MARK, encode_body({"id": body["id"], **reply})])
        finally:
            socket.close()
            context.term()

    def _replies(self, body: Body) -> list[Body]:
        if body["op"] in ("ping", "more"):
            return [{"kind": "end"}]
        return self._script(body)

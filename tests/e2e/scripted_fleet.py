"""A head with one node and one model, by script, for `sfctl` to speak with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner, Result

from bus.errors import NoNode, NotFound, SuperfluidError
from head.cli.command_line import cli
from tests.e2e.scripted_head import Body, ScriptedHead, answer_of, end, token

NODE: Body = {
    "identity": "node-1-abc",
    "state": "up",
    "reason": "",
    "generations": 1,
    "models": [
        {
            "name": "toy",
            "phase": "ready",
            "problem": "",
            "lanes_used": 1,
            "lanes_total": 4,
            "decode_rate": 12.34,
        }
    ],
}
MODEL: Body = {"name": "toy", "ready": True, "nodes": ["node-1-abc"], "window_tokens": 512}
SESSION: Body = {
    "model": "toy",
    "state": "ended",
    "finish": "stop",
    "tokens": 3,
    "answer_tokens": 2,
    "age_s": 61.0,
}
TEXTS = ("Hi", " there")
HEAD: Body = {"id": "h1", "version": "0.1.0", "uptime_s": 5.0, "placement": "load-aware"}


class Fleet:
    """The script of a head with one node, in a state that a test sets."""

    def __init__(self) -> None:
        self.node, self.ready = dict(NODE), True
        self.more: list[Body] = []
        self.refusal: SuperfluidError | None = None
        #: What else is told of the model.
        self.told: Body = {}
        self.others: list[Body] = []
        self.unknown_on: set[str] = set()
        #: What chats are answered, before the usual.
        self.answers: list[list[Body]] = []

    def __call__(self, body: Body) -> list[Body]:
        model = MODEL | {"ready": self.ready} | self.told
        if body["op"] == "status":
            return [
                {"kind": "end", "head": HEAD, "nodes": [self.node, *self.more], "models": [model]}
            ]
        if body["op"] == "nodes":
            return [{"kind": "end", "nodes": [self.node, *self.others]}]
        if body["op"] == "model.unload":
            if body["node"] not in self.unknown_on:
                return [{"kind": "end"}]
            unknown = NotFound(f"node {body['node']}: it knows no model", param="model")
            return [{"kind": "error", "error": unknown.to_dict()}]
        if body["op"] == "models":
            return [{"kind": "end", "models": [model]}]
        if body["op"] == "session.ls":
            below = int(body.get("after", "s-99-0").split("-")[1])
            numbers = list(range(below - 1, 0, -1))[: body["limit"]]
            rows = [SESSION | {"session": f"s-{number}-0"} for number in numbers]
            return [{"kind": "end", "sessions": rows, "next": rows[-1]["session"]}]
        if body["op"] == "attach":
            first = body["offset"]
            return [*(token(i, [i], t) for i, t in enumerate(TEXTS) if i >= first), end(len(TEXTS))]
        if self.refusal is not None:
            return [{"kind": "error", "error": self.refusal.to_dict()}]
        if body.get("model") != "toy":
            error = NoNode("no node serves it: node-1-abc has only toy", retry_after_ms=500)
            return [{"kind": "error", "error": error.to_dict()}]
        return self.answers.pop(0) if self.answers else answer_of(*TEXTS)


Served = tuple[Fleet, ScriptedHead]


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """The script, to change it, and the head that goes by it."""
    script = Fleet()
    with ScriptedHead(f"ipc://{folder / 'api'}", script) as head:
        yield script, head


def sfctl(head: ScriptedHead, *arguments: str, stdin: str | None = None) -> Result:
    """What a command line to that head comes to."""
    return CliRunner().invoke(cli, ["--api", head.address, *arguments], input=stdin)

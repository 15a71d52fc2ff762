"""Fuzz targets on the protocol cores: peers that are let in and then send anything at any time."""

from __future__ import annotations

import contextlib
import random
from dataclasses import fields, is_dataclass, replace
from typing import Any

from agent.core import AgentCore
from bus.client_events import Ended, Failed
from bus.client_session import ClientSession
from bus.errors import SuperfluidError
from bus.ids import ModelName, NodeIdentity, PackedIds, RequestId, WorkerIncarnation
from bus.messages import api, link, worker
from bus.messages.api import TokenEvent
from bus.messages.job_bodies import EmbedBody, pack_body
from bus.messages.link import LINK
from bus.messages.link_jobs import JobStart
from bus.messages.worker import WORKER
from tests.fuzz.decoders import Case, Wrong
from tests.fuzz.generate import change_bytes, junk, spoil, struct_of
from tests.harness.head_bench import TOY, Bench, run
from tests.harness.job_bench import JobBench

#: Values that recur, so that messages are about each other's sessions and generations.
_SESSIONS = ("s", "t", "")
_SMALL = {
    "session": _SESSIONS,
    "generation": range(1, 4),
    "epoch": range(1, 5),
    "command": range(1, 30),
    "model": ("toy", "none"),
    "name": ("toy", "none"),
    "base_tokens": (0, 0, 3),
    "first_seq": range(5),
    "first_index": range(5),
    "prompt_tokens": (0, 3),
    "generated_tokens": (0, 0, 1),
    "committed": range(6),
    "worker": range(3),
    "more": (False, False, True),
    "job": range(1, 4),
    "seq": (0, 0, 1),
    "parts": (0, 1, 40),
}


_EMBED = pack_body(EmbedBody(inputs=(PackedIds(b"\2\0\0\0"),)))


def related(rng: random.Random, message: Any, known: dict[str, Any] | None = None) -> Any:
    """The message with telling fields set to values that recur, in all its parts."""
    changes: dict[str, Any] = {}
    for field in fields(message):
        value = getattr(message, field.name)
        choices = (known or {}).get(field.name) or _SMALL.get(field.name)
        if choices is not None and value is not None and rng.random() < 0.9:
            changes[field.name] = rng.choice(choices)
        elif is_dataclass(value):
            changes[field.name] = related(rng, value, known)
        elif type(value) is tuple and value and is_dataclass(value[0]):
            changes[field.name] = tuple(related(rng, item, known) for item in value)
    return replace(message, **changes)


def agent_case(rng: random.Random) -> None:
    """A node whose head, and whose worker, send any message at any time."""
    core, now = AgentCore(NodeIdentity("n1"), 7, [ModelName("toy")]), 10.0
    to_node = sorted(LINK.messages.items())
    of_worker = sorted(WORKER.messages.items())
    confirm = link.HeadConfirm(identity="h", boot=1, software="x")
    for _ in range(rng.choice((10, 40))):
        how = rng.randrange(8)
        incarnation = WorkerIncarnation(rng.randrange(1, 3))
        if how == 0:
            core.link_up(replace(confirm, identity=rng.choice(("h", "h", "g"))), now)
            if rng.random() < 0.8:
                core.link_message(link.Reconcile(page=0, more=False), now)
        elif how == 1 and rng.random() < 0.3:
            core.link_down(now)
        elif how == 2:
            core.worker_started(ModelName("toy"), incarnation, now)
            ready = related(rng, struct_of(rng, worker.Ready))
            core.worker_message(ModelName("toy"), incarnation, ready, now)
        elif how == 3 and rng.random() < 0.3:
            core.worker_exited(ModelName("toy"), incarnation, -9, 0.25, now)
        elif how == 4:
            message = related(rng, struct_of(rng, rng.choice(of_worker)[1]))
            core.worker_message(ModelName("toy"), incarnation, message, now)
        elif how == 5:
            now += rng.choice((0.0, 0.5, 3.0, 30.0))
            core.handle_timeout(now)
        else:
            message = related(rng, struct_of(rng, rng.choice(to_node)[1]))
            if isinstance(message, JobStart) and rng.random() < 0.8:
                body = rng.choice((_EMBED, _EMBED, rng.randbytes(8)))
                message = replace(message, kind="embed", blobs=(), body=body)
            core.link_message(message, now)
        for action in core.actions():
            _check_sendable(action)
        core.validate_state()


def _check_sendable(action: Any) -> None:
    """What the core says can be encoded."""
    message = getattr(action, "message", None)
    if type(message) in LINK.messages.values():
        LINK.encode(message)
    elif type(message) in WORKER.messages.values():
        WORKER.encode(message)


def head_case(rng: random.Random) -> None:
    """A head whose nodes and clients send any message at any time; good clients go on."""
    bench = JobBench()
    bench.node(1)
    bench.encoder(3, "n3")
    of_nodes = sorted(LINK.messages.items())
    known: dict[str, Any] = {}
    for number in range(rng.choice((10, 40))):
        how = rng.randrange(8)
        node = rng.choice((1, 1, 2, 3))
        if how == 0 and rng.random() < 0.3:
            bench.core.client_request(rng.choice((b"c", b"d")), _embed(rng, number), bench.now)
        elif how == 0:
            prompt = {"prompt": "hi", "max_new": rng.choice((1, 4, 100))}
            bench.core.client_request(
                rng.choice((b"c", b"d")), [api.MARK, _request(rng, number, prompt)], bench.now
            )
        elif how == 1:
            bench.core.client_request(rng.choice((b"c", b"d")), _frames(rng, number), bench.now)
        elif how == 2 and rng.random() < 0.4:
            bench.core.link_down(node, "cut", bench.now)
            up = bench.encoder if node == 3 else bench.node
            up(node, f"n{node}", worker=rng.randrange(1, 3))
        elif how == 3:
            bench.wait(rng.choice((0.0, 0.1, 1.0, 6.0)))
        elif how == 4 and known:
            bench.core.link_message(node, _events(rng, bench), bench.now)
        else:
            message = related(rng, struct_of(rng, rng.choice(of_nodes)[1]), known)
            bench.core.link_message(node, message, bench.now)
        bench.settle()
        for name in ("session", "generation", "epoch", "command", "job"):
            found = [getattr(m, name) for _, m in bench.sent[-20:] if hasattr(m, name)]
            known[name] = found or known.get(name)
    for _, message in bench.sent:
        LINK.encode(message)
    for reply in bench.replies:
        api.encode_body(reply)


def _embed(rng: random.Random, number: int) -> list[bytes]:
    """A request for vectors that are made on the way, nearly."""
    texts = [rng.choice(("a", "bc", "d" * 60)) for _ in range(rng.randrange(1, 5))]
    body = {"op": "embed", "id": b"q%d" % number, "model": "enc", "input": texts}
    return [api.MARK, api.encode_body(body | {"credit": rng.choice((1, 256))})]


def _events(rng: random.Random, bench: Bench) -> Any:
    """Token events that fit what was asked for, nearly."""
    asked = [m for _, m in bench.sent if isinstance(m, link.GenerateReq)]
    if not asked:
        return struct_of(rng, link.TokenEvents)
    ids = [rng.choice((65, 66, 4_000_000_000)) for _ in range(rng.randrange(4))]
    finish = rng.choice(("", "", "eos", "stop", "error", "refused", "cancelled"))
    return run(rng.choice(asked), rng.randrange(4), *ids, finish=finish)


def _request(rng: random.Random, number: int, body: dict[str, Any]) -> bytes:
    asked = {"op": "generate", "id": b"q%d" % number, "model": TOY, **body}
    if rng.random() < 0.3:
        asked["key"] = rng.choice(("k", "l"))
    return api.encode_body(asked)


_OPERATIONS = (
    *("generate", "attach", "cancel", "more", "tokenize", "detokenize", "status", "nodes"),
    *("models", "hello", "ping", "goodbye", "put_blob", "has_blob", "session.create"),
    *("media.probe", "render", "chat"),
    *("session.append", "session.generate", "session.finish", "session.cancel", "embed"),
)
_KEYS: dict[str, Any] = {
    "model": TOY,
    "prompt": "hi",
    "tokens": [65, 66],
    "text": "hi",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"name": "f", "parameters": {"type": "object"}}],
    "template": {"documents": []},
    "about": b"q0",
    "key": "k",
    "session": "s",
    "offset": 0,
    "max_new": 3,
    "sha256": bytes(32),
    "length": 10,
    "input": ["a", "b"],
}


def _frames(rng: random.Random, number: int) -> list[bytes]:
    """A request of any operation, with keys that fit and others that do not."""
    body: Any = {"op": rng.choice(_OPERATIONS), "id": b"q%d" % rng.randrange(number + 1)}
    for name in rng.sample(sorted(_KEYS), rng.randrange(len(_KEYS))):
        body[name] = _KEYS[name] if rng.random() < 0.9 else junk(rng)
    if rng.random() < 0.3:
        body = spoil(rng, body)
    data = api.encode_body(body)
    return [api.MARK, data if rng.random() < 0.9 else change_bytes(rng, data)]


def client_case(rng: random.Random) -> None:
    """A client whose head answers anything: one end for each request, no token twice or missing."""
    session, now = ClientSession(rng.randbytes), 10.0
    requests = [
        session.start(rng.choice(("generate", "attach", "nodes")), {"key": "k"}, now=now, credit=4)
        for _ in range(rng.randrange(1, 4))
    ]
    got: dict[RequestId, list[Any]] = {request: [] for request in requests}
    for _ in range(rng.choice((10, 60))):
        how = rng.randrange(10)
        if how == 0:
            session.connection_lost()
            session.connected(now)
        elif how == 1:
            now += rng.choice((0.1, 3.0, 30.0))
            if session.handle_timeout(now):
                session.connection_lost()
                session.connected(now)
        else:
            request = rng.choice(requests)
            cursor = session.cursor(request) if session.is_open(request) else 0
            with contextlib.suppress(SuperfluidError):
                session.receive(_reply(rng, request, cursor), now)
        session.frames_to_send()
        for request in requests:
            if rng.random() < 0.7:
                got[request] += session.take(request)
    session.fail_all(SuperfluidError("the end"))
    for request in requests:
        _check_events([*got[request], *session.take(request)])


def _reply(rng: random.Random, request: RequestId, cursor: int) -> list[bytes]:
    body: Any = {"id": request, "kind": rng.choice(("event", "event", "event", "end", "error"))}
    body |= {
        "type": rng.choice(("token", "token", "queued", "placed", "moved", "new")),
        "offset": rng.choice((cursor, cursor, cursor, 0, cursor + 1)),
        "tokens": [1] * rng.randrange(3),
        "text": "a",
        "node": "n",
        "session": "s",
        "position": 1,
        "code": rng.choice(("invalid", "node_lost", "new_code")),
        "message": "m",
    }
    if rng.random() < 0.3:
        body = spoil(rng, body)
    data = api.encode_body(body)
    return [api.MARK, data if rng.random() < 0.9 else change_bytes(rng, data)]


def _check_events(events: list[Any]) -> None:
    ends = [event for event in events if isinstance(event, Ended | Failed)]
    if len(ends) != 1 or events[-1] is not ends[0]:
        raise Wrong(f"{len(ends)} ends among {events}")
    cursor = 0
    for event in events:
        if isinstance(event, TokenEvent):
            if event.offset != cursor:
                raise Wrong(f"token {event.offset} came when {cursor} was next")
            cursor += len(event.tokens)


PROTOCOLS: dict[str, Case] = {"agent": agent_case, "head": head_case, "client": client_case}

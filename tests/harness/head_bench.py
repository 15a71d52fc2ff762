"""The head's core alone: what it accepts of nodes and clients is typed in, and all it says kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bus.capabilities import CAPABILITIES
from bus.ids import (
    Epoch,
    GenerationId,
    ModelName,
    NodeIdentity,
    NumericsId,
    SessionId,
    WorkerIncarnation,
    pack_ids,
)
from bus.messages.api import MARK, encode_body
from bus.messages.link import (
    Declined,
    GenerateReq,
    Lost,
    NodeConfirm,
    NodeStatus,
    TokenEvents,
    WorkerDied,
)
from bus.messages.parts import (
    Finish,
    LeaseRef,
    ModelStatus,
    TokenRun,
)
from bus.messages.text import Described, Encoded
from bus.transfer import BlobStore
from head.core import CorePolicy, HeadCore
from head.effects import CloseLink, Reply, SendLink, TextJob
from head.rows import StoredAnswer, StoredState
from head.uploads import NO_FILES
from tests.harness.memory_parts import DIGEST, text_reply

CLIENT = b"c"
OPTIONS = encode_body(
    {"sampling": {}, "max_new": 4, "wall_ms": 0, "qos": 0, "exact": False},
)
TOY = ModelName("toy")
ADMITTED_ANSWER = StoredAnswer(
    answer=5,
    session=SessionId("s"),
    owner="local",
    key="k",
    model=TOY,
    prompt=pack_ids(b"hi"),
    options=OPTIONS,
    on_disconnect="keep",
    created_wall_s=1e9,
    state="admitted",
    tokens=pack_ids(()),
    finish="",
    error=b"",
    prompt_tokens=0,
    cached_tokens=0,
    finished_wall_s=0.0,
    generation=None,
    node=None,
)


class Bench:
    """A core whose effects are taken at once; `links` and `replies` keep what came out."""

    def __init__(
        self,
        *answers: StoredAnswer,
        policy: CorePolicy | None = None,
        stored: StoredState | None = None,
        files: BlobStore = NO_FILES,
    ) -> None:
        stored = stored or StoredState(boot=3, head_id="h", answers=answers)
        self.core = HeadCore(
            policy or CorePolicy(), stored, entropy=bytes, now=0.0, wall_s=1e9, files=files
        )
        self.now = 0.0
        #: Of the head's tokenizer of every model.
        self.text_digest = DIGEST
        self.sent: list[tuple[int, Any]] = []
        self.replies: list[dict[str, Any]] = []
        self.closed: list[tuple[int, str]] = []
        self.rows: list[Any] = []
        self.core.models_found({TOY: "/toy"}, 0.0)
        self.settle()

    def settle(self) -> None:
        while (effects := self.core.effects()).outputs or effects.persist:
            self.rows += effects.persist.rows if effects.persist else ()
            for tagged in effects.outputs:
                match tagged.output:
                    case SendLink(link=link, message=message):
                        self.sent.append((link, message))
                    case Reply(body=body):
                        self.replies.append(body)
                    case CloseLink(link=link, reason=reason):
                        self.closed.append((link, reason))
                    case TextJob(message=job):
                        self.core.text_reply(self.text_reply(job), self.now)

    def text_reply(self, job: object) -> object:
        """What the text processes answer."""
        return self.with_digest(text_reply(job))

    def with_digest(self, reply: object) -> object:
        """A reply as of the tokenizer that the nodes have."""
        if isinstance(reply, Described | Encoded):
            return replace(reply, digest=self.text_digest)
        return reply

    def node(
        self,
        link: int,
        name: str = "n1",
        worker: int = 1,
        incarnation: int = 1,
        held: tuple[LeaseRef, ...] = (),
        highest_epoch: int = 0,
        numerics: str = "same",
        capabilities: tuple[str, ...] = CAPABILITIES,
        window: int = 64,
    ) -> None:
        status = ModelStatus(
            name=TOY,
            phase="ready",
            window_tokens=window,
            lanes_total=2,
            tokenizer_digest=DIGEST,
            worker=WorkerIncarnation(worker),
            numerics=NumericsId(numerics),
        )
        confirm = NodeConfirm(
            identity=NodeIdentity(name),
            incarnation=incarnation,
            software="x",
            models=(status,),
            highest_epoch=Epoch(highest_epoch),
            held=held,
            capabilities=capabilities,
        )
        self.core.link_up(link, confirm, self.now)
        self.settle()

    def ask(self, request: bytes = b"r", **body: Any) -> GenerateReq:
        asked = {"op": "generate", "id": request, "model": TOY, "prompt": "hi", **body}
        self.core.client_request(CLIENT, [MARK, encode_body(asked)], self.now)
        self.settle()
        asked_for: GenerateReq = self.last(GenerateReq)
        return asked_for

    def on(self, link: int, *kinds: type) -> list[Any]:
        """What was sent on a link, of these kinds."""
        return [m for on, m in self.sent if on == link and (not kinds or isinstance(m, kinds))]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [reply for reply in self.replies if reply.get("type") == kind]

    def last(self, kind: type) -> Any:
        return next(message for _, message in reversed(self.sent) if isinstance(message, kind))

    def hear(self, link: int, message: object) -> None:
        self.core.link_message(link, message, self.now)
        self.settle()

    def died(self, link: int, *requests: GenerateReq, worker: int = 1, also: int = 0) -> None:
        """The worker with these died; `also` is a generation that was ended before."""
        generations = (*(one.generation for one in requests), *([also] if also else []))
        self.hear(
            link,
            WorkerDied(
                model=ModelName("toy"),
                worker=WorkerIncarnation(worker),
                generations=tuple(map(GenerationId, generations)),
            ),
        )
        for one in requests:
            self.hear(link, lost(one, worker))

    def down(self, link: int, *, left: bool = False) -> None:
        self.core.link_down(link, "cut", self.now, left=left)
        self.settle()

    def wait(self, seconds: float) -> None:
        """Let time pass, each timer at its own moment."""
        until = self.now + seconds
        while (due := self.core.next_timeout()) is not None and due <= until:
            self.now = max(self.now, due)
            self.core.handle_timeout(self.now)
            self.settle()
        self.now = until

    def tokens(self) -> list[int]:
        events = [r for r in self.replies if r.get("type") == "token"]
        return [token for event in events for token in event["tokens"]]


def run(request: GenerateReq, first: int, *ids: int, finish: str = "", **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "session": request.session,
        "epoch": request.epoch,
        "generation": request.generation,
        "first_seq": first,
        "ids": pack_ids(ids),
        "finish": Finish(reason=finish) if finish else None,
    }
    return TokenEvents(runs=(TokenRun(**(fields | changes)),))


def lost(request: GenerateReq, worker: int = 1) -> Lost:
    """The worker of a generation died."""
    return Lost(
        session=request.session,
        epoch=request.epoch,
        generation=request.generation,
        worker=WorkerIncarnation(worker),
        reason="killed by signal 9",
    )


def declined(request: GenerateReq, code: str) -> Declined:
    return Declined(
        command=request.command,
        session=request.session,
        epoch=request.epoch,
        generation=request.generation,
        code=code,
        message=f"{code}, it says",
    )


def respawned(worker: int) -> NodeStatus:
    status = ModelStatus(
        name=TOY,
        phase="ready",
        window_tokens=64,
        lanes_total=2,
        worker=WorkerIncarnation(worker),
    )
    return NodeStatus(models=(status,))


def cancel(bench: Bench, about: bytes) -> None:
    body = {"op": "cancel", "id": b"x" + about, "about": about}
    bench.core.client_request(CLIENT, [MARK, encode_body(body)], bench.now)
    bench.settle()

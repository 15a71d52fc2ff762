"""An AgentSession whose invariants are checked after every event."""

from __future__ import annotations

from bus.agent_generations import RETAINED_BYTES
from bus.agent_records import SendToHead, ToWorker
from bus.agent_session import AgentSession
from bus.context import context_digest
from bus.ids import (
    CommandId,
    Epoch,
    GenerationId,
    ModelName,
    PackedIds,
    SessionId,
    WorkerIncarnation,
    pack_ids,
)
from bus.messages import link, parts, worker
from bus.messages.sampling import SamplingParams

MODEL = ModelName("toy")

S = SessionId("s1")

WORKER = WorkerIncarnation(77)

PROMPT = pack_ids([5, 6, 7])

LEASE_MS = 20_000

HEAD = "head-1"


class Node:
    """An AgentSession whose invariants are checked after every event."""

    def __init__(self, *, retained_limit: int = RETAINED_BYTES) -> None:
        self.session = AgentSession(retained_limit=retained_limit)
        self.command = 0
        assert self.link_to_head() == [link.ReconcileAck(page=0, more=False)]

    def link_to_head(
        self, *views: parts.SessionView, now: float = 0.0, head: str = HEAD
    ) -> list[object]:
        """A link to the head, which lists these sessions; everything said until then."""
        self.session.link_up(head, now)
        assert [a for a in self.taken() if not isinstance(a, ToWorker)] == []
        return self.give(link.Reconcile(page=0, more=False, sessions=views), now)

    def next_command(self) -> CommandId:
        self.command += 1
        return CommandId(self.command)

    def give(self, message: object, now: float = 0.0) -> list[object]:
        assert self.session.receive(message, now)
        return self.taken()

    def taken(self) -> list[object]:
        self.session.validate_state()
        return [
            action.message if isinstance(action, SendToHead) else action
            for action in self.session.actions()
        ]

    def assign(
        self, epoch: int = 1, now: float = 0.0, session: SessionId = S, qos: int = 0
    ) -> list[object]:
        return self.give(
            link.SessionAssign(
                command=self.next_command(),
                session=session,
                epoch=Epoch(epoch),
                model=MODEL,
                lease_ms=LEASE_MS,
                qos=qos,
            ),
            now,
        )

    def append(
        self, ids: PackedIds = PROMPT, base: bytes = b"", epoch: int = 1, **extra: object
    ) -> list[object]:
        message = link.AppendContent(
            command=self.next_command(),
            session=S,
            epoch=Epoch(epoch),
            base_tokens=len(base) // 4,
            base_digest=context_digest(base),
            ids=ids,
            **extra,  # type: ignore[arg-type]
        )
        return self.give(message)

    def request(
        self, generation: int = 100, epoch: int = 1, prompt: int = 3, **extra: object
    ) -> link.GenerateReq:
        return link.GenerateReq(
            command=self.next_command(),
            session=S,
            epoch=Epoch(epoch),
            generation=GenerationId(generation),
            sampling=SamplingParams(temperature=0.0),
            max_new_tokens=10,
            prompt_tokens=prompt,
            **extra,  # type: ignore[arg-type]
        )

    def output(
        self, first: int, ids: list[int], finish: str | None = None, generation: int = 100
    ) -> list[object]:
        run = worker.OutputRun(
            generation=GenerationId(generation),
            first_index=first,
            ids=pack_ids(ids),
            finish=None if finish is None else parts.Finish(reason=finish),
        )
        self.session.worker_output(MODEL, WORKER, [run])
        return self.taken()

    def acknowledge(self, committed: int, generation: int = 100) -> list[object]:
        mark = parts.Watermark(generation=GenerationId(generation), committed=committed)
        return self.give(link.WatermarkAck(watermarks=(mark,)))

    def timeout(self, now: float) -> list[object]:
        self.session.handle_timeout(now)
        return self.taken()


def run(
    first_seq: int, ids: list[int], finish: str | None = None, generation: int = 100
) -> parts.TokenRun:
    return parts.TokenRun(
        session=S,
        epoch=Epoch(1),
        generation=GenerationId(generation),
        first_seq=first_seq,
        ids=pack_ids(ids),
        finish=None if finish is None else parts.Finish(reason=finish),
    )


def view(
    *generations: parts.GenerationView,
    ids: bytes = PROMPT,
    epoch: int = 1,
    session: SessionId = S,
) -> parts.SessionView:
    """A session as the head lists it."""
    return parts.SessionView(
        session=session,
        epoch=Epoch(epoch),
        tokens=len(ids) // 4,
        digest=context_digest(ids),
        generations=generations,
    )


def known(committed: int, *, generation: int = 100, finished: bool = False) -> parts.GenerationView:
    """A generation as the head knows it."""
    return parts.GenerationView(
        generation=GenerationId(generation), committed=committed, finished=finished
    )


def held(
    *resend: tuple[int, int], ids: bytes = PROMPT, epoch: int = 1, session: SessionId = S
) -> parts.HeldView:
    """A session as the node answers it; `resend` is of generation and first event."""
    return parts.HeldView(
        session=session,
        epoch=Epoch(epoch),
        tokens=len(ids) // 4,
        digest=context_digest(ids),
        generations=tuple(
            parts.ResendView(generation=GenerationId(generation), first_seq=first_seq)
            for generation, first_seq in resend
        ),
    )


def cancel(generation: int = 100) -> ToWorker:
    return ToWorker(model=MODEL, message=worker.Cancel(generation=GenerationId(generation)))

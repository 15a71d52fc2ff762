"""A node's sessions in files: parked when the head frees the node, read when it gives them back.

    held ──park──▶ file ──restore──▶ held, its tokens in host memory      (the file is gone)
                    └── forget, or not named by the head of a new link ──▶ gone

The head names every file that it means before the node is told to write it, so what it does not
name is nobody's. Workers write and read the files, in the order that they are asked; where no
worker of the model runs, nothing is written or read, and a file is removed by the agent itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from bus.agent_records import ActionQueue, Held, ToWorker
from bus.ids import ModelName, SessionId
from bus.messages import worker
from bus.messages.link_parking import (
    SessionPark,
    SessionParked,
    SessionRestore,
    SessionRestored,
)

#: Codes of SessionParked beside those of bus/errors.py.
NOT_HELD = "not_held"
WORKER_GONE = "worker_gone"


@dataclass(slots=True)
class _Asked:
    """What a worker was asked to do with a session's file and has not answered."""

    message: SessionPark | SessionRestore
    model: ModelName
    #: The head means the file no more, which is being written.
    unwanted: bool = False


@dataclass(frozen=True, slots=True)
class KeptFiles:
    """Every file of another session than these is to be removed."""

    sessions: frozenset[SessionId]


class NodeParking:
    """Owned by `AgentSession`.

    Args:
        actions: takes what workers and the head are to be told.
    """

    def __init__(self, actions: ActionQueue) -> None:
        self._actions = actions
        #: By session, the oldest first: workers answer in order.
        self._parks: dict[SessionId, deque[_Asked]] = {}
        self._restores: dict[SessionId, deque[_Asked]] = {}
        self._kept: KeptFiles | None = None

    # --- what the head says -------------------------------------------------------------------

    def park(self, message: SessionPark, held: Held) -> None:
        """Have a session's tokens written, which is held no more."""
        if held.incomplete or not len(held.context):
            why = "the node has not the session's whole context"
            self._send_parked(message, code=NOT_HELD, why=why)
            return
        self._parks.setdefault(held.session, deque()).append(_Asked(message, held.model))
        park = worker.Park(session=held.session, context=held.context.slice())
        self._actions.do(ToWorker(model=held.model, message=park))

    def restore(self, message: SessionRestore, held: Held) -> None:
        """Have a session's tokens read, which its next generation will have."""
        if held.incomplete or not len(held.context):
            self._send_restored(message, problem="the node has not the session's whole context")
            return
        self._restores.setdefault(held.session, deque()).append(_Asked(message, held.model))
        restore = worker.Restore(
            session=held.session,
            context=held.context.slice(),
            segments=held.context.segments,
        )
        self._actions.do(ToWorker(model=held.model, message=restore))

    def forget(self, session: SessionId, model: ModelName) -> None:
        """Have a session's file removed."""
        self._actions.do(ToWorker(model=model, message=worker.Forget(session=session)))

    def keep(self, sessions: Collection[SessionId]) -> None:
        """Remove the files of all other sessions, also those that are still being written."""
        self._kept = KeptFiles(frozenset(sessions))
        for session, parks in self._parks.items():
            for asked in parks:
                asked.unwanted = session not in sessions

    def take_kept(self) -> KeptFiles | None:
        """What `keep` asks of the agent, once."""
        kept, self._kept = self._kept, None
        return kept

    # --- what workers say ---------------------------------------------------------------------

    def parked(self, model: ModelName, reply: worker.Parked) -> None:
        """A file was written, or not."""
        asked = _take(self._parks, reply.session, model)
        if asked is None:
            return
        if asked.unwanted:
            self.forget(reply.session, model)
        self._actions.send(
            SessionParked(
                session=reply.session,
                epoch=asked.message.epoch,
                tokens=reply.tokens,
                file_bytes=reply.file_bytes,
                code=reply.code,
                message=reply.message,
            )
        )

    def restored(self, model: ModelName, reply: worker.Restored) -> None:
        """A file was read, or could not be used; either way nobody asks for it again."""
        asked = _take(self._restores, reply.session, model)
        if asked is None or not isinstance(asked.message, SessionRestore):
            return
        # One that was asked for since is another file by now, in place of the one that was read.
        if reply.session not in self._parks:
            self.forget(reply.session, model)
        self._actions.send(
            SessionRestored(
                command=asked.message.command,
                session=reply.session,
                epoch=asked.message.epoch,
                tokens=reply.tokens,
                exact_tokens=reply.exact_tokens,
                problem=reply.problem,
            )
        )

    def not_asked(self, model: ModelName, message: worker.Park | worker.Restore, why: str) -> None:
        """A request did not reach a worker, the last of its session."""
        waiting = self._parks if isinstance(message, worker.Park) else self._restores
        asked = _take(waiting, message.session, model, last=True)
        if asked is not None:
            self._give_up(asked, why)

    def worker_died(self, model: ModelName, reason: str) -> None:
        """What it was asked to do it does no more."""
        for waiting in (self._parks, self._restores):
            of_model = [name for name, asked in waiting.items() if asked[0].model == model]
            for asked in _taken_all(waiting, of_model):
                self._give_up(asked, reason)

    def _give_up(self, asked: _Asked, why: str) -> None:
        if isinstance(asked.message, SessionPark):
            self._send_parked(asked.message, code=WORKER_GONE, why=why)
        else:
            self._send_restored(asked.message, problem=why)

    # --- what the head hears ------------------------------------------------------------------

    def _send_parked(self, message: SessionPark, *, code: str, why: str) -> None:
        self._actions.send(
            SessionParked(session=message.session, epoch=message.epoch, code=code, message=why)
        )

    def _send_restored(self, message: SessionRestore, *, problem: str) -> None:
        self._actions.send(
            SessionRestored(
                command=message.command,
                session=message.session,
                epoch=message.epoch,
                problem=problem,
            )
        )


def _take(
    waiting: dict[SessionId, deque[_Asked]],
    session: SessionId,
    model: ModelName,
    *,
    last: bool = False,
) -> _Asked | None:
    found = waiting.get(session)
    if found is None or found[0].model != model:
        return None
    asked = found.pop() if last else found.popleft()
    if not found:
        del waiting[session]
    return asked


def _taken_all(
    waiting: dict[SessionId, deque[_Asked]], sessions: Iterable[SessionId]
) -> list[_Asked]:
    return [asked for session in sessions for asked in waiting.pop(session)]

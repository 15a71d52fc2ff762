"""The commands that the head gives a node about its sessions, applied or answered with why not.

A command that was applied changes nothing when it is repeated, within the last few of its session;
a repeated Generate sends again what is not acknowledged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bus.agent_generations import GENERATIONS_PER_SESSION, NodeGenerations
from bus.agent_parking import NodeParking
from bus.agent_reconcile import MAX_SESSIONS
from bus.agent_records import ActionQueue, Generation, Held, SubmitToWorker, declined, need_full
from bus.errors import Invalid
from bus.ids import Epoch, SessionId
from bus.messages import link
from bus.messages.link_parking import SessionForget, SessionPark, SessionRestore
from bus.messages.media import check_media
from bus.messages.parts import CommandRef
from bus.node_leases import NodeLeases
from bus.qos import LOWEST_CLASS

#: Reasons of Refused and Declined beside the codes of bus/errors.py.
STALE_EPOCH = "stale_epoch"
UNKNOWN_SESSION = "unknown_session"
UNKNOWN_EPOCH = "unknown_epoch"
FENCED = "fenced"
CONTEXT_MISMATCH = "context_mismatch"
TOO_MANY_SESSIONS = "too_many_sessions"


class SessionCommands:
    """Applies commands to what the node holds. Owned by `AgentSession`, which shares its parts.

    Args:
        held: the sessions, changed in place.
        generations: theirs.
        leases: one for each session that is not fenced.
        parking: has sessions written to files and read.
        actions: takes submits and answers.
    """

    def __init__(
        self,
        held: dict[SessionId, Held],
        generations: NodeGenerations,
        leases: NodeLeases,
        parking: NodeParking,
        actions: ActionQueue,
    ) -> None:
        self._held = held
        self._generations = generations
        self._leases = leases
        self._parking = parking
        self._actions = actions
        #: The highest epoch that was ever assigned here.
        self.highest_epoch = Epoch(0)
        #: What applies each kind of command.
        self.handlers: Mapping[type, Callable[[Any, float], None]] = {
            link.SessionAssign: self._assign,
            link.SessionRevoke: self._revoke,
            link.AppendContent: self._append,
            link.GenerateReq: self._generate,
            link.GenerateCancel: self._cancel,
            SessionPark: self._park,
            SessionRestore: self._restore,
            SessionForget: self._forget,
        }

    def _assign(self, message: link.SessionAssign, now: float) -> None:
        held = self._held.get(message.session)
        if held is None:
            if len(self._held) >= MAX_SESSIONS:
                self._refuse(message, TOO_MANY_SESSIONS)
                return
            held = self._held[message.session] = Held(session=message.session)
        elif message.epoch < held.epoch:
            self._refuse(message, STALE_EPOCH)
            return
        elif message.command in held.commands:
            return
        elif message.epoch == held.epoch and held.fenced:
            self._refuse(message, FENCED)
            return
        if message.epoch > held.epoch:
            self._generations.end_session(held.session)
            held.fenced = False
        held.epoch, held.model = message.epoch, message.model
        held.qos = min(message.qos, LOWEST_CLASS)
        held.applied(message.command)
        self.highest_epoch = max(self.highest_epoch, message.epoch)
        self._leases.start(held.session, held.epoch, since=now, length_s=message.lease_ms / 1000)

    def _revoke(self, message: link.SessionRevoke, now: float) -> None:
        self._give_up(message)

    def _give_up(self, message: CommandRef) -> Held | None:
        """Hold the session no more; what was held, unless that is of a higher epoch."""
        held = self._held.get(message.session)
        if held is None:
            return None
        if message.epoch < held.epoch:
            self._refuse(message, STALE_EPOCH)
            return None
        self.drop(held)
        return held

    def drop(self, held: Held) -> None:
        """Hold a session no more."""
        self._generations.end_session(held.session)
        self._leases.end(held.session)
        del self._held[held.session]

    def _append(self, message: link.AppendContent, now: float) -> None:
        held = self._held_for(message)
        if isinstance(held, str):
            self._refuse(message, held)
            return
        if message.command in held.commands:
            return
        try:
            matched = held.extend(message)
        except Invalid as error:
            self._refuse(message, error.code, error.message)
            return
        if matched:
            held.applied(message.command)
        else:
            self._actions.send(need_full(message.command, held))

    def _generate(self, message: link.GenerateReq, now: float) -> None:
        held = self._held_for(message)
        if isinstance(held, str):
            self._actions.send(declined(message, held, _WHY[held]))
            return
        if message.command in held.commands:
            found = self._generations.get(message.generation)
            if found is not None and (run := found.retained_run()) is not None:
                self._actions.send(link.TokenEvents(runs=(run,)))
            return
        problem = self._generate_problem(held, message)
        if problem is not None:
            code, why = problem
            self._actions.send(declined(message, code, why))
            return
        held.applied(message.command, started=message.generation)
        found = Generation(request=message, model=held.model)
        self._generations.start(found)
        self._actions.do(SubmitToWorker(model=held.model, submit=found.submit(held)))
        self._generations.pace(found)

    def _generate_problem(self, held: Held, message: link.GenerateReq) -> tuple[str, str] | None:
        """Code and sentence of why a generation can not start, or None."""
        if self._generations.running_of(held.session) is not None:
            return "session_busy", "a generation of this session runs already; cancel it first"
        if self._generations.get(message.generation) is not None:
            return "invalid", "this generation id is in use; take a new one"
        if self._generations.is_used(message.generation):
            why = "an ended run of this generation id is not over yet; take a new id"
            return "session_busy", why
        if len(self._generations.of_session(held.session)) >= GENERATIONS_PER_SESSION:
            why = f"{GENERATIONS_PER_SESSION} finished generations wait for their acknowledgement"
            return "session_busy", why
        try:
            check_media(message.media, len(message.blobs), message.prompt_tokens)
        except Invalid as error:
            return error.code, error.message
        expected = message.prompt_tokens + message.generated_tokens
        if held.incomplete or expected != len(held.context):
            return CONTEXT_MISMATCH, (
                f"the node holds {len(held.context)} tokens of this session and the request is "
                f"for {expected}; append the whole context"
            )
        return None

    def _cancel(self, message: link.GenerateCancel, now: float) -> None:
        held = self._held_for(message)
        if isinstance(held, str):
            self._refuse(message, held)
            return
        held.applied(message.command)
        # One that has just finished needs no cancel: its finish is on its way to the head.
        found = self._generations.get(message.generation)
        if found is not None and found.session == held.session:
            self._generations.cancel(found)

    def _park(self, message: SessionPark, now: float) -> None:
        # What runs is ended first: its keys and values are parked, too.
        held = self._give_up(message)
        if held is not None:
            self._parking.park(message, held)

    def _restore(self, message: SessionRestore, now: float) -> None:
        held = self._held_for(message)
        if isinstance(held, str):
            self._refuse(message, held)
        elif message.command not in held.commands:
            held.applied(message.command)
            self._parking.restore(message, held)

    def _forget(self, message: SessionForget, now: float) -> None:
        self._parking.forget(message.session, message.model)

    def _held_for(self, message: CommandRef) -> Held | str:
        """The session that a command is for, or why it can not be applied."""
        held = self._held.get(message.session)
        if held is None:
            return UNKNOWN_SESSION
        if message.epoch != held.epoch:
            return STALE_EPOCH if message.epoch < held.epoch else UNKNOWN_EPOCH
        return FENCED if held.fenced else held

    def _refuse(self, message: CommandRef, code: str, why: str = "") -> None:
        held = self._held.get(message.session)
        self._actions.send(
            link.Refused(
                command=message.command,
                session=message.session,
                epoch=message.epoch,
                code=code,
                message=why or _WHY[code],
                known_epoch=Epoch(0) if held is None else held.epoch,
            )
        )


_WHY = {
    UNKNOWN_SESSION: "the node does not hold this session; assign it first",
    STALE_EPOCH: "a higher epoch was assigned here",
    UNKNOWN_EPOCH: "this epoch was not assigned here; assign it first",
    FENCED: "its lease ran out; assign a higher epoch",
    TOO_MANY_SESSIONS: f"the node holds {MAX_SESSIONS} sessions, the most it can; revoke some",
}

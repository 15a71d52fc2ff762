"""What a node keeps of sessions and generations, and what `AgentSession` asks to be done."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from bus.context import TokenContext
from bus.event_window import EventWindow
from bus.ids import (
    CommandId,
    Epoch,
    GenerationId,
    ModelName,
    PackedIds,
    SessionId,
    WorkerIncarnation,
)
from bus.messages import link, parts, worker

#: How many of a session's last commands are known again when they are repeated. Commands of a
#: session are few and come in order; a repeat is of one of the last.
REPEATS_KNOWN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SendToHead:
    """A Link-F message for the head."""

    message: object


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitToWorker:
    """A generation to start; to be kept until the worker accepts or rejects it."""

    model: ModelName
    submit: worker.Submit


@dataclass(frozen=True, slots=True, kw_only=True)
class ToWorker:
    """Of a generation, after its submit: Cancel, Pause or Resume. Of a session's file: the rest."""

    model: ModelName
    message: (
        worker.Cancel | worker.Pause | worker.Resume | worker.Park | worker.Restore | worker.Forget
    )


Action = SendToHead | SubmitToWorker | ToWorker


class ActionQueue:
    """What is to be done, in order. While it is silent, nothing for the head goes in."""

    __slots__ = ("_actions", "_is_silent")

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._is_silent = True

    def do(self, action: Action) -> None:
        """Add an action, whoever it is for."""
        self._actions.append(action)

    def send(self, message: object) -> None:
        """Add a message for the head, unless it is not to hear of sessions now."""
        if not self._is_silent:
            self._actions.append(SendToHead(message=message))

    def open(self) -> None:
        """The head may hear of sessions."""
        self._is_silent = False

    def silence(self) -> None:
        """The head is to hear nothing, also of what waits here."""
        self._is_silent = True
        self._actions = [a for a in self._actions if not isinstance(a, SendToHead)]

    def take(self) -> list[Action]:
        """What was added since the last call."""
        taken, self._actions = self._actions, []
        return taken


@dataclass(slots=True, kw_only=True)
class Held:
    """A session as the node holds it."""

    session: SessionId
    epoch: Epoch = Epoch(0)
    model: ModelName = ModelName("")
    qos: int = 0
    context: TokenContext = field(default_factory=TokenContext)
    #: No lease any more: nothing of this epoch is emitted ever again.
    fenced: bool = False
    #: An append did not match: no generation starts before one did.
    incomplete: bool = False
    #: The last applied commands, oldest first; of a Generate, with what it started.
    commands: dict[CommandId, GenerationId | None] = field(default_factory=dict)

    @property
    def ref(self) -> parts.LeaseRef:
        """Its name and epoch, as messages carry them."""
        return parts.LeaseRef(session=self.session, epoch=self.epoch)

    def is_listed(self, listed: Mapping[SessionId, parts.SessionView]) -> bool:
        """Whether the head means this session, under this epoch, and it is not fenced."""
        view = listed.get(self.session)
        return view is not None and view.epoch == self.epoch and not self.fenced

    def applied(self, command: CommandId, started: GenerationId | None = None) -> None:
        """Remember a command, so that its repeat changes nothing."""
        self.commands[command] = started
        while len(self.commands) > REPEATS_KNOWN:
            del self.commands[next(iter(self.commands))]

    def forget_generates(self, generations: Collection[GenerationId]) -> None:
        """Take the repeat of a Generate of these for a new one."""
        self.commands = {
            command: started
            for command, started in self.commands.items()
            if started not in generations
        }

    def extend(self, message: link.AppendContent) -> bool:
        """Extend the context when it is what the head takes it for; False when it is not.

        An append after token 0 carries the whole context and replaces what is here.

        Raises:
            Invalid: the segments do not cover the ids; nothing changes.
        """
        if message.base_tokens == 0:
            whole = TokenContext()
            whole.append(message.ids, message.segments)
            self.context = whole
        elif self.context.matches(message.base_tokens, message.base_digest):
            self.context.append(message.ids, message.segments)
        else:
            self.incomplete = True
            return False
        self.incomplete = False
        return True


@dataclass(slots=True, kw_only=True)
class Generation:
    """A generation that runs, or finished and is not acknowledged to its end."""

    request: link.GenerateReq
    model: ModelName
    window: EventWindow = field(init=False)
    #: Whether the worker said that it has it.
    accepted: bool = False
    #: Whether the worker was asked to end it.
    cancelled: bool = False
    #: What its window counts for in the node's sum.
    counted_bytes: int = 0
    #: Tokens of its context that its worker found computed.
    cached: int = 0

    def __post_init__(self) -> None:
        self.window = EventWindow(self.request.sampling.record_bytes, self.request.unread)

    @property
    def generation(self) -> GenerationId:
        return self.request.generation

    @property
    def session(self) -> SessionId:
        return self.request.session

    @property
    def epoch(self) -> Epoch:
        return self.request.epoch

    @property
    def is_running(self) -> bool:
        return self.window.finish is None

    def token_run(
        self, first_seq: int, ids: PackedIds, finish: parts.Finish | None, logprobs: bytes
    ) -> parts.TokenRun:
        """Some of its events, as they travel."""
        return parts.TokenRun(
            session=self.session,
            epoch=self.epoch,
            generation=self.generation,
            first_seq=first_seq,
            ids=ids,
            finish=finish,
            logprobs=logprobs,
            cached=self.cached if first_seq == 0 else 0,
        )

    def retained_run(self) -> parts.TokenRun | None:
        """What the head may not have, as one run; None when it acknowledged all there is."""
        kept = self.window.retained()
        return self.token_run(*kept) if kept.ids or kept.finish is not None else None

    def submit(self, held: Held) -> worker.Submit:
        """The request with the session's context, as the worker takes it.

        What was generated before goes by step again only where the same bits are asked for.
        """
        exact = self.request.exact
        return worker.Submit(
            generation=self.generation,
            context=held.context.slice(),
            segments=held.context.segments if exact else (),
            sampling=self.request.sampling,
            max_new_tokens=self.request.max_new_tokens,
            prompt_tokens=self.request.prompt_tokens,
            generated_tokens=self.request.generated_tokens,
            wall_ms=self.request.wall_ms,
            qos=held.qos,
            exact=exact,
            media=self.request.media,
        )


def need_full(command: CommandId, held: Held) -> link.NeedFull:
    """The answer to an append that does not match."""
    return link.NeedFull(
        command=command,
        session=held.session,
        epoch=held.epoch,
        length=len(held.context),
        digest=held.context.digest(),
    )


def lost(request: link.GenerateReq, incarnation: WorkerIncarnation, reason: str) -> link.Lost:
    """The notice that a generation ended without a finish."""
    return link.Lost(
        session=request.session,
        epoch=request.epoch,
        generation=request.generation,
        worker=incarnation,
        reason=reason,
    )


def declined(
    request: link.GenerateReq, code: str, message: str, *, length: int = 0, limit: int = 0
) -> link.Declined:
    """The answer to a generation that does not start."""
    return link.Declined(
        command=request.command,
        session=request.session,
        epoch=request.epoch,
        generation=request.generation,
        code=code,
        message=message,
        length=length,
        max=limit,
    )

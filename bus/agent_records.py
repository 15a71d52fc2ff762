"""What a node keeps of sessions and generations, and what `AgentSession` asks to be done."""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.context import TokenContext
from bus.event_window import EventWindow
from bus.ids import CommandId, Epoch, GenerationId, ModelName, PackedIds, SessionId
from bus.messages import link, worker

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
    """Cancel, Pause or Resume; after the submit that it is about."""

    model: ModelName
    message: worker.Cancel | worker.Pause | worker.Resume


Action = SendToHead | SubmitToWorker | ToWorker


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
    #: The generation that runs; None when none does (one that finished is still retained).
    generation: GenerationId | None = None
    #: The last applied commands, oldest first.
    commands: dict[CommandId, None] = field(default_factory=dict)

    def applied(self, command: CommandId) -> None:
        """Remember a command, so that its repeat changes nothing."""
        self.commands[command] = None
        while len(self.commands) > REPEATS_KNOWN:
            del self.commands[next(iter(self.commands))]

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
    window: EventWindow = field(default_factory=EventWindow)
    #: Whether the worker said that it has it.
    accepted: bool = False

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
        self, first_seq: int, ids: PackedIds, finish: link.Finish | None
    ) -> link.TokenRun:
        """Some of its events, as they travel."""
        return link.TokenRun(
            session=self.session,
            epoch=self.epoch,
            generation=self.generation,
            first_seq=first_seq,
            ids=ids,
            finish=finish,
        )

    def submit(self, held: Held) -> worker.Submit:
        """The request with the session's context, as the worker takes it."""
        return worker.Submit(
            generation=self.generation,
            context=held.context.slice(),
            segments=held.context.segments,
            sampling=self.request.sampling,
            max_new_tokens=self.request.max_new_tokens,
            prompt_tokens=self.request.prompt_tokens,
            generated_tokens=self.request.generated_tokens,
            wall_ms=self.request.wall_ms,
            qos=held.qos,
            exact=self.request.exact,
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

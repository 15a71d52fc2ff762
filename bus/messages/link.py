"""Link-F messages between head and nodes, by tag and priority (docs/link-f.md).

Priority 0 keeps links and leases alive, 1 carries token events and acknowledgements, 2 a session's
commands (in the order given), 3 status, 4 bulk. Tags never change meaning and are never reused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bus.codec import DROPPABLE
from bus.fields import MaxBytes, MaxItems, OneLine
from bus.ids import (
    CommandId,
    Epoch,
    GenerationId,
    ModelName,
    NodeIdentity,
    PackedIds,
    SessionId,
    WorkerIncarnation,
)
from bus.messages import link_jobs, link_stages, link_transfers
from bus.messages.link_codec import LINK, MAX_MESSAGE_BYTES
from bus.messages.link_parking import SessionPark, SessionRestore
from bus.messages.media import MAX_MEDIA, MediaRef
from bus.messages.parts import (
    U8,
    U32,
    U63,
    BlobRef,
    CommandRef,
    HeldView,
    HostStatus,
    LeaseRef,
    ModelStatus,
    Name,
    ProcessInfo,
    Segment,
    SessionView,
    TokenRun,
    Watermark,
    WorkerBeat,
)
from bus.messages.sampling import SamplingParams

#: Some are imported for their messages alone: who has this module can decode all of Link-F.
__all__ = ["LINK", "MAX_MESSAGE_BYTES", "link_jobs", "link_stages", "link_transfers"]

# --- the end of the handshake -----------------------------------------------------------------


@LINK.message(tag=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfirm:
    """The node's side of the last handshake step."""

    identity: Annotated[NodeIdentity, MaxBytes(128), OneLine()]
    incarnation: U63
    software: Name
    capabilities: Annotated[tuple[Name, ...], MaxItems(64)] = ()
    models: Annotated[tuple[ModelStatus, ...], MaxItems(256)] = ()
    host: HostStatus = HostStatus()
    highest_epoch: Epoch = Epoch(0)
    held: Annotated[tuple[LeaseRef, ...], MaxItems(65536)] = ()
    process: ProcessInfo = ProcessInfo()


@LINK.message(tag=2)
@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfirm:
    """The head's side of the last handshake step."""

    identity: Name
    boot: int
    software: Name
    capabilities: Annotated[tuple[Name, ...], MaxItems(64)] = ()
    process: ProcessInfo = ProcessInfo()


# --- priority 0: links and leases -------------------------------------------------------------


@LINK.message(tag=3, priority=0)
@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Sent at an interval; carries the sender's loop lag and its workers' progress.

    `frames` says how many frames each channel had before it under the keys of `phase`: the last
    one that went missing on a channel shows by nothing else. The link fills both in.
    """

    loop_lag_ms: U32 = 0
    workers: Annotated[tuple[WorkerBeat, ...], MaxItems(256)] = ()
    phase: U8 = 0
    frames: Annotated[tuple[int, ...], MaxItems(16)] = ()


@LINK.message(tag=4, priority=0)
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRenew:
    """The node asks to go on; `sent_at_s` is its own clock, echoed, from which it counts."""

    sent_at_s: float
    leases: Annotated[tuple[LeaseRef, ...], MaxItems(65536)]


@LINK.message(tag=5, priority=0)
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGrant:
    sent_at_s: float
    lease_ms: U32
    leases: Annotated[tuple[LeaseRef, ...], MaxItems(65536)]


@LINK.message(tag=6, priority=0)
@dataclass(frozen=True, slots=True, kw_only=True)
class Goodbye:
    """The sender ends the link on purpose; nothing of it should be waited for."""

    reason: Annotated[str, MaxBytes(512), OneLine()]


@LINK.message(tag=14, priority=0)
@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Answer at once with the same number: does this link still lead to a process?"""

    number: U63


@LINK.message(tag=15, priority=0)
@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    number: U63


# --- priority 1: token events and answers to commands -----------------------------------------


@LINK.message(tag=7, priority=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class Reconcile:
    """First thing on a new link: every session that the head has placed on the node, in pages.

    What no page lists, the node drops after the last one. `parked` are the sessions whose files
    the node is to keep; those of others it removes.
    """

    page: U32
    more: bool
    sessions: Annotated[tuple[SessionView, ...], MaxItems(1024)] = ()
    parked: Annotated[tuple[SessionId, ...], MaxItems(1024)] = ()


@LINK.message(tag=8, priority=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvents:
    runs: Annotated[tuple[TokenRun, ...], MaxItems(4096)]


@LINK.message(tag=9, priority=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkAck:
    watermarks: Annotated[tuple[Watermark, ...], MaxItems(4096)]


@LINK.message(tag=10, priority=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A generation's worker died, or (`worker` 0) the node fenced its session: no end of it.

    The head decides what follows.
    """

    session: SessionId
    epoch: Epoch
    generation: GenerationId
    worker: WorkerIncarnation
    reason: Annotated[str, MaxBytes(1024), OneLine()]


@LINK.message(tag=29 | DROPPABLE, priority=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDied:
    """A model's worker died: all generations that it had, the reason among them.

    Also those that were ended and had not left it. A Lost of each that still runs follows.
    """

    model: Annotated[ModelName, MaxBytes(256), OneLine()]
    worker: WorkerIncarnation
    generations: Annotated[tuple[GenerationId, ...], MaxItems(131_072)]


@LINK.message(tag=11, priority=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class Declined(CommandRef):
    """The node can not run this generation; nothing of it was computed."""

    generation: GenerationId
    code: Name
    message: Annotated[str, MaxBytes(2048), OneLine()]
    length: int = 0
    max: int = 0


@LINK.message(tag=12, priority=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class NeedFull(CommandRef):
    """An append did not match what the node holds; it has `length` tokens with this digest."""

    length: U32
    digest: Annotated[bytes, MaxBytes(16)]


@LINK.message(tag=13, priority=1)
@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileAck:
    """What the node holds of the listed sessions, and what it dropped, in pages.

    A listed session that no page has is not held. The events that are sent again follow the last.
    """

    page: U32
    more: bool
    sessions: Annotated[tuple[HeldView, ...], MaxItems(1024)] = ()
    dropped: Annotated[tuple[LeaseRef, ...], MaxItems(1024)] = ()


# --- priority 2: commands of a session, in order ----------------------------------------------


@LINK.message(tag=16, priority=2)
@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAssign(CommandRef):
    model: ModelName
    lease_ms: U32
    qos: U8 = 0


@LINK.message(tag=17, priority=2)
@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRevoke(CommandRef):
    """The session ends there (finish, park, move); its generation with it."""

    reason: Name


@LINK.message(tag=18, priority=2)
@dataclass(frozen=True, slots=True, kw_only=True)
class AppendContent(CommandRef):
    """Extend the context: after `base_tokens` tokens with `base_digest` come `ids`.

    Segments cover `ids` in order; none means one chunk segment.
    """

    base_tokens: U32
    base_digest: Annotated[bytes, MaxBytes(16)]
    ids: PackedIds
    segments: Annotated[tuple[Segment, ...], MaxItems(65536)] = ()


@LINK.message(tag=19, priority=2)
@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateReq(CommandRef):
    """Run the model on the session's context. `wall_ms` 0 is no wall budget.

    `prompt_tokens` and `generated_tokens` say where in the answer this generation begins, so
    draws, penalties and limits go on where an earlier one stopped.
    """

    generation: GenerationId
    sampling: SamplingParams
    max_new_tokens: U32
    prompt_tokens: U32
    generated_tokens: U32 = 0
    wall_ms: int = 0
    exact: bool = False
    blobs: Annotated[tuple[BlobRef, ...], MaxItems(64)] = ()
    #: Which tokens of the prompt stand for which of `blobs`.
    media: Annotated[tuple[MediaRef, ...], MaxItems(MAX_MEDIA)] = ()
    #: How far the answer is ahead already of the readers that it is to wait for.
    unread: U32 = 0


@LINK.message(tag=20, priority=2)
@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateCancel(CommandRef):
    generation: GenerationId


@LINK.message(tag=21, priority=2)
@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(CommandRef):
    """The node did not apply a command. `known_epoch` is the highest it knows of the session."""

    code: Name
    message: Annotated[str, MaxBytes(2048), OneLine()]
    known_epoch: Epoch = Epoch(0)


# --- priority 2: commands of a node ---------------------------------------------------------------

Model = Annotated[ModelName, MaxBytes(256), OneLine()]


@LINK.message(tag=22, priority=2)
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoad:
    """Serve one more of the models that lie on the node, now and after a restart.

    Answered once its worker was started; how that comes along is in NodeStatus.
    """

    command: CommandId
    model: Model


@LINK.message(tag=23, priority=2)
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUnload:
    """Serve a model no more. Answered at once; it is gone when NodeStatus lists it no more.

    No generation of it begins. Those that run go on for at most `grace_ms` and are Lost then
    (`worker` 0), before the worker is ended.
    """

    command: CommandId
    model: Model
    grace_ms: U32 = 0


@LINK.message(tag=25, priority=2)
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """What became of a ModelLoad or ModelUnload; an empty `code` is done, or under way.

    Code `no_memory` comes with both figures, and `loaded` with what could be unloaded.
    """

    command: CommandId
    model: Model
    code: Name = ""
    message: Annotated[str, MaxBytes(2048), OneLine()] = ""
    needed_bytes: U63 = 0
    free_bytes: U63 = 0
    loaded: Annotated[tuple[Model, ...], MaxItems(256)] = ()


# --- priority 3: status -----------------------------------------------------------------------


@LINK.message(tag=24 | DROPPABLE, priority=3)
@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    models: Annotated[tuple[ModelStatus, ...], MaxItems(256)]
    host: HostStatus = HostStatus()
    draining: bool = False


#: The commands of a session: they keep their order among each other.
SESSION_COMMANDS = (
    SessionAssign,
    SessionRevoke,
    AppendContent,
    GenerateReq,
    GenerateCancel,
    SessionPark,
    SessionRestore,
)

"""What jobs are to the head: what is asked for, what comes of it, and which nodes can do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bus.capabilities import BLOBS, JOBS
from bus.ids import ModelName, NodeIdentity
from bus.messages.job_bodies import EMBED, TRANSCRIBE
from bus.messages.parts import BlobRef
from bus.text.tokenizer_export import TOKENIZER_JOB
from head.effects import NOBODY, ClientKey
from head.fleet_node import Node
from head.model_kinds import DECODER, ENCODER, TRANSCRIBER

#: Gives the body with which to go on, of the first one and the number of parts that came.
Resume = Callable[[bytes, int], bytes]


@dataclass(frozen=True, slots=True)
class JobKind:
    """How one kind of job is served.

    Attributes:
        served_by: kinds of models; None is all.
        repeats: a job that is done again gives the same parts, so those that came are skipped.
        of_drained: a node that drains does it, too: it is no work of a lane.
        makes: what such a model makes, for people.
    """

    served_by: frozenset[str] | None = None
    repeats: bool = True
    of_drained: bool = False
    makes: str = ""


#: By name. Kinds that are not here are served by all models, and repeat.
JOB_KINDS = {
    EMBED: JobKind(frozenset({ENCODER}), repeats=False, makes="embeddings"),
    TRANSCRIBE: JobKind(frozenset({TRANSCRIBER}), repeats=False, makes="transcripts"),
    TOKENIZER_JOB: JobKind(of_drained=True),
}
_ANY = JobKind()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job as a part of the head asks for it.

    Attributes:
        body: a msgpack map (bus/messages/job_bodies.py).
        client: whose turn it takes in line; the job ends with that client's connection. `NOBODY` is
            the head itself.
        wall_ms: from now to its end; 0 is no limit.
        tokenizer_digest: of the model's tokenizer that the job needs; 0 is any.
        resume: for kinds that do not repeat: how to go on after a loss.
        only: the nodes that are asked; None is all.
    """

    model: ModelName
    kind: str
    body: bytes
    client: ClientKey = NOBODY
    blobs: tuple[BlobRef, ...] = ()
    qos: int = 0
    wall_ms: int = 0
    tokenizer_digest: int = 0
    resume: Resume | None = None
    only: frozenset[NodeIdentity] | None = None

    @property
    def of_kind(self) -> JobKind:
        return JOB_KINDS.get(self.kind, _ANY)

    @property
    def needs(self) -> tuple[str, ...]:
        """Capabilities of nodes that can do it."""
        return (JOBS, BLOBS) if self.blobs else (JOBS,)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDone:
    """A job that is done: the body of its end, and where that was."""

    body: bytes
    node: NodeIdentity


def lacking(node: Node, spec: JobSpec) -> str:
    """What a node's version does not know; empty when it knows all."""
    missing = [f"'{name}'" for name in spec.needs if name not in node.capabilities]
    return f"its version does not know {', '.join(missing)}; update it" if missing else ""


def wrong_kind(node: Node, spec: JobSpec) -> str:
    """What the model is on a node, when that is not what the job is for; else empty."""
    status, served_by = node.models.get(spec.model), spec.of_kind.served_by
    if status is None or status.phase != "ready" or served_by is None:
        return ""
    kind = status.kind or DECODER
    return "" if kind in served_by else kind


def objection(node: Node, spec: JobSpec) -> str:
    """Why a node can not do a job now, however much room it has; empty when it can."""
    view = node.view(spec.model)
    if not view.up:
        return f"is down ({view.why_not})" if view.why_not else "is down"
    if spec.only is not None and view.identity not in spec.only:
        return "is not asked for this"
    if view.draining and not spec.of_kind.of_drained:
        return "is draining"
    if view.serving is None:
        return view.why_not
    if found := lacking(node, spec):
        return found
    if found := wrong_kind(node, spec):
        return f"{spec.model} is a model of kind {found} there"
    theirs = view.serving.tokenizer_digest
    if theirs and spec.tokenizer_digest not in (0, theirs):
        return (
            f"its tokenizer for {spec.model} differs from the fleet's; import the same model file "
            "there, unload it and load it again"
        )
    return ""

"""What the head keeps of a job until its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from bus.errors import SuperfluidError
from bus.ids import GenerationId, NodeIdentity
from bus.messages.link_jobs import FIRST_PARTS, JobStart
from head.effects import LinkKey
from head.fleet_node import Node
from head.job_kinds import JobDone, JobSpec

#: Takes the body of a part.
OnPart = Callable[[bytes, float], None]
#: Takes the one end of a job.
OnEnd = Callable[[JobDone | SuperfluidError, float], None]


@dataclass(slots=True, kw_only=True)
class Try:
    """A job on a node. `parts` came of it, and the node may send those below `granted`."""

    number: GenerationId
    node: Node
    link: LinkKey
    request: JobStart
    parts: int = 0
    granted: int = FIRST_PARTS


@dataclass(slots=True, kw_only=True)
class Job:
    """A job until its end. It waits in line exactly while `on` is None."""

    number: int
    spec: JobSpec
    on_part: OnPart
    on_end: OnEnd
    since_s: float
    on: Try | None = None
    #: Parts that its owner has.
    delivered: int = 0
    #: How often it was lost, when it was last, and how.
    lost: int = 0
    failed_s: float | None = None
    failure: str = ""
    #: Nodes that are left alone for a moment, and how often each was.
    resting: dict[NodeIdentity, str] = field(default_factory=dict)
    rests: Counter[NodeIdentity] = field(default_factory=Counter)
    #: Nodes that can not do it, and those of them that were full all the time.
    tried: dict[NodeIdentity, str] = field(default_factory=dict)
    full: set[NodeIdentity] = field(default_factory=set)
    #: When a node that works had no room for it, the first time.
    refused_s: float | None = None
    #: Its owner takes no further parts now.
    held: bool = False
    wall_timer: int | None = None

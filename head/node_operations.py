"""`node.*`: what an operator decides about nodes and their keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from bus.api_maps import from_map
from bus.errors import Invalid, NotFound
from bus.fields import MaxBytes, MaxItems
from bus.ids import NodeIdentity
from head.enrolment import REVOKED, describe
from head.node_marks import NodeMark
from head.operation import ApiRequest, Core

Name = Annotated[str, MaxBytes(128)]
#: Labels of one node, and bytes of a key or a value.
MAX_LABELS = 64
_MAX_LABEL_BYTES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequest:
    """About one node: its identity, or the fingerprint of its key."""

    name: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class ApproveRequest:
    """One of `name` and `all`."""

    name: Name | None = None
    all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentRequest:
    """`restore` goes back to the configured way after a revocation set `approve`."""

    restore: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRequest(NodeRequest):
    """New values by key; an empty one removes the label."""

    labels: Annotated[dict[str, Any], MaxItems(MAX_LABELS)]


class NodeOperations:
    """The operations on nodes, over the head's core. Owned by the API."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def approve(self, request: ApiRequest, now: float) -> None:
        """Let nodes that wait link; they come again by themselves."""
        asked = from_map(ApproveRequest, request.body)
        if (asked.name is None) != asked.all:
            raise Invalid("give one of name and all", param="name")
        wall_s = self._core.book.wall(now)
        if asked.name is None:
            approved = self._core.enrolment.approve_all(wall_s)
        else:
            approved = [self._core.enrolment.approve(asked.name, wall_s)]
        self._end(request, {"approved": [describe(key) for key in approved]})

    def revoke(self, request: ApiRequest, now: float) -> None:
        """Refuse a node's key from now on, cut its link and move its sessions at once."""
        asked = from_map(NodeRequest, request.body)
        done = self._core.enrolment.revoke(asked.name, self._core.book.wall(now))
        cut = [name for name in done.unpinned if self._cut(name, now)]
        body = {
            "revoked": [describe(key) for key in done.keys],
            "cut": cut,
            "way": self._core.enrolment.way,
            "now_approves": done.now_approves,
        }
        self._end(request, body)

    def _cut(self, identity: NodeIdentity, now: float) -> bool:
        """End a node's link as if it had left; False when it has none."""
        node = self._core.fleet.get(identity)
        link = node.link if node is not None else None
        if link is None:
            return False
        reason = f"the key of {identity} was revoked"
        self._core.link_down(link, reason, now, left=True)
        self._core.outbox.close_link(link, reason)
        return True

    def forget(self, request: ApiRequest, now: float) -> None:
        """Forget a node that is down, with its keys; it is then as if it had never come."""
        asked = from_map(NodeRequest, request.body)
        enrolment, fleet = self._core.enrolment, self._core.fleet
        names = {NodeIdentity(asked.name)}
        names |= {key.identity for key in enrolment.find(asked.name) if key.state != REVOKED}
        for name in sorted(names):
            node = fleet.get(name)
            if node is not None and node.up:
                raise Invalid(
                    f"node {name} is up; stop its agent first, or lock it out: "
                    f"sfctl node revoke {name}",
                    param="name",
                )
        keys = enrolment.forget(asked.name)
        marked = [name for name in sorted(names) if self._core.marks.forget(name)]
        gone = [name for name in sorted(names) if fleet.forget(name)] + marked
        if not keys and not gone:
            raise NotFound(
                f"no node {asked.name} is known; list them with: sfctl node ls", param="name"
            )
        self._end(request, {"forgotten": sorted({*gone, *(key.identity for key in keys)})})

    # --- drain and labels ---------------------------------------------------------------------

    def drain(self, request: ApiRequest, now: float) -> None:
        """Place nothing on a node any more, and move off it what another node can take."""
        name = self._known(from_map(NodeRequest, request.body).name)
        self._mark(name, self._core.marks.drain(name, drained=True))
        self._core.runs.drains.look(now)
        self._changed(name, now)
        self._end(request, self._shown(name))

    def undrain(self, request: ApiRequest, now: float) -> None:
        """Give a node work again."""
        name = self._known(from_map(NodeRequest, request.body).name)
        self._mark(name, self._core.marks.drain(name, drained=False))
        self._core.runs.drains.look(now)
        self._core.runs.opened(now)
        self._changed(name, now)
        self._end(request, self._shown(name))

    def label(self, request: ApiRequest, now: float) -> None:
        """Set and remove labels of a node; gives all that it has then."""
        asked = from_map(LabelRequest, request.body)
        name = self._known(asked.name)
        changes = {key: _label(key, value) for key, value in asked.labels.items()}
        after = {**self._core.marks.of(name).labels, **changes}
        if len([value for value in after.values() if value]) > MAX_LABELS:
            raise Invalid(f"a node has at most {MAX_LABELS} labels", param="labels")
        self._mark(name, self._core.marks.label(name, changes))
        self._end(request, self._shown(name))

    def _known(self, name: str) -> NodeIdentity:
        """The identity of a node that was here, that is enrolled, or that has a mark.

        Raises:
            NotFound: it is none of these.
        """
        identity = NodeIdentity(name)
        if self._core.fleet.get(identity) is not None or identity in self._core.marks:
            return identity
        for key in self._core.enrolment.find(name):
            if key.state != REVOKED:
                return key.identity
        raise NotFound(f"no node {name} is known; list them with: sfctl node ls", param="name")

    def _mark(self, identity: NodeIdentity, mark: NodeMark) -> None:
        node = self._core.fleet.get(identity)
        if node is not None:
            node.mark = mark

    def _changed(self, identity: NodeIdentity, now: float) -> None:
        node = self._core.fleet.get(identity)
        if node is not None:
            self._core.tokenizers.node_changed(node, now)

    def _shown(self, identity: NodeIdentity) -> dict[str, Any]:
        """What came of an operation: the node's state, what runs there and why it stays."""
        node, mark = self._core.fleet.get(identity), self._core.marks.of(identity)
        return {
            "name": identity,
            "state": node.state if node is not None else "down",
            "draining": mark.drained,
            "generations": len(node.claims) if node is not None else 0,
            "jobs": node.jobs.total() if node is not None else 0,
            "stays": self._core.runs.drains.why_stays(identity),
            "labels": dict(mark.labels),
        }

    # --- enrolment ----------------------------------------------------------------------------

    def enrolment(self, request: ApiRequest, now: float) -> None:
        """The way of enrolment, after going back to the configured one when that was asked."""
        if from_map(EnrolmentRequest, request.body).restore:
            self._core.enrolment.restore_way()
        self._end(request, self._core.enrolment.report())

    def _end(self, request: ApiRequest, body: dict[str, Any]) -> None:
        self._core.outbox.reply(request.end(body))


def _label(key: str, value: object) -> str:
    """The value of a label that may be set; None and an empty one remove it.

    Raises:
        Invalid: key or value is none.
    """
    text = "" if value is None else value
    for part in (key, text):
        if not isinstance(part, str) or len(part.encode()) > _MAX_LABEL_BYTES:
            raise Invalid(
                f"label {key!r}: keys and values are texts of at most {_MAX_LABEL_BYTES} bytes",
                param="labels",
            )
        if not part.isprintable():
            raise Invalid(f"label {key!r} has characters that do not print", param="labels")
    if not key or "=" in key:
        raise Invalid(f"{key!r} can not be a label: a key is a text without '='", param="labels")
    return str(text)

"""`node.*`: what an operator decides about nodes and their keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from bus.api_maps import from_map
from bus.errors import Invalid, NotFound
from bus.fields import MaxBytes
from bus.ids import NodeIdentity
from head.enrolment import REVOKED, describe
from head.operation import ApiRequest, Core

Name = Annotated[str, MaxBytes(128)]


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
        gone = [name for name in sorted(names) if fleet.forget(name)]
        if not keys and not gone:
            raise NotFound(
                f"no node {asked.name} is known; list them with: sfctl node ls", param="name"
            )
        self._end(request, {"forgotten": sorted({*gone, *(key.identity for key in keys)})})

    def enrolment(self, request: ApiRequest, now: float) -> None:
        """The way of enrolment, after going back to the configured one when that was asked."""
        if from_map(EnrolmentRequest, request.body).restore:
            self._core.enrolment.restore_way()
        self._end(request, self._core.enrolment.report())

    def _end(self, request: ApiRequest, body: dict[str, Any]) -> None:
        self._core.outbox.reply(request.end(body))

"""What an AgentSession must hold, by an account of its own: epochs, content, leases, fences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bus.context import context_digest
from bus.ids import SessionId, pack_ids, unpack_ids
from bus.messages import link, parts

LEASE_S = 20.0


@dataclass
class Holding:
    """What the node must have of a session, by the model's account."""

    epoch: int
    until: float
    content: list[int] = field(default_factory=list)
    fenced: bool = False
    applied: set[int] = field(default_factory=set)


class NodeAccount:
    """Told every message that the node gets. `reconciled`: the last page of a Reconcile was one."""

    def __init__(self) -> None:
        self.holdings: dict[SessionId, Holding] = {}
        self.reconciled = False

    def expect(
        self, message: object, now: float, listed: Mapping[SessionId, parts.SessionView]
    ) -> None:
        """What a message changes that the node gets now; `listed` in the Reconcile of its link."""
        match message:
            case link.Reconcile(more=False):
                self.reconciled = True
                self.fence(now)
                self.holdings = {
                    session: holding
                    for session, holding in self.holdings.items()
                    if session in listed
                    and listed[session].epoch == holding.epoch
                    and not holding.fenced
                }
            case link.SessionAssign():
                self._assign(message, now)
            case link.AppendContent():
                self._append(message)
            case link.LeaseGrant():
                for ref in message.leases:
                    granted = self.holdings.get(ref.session)
                    if granted and granted.epoch == ref.epoch and not granted.fenced:
                        granted.until = max(granted.until, message.sent_at_s + LEASE_S)

    def _assign(self, message: link.SessionAssign, now: float) -> None:
        old = self.holdings.get(message.session)
        if old is not None and (message.command in old.applied or message.epoch <= old.epoch):
            return
        content, applied = ([], set()) if old is None else (old.content, old.applied)
        applied.add(message.command)
        self.holdings[message.session] = Holding(
            message.epoch, now + LEASE_S, content, applied=applied
        )

    def _append(self, message: link.AppendContent) -> None:
        holding = self.holdings.get(message.session)
        if holding is None or holding.epoch != message.epoch or holding.fenced:
            return
        if message.command in holding.applied:
            return
        held = (len(holding.content), context_digest(pack_ids(holding.content)))
        if message.base_tokens == 0:
            holding.content = list(unpack_ids(message.ids))
        elif held == (message.base_tokens, message.base_digest):
            holding.content += unpack_ids(message.ids)
        else:
            return
        holding.applied.add(message.command)

    def fence(self, now: float) -> None:
        """What has no lease any more is fenced."""
        for holding in self.holdings.values():
            holding.fenced = holding.fenced or holding.until <= now

    def lively(self) -> dict[SessionId, int]:
        """Epoch by session of what is not fenced."""
        return {s: holding.epoch for s, holding in self.holdings.items() if not holding.fenced}

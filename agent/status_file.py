"""Keeps the agent's status file as it is now, for the command line of this machine."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from agent.core import AgentCore
from bus.agent_status import AgentLink, AgentStatus, write_agent_status
from bus.link import LinkDown, LinkEvent, LinkUp, PeerRefused
from bus.log import EventLog


class StatusFile:
    """Told of the link's events; writes when what it would write has changed.

    Args:
        folder: the agent's.
        core: knows the models.
        log: told when the file can not be written; the agent goes on without it.
    """

    def __init__(self, folder: Path, core: AgentCore, log: EventLog) -> None:
        self._folder = folder
        self._core = core
        self._log = log
        self._link = AgentLink(peer="", address="")
        self._written: AgentStatus | None = None

    def note_link(self, event: LinkEvent, label: str, address: str) -> None:
        """Something happened to the link to this other end."""
        self._look_at(label, address)
        match event:
            case LinkUp(peer=peer):
                self._link = dataclasses.replace(
                    self._link, peer=f"head {peer.name}", up=True, code="", reason=""
                )
            case LinkDown(code=code, reason=reason) | PeerRefused(code=code, reason=reason):
                # Who else calls while a link stands is refused; that is no fault of the link.
                if isinstance(event, LinkDown) or not self._link.up:
                    self._link = dataclasses.replace(self._link, up=False, code=code, reason=reason)

    def write(self, label: str, address: str, now: float) -> None:
        """Write the file when something has changed.

        Args:
            label: names the other end while none is linked.
            address: where it is looked for.
        """
        self._look_at(label, address)
        status = AgentStatus(
            os.getpid(), self._core.identity, self._link, self._core.local_models()
        )
        if status == self._written:
            return
        try:
            write_agent_status(self._folder, status)
        except OSError as error:
            self._log.repeated(now, "status_not_written", peer=str(self._folder), error=error)
        else:
            self._written = status

    def _look_at(self, label: str, address: str) -> None:
        """Another address begins anew: what the former one said is no news of it."""
        if address != self._link.address:
            self._link = AgentLink(peer=label, address=address)

"""Collects what one round of the core wants kept and sent, and tags the outputs.

Every output of a round waits for the rows of that round: simple, and never too early. What is
only passed on from one node to another is none of them, and goes at once.
"""

from __future__ import annotations

from head.effects import (
    NOBODY,
    BackUp,
    ClientKey,
    CloseLink,
    DropText,
    Effects,
    LinkKey,
    Output,
    Persist,
    Reply,
    SendLink,
    Tagged,
    TextJob,
)
from head.rows import Row


class Outbox:
    """One per core. Parts of the core add to it; the core's driver drains it once a round."""

    def __init__(self) -> None:
        self._lsn = 0
        self._rows: list[Row] = []
        self._outputs: list[Output] = []
        self._forwards: list[SendLink] = []

    def persist(self, *rows: Row) -> None:
        self._rows.extend(rows)

    def send(self, link: LinkKey, *messages: object) -> None:
        self._outputs.extend(SendLink(link=link, message=message) for message in messages)

    def forward(self, link: LinkKey, message: object) -> None:
        """Pass on what rests on no row, ahead of all outputs."""
        self._forwards.append(SendLink(link=link, message=message))

    def close_link(self, link: LinkKey, reason: str) -> None:
        self._outputs.append(CloseLink(link=link, reason=reason))

    def reply(self, *replies: Reply | None) -> None:
        self._outputs.extend(
            reply for reply in replies if reply is not None and reply.client != NOBODY
        )

    def text_job(self, message: object, client: ClientKey) -> None:
        self._outputs.append(TextJob(message=message, client=client))

    def drop_text(self, job: int) -> None:
        self._outputs.append(DropText(job=job))

    def back_up(self, job: BackUp) -> None:
        self._outputs.append(job)

    def drain(self) -> Effects:
        """The round's effects, in order."""
        persist = None
        if self._rows:
            self._lsn += 1
            persist = Persist(lsn=self._lsn, rows=tuple(self._rows))
            self._rows = []
        outputs = tuple(Tagged(after=self._lsn, output=output) for output in self._outputs)
        self._outputs = []
        if not self._forwards:
            return Effects(persist=persist, outputs=outputs)
        forwards, self._forwards = tuple(self._forwards), []
        return Effects(persist=persist, outputs=outputs, forwards=forwards)

"""Watermark acknowledgements, gathered so that they cost few frames.

A node keeps at most a window of events per generation, so acknowledgements may wait a little; a
finish is acknowledged at once, since it frees the node's memory of the generation.
"""

from __future__ import annotations

from bus.ids import GenerationId
from bus.messages.link import WatermarkAck
from bus.messages.parts import Watermark
from bus.timers import Timers
from head.effects import LinkKey
from head.outbox import Outbox

#: Far less than it takes a stream to fill the node's window of 1,024 events; see also `urgent`.
MAX_DELAY_S = 0.25
#: Marks of one acknowledgement; what the message allows.
MAX_MARKS = 4096
#: Generations that do not run here (any more) and wait to be acknowledged on one link. A node has
#: far fewer lanes; what is beyond is not heard, or it could fill the head's memory and time.
MAX_STRAY = 4096


class AckDesk:
    """Owned by the core's runs; what it sends waits for the round's commit like all output."""

    def __init__(self, outbox: Outbox, timers: Timers) -> None:
        self._outbox = outbox
        self._timers = timers
        self._pending: dict[LinkKey, dict[GenerationId, int]] = {}
        self._timer: int | None = None
        #: Marks of stray generations since a link's last acknowledgement.
        self._stray: dict[LinkKey, int] = {}
        #: Links with a stray finish.
        self._owed: set[LinkKey] = set()

    def note(
        self, link: LinkKey, generation: GenerationId, watermark: int, now: float, *, urgent: bool
    ) -> None:
        """Events below `watermark` are kept with this round.

        Args:
            urgent: say it now: a finish, or a window that fills.
        """
        self._pending.setdefault(link, {})[generation] = watermark
        if urgent:
            self._flush(link)
        elif self._timer is None:
            self._timer = self._timers.at(now + MAX_DELAY_S, self._flush_all)

    def note_stray(self, link: LinkKey, generation: GenerationId, end: int, now: float) -> bool:
        """The node need not keep the events below `end`: nobody here waits for them.

        False when the link has too many such already; nothing is noted then.
        """
        stray = self._stray.get(link, 0)
        if stray >= MAX_STRAY:
            return False
        self._stray[link] = stray + 1
        self.note(link, generation, end, now, urgent=False)
        return True

    def owe(self, link: LinkKey) -> None:
        """Acknowledge at the end of the node's message, once for all that it brought."""
        self._owed.add(link)

    def message_ended(self, link: LinkKey) -> None:
        """Say what is owed."""
        if link in self._owed:
            self._flush(link)

    def drop(self, link: LinkKey) -> None:
        """The link is gone; so is what was to be said on it."""
        self._pending.pop(link, None)
        self._stray.pop(link, None)
        self._owed.discard(link)

    def _flush_all(self, now: float) -> None:
        self._timer = None
        self._stray.clear()
        for link in list(self._pending):
            self._flush(link)

    def _flush(self, link: LinkKey) -> None:
        self._owed.discard(link)
        marks = tuple(
            Watermark(generation=generation, committed=watermark)
            for generation, watermark in self._pending.pop(link, {}).items()
        )
        for first in range(0, len(marks), MAX_MARKS):
            self._outbox.send(link, WatermarkAck(watermarks=marks[first : first + MAX_MARKS]))

"""What a link has yet to send: whole frames first, then one queue per channel, strict priority.

Messages are cut into parts and get counter and seal only when they are the next to go, so a
heartbeat overtakes megabytes that were queued before it. A frame that the socket refused already
has its counter: it comes again, unchanged, before anything else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bus.errors import TooLarge
from bus.frames import CHANNELS, PART_BYTES, FrameKind, FrameSealer, kind_of
from bus.messages.link import LINK, MAX_MESSAGE_BYTES


@dataclass(slots=True)
class _Queued:
    kind: FrameKind
    data: bytes
    offset: int = 0
    #: The step of a rekey after which the sealer has these keys.
    switch_to: tuple[bytes, ...] | None = None


class Outbox:
    """First in, first out on each channel; the lowest channel that has something goes first.

    Args:
        on_put: called when something was queued.
    """

    def __init__(self, on_put: Callable[[], None] = lambda: None) -> None:
        self._on_put = on_put
        self._whole: deque[bytes] = deque()
        self._channels: list[deque[_Queued]] = [deque() for _ in range(CHANNELS)]
        self._message_bytes = 0
        self._sealer: FrameSealer | None = None
        self._last: bytes | None = None
        self._refused: bytes | None = None

    @property
    def message_bytes(self) -> int:
        """Bytes of messages that are not sealed yet."""
        return self._message_bytes

    @property
    def queued_bytes(self) -> int:
        """All bytes that wait for the socket."""
        return self._message_bytes + sum(map(len, self._whole)) + len(self._refused or b"")

    def waiting(self, channel: int) -> int:
        """Messages of a channel that are not sealed whole yet."""
        return len(self._channels[channel])

    def holds_back(self, channel: int) -> bool:
        """Whether something waits that would go before a new message of this channel."""
        return self._refused is not None or any(self._channels[: channel + 1])

    def open(self, sealer: FrameSealer) -> None:
        """Begin a link: messages put from now on are sealed with it."""
        self.drop_messages()
        self._sealer = sealer

    def put_frame(self, frame: bytes) -> None:
        """Queue a frame that is whole already (handshake messages)."""
        self._whole.append(frame)
        self._on_put()

    def put(self, kind: FrameKind, channel: int, data: bytes) -> None:
        self._channels[channel].append(_Queued(kind, data))
        self._message_bytes += len(data)
        self._on_put()

    def put_message(self, message: Any) -> None:
        """Queue a message of the link by its priority.

        Raises:
            TooLarge: it is longer than any message may be.
        """
        data = LINK.encode(message)
        if len(data) > MAX_MESSAGE_BYTES:
            raise TooLarge(
                f"a {type(message).__name__} of {len(data)} bytes; {MAX_MESSAGE_BYTES} is the most"
            )
        self.put(FrameKind.DATA, LINK.priority(message), data)

    def put_switch(self, step: int, message: bytes, keys: tuple[bytes, ...]) -> None:
        """Queue a step of a rekey; what is sealed after it is sealed with `keys`."""
        self._channels[0].append(_Queued(FrameKind.REKEY, bytes([step]) + message, switch_to=keys))
        self._message_bytes += 1 + len(message)
        self._on_put()

    def next_frame(self) -> bytes | None:
        """The frame to hand to the socket now, or None.

        Raises:
            WireError: a channel's counter is used up.
        """
        if self._refused is not None:
            self._last, self._refused = self._refused, None
        else:
            self._last = self._whole.popleft() if self._whole else self._seal_next()
        return self._last

    def frame_refused(self) -> None:
        """The socket did not take the last frame."""
        self._refused, self._last = self._last, None

    def _seal_next(self) -> bytes | None:
        if self._sealer is None:
            return None
        for channel, queue in enumerate(self._channels):
            if queue:
                first = queue[0]
                if first.switch_to is not None:
                    queue.popleft()
                    self._message_bytes -= len(first.data)
                    return self._sealer.switch(first.data[0], first.data[1:], first.switch_to)
                part = first.data[first.offset : first.offset + PART_BYTES]
                first.offset += len(part)
                self._message_bytes -= len(part)
                more = first.offset < len(first.data)
                if not more:
                    queue.popleft()
                return self._sealer.seal(first.kind, channel, part, more=more)
        return None

    def close(self, last_words: bytes | None) -> None:
        """End the link: drop its messages; `last_words`, a message, still goes out sealed."""
        self.drop_messages()
        if last_words is not None and self._sealer is not None and not self._sealer.used_up(0):
            self.put_frame(self._sealer.seal(FrameKind.DATA, 0, last_words))
        self._sealer = None

    def drop_messages(self) -> None:
        for queue in self._channels:
            queue.clear()
        self._message_bytes = 0

    def drop_hello(self) -> None:
        """Forget Hello frames that still wait; a newer one follows."""
        self._whole = deque(f for f in self._whole if kind_of(f) != FrameKind.HELLO)
        if self._refused is not None and kind_of(self._refused) == FrameKind.HELLO:
            self._refused = None

    def drop_all(self) -> None:
        """The connection is gone, and with it everything that was meant for it."""
        self.close(None)
        self._whole.clear()
        self._refused = None

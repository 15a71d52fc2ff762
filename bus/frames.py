"""Link-F frames: a 24-byte header, then a payload that is sealed with the header as its nonce.

    magic 4 | version 1 | kind 1 | link id 8 | counter 8 | channel 1 | flags 1     big-endian

Each direction of a link has five channels, one per priority class of messages; each channel has a
key and a counter of its own. A counter never serves two plaintexts, so no nonce does. Sealing is
`crypto_secretbox`: the header is authenticated for free, at half the cost of an AEAD for small
frames. The receiver verifies the tag first and looks at the counter then: the next one is taken,
a lower one is a duplicate and dropped, a higher one is a gap, which ends the link.

A rekey (bus/rekey.py) gives each direction new keys, under which its counters begin at 0 again.
The last frame under the old keys is a REKEY that tells how many frames every channel had, so that
nothing can go missing at the change; the flags carry the key phase.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from bus.crypto import (
    SECRETBOX_NONCE_BYTES,
    TAG_BYTES,
    SecretKey,
    hkdf_key,
    secretbox_open,
    secretbox_seal,
)
from bus.errors import DecodeError, WireError
from bus.messages.link import MAX_MESSAGE_BYTES

MAGIC = b"SFLF"
#: The layout of frames; a peer with another one can not even be told so.
FRAME_VERSION = 1
HEADER = struct.Struct(">4sBBQQBB")
_HEADER_BYTES = HEADER.size
#: Priority classes of messages: 0 keeps links alive, 4 is bulk.
CHANNELS = 5
#: The longest plaintext of a frame. One part never holds the wire so long that a heartbeat behind
#: it is late (4 MiB parts took the median from 0.3 to 245 ms).
PART_BYTES = 128 * 1024
MAX_FRAME_BYTES = HEADER.size + TAG_BYTES + PART_BYTES
#: Frames of one channel under one key; the link ends there, long before a counter could wrap. It
#: is more than `LinkLimits.rekey_frames`, so a rekey has time to finish.
MAX_COUNTER = 2**33
#: While the longest message is on its way in parts, others may be, up to this.
MAX_BESIDE_BYTES = 4 * 1024 * 1024
#: In `flags`: more parts of this message follow on this channel; and the key phase modulo 8.
MORE = 0x01
PHASES = 8
_PHASE_SHIFT = 1
_KNOWN_FLAGS = MORE | (PHASES - 1) << _PHASE_SHIFT
KEY_INFO = b"superfluid link"
REKEY_INFO = b"superfluid rekey"
#: How many frames each channel had under the old keys.
FRAME_COUNTS = struct.Struct(f">{CHANNELS}Q")

if HEADER.size != SECRETBOX_NONCE_BYTES:
    raise ImportError("the header must be as long as the nonce it serves as")


class FrameKind(IntEnum):
    # An enum's own hash is computed from its name, in Python, for every frame.
    __hash__ = int.__hash__

    HELLO = 1
    HELLO_ACK = 2
    CONFIRM = 3
    DATA = 4
    STALE = 5
    REJECT = 6
    REKEY = 7


_KINDS = {kind.value: kind for kind in FrameKind}
#: Kinds whose payload is sealed with the link's keys; the others are clear or carry Noise messages.
SEALED_KINDS = frozenset({FrameKind.CONFIRM, FrameKind.DATA, FrameKind.REKEY})


class Frame(NamedTuple):
    """A parsed frame; nothing in it is verified yet. `header` is the bytes as they came."""

    header: bytes
    kind: FrameKind
    link_id: int
    counter: int
    channel: int
    more: bool
    phase: int
    payload: bytes


def pack_header(
    kind: FrameKind,
    link_id: int,
    counter: int = 0,
    channel: int = 0,
    *,
    more: bool = False,
    phase: int = 0,
) -> bytes:
    flags = (MORE if more else 0) | (phase % PHASES) << _PHASE_SHIFT
    return HEADER.pack(MAGIC, FRAME_VERSION, kind, link_id, counter, channel, flags)


def parse_frame(data: bytes) -> Frame:
    """Split a frame and check every field of its header.

    Raises:
        DecodeError: not a frame that this version sends.
    """
    if not _HEADER_BYTES <= len(data) <= MAX_FRAME_BYTES:
        raise DecodeError(
            f"frame of {len(data)} bytes; {HEADER.size} to {MAX_FRAME_BYTES} are taken"
        )
    magic, version, kind, link_id, counter, channel, flags = HEADER.unpack_from(data)
    if magic != MAGIC:
        raise DecodeError("not a Link-F frame; does something else talk to this port?")
    if version != FRAME_VERSION:
        raise DecodeError(f"frame of version {version}; this side speaks {FRAME_VERSION}")
    known = _KINDS.get(kind)
    if known is None:
        raise DecodeError(f"frame of unknown kind {kind}; is the peer newer?")
    if channel >= CHANNELS or flags & ~_KNOWN_FLAGS:
        raise DecodeError(f"frame with channel {channel} and flags {flags}; is the peer newer?")
    if (counter or channel or flags) and known not in SEALED_KINDS:
        raise DecodeError(f"{known.name} frame with counter, channel or flags")
    header, payload = data[:_HEADER_BYTES], data[_HEADER_BYTES:]
    more, phase = bool(flags & MORE), flags >> _PHASE_SHIFT
    return Frame(header, known, link_id, counter, channel, more, phase, payload)


def derive_frame_keys(
    chaining_key: bytes, handshake_hash: bytes, *, from_initiator: bool, phase: int = 0
) -> tuple[bytes, ...]:
    """The keys of one direction, one per channel.

    Args:
        chaining_key: Noise's, after the last handshake message.
        handshake_hash: Noise's, after the last handshake message.
        from_initiator: the direction.
        phase: which rekey of the link, 0 at first.
    """
    context = KEY_INFO + handshake_hash + bytes([1 if from_initiator else 2])
    return tuple(
        hkdf_key(chaining_key, context + bytes([channel]) + phase.to_bytes(4, "big"))
        for channel in range(CHANNELS)
    )


def derive_rekey_psk(chaining_key: bytes, handshake_hash: bytes) -> SecretKey:
    """The pre-shared key of a link's next rekey, which ties it to the handshake before it.

    Args:
        chaining_key: Noise's, after the last handshake message.
        handshake_hash: Noise's, after the last handshake message.
    """
    return SecretKey(hkdf_key(chaining_key, REKEY_INFO + handshake_hash))


def kind_of(frame: bytes) -> int:
    """The kind of a frame that this side made."""
    return frame[5]


class FrameSealer:
    """Our direction of a link: seals parts, each under the next counter of its channel."""

    def __init__(self, keys: tuple[bytes, ...], link_id: int) -> None:
        self._keys = keys
        self._link_id = link_id
        self._counters = [0] * CHANNELS
        #: How often the keys were changed, and frames of all channels under the present ones.
        self.phase = 0
        self.frames = 0

    @property
    def counts(self) -> tuple[int, ...]:
        """How many frames each channel had under the present keys."""
        return tuple(self._counters)

    def used_up(self, channel: int) -> bool:
        """Whether a channel's counter has reached its limit."""
        return self._counters[channel] >= MAX_COUNTER

    def seal(self, kind: FrameKind, channel: int, part: bytes, *, more: bool = False) -> bytes:
        """The frame that carries `part`; call only when it is the next to go.

        Raises:
            WireError: the channel's counter is used up.
        """
        counter = self._counters[channel]
        if self.used_up(channel):
            raise WireError("a channel's counter is used up; the link is made again")
        header = pack_header(kind, self._link_id, counter, channel, more=more, phase=self.phase)
        self._counters[channel] = counter + 1
        self.frames += 1
        return header + secretbox_seal(self._keys[channel], header, part)

    def switch(self, step: int, message: bytes, keys: tuple[bytes, ...]) -> bytes:
        """The last frame under the present keys, on channel 0; `keys` seal from now on.

        Args:
            step: of the rekey, as its payload's first byte.
            message: follows the frame counts in the payload.
            keys: one per channel.
        """
        counts = [self._counters[0] + 1, *self._counters[1:]]
        frame = self.seal(FrameKind.REKEY, 0, bytes([step]) + FRAME_COUNTS.pack(*counts) + message)
        self._keys, self._counters = keys, [0] * CHANNELS
        self.phase, self.frames = self.phase + 1, 0
        return frame


class FrameOpener:
    """The peer's direction of a link: verifies frames and keeps their order."""

    def __init__(self, keys: tuple[bytes, ...]) -> None:
        self._keys = keys
        self._expected = [0] * CHANNELS
        self._phase = 0

    def open(self, frame: Frame) -> bytes | None:
        """The plaintext of a frame of this link, or None for a duplicate.

        Raises:
            AuthError: it does not verify.
            WireError: one or more frames before it are missing.
        """
        ahead = (frame.phase - self._phase) % PHASES
        if ahead >= PHASES // 2:
            return None  # Its keys are gone: nothing of theirs may come after a switch.
        if ahead:
            raise WireError("the last frames before a change of keys went missing")
        plaintext = secretbox_open(self._keys[frame.channel], frame.header, frame.payload)
        expected = self._expected[frame.channel]
        if frame.counter < expected:
            return None
        if frame.counter > expected:
            raise WireError(
                f"{frame.counter - expected} frames of channel {frame.channel} went missing"
            )
        self._expected[frame.channel] = expected + 1
        return plaintext

    def check_counts(self, phase: int, counts: tuple[int, ...]) -> None:
        """Hold what came to what the peer says that it sent before.

        Args:
            phase: of the keys that it counted under, modulo `PHASES`; a former one was checked.
            counts: how many frames each channel had; of channels that it names.

        Raises:
            WireError: some did not come.
        """
        if phase == self._phase:
            pairs = zip(counts, self._expected, strict=False)
            missing = sum(max(0, count - came) for count, came in pairs)
            if missing:
                raise WireError(f"the last {missing} frames of its channels went missing")

    def switch(self, counts: tuple[int, ...], keys: tuple[bytes, ...]) -> None:
        """The peer seals with `keys` from now on.

        Args:
            counts: how many frames each channel had, as the peer's last one says.
            keys: one per channel.

        Raises:
            WireError: not all of them came.
        """
        missing = sum(counts) - sum(self._expected)
        if list(counts) != self._expected:
            raise WireError(f"{missing} frames before a change of keys went missing")
        self._keys, self._expected = keys, [0] * CHANNELS
        self._phase = (self._phase + 1) % PHASES


class PartJoiner:
    """Joins the parts of messages, channel by channel, under a limit.

    Attributes:
        max_bytes: the longest message.
        held_bytes: parts of all channels that wait for more; a little above the limit at most.
    """

    def __init__(self, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self._parts: list[bytearray] = [bytearray() for _ in range(CHANNELS)]

    def add(self, channel: int, part: bytes, *, more: bool) -> bytes | None:
        """The whole message when `part` is its last, else None.

        Raises:
            DecodeError: an empty part, a message over the limit, or too many that are not whole.
        """
        joined = self._parts[channel]
        if not part:
            raise DecodeError("an empty part of a message")
        if len(joined) + len(part) > self.max_bytes:
            raise DecodeError(f"a message of more than {self.max_bytes} bytes in parts")
        if not more and not joined:
            return part
        if self.held_bytes + len(part) > self.max_bytes + MAX_BESIDE_BYTES:
            raise DecodeError(f"messages of {self.held_bytes} bytes that are not whole")
        joined += part
        if more:
            self.held_bytes += len(part)
            return None
        self.held_bytes -= len(joined) - len(part)
        self._parts[channel] = bytearray()
        return bytes(joined)

"""A fresh handshake inside a link that is up: new frame keys, and nothing else changes.

      starter                                       other side
        OFFER   psk, e, s                     ---->
                                              <---- ANSWER  e, ee, se, s, es
        its frames open with new keys now           its last frame under the old keys
        DONE                                  ---->
        its last frame under the old keys           its frames open with new keys now

The three are sealed REKEY frames of the link, in line with everything else; ANSWER and DONE tell
how many frames each channel had under the old keys, so one that went missing there is noticed.
The handshake is the link's own pattern with a pre-shared key of the handshake before it, so it
needs both what that one gave and the two static keys. When both sides offer at once, the link's
initiator goes on and the other side answers. What does not verify ends the link; it is made again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from bus.crypto import Entropy, KeyPair
from bus.errors import AuthError, DecodeError
from bus.frames import (
    FRAME_COUNTS,
    REKEY_INFO,
    FrameOpener,
    FrameSealer,
    derive_frame_keys,
    derive_rekey_psk,
)
from bus.handshake import Established
from bus.link import LinkLimits
from bus.noise import NoiseHandshake

#: The responder begins so much later, so that mostly one side does.
_RESPONDER_WAITS = 1.25


class RekeyStep(IntEnum):
    """First byte of a REKEY frame's payload."""

    OFFER = 1
    ANSWER = 2
    DONE = 3


@dataclass(frozen=True, slots=True)
class Switch:
    """A step to send, after which this side seals with `keys`."""

    step: RekeyStep
    message: bytes
    keys: tuple[bytes, ...]


class Rekey:
    """All rekeys of one link. Driven by the link's owner, who sends what it gives.

    Args:
        made: the link.
        static: our key.
        initiator: whether this side began the link.
        entropy: gives ephemeral keys.
        limits: when to begin, and by when to be done.
        now: when the link came up.
    """

    def __init__(
        self,
        made: Established,
        *,
        static: KeyPair,
        initiator: bool,
        entropy: Entropy,
        limits: LinkLimits,
        now: float,
    ) -> None:
        self._sealer: FrameSealer = made.sealer
        self._opener: FrameOpener = made.opener
        self._peer_public = made.peer.public
        self._link_id = made.link_id
        self._psk = made.rekey_psk
        self._static = static
        self._initiator = initiator
        self._entropy = entropy
        self._limits = limits
        self._every_s = limits.rekey_s * (1.0 if initiator else _RESPONDER_WAITS)
        #: Rekeys that are finished, as far as this side has to do with them.
        self.phase = 0
        #: Our offer, while its answer is awaited.
        self._offer: NoiseHandshake | None = None
        #: Keys that the peer seals with after its DONE.
        self._awaited: tuple[bytes, ...] | None = None
        self._due_at = now + self._every_s
        self._done_by: float | None = None

    @property
    def under_way(self) -> bool:
        return self._offer is not None or self._awaited is not None

    @property
    def used_up(self) -> bool:
        """Whether our present keys have sealed enough."""
        return self._sealer.frames >= self._limits.rekey_frames

    def next_timeout(self) -> float | None:
        """When `due` or `overdue` may be true."""
        if self.under_way:
            return self._done_by
        if not self._every_s or self._sealer.phase != self.phase:
            return None
        return self._due_at

    def due(self, now: float) -> bool:
        """Whether to offer one: the time has come, or a key has sealed enough."""
        if self.under_way or self._sealer.phase != self.phase:
            return False
        return self.used_up or bool(self._every_s and now >= self._due_at)

    def overdue(self, now: float) -> bool:
        """Whether the peer took too long."""
        return self._done_by is not None and now >= self._done_by

    def restart(self, now: float) -> None:
        """Give the peer its whole time again."""
        if self._done_by is not None:
            self._done_by = now + self._limits.rekey_within_s

    def offer(self, now: float) -> bytes:
        """The payload of a REKEY frame that begins one."""
        self._offer = self._handshake(starter=True)
        self._done_by = now + self._limits.rekey_within_s
        return bytes([RekeyStep.OFFER]) + self._offer.write(b"")

    def read(self, payload: bytes, now: float) -> Switch | None:
        """Take the payload of a REKEY frame that verified.

        Raises:
            AuthError: the handshake does not verify.
            DecodeError: it is no step, or one out of turn.
            WireError: frames before a change of keys are missing.
        """
        step, rest = payload[:1], payload[1:]
        if step == bytes([RekeyStep.OFFER]):
            return self._on_offer(rest, now)
        if len(rest) < FRAME_COUNTS.size:
            raise DecodeError("a rekey without its counts")
        counts = FRAME_COUNTS.unpack_from(rest)
        message = rest[FRAME_COUNTS.size :]
        if step == bytes([RekeyStep.ANSWER]):
            return self._on_answer(counts, message, now)
        if step == bytes([RekeyStep.DONE]):
            self._on_done(counts, now)
            return None
        raise DecodeError("an unknown step of a rekey; is the peer newer?")

    def _on_offer(self, message: bytes, now: float) -> Switch | None:
        if self._awaited is not None:
            raise DecodeError("a second rekey before the first was done")
        if self._offer is not None and self._initiator:
            return None  # Ours goes on; the peer drops this one when it comes.
        self._offer = None
        noise = self._handshake(starter=False)
        noise.read(message)
        answer = noise.write(b"")
        ours, self._awaited = self._new_keys(noise)
        self._done_by = now + self._limits.rekey_within_s
        return Switch(RekeyStep.ANSWER, answer, ours)

    def _on_answer(self, counts: tuple[int, ...], message: bytes, now: float) -> Switch:
        noise, self._offer = self._offer, None
        if noise is None:
            raise DecodeError("an answer to no rekey of ours")
        noise.read(message)
        ours, theirs = self._new_keys(noise)
        self._opener.switch(counts, theirs)
        self._finish(now)
        return Switch(RekeyStep.DONE, b"", ours)

    def _on_done(self, counts: tuple[int, ...], now: float) -> None:
        keys, self._awaited = self._awaited, None
        if keys is None:
            raise DecodeError("the end of no rekey of ours")
        self._opener.switch(counts, keys)
        self._finish(now)

    def _finish(self, now: float) -> None:
        self.phase += 1
        self._done_by = None
        self._due_at = now + self._every_s

    def _handshake(self, *, starter: bool) -> NoiseHandshake:
        prologue = REKEY_INFO + self._link_id.to_bytes(8, "big")
        return NoiseHandshake(
            initiator=starter,
            static=self._static,
            psk=self._psk,
            prologue=prologue + (self.phase + 1).to_bytes(4, "big"),
            entropy=self._entropy,
        )

    def _new_keys(self, noise: NoiseHandshake) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """Of a complete handshake: our keys and the peer's."""
        if noise.remote_static != self._peer_public:
            raise AuthError("the peer came with another key for new frame keys")
        chaining_key, handshake_hash = noise.chaining_key, noise.handshake_hash
        self._psk = derive_rekey_psk(chaining_key, handshake_hash)
        ours, theirs = (
            derive_frame_keys(
                chaining_key, handshake_hash, from_initiator=direction, phase=self.phase + 1
            )
            for direction in (self._initiator, not self._initiator)
        )
        return ours, theirs

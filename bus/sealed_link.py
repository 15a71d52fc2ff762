"""What a finished handshake made: the peer's frames in, messages out, and the timers of the link.

It speaks for itself where no owner is needed: heartbeats, rekeys, answers to probes. A plaintext
Stale is doubted: the peer is probed, and a sealed frame of it proves the Stale wrong. So who can
write into the connection but has no key costs us a probe, not the link.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bus.capabilities import PROBE, REKEY, negotiated
from bus.crypto import Entropy
from bus.errors import AuthError, DecodeError, WireError
from bus.frames import PHASES, Frame, FrameKind, PartJoiner
from bus.handshake import Established
from bus.link import LinkFault, LinkIdentity, LinkLimits, PeerInfo, read_goodbye
from bus.liveness import Liveness
from bus.messages.link import (
    LINK,
    MAX_MESSAGE_BYTES,
    Goodbye,
    HeadConfirm,
    Heartbeat,
    NodeConfirm,
    Probe,
    ProbeAnswer,
)
from bus.outbox import Outbox
from bus.rekey import Rekey
from bus.self_suspicion import SelfSuspicion

#: A Confirm names at most 65,536 sessions, which takes 5 MiB; before it the peer is a stranger.
MAX_CONFIRM_BYTES = 8 * 1024 * 1024
#: One Stale in this time is looked into.
STALE_EVERY_S = 1.0
#: Who probes and does not read gets no more answers than this.
MAX_ANSWERS_WAITING = 64
_BEFORE_UP = frozenset({FrameKind.CONFIRM, FrameKind.DATA})
_WHEN_UP = frozenset({FrameKind.DATA, FrameKind.REKEY})


class SealedLink:
    """Owned by an `Endpoint`, which ends it when `receive` or `handle_timeout` give a fault.

    Args:
        made: what the handshake gave.
        identity: ours.
        initiator: whether this side connected.
        entropy: gives ephemeral keys.
        limits: times and sizes.
        outbox: takes what is to be sent; its frames are sealed with this link from now on.
        heartbeat: the content of the next heartbeat.
        suspicion: shared by all links of the process.
    """

    def __init__(
        self,
        made: Established,
        identity: LinkIdentity,
        *,
        initiator: bool,
        entropy: Entropy,
        limits: LinkLimits,
        outbox: Outbox,
        heartbeat: Callable[[], Heartbeat],
        suspicion: SelfSuspicion,
    ) -> None:
        self.peer: PeerInfo = made.peer
        self.link_id = made.link_id
        self._made = made
        self._identity = identity
        self._initiator = initiator
        self._entropy = entropy
        self._limits = limits
        self._outbox = outbox
        self._heartbeat = heartbeat
        self._suspicion = suspicion
        self._joiner = PartJoiner(MAX_CONFIRM_BYTES)
        self._confirmed = False
        self._liveness: Liveness | None = None
        self._rekey: Rekey | None = None
        #: By when a sealed frame has to prove a Stale wrong; the next one counts from then on.
        self._stale_by: float | None = None
        self._no_stale_before = 0.0
        outbox.open(made.sealer)

    @property
    def joined_bytes(self) -> int:
        """What came of messages that are not whole yet."""
        return self._joiner.held_bytes

    @property
    def name(self) -> str:
        """The peer in sentences."""
        return f"{self.peer.role} {self.peer.name}"

    # --- from Confirm to the end --------------------------------------------------------------

    def _is_confirmed_by(self, message: Any) -> bool:
        """Take the peer's Confirm; False when it is none of the peer of the handshake."""
        peer, boot = self.peer, None
        if peer.role == "node" and isinstance(message, NodeConfirm):
            boot = message.incarnation
        elif peer.role == "head" and isinstance(message, HeadConfirm):
            boot = message.boot
        if boot != peer.incarnation or message.identity != peer.name:
            return False
        capabilities = negotiated(self._identity.capabilities, message.capabilities)
        self.peer = replace(peer, capabilities=capabilities, process=message.process)
        return True

    def queue_confirm(self) -> None:
        """Send our Confirm."""
        confirm = self._identity.confirm()
        capabilities = (*self._identity.capabilities, *confirm.capabilities)
        confirm = replace(
            confirm,
            capabilities=tuple(dict.fromkeys(capabilities)),
            process=self._identity.process,
        )
        self._outbox.put(FrameKind.CONFIRM, 0, LINK.encode(confirm))

    def come_up(self, now: float, *, busy: bool) -> None:
        """Both sides have confirmed: the timers begin."""
        self._joiner.max_bytes = MAX_MESSAGE_BYTES
        self._liveness = Liveness(
            now,
            heartbeat_s=self._limits.heartbeat_s,
            busy_heartbeat_s=self._limits.busy_heartbeat_s,
            silence_s=self._limits.silence_s,
            first_share=0.5 + int.from_bytes(self._entropy(2), "big") / 2**17,
        )
        self._liveness.set_busy(busy)
        self._suspicion.add(self._liveness)
        if REKEY in self.peer.capabilities:
            self._rekey = Rekey(
                self._made,
                static=self._identity.static,
                initiator=self._initiator,
                entropy=self._entropy,
                limits=self._limits,
                now=now,
            )

    def close(self) -> None:
        """Its silence means nothing to others any more."""
        if self._liveness is not None:
            self._suspicion.remove(self._liveness)

    def set_busy(self, busy: bool) -> None:
        """Heartbeats every second while a generation is live."""
        if self._liveness is not None:
            self._liveness.set_busy(busy)

    # --- frames -------------------------------------------------------------------------------

    def receive(self, frame: Frame, now: float) -> Any | LinkFault | None:
        """Take a sealed frame of this link.

        Returns:
            The message that it completes, for the owner, or why the link has to end.
        """
        try:
            return self._read(frame, now)
        except AuthError as error:
            return LinkFault("auth", f"{self.name}: {error.message}")
        except DecodeError as error:
            return LinkFault("decode", f"{self.name} sent what is no message: {error.message}")
        except WireError as error:
            return LinkFault("gap", f"{self.name}: {error.message}")

    def _read(self, frame: Frame, now: float) -> Any | LinkFault | None:
        part = self._made.opener.open(frame)
        if part is None:
            return None
        if self._liveness is not None:
            self._liveness.heard(now)
            self._stale_by = None
        if frame.kind not in (_WHEN_UP if self._liveness is not None else _BEFORE_UP):
            raise DecodeError(f"a {frame.kind.name} frame out of place")
        if frame.kind is FrameKind.REKEY:
            self._on_rekey(part, now)
            return None
        whole = self._joiner.add(frame.channel, part, more=frame.more)
        if whole is None:
            return None
        message = LINK.decode(whole)
        if isinstance(message, Goodbye) and frame.kind is FrameKind.DATA:
            code, reason = read_goodbye(message.reason)
            what = "refused" if self._liveness is None else "ended"
            return LinkFault(code, f"{self.name} {what} the link: {reason}", by_peer=True)
        if self._liveness is None:
            return self._on_confirm(message, frame.kind)
        return self._on_message(message, self._liveness)

    def _on_confirm(self, message: Any, kind: FrameKind) -> Any | LinkFault:
        if kind is not FrameKind.CONFIRM:
            raise DecodeError(f"a {type(message).__name__} instead of a Confirm")
        if self._confirmed:
            return LinkFault("protocol", f"{self.name} sent a {type(message).__name__} too soon")
        if not self._is_confirmed_by(message):
            return LinkFault("protocol", f"{self.name} confirmed as somebody else")
        self._confirmed = True
        return message

    def _on_message(self, message: Any, liveness: Liveness) -> Any | LinkFault | None:
        """What the owner is to know of a message on a link that is up."""
        if isinstance(message, NodeConfirm | HeadConfirm):
            return LinkFault("protocol", f"{self.name} confirmed a second time")
        if isinstance(message, Heartbeat):
            self._made.opener.check_counts(message.phase, message.frames)
            return replace(message, phase=0, frames=())
        if isinstance(message, Probe):
            if self._outbox.waiting(0) < MAX_ANSWERS_WAITING:
                self._outbox.put_message(ProbeAnswer(number=message.number))
        elif isinstance(message, ProbeAnswer):
            liveness.answered(message.number)
        else:
            return message
        return None

    def sent(self, now: float) -> None:
        """A frame of this link was sealed and goes out."""
        if self._rekey is not None and self._rekey.used_up:
            self._offer_rekey(now)

    def stale(self, now: float) -> LinkFault | None:
        """The peer is said not to know this link; why it has to end, if that is sure already."""
        if self._liveness is None or PROBE not in self.peer.capabilities:
            return self._stale
        if self._stale_by is None and now >= self._no_stale_before:
            self._stale_by = now + self._limits.stale_s
            self._no_stale_before = now + STALE_EVERY_S
            self.probe()
        return None

    @property
    def _stale(self) -> LinkFault:
        return LinkFault("stale", f"{self.name} does not know this link any more")

    def probe(self) -> None:
        """Ask the peer for a sign of life; `probe_answered` tells of it."""
        if self._liveness is not None:
            number = self._liveness.next_probe()
            if PROBE in self.peer.capabilities:
                self._outbox.put_message(Probe(number=number))

    @property
    def probe_answered(self) -> bool:
        """Whether the peer answered the last probe."""
        return self._liveness is not None and self._liveness.probe_answered

    def rekey(self, now: float) -> None:
        """Begin a rekey now, unless one is under way or the peer can not."""
        if self._rekey is not None and not self._rekey.under_way:
            self._outbox.put(FrameKind.REKEY, 0, self._rekey.offer(now))

    @property
    def phase(self) -> int:
        """How many rekeys are finished."""
        return self._rekey.phase if self._rekey is not None else 0

    def _on_rekey(self, payload: bytes, now: float) -> None:
        if self._rekey is None:
            raise DecodeError("a rekey that was not agreed on")
        switch = self._rekey.read(payload, now)
        if switch is not None:
            self._outbox.put_switch(switch.step, switch.message, switch.keys)

    def _offer_rekey(self, now: float) -> None:
        if self._rekey is not None and self._rekey.due(now):
            self.rekey(now)

    # --- time ---------------------------------------------------------------------------------

    def next_timeout(self) -> float | None:
        """When to call `handle_timeout`, or None."""
        if self._liveness is None:
            return None
        times = [self._liveness.next_timeout(), self._stale_by]
        if self._rekey is not None:
            times.append(self._rekey.next_timeout())
        return min((time for time in times if time is not None), default=None)

    def handle_timeout(self, now: float) -> LinkFault | None:
        """Do what is due; why the link has to end, if it has to."""
        if self._liveness is None:
            return None
        if self._suspicion.stood_still(self.next_timeout(), now) and self._rekey is not None:
            self._rekey.restart(now)
        if self._liveness.lost(now) and not self._suspicion.forgives(self._liveness, now):
            silence_s = self._limits.silence_s
            return LinkFault("silent", f"nothing from {self.name} for {silence_s:g} s")
        if self._stale_by is not None and now >= self._stale_by:
            return self._stale
        if self._rekey is not None and self._rekey.overdue(now):
            within_s = self._limits.rekey_within_s
            return LinkFault(
                "rekey", f"{self.name} did not finish a change of keys within {within_s:g} s"
            )
        self._offer_rekey(now)
        if self._liveness.heartbeat_due(now):
            self._liveness.beat(now)
            if not self._outbox.holds_back(0):
                sealer = self._made.sealer
                beat = replace(self._heartbeat(), phase=sealer.phase % PHASES, frames=sealer.counts)
                self._outbox.put_message(beat)
        return None

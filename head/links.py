"""All links of the head: one ROUTER where nodes join, one DEALER for each node that it dials.

The core knows a link by a number that is never used twice; here stands which socket it is on.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from bus.acceptor import Acceptor
from bus.address import is_local, split_address
from bus.endpoint import Endpoint
from bus.errors import SuperfluidError, TokenRefused
from bus.ids import NodeIdentity
from bus.keys import load_or_create_static_key
from bus.link import (
    HandshakeRefused,
    LinkDown,
    LinkEvent,
    LinkLimits,
    LinkUp,
    MessageReceived,
    PeerInfo,
    PeerRefused,
    Refusal,
)
from bus.log import EventLog
from bus.messages.link import Heartbeat, NodeConfirm
from bus.rate_limit import TokenBucket
from bus.self_suspicion import SelfSuspicion
from bus.state import StateFolder
from bus.token_files import FleetTokens, TokenWatch
from bus.transport import clock
from bus.transport.dealer import DealerLink
from bus.transport.loop import Loop
from bus.transport.router import RouterLinks
from head.config import FleetSection
from head.core import HeadCore
from head.effects import LinkKey
from head.enrolment import Enrolment
from head.fleet_node import DialedAddress
from head.link_identity import head_identity
from head.rows import PutPeer, StoredState

#: The key of an agent that shares the head's state folder, in `nodes/`.
_OWN_KEYS = "*/node.key"
#: Of an address that was dialed just now.
_NOT_YET = "it has not answered yet"
#: Lines about refused links in the log, of all peers together.
REFUSALS_PER_S = 2.0
REFUSALS_BURST = 200.0
_RETIRED = (
    "the fleet token of this link was retired; if it does not come back, copy the head's token "
    "file to the node"
)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a link is: an address of the ROUTER, or a DEALER."""

    dealer: DealerLink | None
    address: bytes = b""


class FleetLinks:
    """Owned by the head's server, which calls `deliver` and `flush` each turn.

    Args:
        loop: watches the sockets.
        config: where to bind and whom to dial.
        state: has the keys.
        stored: this start's numbers, and the newest Hello of every key.
        enrolment: says which nodes may link.
        log: for links that come and go.

    Raises:
        StartError: the token or key can not be used, or the address not be bound.
    """

    def __init__(
        self,
        loop: Loop,
        config: FleetSection,
        state: StateFolder,
        stored: StoredState,
        enrolment: Enrolment,
        log: EventLog,
    ) -> None:
        self._log = log
        self._loop = loop
        self._numbers = itertools.count(1)
        self._places: dict[LinkKey, _Place] = {}
        self._links: dict[_Place, LinkKey] = {}
        self._limits = LinkLimits.with_silence(config.silence_s)
        self._identity = head_identity(config, state, stored)
        #: Joined and dialed nodes alike: does most of the fleet fall silent at once?
        self._suspicion = SelfSuspicion()
        self._enrolment = enrolment
        self._own_nodes = state.nodes
        self._newest = {
            peer.public: (peer.incarnation, peer.hello_counter) for peer in stored.peers
        }
        self._refusals = TokenBucket(REFUSALS_PER_S, REFUSALS_BURST)
        self._router: RouterLinks | None = None
        self._dealers: list[DealerLink] = []
        #: Who answered last at an address that is dialed, and why no link to it is up.
        self._answered: dict[DealerLink, str] = {}
        self._why_not: dict[DealerLink, str] = {}
        if config.bind:
            self._router = RouterLinks(config.bind, self._acceptor(), setting="fleet.bind")
            self._router.attach(loop)
        for address in config.nodes:
            host, _ = split_address(address, "nodes in [fleet] of head.toml")
            dealer = DealerLink(address, partial(self._endpoint, host), label="the node")
            dealer.attach(loop)
            self._dealers.append(dealer)
        self._watch_tokens(config)

    @property
    def address(self) -> str:
        """Where nodes join, with the port that 0 became; empty for nowhere."""
        return self._router.address if self._router is not None else ""

    def dialed(self) -> list[DialedAddress]:
        """Every address that is dialed, with what came of it last."""
        return [
            DialedAddress(
                address=dealer.address,
                node=self._answered.get(dealer, ""),
                up=dealer.is_up,
                why_not="" if dealer.is_up else self._why_not.get(dealer, _NOT_YET),
            )
            for dealer in self._dealers
        ]

    def deliver(self, core: HeadCore, now: float) -> None:
        """Give the core all that came on the links, in order."""
        for place, event in self._events():
            self._deliver(core, place, event, now)

    def send(self, link: LinkKey, message: object) -> None:
        """Queue a message; one for a link that is gone is passed over, the core hears of that.

        One that can not be encoded ends its link and nothing else.
        """
        place = self._places.get(link)
        if place is None:
            return
        try:
            if place.dealer is not None:
                place.dealer.send(message)
            elif self._router is not None:
                self._router.send(place.address, message)
        except SuperfluidError as error:
            self._log.error("message_not_sent", link=link, why=error.message)
            self.close_link(link, "a message to this node could not be made; see the head's log")

    def close_link(self, link: LinkKey, reason: str) -> None:
        """End a link whose peer broke the protocol."""
        place = self._places.get(link)
        if place is not None:
            self._close_place(place, reason)

    def flush(self, now: float) -> None:
        """Hand what is queued to the sockets."""
        if self._router is not None:
            self._router.flush(now)
        for dealer in self._dealers:
            dealer.flush(now)

    def close(self, reason: str = "the head was stopped") -> None:
        """End all links with a Goodbye."""
        if self._router is not None:
            self._router.close(reason)
        for dealer in self._dealers:
            dealer.close(reason)

    # --- inside -------------------------------------------------------------------------------

    def _acceptor(self) -> Acceptor:
        return Acceptor(
            self._identity,
            entropy=os.urandom,
            limits=self._limits,
            last_seen=self._newest.get,
            admit=self._admit_claim,
            admit_proven=self._admit_proven,
            heartbeat=self._heartbeat,
            suspicion=self._suspicion,
        )

    def _endpoint(self, host: str) -> Endpoint:
        return Endpoint(
            self._identity,
            initiator=True,
            entropy=os.urandom,
            limits=self._limits,
            admit=lambda peer: self._admit_dialed(replace(peer, host=host)),
            heartbeat=self._heartbeat,
            suspicion=self._suspicion,
        )

    # --- who may link -------------------------------------------------------------------------

    def _admit(self, peer: PeerInfo) -> None:
        """See whether a node that has proved its key may link."""
        valid = {token.token_id for token in self._identity.tokens}
        if peer.token_id not in valid:
            raise HandshakeRefused(Refusal.TOKEN_REFUSED, _RETIRED)
        self._enrolment.check(peer, time.time(), own=self._is_own)

    def _admit_proven(self, peer: PeerInfo) -> None:
        self._check_second(peer)
        self._admit(peer)

    def _admit_claim(self, peer: PeerInfo) -> None:
        """See whether a node may link if it is who it claims to be."""
        self._check_second(peer)
        self._enrolment.check_claim(peer)

    def _admit_dialed(self, peer: PeerInfo) -> None:
        """The same for a node that was called, whose answer proves its key."""
        self._check_second(peer, dialed=True)
        self._admit(peer)

    def _check_second(
        self, peer: PeerInfo, *, dialed: bool = False, but: DealerLink | None = None
    ) -> None:
        """Refuse a second link of a node over another socket than its first."""
        dealers = [each for each in self._dealers if each.is_up and each is not but]
        others = [(dealer.peer, dealer.label) for dealer in dealers]
        if dialed and self._router is not None:
            links = self._router.acceptor.links()
            others += [(link.peer, "by which it joined") for _, link in links]
        for other, where in others:
            if other is not None and (other.public == peer.public or other.name == peer.name):
                raise HandshakeRefused(
                    Refusal.IDENTITY_IN_USE,
                    f"identity in use: node {other.name} has a link already, {where}; name a node "
                    "once in [fleet] nodes, and not at all when it joins; or give this one another "
                    "identity",
                )

    def _is_own(self, public: bytes) -> bool:
        """Whether a key is that of an agent in the head's own state folder."""
        for file in self._own_nodes.glob(_OWN_KEYS):
            try:
                if load_or_create_static_key(file).public == public:
                    return True
            except TokenRefused as error:
                self._log.repeated(clock.now(), "key_not_read", peer=str(file), why=error.message)
        return False

    def _watch_tokens(self, config: FleetSection) -> None:
        tokens = self._identity.tokens
        if isinstance(tokens, FleetTokens):
            watch = TokenWatch(tokens, self._log, self._end_retired)
            self._loop.add_timer_source(watch.next_timeout, watch.handle_timeout)
        elif not all(is_local(address) for address in (config.bind, *config.nodes) if address):
            self._log.warning("no_auth", risk="whoever reaches this network can join as a node")

    def _end_retired(self) -> None:
        """End links that were made with a token that is not valid any more."""
        valid = {token.token_id for token in self._identity.tokens}
        for link, place in list(self._places.items()):
            peer = self._peer(place)
            if peer is not None and peer.token_id not in valid:
                self.close_link(link, _RETIRED)

    def _peer(self, place: _Place) -> PeerInfo | None:
        if place.dealer is not None:
            return place.dealer.peer
        endpoint = self._router.acceptor.endpoint(place.address) if self._router else None
        return endpoint.peer if endpoint is not None else None

    # --- what comes ---------------------------------------------------------------------------

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(loop_lag_ms=round(self._loop.take_max_lag_ms()))

    def _events(self) -> Iterator[tuple[_Place, LinkEvent]]:
        if self._router is not None:
            for address, event in self._router.events():
                yield _Place(None, address), event
        for dealer in self._dealers:
            for event in dealer.events():
                yield _Place(dealer), event

    def _deliver(self, core: HeadCore, place: _Place, event: LinkEvent, now: float) -> None:
        match event:
            case LinkUp(peer=peer, confirm=confirm):
                if isinstance(confirm, NodeConfirm):
                    self._link_up(core, place, peer, confirm, now)
            case MessageReceived(message=message):
                link = self._links.get(place)
                if link is not None:
                    core.link_message(link, message, now)
            case LinkDown(code=code, reason=reason):
                link = self._links.pop(place, None)
                self._note_why_not(place, reason)
                if link is not None:
                    del self._places[link]
                    self._log.warning("link_down", link=link, code=code, reason=reason)
                    core.link_down(link, reason, now, left=code == "goodbye")
            case PeerRefused(code=code, reason=reason, peer=refused):
                name = refused.name if refused is not None else self._label(place)
                self._note_why_not(place, reason)
                self._log_refusal(now, code, name, reason)

    def _note_why_not(self, place: _Place, reason: str) -> None:
        if place.dealer is not None:
            self._why_not[place.dealer] = reason

    def _log_refusal(self, now: float, code: str, name: str, reason: str) -> None:
        # Once a peer and minute; but whoever has the token may come under any number of names.
        event = f"link_refused_{code}"
        self._log.repeated_within(self._refusals, now, event, peer=name, why=reason)

    def _label(self, place: _Place) -> str:
        if place.dealer is not None:
            return place.dealer.label
        host = self._host(place)
        return f"a node at {host}" if host else "a node"

    def _host(self, place: _Place) -> str:
        """Where a node is, as far as it shows; empty on ipc."""
        if place.dealer is not None:
            return split_address(place.dealer.address)[0]
        return self._router.host_of(place.address) if self._router is not None else ""

    def _close_place(self, place: _Place, reason: str) -> None:
        if place.dealer is not None:
            place.dealer.end_link(reason)
        elif self._router is not None:
            self._router.close_link(place.address, reason)

    def _link_up(
        self, core: HeadCore, place: _Place, peer: PeerInfo, confirm: NodeConfirm, now: float
    ) -> None:
        now_wall_s = time.time()
        called = replace(peer, host=self._host(place))
        try:
            # Meanwhile another one may have been enrolled or linked, or this one revoked.
            self._check_second(called, dialed=place.dealer is not None, but=place.dealer)
            self._admit(called)
        except HandshakeRefused as error:
            self._note_why_not(place, error.message)
            self._log_refusal(now, error.refusal.text, peer.name, error.message)
            self._close_place(place, error.message)
            return
        self._enrolment.linked(called, now_wall_s)
        link = next(self._numbers)
        self._links[place], self._places[link] = link, place
        if place.dealer is not None:
            self._answered[place.dealer] = peer.name
        self._newest[peer.public] = (peer.incarnation, peer.hello_counter)
        self._log.info("link_up", link=link, node=peer.name, node_key=peer.fingerprint)
        seen = PutPeer(
            public=peer.public,
            identity=NodeIdentity(peer.name),
            incarnation=peer.incarnation,
            hello_counter=peer.hello_counter,
        )
        core.link_up(link, confirm, now, seen)

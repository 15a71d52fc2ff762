"""All links of the head: one ROUTER where nodes join, one DEALER for each node that it dials.

The core knows a link by a number that is never used twice; here stands which socket it is on.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bus.acceptor import Acceptor
from bus.endpoint import Endpoint
from bus.errors import ConfigInvalid, SuperfluidError
from bus.ids import NodeIdentity
from bus.keys import (
    INSECURE_TOKEN,
    FleetToken,
    fingerprint,
    load_or_create_static_key,
    load_token,
)
from bus.link import (
    LinkDown,
    LinkEvent,
    LinkIdentity,
    LinkLimits,
    LinkUp,
    MessageReceived,
    PeerInfo,
    PeerRefused,
)
from bus.log import EventLog
from bus.messages.link import HeadConfirm, Heartbeat, NodeConfirm
from bus.state import StateFolder
from bus.transport.dealer import DealerLink
from bus.transport.loop import Loop
from bus.transport.router import RouterLinks
from bus.version import __version__
from head.config import FleetSection
from head.core import HeadCore
from head.effects import LinkKey
from head.rows import PutPeer, StoredState

TOKEN_FILE = "fleet.token"
KEY_FILE = "head.key"


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
        log: EventLog,
    ) -> None:
        self._log = log
        self._loop = loop
        self._numbers = itertools.count(1)
        self._places: dict[LinkKey, _Place] = {}
        self._links: dict[_Place, LinkKey] = {}
        self._limits = LinkLimits(silence_s=config.silence_s)
        self._identity = _identity(config, state, stored)
        self._newest = {
            peer.public: (peer.incarnation, peer.hello_counter) for peer in stored.peers
        }
        self._router: RouterLinks | None = None
        self._dealers: list[DealerLink] = []
        if config.bind:
            self._router = RouterLinks(config.bind, self._acceptor(), setting="fleet.bind")
            self._router.attach(loop)
        for address in config.nodes:
            dealer = DealerLink(address, self._endpoint, label="the node")
            dealer.attach(loop)
            self._dealers.append(dealer)

    @property
    def address(self) -> str:
        """Where nodes join, with the port that 0 became; empty for nowhere."""
        return self._router.address if self._router is not None else ""

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
        if place is None:
            return
        if place.dealer is not None:
            place.dealer.end_link(reason)
        elif self._router is not None:
            self._router.close_link(place.address, reason)

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
            heartbeat=self._heartbeat,
        )

    def _endpoint(self) -> Endpoint:
        return Endpoint(
            self._identity,
            initiator=True,
            entropy=os.urandom,
            limits=self._limits,
            heartbeat=self._heartbeat,
        )

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
                if link is not None:
                    del self._places[link]
                    self._log.warning("link_down", link=link, code=code, reason=reason)
                    core.link_down(link, reason, now, left=code == "goodbye")
            case PeerRefused(code=code, reason=reason, peer=refused):
                name = refused.name if refused is not None else self._label(place)
                self._log.repeated(now, f"link_refused_{code}", peer=name, why=reason)

    def _label(self, place: _Place) -> str:
        if place.dealer is not None:
            return place.dealer.label
        host = self._router.host_of(place.address) if self._router is not None else ""
        return f"a node at {host}" if host else "a node"

    def _link_up(
        self, core: HeadCore, place: _Place, peer: PeerInfo, confirm: NodeConfirm, now: float
    ) -> None:
        link = next(self._numbers)
        self._links[place], self._places[link] = link, place
        self._newest[peer.public] = (peer.incarnation, peer.hello_counter)
        self._log.info("link_up", link=link, node=peer.name, node_key=peer.fingerprint)
        seen = PutPeer(
            public=peer.public,
            identity=NodeIdentity(peer.name),
            incarnation=peer.incarnation,
            hello_counter=peer.hello_counter,
        )
        core.link_up(link, confirm, now, seen)


def _identity(config: FleetSection, state: StateFolder, stored: StoredState) -> LinkIdentity:
    key = load_or_create_static_key(state.keys / KEY_FILE)
    token = _token(config, state)
    if token.head_fingerprint and token.head_fingerprint != fingerprint(key.public):
        raise ConfigInvalid(
            f"the fleet token {token.source} names the head key {token.head_fingerprint} and "
            f"{state.keys / KEY_FILE} is {fingerprint(key.public)}; make a new token with "
            "`sfctl token new --rotate` and copy it to the nodes",
            param="fleet.token_file",
        )
    confirm = HeadConfirm(
        identity=stored.head_id, boot=stored.boot, software=f"superfluid {__version__}"
    )
    return LinkIdentity(
        role="head",
        name=stored.head_id,
        static=key,
        tokens=(token,),
        incarnation=stored.boot,
        confirm=lambda: confirm,
    )


def _token(config: FleetSection, state: StateFolder) -> FleetToken:
    if config.insecure_no_auth:
        return INSECURE_TOKEN
    return load_token(Path(config.token_file) if config.token_file else state.keys / TOKEN_FILE)

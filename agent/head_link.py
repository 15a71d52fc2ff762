"""The node's one link to its head: it joins the head, or waits to be called by one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from agent.config import DEFAULT_HEAD, AgentConfig
from agent.core import AgentCore
from agent.head_pin import PIN_FILE, HeadPin
from agent.node_folder import NodeFolder
from bus.acceptor import Acceptor
from bus.endpoint import Endpoint
from bus.errors import StartError
from bus.ids import NodeIdentity
from bus.keys import INSECURE_TOKEN, FleetToken
from bus.link import LinkDown, LinkEvent, LinkIdentity, LinkLimits, LinkUp, PeerInfo, PeerRefused
from bus.log import EventLog
from bus.process_info import this_process
from bus.state import StateFolder, write_atomically
from bus.token_files import TOKEN_FILE, FleetTokens, TokenWatch
from bus.transport import clock
from bus.transport.dealer import DealerLink
from bus.transport.loop import Loop
from bus.transport.router import RouterLinks

#: How often a node without a connection looks where its head is now.
LOOK_S = 1.0
#: Several addresses are tried in turn, each for so long.
TRY_S = 6.0
#: Heads whose last Hello a listening node remembers.
MAX_HEADS = 64


class Superseded(StartError):
    """Another process with this node's key took its place at the head; this one has to end."""


class HeadLink(Protocol):
    """What the agent's loop needs of either kind."""

    @property
    def label(self) -> str:
        """Names the other end in the log."""

    @property
    def address(self) -> str:
        """Where the other end is looked for, or waited for."""

    def events(self) -> list[LinkEvent]:
        """What happened since the last call, in order.

        Raises:
            Superseded: another process took this node's place.
        """

    def send(self, message: Any) -> bool:
        """Queue a message; False when no link is up."""

    def set_busy(self, busy: bool) -> None:
        """Whether a generation is live, so heartbeats go every second."""

    def flush(self, now: float) -> None:
        """Hand frames to the socket; last in each turn."""

    def close(self, reason: str) -> None:
        """Say goodbye and close."""


#: Told of each head that linked.
Linked = Callable[[PeerInfo], None]


def fleet_tokens(config: AgentConfig, state: StateFolder) -> Sequence[FleetToken]:
    """The tokens to link with, the current one first.

    Raises:
        TokenRefused: there is none, or it is damaged or open to others.
    """
    if config.node.insecure_no_auth:
        return (INSECURE_TOKEN,)
    return FleetTokens(token_file(config, state))


def token_file(config: AgentConfig, state: StateFolder) -> Path:
    """Where the fleet token is to be."""
    named = config.node.token_file
    return Path(named) if named else state.keys / TOKEN_FILE


def fleet_name(config: AgentConfig, state: StateFolder, tokens: Sequence[FleetToken]) -> str:
    """Tells fleets apart on one machine: by the head's key, or by where the head is."""
    section = config.node
    return tokens[0].head_fingerprint or ",".join(section.join) or section.listen or str(state.path)


def open_head_link(
    loop: Loop,
    core: AgentCore,
    config: AgentConfig,
    *,
    state: StateFolder,
    folder: NodeFolder,
    identity: NodeIdentity,
    tokens: Sequence[FleetToken],
) -> HeadLink:
    """Open the link that the configuration asks for, watched by the loop.

    Raises:
        StartError: the address to listen at can not be used.
        ConfigInvalid: an address is none.
    """
    ours = LinkIdentity(
        role="node",
        name=identity,
        static=folder.key,
        tokens=tokens,
        incarnation=folder.boot,
        confirm=core.confirm,
        process=this_process(),
        peer_label="the head",
    )
    limits = LinkLimits.with_silence(config.node.silence_s)
    pin = HeadPin(folder.path / PIN_FILE)

    def heartbeat() -> Any:
        return core.heartbeat(loop.take_max_lag_ms())

    if config.node.listen:
        seen = SeenHeads(folder.path / "heads.json")
        acceptor = Acceptor(
            ours,
            entropy=os.urandom,
            limits=limits,
            last_seen=seen.get,
            admit=pin.check,
            heartbeat=heartbeat,
        )
        _watch_tokens(loop, tokens, lambda: None)
        return ListenLink(loop, config.node.listen, acceptor, [seen.note, pin.note])

    def make_endpoint() -> Endpoint:
        return Endpoint(
            ours,
            initiator=True,
            entropy=os.urandom,
            limits=limits,
            admit=pin.check,
            heartbeat=heartbeat,
        )

    configured = config.node.join
    link = JoinLink(loop, lambda: configured or (head_of(state),), make_endpoint, pin.note)
    _watch_tokens(loop, tokens, link.try_now)
    return link


def _watch_tokens(loop: Loop, tokens: Sequence[FleetToken], changed: Callable[[], None]) -> None:
    """Take a new token while running; a link that stands is the head's to end."""
    if isinstance(tokens, FleetTokens):
        watch = TokenWatch(tokens, EventLog("agent.head_link"), changed)
        loop.add_timer_source(watch.next_timeout, watch.handle_timeout)


def head_of(state: StateFolder) -> str:
    """Where the head of a state folder takes joins, as it wrote down; else the usual address."""
    try:
        written = state.read_head() or {}
    except StartError:
        return DEFAULT_HEAD
    address = written.get("fleet")
    return address if isinstance(address, str) and address else DEFAULT_HEAD


class JoinLink:
    """Joins a head; of several addresses it tries one after the other until a link is up.

    Args:
        addresses: gives where the head may be now; never empty.
        make_endpoint: gives an initiator.
        linked: told of each head that linked.
    """

    def __init__(
        self,
        loop: Loop,
        addresses: Callable[[], tuple[str, ...]],
        make_endpoint: Callable[[], Endpoint],
        linked: Linked = lambda _: None,
    ) -> None:
        self._loop = loop
        self._linked = linked
        self._addresses = addresses
        self._make_endpoint = make_endpoint
        self._events: list[LinkEvent] = []
        self._look_at = 0.0
        self._tried_since: float | None = None
        self._busy = False
        self._link = self._open(addresses()[0])
        loop.add_timer_source(lambda: self._look_at, self._look)

    @property
    def label(self) -> str:
        return self._link.label

    @property
    def address(self) -> str:
        return self._link.address

    def events(self) -> list[LinkEvent]:
        events, self._events = self._events + self._link.events(), []
        for event in events:
            if isinstance(event, LinkUp):
                self._linked(event.peer)
            elif isinstance(event, LinkDown) and event.code == "replaced" and event.by_peer:
                raise Superseded(
                    f"{event.reason}; two processes have this node's key and state folder, or a "
                    "copy of it, and this one ends; keep one of them"
                )
        return events

    def send(self, message: Any) -> bool:
        return self._link.send(message)

    def set_busy(self, busy: bool) -> None:
        self._busy = busy
        self._link.set_busy(busy)

    def flush(self, now: float) -> None:
        self._link.flush(now)

    def try_now(self) -> None:
        """Without a link: try at once, however often it was refused before."""
        if not self._link.is_up:
            self._move(self._link.address, clock.now())

    def close(self, reason: str) -> None:
        self._loop.remove_timer_source(self._look)
        self._link.close(reason)

    def _open(self, address: str) -> DealerLink:
        link = DealerLink(address, self._make_endpoint)
        link.attach(self._loop)
        link.set_busy(self._busy)
        return link

    def _look(self, now: float) -> None:
        """Without a link: has the head moved, or is another address to be tried?"""
        self._look_at = now + LOOK_S
        if self._link.is_up:
            self._tried_since = None
            return
        if self._tried_since is None:
            self._tried_since = now
        addresses = self._addresses()
        if self._link.address not in addresses:
            self._move(addresses[0], now)
        elif len(addresses) > 1 and now - self._tried_since >= TRY_S:
            following = addresses.index(self._link.address) + 1
            self._move(addresses[following % len(addresses)], now)

    def _move(self, address: str, now: float) -> None:
        # A refusal of the former address would be taken for one of the next.
        self._events += [e for e in self._link.events() if not isinstance(e, PeerRefused)]
        self._link.close("the head is looked for elsewhere")
        self._link = self._open(address)
        self._tried_since = now


class ListenLink:
    """Waits for one head to call; the acceptor refuses others while it has a link.

    Args:
        linked: each is told of each head that linked.
    """

    def __init__(
        self, loop: Loop, address: str, acceptor: Acceptor, linked: Sequence[Linked]
    ) -> None:
        self._linked = linked
        self._acceptor = acceptor
        self._links = RouterLinks(
            address, acceptor, purpose="heads", setting="node.listen in agent.toml"
        )
        self._links.attach(loop)
        #: Return address of the link that is up.
        self._head: bytes | None = None

    @property
    def label(self) -> str:
        return f"a head at {self._links.address}"

    @property
    def address(self) -> str:
        return self._links.address

    def events(self) -> list[LinkEvent]:
        events = []
        for address, event in self._links.events():
            if isinstance(event, LinkUp):
                self._head = address
                for tell in self._linked:
                    tell(event.peer)
            elif isinstance(event, LinkDown):
                if address != self._head:
                    continue
                self._head = None
            events.append(event)
        return events

    def send(self, message: Any) -> bool:
        return self._head is not None and self._links.send(self._head, message)

    def set_busy(self, busy: bool) -> None:
        for _, link in self._acceptor.links():
            link.set_busy(busy)

    def flush(self, now: float) -> None:
        self._links.flush(now)

    def close(self, reason: str) -> None:
        self._links.close(reason)


class SeenHeads:
    """The last Hello of each head that called, in a file, so that an old one is not taken again.

    Args:
        path: made when the first head has called.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: dict[str, tuple[int, int]] = {}
        try:
            stored = json.loads(path.read_text())
            self._seen = {key: (int(boot), int(hello)) for key, (boot, hello) in stored.items()}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise StartError(
                f"can not read {path}: {error}; move it away, heads that call are noted anew"
            ) from error

    def get(self, public: bytes) -> tuple[int, int] | None:
        """Start and Hello number last seen of a key."""
        return self._seen.get(public.hex())

    def note(self, peer: PeerInfo) -> None:
        """A head's link is up."""
        key = peer.public.hex()
        self._seen.pop(key, None)
        self._seen[key] = (peer.incarnation, peer.hello_counter)
        while len(self._seen) > MAX_HEADS:
            del self._seen[next(iter(self._seen))]
        write_atomically(self._path, json.dumps(self._seen) + "\n")

"""Identities, tokens and repeatable entropy for links without sockets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bus.crypto import KeyPair
from bus.ids import NodeIdentity
from bus.keys import FleetToken, new_token, parse_token
from bus.link import LinkIdentity
from bus.messages.link import HeadConfirm, NodeConfirm

HEAD_KEY = KeyPair.from_secret(bytes(range(32)))


def entropy_from(seed: bytes) -> Callable[[int], bytes]:
    state = [0]

    def entropy(count: int) -> bytes:
        state[0] += 1
        return hashlib.shake_256(seed + state[0].to_bytes(8, "big")).digest(count)

    return entropy


def token(label: str = "current") -> FleetToken:
    text = new_token(HEAD_KEY.public, entropy_from(label.encode()))
    return parse_token(text, source=f"keys/{label}")


def key(name: str) -> KeyPair:
    return KeyPair.from_secret(hashlib.sha256(name.encode()).digest())


def head(**changes: Any) -> LinkIdentity:
    name, boot = changes.get("name", "head-1"), changes.get("incarnation", 5)
    made = LinkIdentity(
        role="head",
        name=name,
        static=HEAD_KEY,
        tokens=(token(),),
        incarnation=boot,
        confirm=lambda: HeadConfirm(identity=name, boot=boot, software="0.1.0"),
    )
    return replace(made, **changes)


def node(name: str = "gpu-2", boot: int = 3, **changes: Any) -> LinkIdentity:
    made = LinkIdentity(
        role="node",
        name=name,
        static=key(name),
        tokens=(token(),),
        incarnation=boot,
        confirm=lambda: NodeConfirm(
            identity=NodeIdentity(name), incarnation=boot, software="0.1.0"
        ),
    )
    return replace(made, **changes)

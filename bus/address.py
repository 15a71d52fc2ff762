"""Addresses as libzmq takes them: `tcp://HOST:PORT` and `ipc:///PATH`."""

from __future__ import annotations

import ipaddress
import re

from bus.errors import ConfigInvalid

_TCP = re.compile(r"tcp://(\[[^\]\s]+\]|[^:/\s]+):([0-9]+|\*)")
MAX_PORT = 65535
_LOCAL_HOSTS = frozenset({"localhost"})


def split_address(address: str, setting: str = "") -> tuple[str, int]:
    """Host and port of an address; an empty host for `ipc://PATH`, port 0 for a free one.

    Args:
        address: of either kind.
        setting: what a person changes to correct it, named in the error.

    Raises:
        ConfigInvalid: it is neither, with what it should look like.
    """
    if address.startswith("ipc://") and len(address) > len("ipc://"):
        return "", 0
    found = _TCP.fullmatch(address)
    port = 0 if found is None or found[2] == "*" else int(found[2])
    if found is None or port > MAX_PORT:
        where = f" ({setting})" if setting else ""
        raise ConfigInvalid(
            f"{address!r} is no address{where}; write it as tcp://HOST:PORT{_hint(address, port)}"
        )
    return found[1].strip("[]"), port


def is_local(address: str) -> bool:
    """Whether an address stays on this machine.

    Raises:
        ConfigInvalid: it is none.
    """
    host, _ = split_address(address)
    if host in _LOCAL_HOSTS or not host:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _hint(address: str, port: int) -> str:
    if port:
        return f" with a port up to {MAX_PORT}"
    with_front = f"tcp://{address}"
    return f", as in {with_front}" if _TCP.fullmatch(with_front) else ""

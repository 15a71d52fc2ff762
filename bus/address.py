"""Addresses as libzmq takes them: `tcp://HOST:PORT` and `ipc:///PATH`."""

from __future__ import annotations

import functools
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


@functools.lru_cache(maxsize=4096)
def network_of(host: str) -> str:
    """What callers are counted by: an IPv4 address, or the /64 that an IPv6 one lies in.

    Whoever has one address of a /64 has all of them. Anything else is taken as it is.
    """
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, 64), strict=False))


def _hint(address: str, port: int) -> str:
    if port:
        return f" with a port up to {MAX_PORT}"
    with_front = f"tcp://{address}"
    return f", as in {with_front}" if _TCP.fullmatch(with_front) else ""

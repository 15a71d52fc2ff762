"""Where the head of a state folder listens for clients, and what can be such an address."""

from __future__ import annotations

import os

from bus.address import split_address
from bus.errors import ConfigInvalid, Invalid, NoHead, NotAllowed
from bus.state import StateFolder

#: The door for clients, in what a running head writes down.
_API_KEY = "api"
_IPC = "ipc://"


def api_address(state: StateFolder) -> str:
    """The address that the head wrote down, else the socket that it would use.

    Raises:
        StartError: what it wrote down can not be read.
        NoHead: it wrote down no address for clients.
    """
    written = state.read_head()
    if written is None:
        return f"{_IPC}{state.run / 'api.sock'}"
    address = written.get(_API_KEY)
    if not isinstance(address, str):
        raise NoHead(f"the head of {state.path} has no door for clients; start it again: sfctl up")
    return address


def check_api_address(address: str) -> None:
    """See that an address is one, and that this user may use it.

    Raises:
        Invalid: it is no address.
        NotAllowed: its socket is another user's.
    """
    try:
        split_address(address)
    except ConfigInvalid:
        raise Invalid(
            f"{address!r} is no address of a head; it looks like ipc:///path/api.sock",
            param="address",
        ) from None
    if address.startswith(_IPC):
        _check_socket(address.removeprefix(_IPC))


def _check_socket(path: str) -> None:
    try:
        os.stat(path)
        allowed = os.access(path, os.R_OK | os.W_OK, effective_ids=True)
    except PermissionError:
        allowed = False
    except OSError:
        return  # Not there, or not yet: connecting tells.
    if not allowed:
        raise NotAllowed(
            f"this user may not open {path}; run this as the user that runs the head, or have the "
            "folder's owner let this user in"
        )

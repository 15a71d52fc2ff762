"""Where the head of a state folder listens for clients."""

from __future__ import annotations

from bus.errors import NoHead
from bus.state import StateFolder

#: The door for clients, in what a running head writes down.
_API_KEY = "api"


def api_address(state: StateFolder) -> str:
    """The address that the head wrote down, else the socket that it would use.

    Raises:
        StartError: what it wrote down can not be read.
        NoHead: it wrote down no address for clients.
    """
    written = state.read_head()
    if written is None:
        return f"ipc://{state.run / 'api.sock'}"
    address = written.get(_API_KEY)
    if not isinstance(address, str):
        raise NoHead(f"the head of {state.path} has no door for clients; start it again: sfctl up")
    return address

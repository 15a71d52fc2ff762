"""The codec of Link-F; its messages are in link.py and the other link_*.py."""

from __future__ import annotations

from bus.codec import Codec

#: A message joined from its parts may be this long.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

LINK = Codec("Link-F", max_bytes=MAX_MESSAGE_BYTES)

"""The head's side of all its links: its key, its fleet tokens, and who it says it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bus.errors import TokenRefused
from bus.keys import INSECURE_TOKEN, FleetToken, fingerprint, load_or_create_static_key
from bus.link import LinkIdentity
from bus.messages.link import HeadConfirm
from bus.process_info import this_process
from bus.state import StateFolder
from bus.token_files import TOKEN_FILE, FleetTokens
from bus.version import __version__
from head.config import FleetSection
from head.rows import StoredState

KEY_FILE = "head.key"


def head_identity(config: FleetSection, state: StateFolder, stored: StoredState) -> LinkIdentity:
    """What every handshake of this head is made with.

    Raises:
        TokenRefused: the key or a token can not be used, or a token is another head's.
    """
    key_file = state.keys / KEY_FILE
    key = load_or_create_static_key(key_file)
    own = fingerprint(key.public)

    def check(token: FleetToken) -> None:
        if token.head_fingerprint != own:
            raise TokenRefused(
                f"the fleet token {token.source} names the head key {token.head_fingerprint} and "
                f"{key_file} is {own}; put this head's own token or key back, or move the token "
                "away and make one with: sfctl token new"
            )

    tokens: Sequence[FleetToken] = (INSECURE_TOKEN,)
    if not config.insecure_no_auth:
        tokens = FleetTokens(token_file(config, state), check)
    confirm = HeadConfirm(
        identity=stored.head_id, boot=stored.boot, software=f"superfluid {__version__}"
    )
    return LinkIdentity(
        role="head",
        name=stored.head_id,
        static=key,
        tokens=tokens,
        incarnation=stored.boot,
        confirm=lambda: confirm,
        process=this_process(),
    )


def token_file(config: FleetSection, state: StateFolder) -> Path:
    """Where the head's fleet token is to be."""
    return Path(config.token_file) if config.token_file else state.keys / TOKEN_FILE

"""Fleet tokens, static keys and the boot counter: what a process must own before it may link.

A fleet token is one line, `sft1.<fingerprint of the head's key>.<32 secret bytes>.<checksum>`,
generated and never chosen. Two values are derived from its secret under separate labels: the
pre-shared key of the handshake, and a token id that travels in the clear, so that two tokens are
valid while they rotate and an error can say which one failed. All parts are lower-case base32, so
a double click selects the token and no case is lost on the way.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from bus.crypto import KEY_BYTES, Entropy, KeyPair, SecretKey
from bus.errors import StoreCorrupt, TokenRefused
from bus.ids import U32_MAX
from bus.secret_files import create_secret_file, read_secret_file, replace_private_file

TOKEN_ID_BYTES = 16
#: 160 bits: nobody finds a second key with the same fingerprint; 32 letters, read out loud.
FINGERPRINT_BYTES = 20
_TOKEN_PREFIX = "sft1"
_KEY_PREFIX = "sfk1"


@dataclass(frozen=True, slots=True)
class FleetToken:
    """What a fleet token gives.

    Attributes:
        head_fingerprint: of the head's static key; empty where none is pinned.
        psk: mixed into the handshake first.
        token_id: names the token in the clear.
        source: where it came from, for errors.
    """

    head_fingerprint: str
    psk: SecretKey
    token_id: bytes
    source: str

    @property
    def shown_id(self) -> str:
        """Enough of the id to tell tokens apart."""
        return show_token_id(self.token_id)

    @property
    def insecure(self) -> bool:
        return self.token_id == bytes(TOKEN_ID_BYTES)


#: For `insecure_no_auth`: frames are still sealed, but anybody may join.
INSECURE_TOKEN = FleetToken("", SecretKey(bytes(KEY_BYTES)), bytes(TOKEN_ID_BYTES), "no token")


def show_token_id(token_id: bytes) -> str:
    """The first 8 hex digits, as people see a token's id."""
    return token_id[:4].hex()


def fingerprint(public: bytes) -> str:
    """32 letters and digits that name a public key."""
    digest = hashlib.blake2b(public, digest_size=FINGERPRINT_BYTES, person=b"sf fingerprint")
    return _base32(digest.digest())


def is_fingerprint(text: str) -> bool:
    """Whether a text has the form of a key's fingerprint."""
    return _unbase32(text, FINGERPRINT_BYTES) is not None


def new_token(head_public: bytes, entropy: Entropy = os.urandom) -> str:
    """A fresh fleet token for the head with this static key."""
    body = f"{_TOKEN_PREFIX}.{fingerprint(head_public)}.{_base32(entropy(KEY_BYTES))}"
    return f"{body}.{_checksum(body)}"


def parse_token(text: str, *, source: str) -> FleetToken:
    """The token in `text`; white space around it is no part of it.

    Args:
        text: one line.
        source: the file it came from, named in errors.

    Raises:
        TokenRefused: it is no token, or a character of it changed.
    """
    parts = text.strip().split(".")
    if len(parts) != 4 or parts[0] != _TOKEN_PREFIX:
        raise TokenRefused(
            f"{source} holds no fleet token (one line that begins with {_TOKEN_PREFIX}.); "
            "copy the head's token file, or make one on the head with: sfctl token new"
        )
    _check_sum(parts, source, "the fleet token")
    secret = _unbase32(parts[2], KEY_BYTES)
    if secret is None or _unbase32(parts[1], FINGERPRINT_BYTES) is None:
        raise TokenRefused(f"the fleet token in {source} is damaged; copy the head's again")
    return FleetToken(
        head_fingerprint=parts[1],
        psk=SecretKey(_derive(secret, b"sf fleet psk", KEY_BYTES)),
        token_id=_derive(secret, b"sf token id", TOKEN_ID_BYTES),
        source=source,
    )


def load_token(path: Path) -> FleetToken:
    """The token in a file.

    Raises:
        TokenRefused: missing, damaged, or open to others; the text names file and remedy.
    """
    try:
        text = read_secret_file(path)
    except FileNotFoundError:
        raise TokenRefused(
            f"there is no fleet token at {path}; copy the head's token file there, "
            "or make one on the head with: sfctl token new"
        ) from None
    return parse_token(text, source=str(path))


def load_or_create_static_key(path: Path, entropy: Entropy = os.urandom) -> KeyPair:
    """The static key in a file, made there when there is none (two makers agree on one).

    Raises:
        TokenRefused: damaged, or open to others; the text names file and remedy.
    """
    try:
        return _parse_key(read_secret_file(path), path)
    except FileNotFoundError:
        body = f"{_KEY_PREFIX}.{_base32(entropy(KEY_BYTES))}"
    try:
        create_secret_file(path, f"{body}.{_checksum(body)}")
    except FileExistsError:
        pass
    return _parse_key(read_secret_file(path), path)


def _parse_key(text: str, path: Path) -> KeyPair:
    parts = text.split(".")
    if len(parts) != 3 or parts[0] != _KEY_PREFIX:
        raise TokenRefused(f"{path} holds no key of ours; restore it, or move it away")
    _check_sum(parts, str(path), "the key")
    secret = _unbase32(parts[1], KEY_BYTES)
    if secret is None:
        raise TokenRefused(f"the key in {path} is damaged; restore it, or move it away")
    return KeyPair.from_secret(secret)


def next_boot(path: Path) -> int:
    """Raise the boot counter in a file and give its new value, 1 at first; durable on return.

    The caller holds the state folder's lock, so no two processes count at once.

    Raises:
        StoreCorrupt: the file holds no number; a guess could repeat an older one.
    """
    try:
        text = read_secret_file(path, error=StoreCorrupt)
    except FileNotFoundError:
        text = "0"
    if not (text.isdecimal() and int(text) < U32_MAX):
        raise StoreCorrupt(
            f"the boot counter {path} is damaged; write a number into it that is higher than "
            f"any boot before (such as {U32_MAX // 2})"
        )
    boot = int(text) + 1
    replace_private_file(path, str(boot))
    return boot


def _derive(secret: bytes, label: bytes, length: int) -> bytes:
    return hashlib.blake2b(key=secret, person=label, digest_size=length).digest()


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode()):08x}"


def _check_sum(parts: list[str], source: str, what: str) -> None:
    if _checksum(".".join(parts[:-1])) != parts[-1]:
        raise TokenRefused(
            f"{what} in {source} was changed (its checksum does not fit); copy it again"
        )


def _base32(data: bytes) -> str:
    return base64.b32encode(data).decode().rstrip("=").lower()


def _unbase32(text: str, length: int) -> bytes | None:
    """The bytes, or None when the text is not exactly what `_base32` writes."""
    try:
        data = base64.b32decode(text.upper() + "=" * (-len(text) % 8))
    except (binascii.Error, ValueError):
        return None
    return data if len(data) == length and _base32(data) == text else None

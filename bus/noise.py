"""The Noise handshake state (The Noise Protocol Framework, revision 34), over 25519, ChaChaPoly
and BLAKE2b.

The link uses the pattern IXpsk0: `-> psk, e, s, payload` and `<- e, ee, se, s, es, payload`. The
first message needs no Diffie-Hellman to be verified: its payload and the sender's static key are
sealed under psk and ephemeral alone, so a responder can refuse a stale or unwanted peer before it
spends any.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus.crypto import (
    HASH_BYTES,
    KEY_BYTES,
    TAG_BYTES,
    Entropy,
    KeyPair,
    SecretKey,
    aead_open,
    aead_seal,
    blake2b,
    noise_hkdf,
    x25519,
)
from bus.errors import AuthError


@dataclass(frozen=True, slots=True)
class Pattern:
    """A handshake pattern without pre-messages: the tokens of each message, initiator first."""

    name: str
    messages: tuple[tuple[str, ...], ...]

    @property
    def protocol_name(self) -> bytes:
        return f"Noise_{self.name}_25519_ChaChaPoly_BLAKE2b".encode()

    @property
    def has_psk(self) -> bool:
        return any("psk" in tokens for tokens in self.messages)


IX_PSK0 = Pattern("IXpsk0", (("psk", "e", "s"), ("e", "ee", "se", "s", "es")))


class SymmetricState:
    """Chaining key, handshake hash and the cipher key of the moment (revision 34, 5.2)."""

    def __init__(self, protocol_name: bytes) -> None:
        padded = protocol_name.ljust(HASH_BYTES, b"\0")
        self.hash = padded if len(padded) == HASH_BYTES else blake2b(protocol_name)
        self.chaining_key = self.hash
        self._key = b""
        self._nonce = 0

    @property
    def has_key(self) -> bool:
        return bool(self._key)

    def mix_hash(self, data: bytes) -> None:
        self.hash = blake2b(self.hash + data)

    def mix_key(self, material: bytes) -> None:
        self.chaining_key, key = noise_hkdf(self.chaining_key, material, 2)
        self._set_key(key)

    def mix_key_and_hash(self, material: bytes) -> None:
        self.chaining_key, mixed, key = noise_hkdf(self.chaining_key, material, 3)
        self.mix_hash(mixed)
        self._set_key(key)

    def _set_key(self, key: bytes) -> None:
        self._key = key[:KEY_BYTES]
        self._nonce = 0

    def encrypt_and_hash(self, plaintext: bytes) -> bytes:
        sealed = plaintext
        if self._key:
            sealed = aead_seal(self._key, self._nonce, self.hash, plaintext)
            self._nonce += 1
        self.mix_hash(sealed)
        return sealed

    def decrypt_and_hash(self, sealed: bytes) -> bytes:
        plaintext = sealed
        if self._key:
            plaintext = aead_open(self._key, self._nonce, self.hash, sealed)
            self._nonce += 1
        self.mix_hash(sealed)
        return plaintext


class NoiseHandshake:
    """One side of one handshake. Messages alternate, the initiator writes first.

    After the last message `complete` is true, and `handshake_hash`, `chaining_key` and
    `remote_static` are what the link's keys and checks rest on. After an `AuthError` the state
    is spent.

    Args:
        initiator: whether this side writes the first message.
        static: our X25519 key.
        psk: the pre-shared key, for patterns with one.
        prologue: bytes that both sides must have equal, bound by the first tag.
        entropy: gives the ephemeral key.
    """

    def __init__(
        self,
        *,
        initiator: bool,
        static: KeyPair,
        psk: SecretKey | None,
        prologue: bytes,
        entropy: Entropy,
        pattern: Pattern = IX_PSK0,
    ) -> None:
        if pattern.has_psk and psk is None:
            raise AuthError(f"the pattern {pattern.name} needs a pre-shared key")
        self._initiator = initiator
        self._static = static
        self._psk = psk
        self._entropy = entropy
        self._pattern = pattern
        self._next = 0
        self._ephemeral: KeyPair | None = None
        self._remote_ephemeral = b""
        self.remote_static = b""
        self._state = SymmetricState(pattern.protocol_name)
        self._state.mix_hash(prologue)

    @property
    def complete(self) -> bool:
        return self._next == len(self._pattern.messages)

    @property
    def handshake_hash(self) -> bytes:
        return self._state.hash

    @property
    def chaining_key(self) -> bytes:
        return self._state.chaining_key

    def write(self, payload: bytes) -> bytes:
        """Our next handshake message, with `payload` sealed as far as the pattern can by then."""
        out = bytearray()
        for token in self._take_tokens(ours=True):
            if token == "e":
                self._ephemeral = KeyPair.generate(self._entropy)
                out += self._ephemeral.public
                self._mix_ephemeral(self._ephemeral.public)
            elif token == "s":
                out += self._state.encrypt_and_hash(self._static.public)
            else:
                self._mix(token)
        out += self._state.encrypt_and_hash(payload)
        return bytes(out)

    def read(self, message: bytes) -> bytes:
        """The payload of the peer's next handshake message.

        Raises:
            AuthError: too short, a key that can not be used, or a tag that does not verify.
        """
        rest = message
        for token in self._take_tokens(ours=False):
            if token == "e":
                self._remote_ephemeral, rest = _cut(rest, KEY_BYTES)
                self._mix_ephemeral(self._remote_ephemeral)
            elif token == "s":
                sealed, rest = _cut(rest, KEY_BYTES + TAG_BYTES * self._state.has_key)
                self.remote_static = self._state.decrypt_and_hash(sealed)
            else:
                self._mix(token)
        return self._state.decrypt_and_hash(rest)

    def _take_tokens(self, *, ours: bool) -> tuple[str, ...]:
        if self.complete or ours != ((self._next % 2 == 0) == self._initiator):
            raise AuthError("a handshake message out of turn")
        tokens = self._pattern.messages[self._next]
        self._next += 1
        return tokens

    def _mix_ephemeral(self, public: bytes) -> None:
        self._state.mix_hash(public)
        if self._pattern.has_psk:
            self._state.mix_key(public)

    def _mix(self, token: str) -> None:
        if token == "psk" and self._psk is not None:
            self._state.mix_key_and_hash(self._psk.reveal())
        else:
            self._state.mix_key(self._dh(token))

    def _dh(self, token: str) -> bytes:
        """The first letter of a token is the initiator's key, the second the responder's."""
        initiators, responders = token[0], token[1]
        ours, theirs = (initiators, responders) if self._initiator else (responders, initiators)
        if self._ephemeral is None:
            raise AuthError("a handshake message out of turn")
        secret = self._static.secret if ours == "s" else self._ephemeral.secret
        return x25519(secret, self.remote_static if theirs == "s" else self._remote_ephemeral)


def _cut(data: bytes, length: int) -> tuple[bytes, bytes]:
    if len(data) < length:
        raise AuthError("a handshake message is too short")
    return data[:length], data[length:]

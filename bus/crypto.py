"""The primitives under the sealed link: X25519, ChaCha20-Poly1305, XSalsa20-Poly1305, BLAKE2b.

Thin and strict covers of PyNaCl's bindings and hashlib; the only module that imports nacl. Lengths
are checked before every call, because PyNaCl reads past a key that is too short, and whatever it
raises for bad input (four kinds of error) becomes one `AuthError`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass

import nacl.bindings

from bus.errors import AuthError

KEY_BYTES = 32
TAG_BYTES = 16
HASH_BYTES = 64
#: Nonce of `secretbox_seal`: as long as a frame's header, which is why that sealing was chosen.
SECRETBOX_NONCE_BYTES = 24

#: `entropy(n)` gives n unpredictable bytes (`os.urandom`, or a seeded stream in tests).
Entropy = Callable[[int], bytes]


class SecretKey:
    """32 secret bytes that no log, repr or pickle shows. Read them with `reveal()`."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        if len(value) != KEY_BYTES:
            raise AuthError(f"a key has {KEY_BYTES} bytes, not {len(value)}")
        self._value = bytes(value)

    def reveal(self) -> bytes:
        return self._value

    def __repr__(self) -> str:
        return "SecretKey(hidden)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretKey) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(hashlib.blake2b(self._value, digest_size=8, person=b"sf key hash").digest())

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a secret key is not serialised")


@dataclass(frozen=True, slots=True)
class KeyPair:
    """An X25519 key: `public` may be shown, `secret` may not."""

    secret: SecretKey
    public: bytes

    @classmethod
    def generate(cls, entropy: Entropy) -> KeyPair:
        return cls.from_secret(entropy(KEY_BYTES))

    @classmethod
    def from_secret(cls, secret: bytes) -> KeyPair:
        key = SecretKey(secret)
        return cls(key, nacl.bindings.crypto_scalarmult_base(key.reveal()))


def blake2b(data: bytes) -> bytes:
    """BLAKE2b with 64 bytes. Source: RFC 7693."""
    return hashlib.blake2b(data).digest()


def hmac_blake2b(key: bytes, data: bytes) -> bytes:
    """HMAC over BLAKE2b. Source: RFC 2104."""
    return hmac.new(key, data, hashlib.blake2b).digest()


def noise_hkdf(chaining_key: bytes, material: bytes, outputs: int) -> tuple[bytes, ...]:
    """Noise's HKDF: `outputs` blocks of 64 bytes. Source: The Noise Protocol Framework, 4.3."""
    temporary = hmac_blake2b(chaining_key, material)
    blocks: list[bytes] = []
    for index in range(1, outputs + 1):
        blocks.append(hmac_blake2b(temporary, (blocks[-1] if blocks else b"") + bytes([index])))
    return tuple(blocks)


def hkdf_key(material: bytes, info: bytes) -> bytes:
    """One 32-byte key bound to `info`: HKDF-BLAKE2b with a salt of zeros. Source: RFC 5869."""
    return hmac_blake2b(hmac_blake2b(bytes(HASH_BYTES), material), info + b"\x01")[:KEY_BYTES]


def x25519(secret: SecretKey, public: bytes) -> bytes:
    """The shared secret of a Diffie-Hellman exchange. Source: RFC 7748.

    Raises:
        AuthError: the public key is of low order (the result would not depend on our key).
    """
    if len(public) != KEY_BYTES:
        raise AuthError(f"a public key has {KEY_BYTES} bytes, not {len(public)}")
    try:
        shared: bytes = nacl.bindings.crypto_scalarmult(secret.reveal(), public)
    except Exception:  # noqa: BLE001 - PyNaCl's error says only "unexpected library error"
        raise AuthError("the peer sent a key that can not be used") from None
    return shared


def aead_seal(key: bytes, nonce: int, associated: bytes, plaintext: bytes) -> bytes:
    """ChaCha20-Poly1305 with Noise's nonce (4 zero bytes, u64 little-endian)."""
    sealed: bytes = nacl.bindings.crypto_aead_chacha20poly1305_ietf_encrypt(
        plaintext, associated, _noise_nonce(nonce), key
    )
    return sealed


def aead_open(key: bytes, nonce: int, associated: bytes, sealed: bytes) -> bytes:
    """Undo `aead_seal`.

    Raises:
        AuthError: anything differs from what was sealed.
    """
    if len(key) != KEY_BYTES or len(sealed) < TAG_BYTES:
        raise AuthError("a sealed text is shorter than its tag")
    try:
        plaintext: bytes = nacl.bindings.crypto_aead_chacha20poly1305_ietf_decrypt(
            sealed, associated, _noise_nonce(nonce), key
        )
    except Exception:  # noqa: BLE001 - mapped: which part failed is nobody's business
        raise AuthError("a handshake message does not verify") from None
    return plaintext


def _noise_nonce(nonce: int) -> bytes:
    return bytes(4) + nonce.to_bytes(8, "little")


def secretbox_seal(key: bytes, nonce: bytes, plaintext: bytes) -> bytes:
    """XSalsa20-Poly1305, tag first. A nonce must never serve twice under one key."""
    sealed: bytes = nacl.bindings.crypto_secretbox_easy(plaintext, nonce, key)
    return sealed


def secretbox_open(key: bytes, nonce: bytes, sealed: bytes) -> bytes:
    """Undo `secretbox_seal`.

    Raises:
        AuthError: key, nonce or text differ from what was sealed.
    """
    if len(nonce) != SECRETBOX_NONCE_BYTES or len(sealed) < TAG_BYTES:
        raise AuthError("a sealed frame is shorter than its tag")
    try:
        plaintext: bytes = nacl.bindings.crypto_secretbox_open_easy(sealed, nonce, key)
    except Exception:  # noqa: BLE001 - mapped: which part failed is nobody's business
        raise AuthError("a frame does not verify") from None
    return plaintext

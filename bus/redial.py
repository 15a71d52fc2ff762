"""When an initiator says Hello, and with which token.

Hello is sent again after a random time whose bound doubles, so that a thousand nodes do not knock
at once when their head comes back; after a Reject the waits are longer. Each Hello is a fresh
handshake: only the answer to the latest one counts.
"""

from __future__ import annotations

from bus.crypto import Entropy
from bus.handshake import InitiatorHandshake
from bus.link import LinkIdentity, LinkLimits

#: Bound of the first wait; none is shorter than half of it.
FIRST_RETRY_S = 0.5
FIRST_REJECT_RETRY_S = 2.0
#: Doubling stops here; the limits are long reached.
_MAX_DOUBLINGS = 16


class Redial:
    """The Hellos of one initiator.

    Attributes:
        pending: the handshake whose answer is awaited.
        due_at: when to say Hello again, or None.
    """

    def __init__(self, identity: LinkIdentity, entropy: Entropy, limits: LinkLimits) -> None:
        self.pending: InitiatorHandshake | None = None
        self.due_at: float | None = None
        self._identity = identity
        self._entropy = entropy
        self._limits = limits
        self._token_index = 0
        self._attempts = 0
        self._rejects = 0

    def hello(self, now: float) -> bytes:
        """A fresh Hello frame to send; the next is due later."""
        tokens = self._identity.tokens
        self.pending = InitiatorHandshake(
            self._identity,
            tokens[self._token_index % len(tokens)],
            int.from_bytes(self._entropy(8), "big"),
            self._entropy,
        )
        wait = self._jitter(FIRST_RETRY_S, self._limits.hello_retry_s, self._attempts)
        self.due_at = now + wait
        self._attempts += 1
        return self.pending.hello

    def answered(self) -> None:
        self.pending = None
        self.due_at = None

    def refused(self, now: float, *, token: bool = False) -> None:
        """The handshake failed; `token` says that its fleet token was the reason.

        Another token of ours is tried soon, everything else after a longer wait.
        """
        self.pending = None
        if token:
            self._token_index += 1
            if self._token_index % len(self._identity.tokens):
                self.due_at = now + self._jitter(FIRST_RETRY_S, FIRST_RETRY_S, 0)
                return
        most = self._limits.reject_retry_s
        self.due_at = now + self._jitter(FIRST_REJECT_RETRY_S, most, self._rejects)
        self._rejects += 1

    def reset(self) -> None:
        """Start over with short waits."""
        self.answered()
        self._attempts = self._rejects = 0

    def _jitter(self, first_s: float, most_s: float, attempt: int) -> float:
        low = first_s / 2
        high = min(most_s, first_s * 2.0 ** min(attempt, _MAX_DOUBLINGS))
        share: float = int.from_bytes(self._entropy(4), "big") / 2**32
        return low + share * max(0.0, high - low)

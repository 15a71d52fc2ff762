"""When an initiator says Hello, and with which token.

Hello is sent again after a random time whose bound doubles, so that a thousand nodes do not knock
at once when their head comes back; after a refusal the waits are longer, as long as its reason
lasts. Each Hello is a fresh handshake: only the answer to the latest one counts.
"""

from __future__ import annotations

from bus.crypto import Entropy
from bus.handshake import InitiatorHandshake
from bus.link import LinkIdentity, LinkLimits, Refusal

#: Bound of the first wait; none is shorter than half of it.
FIRST_RETRY_S = 0.5
FIRST_REJECT_RETRY_S = 2.0
#: Bound of the wait for an operator's approval: 200 nodes that wait cost their head less than 1% of
#: a core, and one that was approved is there within this.
APPROVAL_RETRY_S = 10.0
#: Refusals that pass by themselves within moments.
_MOMENTARY = frozenset({Refusal.TOO_MANY_HANDSHAKES.text, Refusal.HELLO_NOT_NEWER.text})
#: Doubling stops here; the limits are long reached.
_MAX_DOUBLINGS = 16


class Redial:
    """The Hellos of one initiator.

    Attributes:
        pending: the handshake whose answer is awaited.
        due_at: when to say Hello again, or None.
        rejects: refusals in a row that were answered by longer and longer waits.
        waits: the last handshake was refused, and no Hello was said since.
    """

    def __init__(self, identity: LinkIdentity, entropy: Entropy, limits: LinkLimits) -> None:
        self.pending: InitiatorHandshake | None = None
        self.due_at: float | None = None
        self._identity = identity
        self._entropy = entropy
        self._limits = limits
        self._token_index = 0
        self._attempts = 0
        self.rejects = 0
        self.waits = False

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
        self.waits = False
        self._attempts += 1
        return self.pending.hello

    def answered(self) -> None:
        self.pending = None
        self.due_at = None

    def refused(self, now: float, code: str) -> None:
        """The handshake failed: with another token of ours it is tried soon, else after a wait.

        Args:
            now: seconds.
            code: why, as a `PeerRefused` has it.
        """
        self.pending, self.waits = None, True
        self.due_at = now + self._wait(code)

    def _wait(self, code: str) -> float:
        if code == Refusal.TOKEN_REFUSED.text:
            self._token_index += 1
            if self._token_index % len(self._identity.tokens):
                return self._jitter(FIRST_RETRY_S, FIRST_RETRY_S, 0)
        if code == Refusal.NOT_ENROLLED.text:
            return self._jitter(APPROVAL_RETRY_S, APPROVAL_RETRY_S, 0)
        limits = self._limits
        most = limits.hello_retry_s if code in _MOMENTARY else limits.reject_retry_s
        wait = self._jitter(FIRST_REJECT_RETRY_S, most, self.rejects)
        self.rejects += 1
        return wait

    def reset(self, rejects: int = 0) -> None:
        """Start over with short waits; after so many refusals in a row, if there were any."""
        self.answered()
        self._attempts, self.rejects, self.waits = 0, rejects, False

    def _jitter(self, first_s: float, most_s: float, attempt: int) -> float:
        low = first_s / 2
        high = min(most_s, first_s * 2.0 ** min(attempt, _MAX_DOUBLINGS))
        share: float = int.from_bytes(self._entropy(4), "big") / 2**32
        return low + share * max(0.0, high - low)

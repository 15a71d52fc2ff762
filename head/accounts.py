"""What failures left of an answer that has not ended: kept, so that a new start of the head knows.

Tokens that were computed again, those that were found in a cache, and what it is suspected of.
"""

from __future__ import annotations

from head.answers import Answer
from head.outbox import Outbox
from head.rows import PutAccount


def account_of(answer: Answer) -> PutAccount:
    """The row of an answer as it stands."""
    return PutAccount(
        answer=answer.id,
        cached_tokens=answer.cached_tokens,
        replayed_tokens=answer.replayed_tokens,
        suspicion=answer.suspicion.encode(),
    )


def keep_account(answer: Answer, outbox: Outbox) -> None:
    """Keep an answer's account when it has changed; one that is not stored has nothing to keep."""
    if not answer.stored or answer.ended:
        return
    account = account_of(answer)
    if account != (answer.account or PutAccount(answer=answer.id)):
        answer.account = account
        outbox.persist(account)

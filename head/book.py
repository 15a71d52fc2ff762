"""The book of answers: every answer by id, session and key, its readers, and its one end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgpack

from bus.api_maps import to_map
from bus.errors import Invalid, NotFound, RateLimited, SuperfluidError
from bus.ids import PackedIds, RequestId, SessionId, count_ids
from head.answers import ENDED, Answer, Subscription
from head.effects import ClientKey
from head.outbox import Outbox
from head.rows import PurgeAnswers, PutAnswer, PutFinish
from head.texts import TextDesk

#: Open requests of one connection; a connection costs memory for each.
MAX_OPEN_REQUESTS = 1024


class AnswerBook:
    """Owned by the core. Invariant: each open (client, request) names one open subscription.

    Args:
        boot_wall_offset_s: added to `now` it is wall time, for rows that people read.
    """

    def __init__(self, outbox: Outbox, texts: TextDesk, *, boot_wall_offset_s: float) -> None:
        self._outbox = outbox
        self._texts = texts
        self._wall_offset_s = boot_wall_offset_s
        self._answers: dict[int, Answer] = {}
        #: The oldest first; a session that was not made has one.
        self._by_session: dict[SessionId, list[Answer]] = {}
        self._by_key: dict[tuple[str, str], Answer] = {}
        self._open: dict[ClientKey, dict[RequestId, Subscription]] = {}
        #: Connections that take nothing now.
        self._stalled: set[ClientKey] = set()
        #: Told of every answer that ends, in the round that keeps its end.
        self.on_end: Callable[[Answer], None] = lambda answer: None

    def __iter__(self) -> Iterator[Answer]:
        return iter(self._answers.values())

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, answer: Answer) -> None:
        """Keep an answer. An earlier one with its key goes; it must be one to be tried again."""
        if answer.key is not None:
            self._free_key(answer.owner, answer.key)
            self._by_key[answer.owner, answer.key] = answer
        self._answers[answer.id] = answer
        self._by_session.setdefault(answer.session, []).append(answer)

    def get(self, answer: int) -> Answer | None:
        return self._answers.get(answer)

    def blobs_in_use(self) -> set[bytes]:
        """The files that answers name which have not ended."""
        return {blob.sha256 for answer in self if not answer.ended for blob in answer.blobs}

    def by_key(self, owner: str, key: str) -> Answer | None:
        return self._by_key.get((owner, key))

    def by_session(self, owner: str, session: SessionId) -> Answer | None:
        """The newest answer of a session; one of another owner is as good as none."""
        found = self._by_session.get(session)
        return found[-1] if found and found[-1].owner == owner else None

    def of_session(self, owner: str, session: SessionId) -> list[Answer]:
        """The answers of a session, the newest first."""
        found = reversed(self._by_session.get(session, ()))
        return [answer for answer in found if answer.owner == owner]

    # --- readers ------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        """Add a reader; it gets what is there already by the next pump.

        Raises:
            Invalid: its id names an open request of the client.
            RateLimited: the client has as many open requests as it may.
        """
        requests = self._open.setdefault(subscription.client, {})
        if subscription.request in requests:
            raise Invalid("id names an open request already; choose another", param="id")
        if len(requests) >= MAX_OPEN_REQUESTS:
            raise RateLimited(
                f"{len(requests)} requests of this connection are open, which is all it may have; "
                "wait for some to end",
                retry_after_ms=1000,
            )
        subscription.stalled = subscription.client in self._stalled
        requests[subscription.request] = subscription
        subscription.answer.subscriptions.append(subscription)

    def is_open(self, client: ClientKey, request: RequestId) -> bool:
        return request in self._open.get(client, {})

    def subscription(self, client: ClientKey, request: RequestId) -> Subscription:
        """The open request of a client.

        Raises:
            NotFound: none is open under this id.
        """
        found = self._open.get(client, {}).get(request)
        if found is None:
            raise NotFound("no open request of this connection has that id", param="about")
        return found

    def client_gone(self, client: ClientKey) -> list[Answer]:
        """Drop all readers of a client; gives the answers that they read."""
        self._stalled.discard(client)
        dropped = list(self._open.pop(client, {}).values())
        for subscription in dropped:
            subscription.closed = True
            subscription.answer.subscriptions.remove(subscription)
        return [subscription.answer for subscription in dropped]

    def stall(self, client: ClientKey) -> None:
        """A client's connection takes nothing: what is for its readers waits in their answers."""
        self._stalled.add(client)
        for subscription in self._open.get(client, {}).values():
            subscription.stalled = True

    def unstall(self, client: ClientKey) -> list[Answer]:
        """It reads again; gives the answers whose readers go on from where they were."""
        self._stalled.discard(client)
        going_on = [found for found in self._open.get(client, {}).values() if found.stalled]
        for subscription in going_on:
            subscription.stalled = False
            self.pump_one(subscription)
        return [subscription.answer for subscription in going_on]

    def pump(self, answer: Answer) -> None:
        """Send every reader what it may have now."""
        for subscription in list(answer.subscriptions):
            self.pump_one(subscription)

    def pump_one(self, subscription: Subscription) -> None:
        answer = subscription.answer
        try:
            replies = subscription.pump(self._texts)
        except SuperfluidError as error:
            replies = [subscription.fail(error)]
        self._outbox.reply(*replies)
        if subscription.closed:
            answer.subscriptions.remove(subscription)
            self._open.get(subscription.client, {}).pop(subscription.request, None)

    # --- what is kept -------------------------------------------------------------------------

    def store(self, answer: Answer) -> None:
        """Keep the answer's request, once."""
        if answer.stored:
            return
        answer.stored = True
        self._outbox.persist(
            PutAnswer(
                answer=answer.id,
                session=answer.session,
                owner=answer.owner,
                key=answer.key,
                model=answer.model,
                prompt=answer.prompt,
                context_tokens=answer.prompt_tokens if answer.is_turn else 0,
                options=encode_options(answer),
                on_disconnect="keep" if answer.keep else "cancel",
                created_wall_s=self.wall(answer.accepted_s),
            )
        )

    def end(
        self, answer: Answer, finish: str, now: float, error: SuperfluidError | None = None
    ) -> None:
        """The one end of an answer; its readers get it after their last token."""
        if answer.ended:
            return
        if answer.text_job is not None:
            self._texts.drop(answer.text_job)
            answer.text_job = None
        answer.stage = ENDED
        answer.finish = finish
        answer.error = error
        answer.ended_s = now
        answer.prompt_tokens = answer.prompt_tokens or count_ids(answer.prompt)
        if answer.stored:
            self._outbox.persist(
                PutFinish(
                    answer=answer.id,
                    finish=finish,
                    error=msgpack.packb(error.to_dict()) if error else b"",
                    prompt_tokens=answer.prompt_tokens,
                    cached_tokens=answer.cached_tokens,
                    completion_tokens=len(answer.tokens),
                    finished_wall_s=self.wall(now),
                    stop=answer.stop,
                    replayed_tokens=answer.replayed_tokens,
                )
            )
        self.on_end(answer)
        # What it took to run it is on disk, or will never be asked for again.
        answer.prompt, answer.reader = PackedIds(b""), None
        self.pump(answer)
        if not answer.stored:
            self._forget(answer)

    def purge(self, ended_before_s: float) -> None:
        """Forget answers that ended before a time and that nobody reads."""
        old = [
            answer
            for answer in self._answers.values()
            if answer.ended and answer.ended_s <= ended_before_s and not answer.subscriptions
        ]
        for answer in old:
            self._forget(answer)
        if old:
            self._outbox.persist(PurgeAnswers(answers=tuple(answer.id for answer in old)))

    def wall(self, now: float) -> float:
        """Wall time of a moment, seconds since 1970."""
        return now + self._wall_offset_s

    def from_wall(self, wall_s: float) -> float:
        return wall_s - self._wall_offset_s

    def _free_key(self, owner: str, key: str) -> None:
        before = self._by_key.get((owner, key))
        if before is None:
            return
        if not before.may_be_tried_again:
            raise ValueError(f"answer {before.id} has the key of a new one")
        self._forget(before)
        if before.stored:
            self._outbox.persist(PurgeAnswers(answers=(before.id,)))

    def _forget(self, answer: Answer) -> None:
        self._answers.pop(answer.id, None)
        others = self._by_session.pop(answer.session, [])
        if kept := [other for other in others if other is not answer]:
            self._by_session[answer.session] = kept
        if answer.key is not None:
            self._by_key.pop((answer.owner, answer.key), None)


def encode_options(answer: Answer) -> bytes:
    """What is needed, beside the prompt, to run an answer again."""
    packed: bytes = msgpack.packb(
        {
            "sampling": to_map(answer.sampling),
            "max_new": answer.max_new,
            "wall_ms": answer.wall_ms,
            "qos": answer.qos,
            "exact": answer.exact,
            "pause_when_slow": answer.pause_when_slow,
            "keep_output": answer.keep_output,
            "joined_at": answer.joined_at,
            "blobs": [to_map(blob) for blob in answer.blobs],
            "channels": answer.channels.to_map() if answer.channels is not None else None,
            "media": [to_map(ref) for ref in answer.media],
            "request_digest": answer.request_digest,
            "tokenizer_digest": answer.tokenizer_digest,
        }
    )
    return packed

"""Answers as the store gives them back at the head's start."""

from __future__ import annotations

import msgpack

from bus.api_maps import from_map
from bus.errors import error_from_dict
from bus.ids import NodeIdentity, PackedIds, count_ids, unpack_ids
from bus.messages.media import MediaRef
from bus.messages.parts import BlobRef
from bus.messages.sampling import SamplingParams
from head.accounts import account_of
from head.answer_pieces import Channels
from head.answers import ENDED, NOT_KNOWN_S, PREPARING, Answer
from head.book import AnswerBook
from head.rows import FINISHED, StoredAnswer
from head.suspects import Suspicion


def answer_from(stored: StoredAnswer, book: AnswerBook, now: float) -> Answer:
    """An answer as it was when the head ended.

    Raises:
        ValueError, TypeError, KeyError, Invalid: its row is damaged.
    """
    options = msgpack.unpackb(stored.options)
    error = error_from_dict(msgpack.unpackb(stored.error)) if stored.error else None
    finished = stored.state == FINISHED
    sampling = from_map(SamplingParams, options["sampling"])
    channels = options.get("channels")
    if len(stored.logprobs) != sampling.record_bytes * count_ids(stored.tokens):
        raise ValueError("it has not as many log-probabilities as tokens")
    made = count_ids(stored.tokens) > stored.first_offset
    answer = Answer(
        id=stored.answer,
        session=stored.session,
        owner=stored.owner,
        key=stored.key,
        model=stored.model,
        sampling=sampling,
        max_new=options["max_new"],
        wall_ms=options["wall_ms"],
        qos=options["qos"],
        exact=options["exact"],
        pause_when_slow=options.get("pause_when_slow", False),
        keep_output=options.get("keep_output", True),
        joined_at=options.get("joined_at"),
        channels=Channels.from_map(channels) if channels else None,
        blobs=tuple(from_map(BlobRef, blob) for blob in options.get("blobs", ())),
        media=tuple(from_map(MediaRef, ref) for ref in options.get("media", ())),
        request_digest=options.get("request_digest", b""),
        tokenizer_digest=options.get("tokenizer_digest", 0),
        keep=stored.on_disconnect == "keep",
        accepted_s=book.from_wall(stored.created_wall_s),
        budget_from_s=now - stored.used_ms / 1000,
        prompt=PackedIds(stored.prompt),
        stored=True,
        tokens=unpack_ids(stored.tokens),
        logprobs=bytearray(stored.logprobs),
        stop=stored.stop,
        stage=ENDED if finished else PREPARING,
        finish=stored.finish,
        error=error,
        # What computed its last token is known when its latest generation did.
        numerics=stored.numerics if made or not stored.tokens else "",
        prompt_tokens=stored.prompt_tokens or count_ids(stored.prompt),
        cached_tokens=stored.cached_tokens,
        replayed_tokens=stored.replayed_tokens,
        is_replaying=stored.replays and not made,
        suspicion=Suspicion.decode(stored.suspicion),
        node=stored.node or NodeIdentity(""),
        placed_s=NOT_KNOWN_S if stored.node else 0.0,
        first_token_s=NOT_KNOWN_S if stored.tokens else 0.0,
        ended_s=book.from_wall(stored.finished_wall_s) if finished else 0.0,
    )
    answer.account = account_of(answer)
    return answer

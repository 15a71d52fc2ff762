"""Rows that the store's tests write, with plain figures."""

from __future__ import annotations

import select
from dataclasses import replace

from bus.ids import Epoch, GenerationId, ModelName, NodeIdentity, SessionId, pack_ids
from head.effects import Persist
from head.rows import PutAnswer, PutFinish, PutGeneration, PutTokens, Row
from head.store import Store


def answer(number: int, key: str | None = None, owner: str = "ann") -> PutAnswer:
    return PutAnswer(
        answer=number,
        session=SessionId(f"s{number}"),
        owner=owner,
        key=key,
        model=ModelName("m"),
        prompt=pack_ids([1, 2, 3]),
        options=b"\x90",
        on_disconnect="cancel",
        created_wall_s=1000.5,
    )


def long_answer(number: int) -> PutAnswer:
    """One with a prompt of 8 kB."""
    return replace(answer(number), prompt=pack_ids(range(2000)))


def generation(number: int, of: int, node: str = "n1", first: int = 0) -> PutGeneration:
    return PutGeneration(
        generation=GenerationId(number),
        answer=of,
        session=SessionId(f"s{of}"),
        epoch=Epoch(number),
        node=NodeIdentity(node),
        worker=1,
        numerics="x",
        first_offset=first,
    )


def tokens(of: int, offset: int, *ids: int) -> PutTokens:
    return PutTokens(answer=of, generation=GenerationId(1), offset=offset, ids=pack_ids(ids))


def finish(of: int) -> PutFinish:
    return PutFinish(
        answer=of,
        finish="stop",
        error=b"",
        prompt_tokens=3,
        cached_tokens=1,
        completion_tokens=2,
        finished_wall_s=1001.5,
    )


def commit(store: Store, lsn: int, *rows: Row) -> None:
    """Submit and wait until it is durable."""
    store.submit(Persist(lsn=lsn, rows=rows))
    until_durable(store, lsn)


def until_durable(store: Store, lsn: int) -> None:
    while store.completed() < lsn:
        assert select.select([store.fileno()], [], [], 20)[0], "the writer never woke the loop"

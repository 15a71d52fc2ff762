"""Made sessions on disk: parked, resumed and forked, read back as they were."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from bus.errors import StoreCorrupt
from bus.ids import ModelName, NodeIdentity, SessionId, pack_ids
from head.rows import (
    FORKED,
    EndSession,
    PurgeSessions,
    PutContent,
    PutParked,
    PutSession,
    StoredSession,
)
from head.schema import MIGRATIONS, apply
from head.store import Store
from head.store_file import FILE
from tests.harness.store_rows import commit

A, B = SessionId("s-1-a"), SessionId("s-2-b")
N1 = NodeIdentity("n1")


def made(session: SessionId, parent: SessionId | None = None) -> PutSession:
    return PutSession(
        session=session,
        owner="ann",
        model=ModelName("m"),
        qos=1,
        created_wall_s=5.0,
        parent=parent,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def reopened(folder: Path) -> tuple[StoredSession, ...]:
    store, state = Store.open(folder)
    store.close()
    return state.sessions


def test_a_parked_session_and_where_its_file_is_are_kept(folder: Path) -> None:
    store, _ = Store.open(folder)
    commit(store, 1, made(A), PutParked(session=A, parked=True, file_on=N1))
    store.close()
    (kept,) = reopened(folder)
    assert (kept.parked, kept.file_on, kept.parent) == (True, "n1", None)
    store, _ = Store.open(folder)
    commit(store, 1, PutParked(session=A, parked=False))
    store.close()
    (kept,) = reopened(folder)
    assert (kept.parked, kept.file_on) == (False, "")


def test_a_fork_outlives_its_parent(folder: Path) -> None:
    store, _ = Store.open(folder)
    content = PutContent(session=A, first=0, ids=pack_ids([1, 2]))
    copied = PutContent(session=B, first=0, ids=pack_ids([1]), answer=FORKED)
    commit(store, 1, made(A), content, made(B, parent=A), copied)
    commit(store, 2, EndSession(session=A, ended_wall_s=9.0), PurgeSessions(sessions=(A,)))
    store.close()
    (kept,) = reopened(folder)
    assert (kept.session, kept.parent, kept.contents) == (B, A, (copied,))


@pytest.mark.parametrize("digest", [0, 1, 0x5EED, 2**63, 2**64 - 1])
def test_the_tokenizer_of_tokens_is_kept(folder: Path, digest: int) -> None:
    store, _ = Store.open(folder)
    content = PutContent(session=A, first=0, ids=pack_ids([1]), tokenizer_digest=digest)
    commit(store, 1, made(A), content)
    store.close()
    (kept,) = reopened(folder)
    assert kept.contents == (content,)


def test_tokens_of_before_tokenizers_were_kept_have_an_unknown_one(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    file = sqlite3.connect(folder / FILE, isolation_level=None)
    for version, migration in enumerate(MIGRATIONS[:5], start=1):
        apply(file, version, migration)
    file.execute(
        "INSERT INTO session (session, owner, model, qos, created_wall_s)"
        " VALUES (?, 'a', 'm', 1, 5)",
        (A,),
    )
    file.execute("INSERT INTO content VALUES (?, 0, 0, ?)", (A, pack_ids([1])))
    file.close()
    (kept,) = reopened(folder)
    assert kept.contents == (PutContent(session=A, first=0, ids=pack_ids([1])),)
    store, _ = Store.open(folder)
    more = PutContent(session=A, first=1, ids=pack_ids([2]), tokenizer_digest=7)
    commit(store, 1, more)
    store.close()
    (kept,) = reopened(folder)
    assert [content.tokenizer_digest for content in kept.contents] == [0, 7]


def test_a_digest_that_is_none_is_damage(folder: Path) -> None:
    store, _ = Store.open(folder)
    commit(store, 1, made(A), PutContent(session=A, first=0, ids=pack_ids([1])))
    store.close()
    file = sqlite3.connect(folder / FILE)
    file.execute("UPDATE content SET tokenizer = 'none'")
    file.commit()
    file.close()
    with pytest.raises(StoreCorrupt, match="'none' is no digest"):
        Store.open(folder)

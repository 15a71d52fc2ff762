"""Made sessions on disk: parked, resumed and forked, read back as they were."""

from __future__ import annotations

from pathlib import Path

import pytest

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
from head.store import Store
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

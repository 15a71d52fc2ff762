"""The head's store in memory: what is durable, and a writer that takes its time.

It stands for head/store.py: rows of a `Persist` land together, persists in order, and a writer
that commits all that waits as soon as the last commit is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bus.ids import PackedIds, SessionId
from head.effects import Persist
from head.rows import (
    ADMITTED,
    FINISHED,
    PLACED,
    SENT,
    CutContent,
    EndSession,
    MarkSent,
    PurgeAnswers,
    PurgeSessions,
    PutAccount,
    PutAnswer,
    PutContent,
    PutFinish,
    PutGeneration,
    PutParked,
    PutPeer,
    PutSession,
    PutSetting,
    PutTokens,
    RaiseBoot,
    StoredAnswer,
    StoredSession,
    StoredState,
)

if TYPE_CHECKING:
    from tests.harness.memory_fleet import MemoryFleet


class Disk:
    """The head's durable state: survives its restarts; only what was committed is there."""

    def __init__(self) -> None:
        self.boot = 0
        self.durable_lsn = 0
        self.answers: dict[int, StoredAnswer] = {}
        self.sessions: dict[SessionId, StoredSession] = {}
        self._peers: dict[bytes, PutPeer] = {}
        self._settings: dict[str, PutSetting] = {}
        self._apply: dict[type, Callable[[Any], object]] = {
            PutAnswer: self._put_answer,
            PutGeneration: self._put_generation,
            PutAccount: self._put_account,
            PutSetting: self._put_setting,
            PutTokens: self._put_tokens,
            PutFinish: self._put_finish,
            MarkSent: lambda row: self._change(row.answer, state=SENT),
            PurgeAnswers: lambda row: [self.answers.pop(a, None) for a in row.answers],
            PutPeer: self._put_peer,
            RaiseBoot: self._raise_boot,
            PutSession: self._put_session,
            PutContent: self._put_content,
            CutContent: self._cut_content,
            PutParked: self._put_parked,
            EndSession: self._end_session,
            PurgeSessions: lambda row: [self.sessions.pop(s, None) for s in row.sessions],
        }

    def start(self) -> StoredState:
        self.boot += 1
        self.durable_lsn = 0
        return StoredState(
            boot=self.boot,
            head_id="head",
            answers=tuple(self.answers.values()),
            peers=tuple(self._peers.values()),
            sessions=tuple(self.sessions.values()),
            settings=tuple(self._settings.values()),
        )

    def tokens(self, session: str) -> int:
        """How many tokens of a session's answer are durable."""
        found = [a for a in self.answers.values() if a.session == session]
        return len(found[-1].tokens) // 4 if found else 0

    def commit(self, persist: Persist) -> None:
        for row in persist.rows:
            apply = self._apply.get(type(row))
            if apply is not None:
                apply(row)
        self.durable_lsn = persist.lsn

    def _put_answer(self, row: PutAnswer) -> None:
        self.answers[row.answer] = StoredAnswer(
            answer=row.answer,
            session=row.session,
            owner=row.owner,
            key=row.key,
            model=row.model,
            prompt=row.prompt,
            options=row.options,
            on_disconnect=row.on_disconnect,
            created_wall_s=row.created_wall_s,
            state=ADMITTED,
            tokens=PackedIds(b""),
            finish="",
            error=b"",
            prompt_tokens=0,
            cached_tokens=0,
            finished_wall_s=0.0,
            generation=None,
            node=None,
            context_tokens=row.context_tokens,
        )

    def _put_generation(self, row: PutGeneration) -> None:
        self._change(
            row.answer,
            state=PLACED,
            generation=row.generation,
            node=row.node,
            epoch=row.epoch,
            worker=row.worker,
            first_offset=row.first_offset,
            numerics=row.numerics,
            used_ms=row.used_ms,
            replays=row.replays,
        )

    def _put_account(self, row: PutAccount) -> None:
        self._change(
            row.answer,
            cached_tokens=row.cached_tokens,
            replayed_tokens=row.replayed_tokens,
            suspicion=row.suspicion,
        )

    def _put_setting(self, row: PutSetting) -> None:
        self._settings[row.name] = row

    def _put_tokens(self, row: PutTokens) -> None:
        old = self.answers[row.answer]
        if len(old.tokens) // 4 != row.offset:
            raise ValueError(f"tokens at {row.offset} after {len(old.tokens) // 4}")
        self._change(
            row.answer,
            tokens=PackedIds(old.tokens + row.ids),
            logprobs=old.logprobs + row.logprobs,
            used_ms=row.used_ms,
        )

    def _put_finish(self, row: PutFinish) -> None:
        self._change(
            row.answer,
            state=FINISHED,
            finish=row.finish,
            error=row.error,
            prompt_tokens=row.prompt_tokens,
            cached_tokens=row.cached_tokens,
            finished_wall_s=row.finished_wall_s,
            stop=row.stop,
            replayed_tokens=row.replayed_tokens,
        )

    def _put_peer(self, row: PutPeer) -> None:
        self._peers[row.public] = row

    def _raise_boot(self, row: RaiseBoot) -> None:
        self.boot = max(self.boot, row.boot)

    def _put_session(self, row: PutSession) -> None:
        self.sessions[row.session] = StoredSession(
            session=row.session,
            owner=row.owner,
            model=row.model,
            qos=row.qos,
            created_wall_s=row.created_wall_s,
            ended_wall_s=0.0,
            contents=(),
            parent=row.parent,
        )

    def _put_parked(self, row: PutParked) -> None:
        old = self.sessions[row.session]
        self.sessions[row.session] = replace(old, parked=row.parked, file_on=row.file_on)

    def _put_content(self, row: PutContent) -> None:
        # As the table does: a gap is no error of the disk's.
        old = self.sessions[row.session]
        self.sessions[row.session] = replace(old, contents=(*old.contents, row))

    def _cut_content(self, row: CutContent) -> None:
        old = self.sessions[row.session]
        kept = tuple(content for content in old.contents if content.first < row.first)
        self.sessions[row.session] = replace(old, contents=kept)

    def _end_session(self, row: EndSession) -> None:
        old = self.sessions[row.session]
        self.sessions[row.session] = replace(old, ended_wall_s=row.ended_wall_s)

    def _change(self, answer: int, **changes: Any) -> None:
        self.answers[answer] = replace(self.answers[answer], **changes)


class DiskWriter:
    """The writer thread of one head's process.

    Args:
        fleet: has the disk, and says how long a commit takes.
        landed: called with the last lsn of a batch.
    """

    def __init__(self, fleet: MemoryFleet, landed: Callable[[int], None]) -> None:
        self._fleet = fleet
        self._landed = landed
        self._waiting: list[Persist] = []
        self._batch: list[Persist] = []
        self._closed = False

    def submit(self, persist: Persist) -> None:
        self._waiting.append(persist)
        if not self._batch:
            self._begin()

    @property
    def waiting(self) -> int:
        """Commits that are not durable yet."""
        return len(self._waiting) + len(self._batch)

    def kill(self) -> None:
        """The process dies: the commit that is under way has landed, or not; the rest has not."""
        self._closed = True
        if self._batch and self._fleet.rng.random() < 0.5:
            self._land()

    def _begin(self) -> None:
        self._batch, self._waiting = self._waiting, []
        self._fleet.after(self._fleet.commit_s, self._finish)

    def _finish(self) -> None:
        if self._closed:
            return
        lsn = self._land()
        if self._waiting:
            self._begin()
        self._landed(lsn)

    def _land(self) -> int:
        batch, self._batch = self._batch, []
        for persist in batch:
            self._fleet.disk.commit(persist)
            self._fleet.watch.committed(persist)
        return batch[-1].lsn

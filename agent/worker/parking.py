"""Parks sessions in files and takes them up again, beside the engine's work.

A session that has ended its generation leaves its keys and values in host memory, as a prefix that
any request of its salt may find. Parking writes that prefix to the session's file; restoring reads
a file back into host memory, where the session's next submit finds it. So both touch nothing but
saved prefixes: lanes are not held up, and a file that can not be used costs time and no token.

Files are written and read in a thread, one at a time; host memory's accounts are changed between
two turns only. A lane that is being read counts to the budget from when it is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from agent.worker.kv_cache import KvSlab, SavedLane
from agent.worker.lane_file import MISSING, Found, Unusable, Wanted, find_lane, load_lane, park
from agent.worker.lane_file import Restored as RestoredLane
from agent.worker.lane_folder import forget, purge_lanes
from agent.worker.prefix_cache import BLOCK_TOKENS
from agent.worker.refusal import shown
from agent.worker.reuse import Prefix
from agent.worker.scheduler import Scheduler
from agent.worker.spans import make_spans, usable
from agent.worker.transfers import Transfers
from bus.closing import Closing
from bus.errors import Internal, NotFound, StorageFull, SuperfluidError, UnsupportedOnFleet
from bus.file_thread import FileThread
from bus.ids import NumericsId, count_ids, unpack_ids
from bus.log import EventLog
from bus.messages.worker import Forget, Park, Parked, Restore, Restored

log = EventLog(__name__)

DEFAULT_PARK_BYTES = 4 << 30
DEFAULT_PARK_AGE_S = 7 * 86_400.0

#: Of a file beside keys and values: 5 for an id, and the segments.
_TOKEN_BYTES_OF_HEADER = 8
_LEAST_BYTES_OF_HEADER = 1 << 16
_NO_FOLDER = "this node parks nothing; give its agent a folder to park in"
_NOT_SAVED = (
    "nothing of the session is in host memory, so there is nothing to park; its next request "
    "computes it again"
)
_TOO_SHORT = f"fewer than {BLOCK_TOKENS} tokens can be used"
_NEVER_KEPT = (
    f"a session of at most {BLOCK_TOKENS} tokens is not kept, since they are soon computed again"
)
_NO_ROOM = "host memory has no room for all of it"
_OTHER_WAY = "the tokens in host memory were computed in another way"

T = TypeVar("T")
Reply = Parked | Restored
Request = Park | Restore | Forget


@dataclass(frozen=True, slots=True)
class ParkLimits:
    """What files may take: bytes of all, and seconds since one was used."""

    max_bytes: int = DEFAULT_PARK_BYTES
    max_age_s: float = DEFAULT_PARK_AGE_S


class Parking(Closing):
    """Does `Park`, `Restore` and `Forget` in their order. Owns the thread and the folder's files.

    The worker's loop calls `poll` between two turns, each 5 ms while it is `busy`.

    Args:
        scheduler: its prefixes are parked, and restored ones given to it.
        transfers: has the arrays of host memory.
        slab: of the lanes that they come from and go to.
        folder: of the files; made when missing.
        model: digest of the model's files.
        numerics: of this worker.
        wall_clock: seconds since 1970, as files have it.
        limits: of the files.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        transfers: Transfers,
        slab: KvSlab,
        *,
        folder: Path,
        model: str,
        numerics: NumericsId,
        wall_clock: Callable[[], float],
        limits: ParkLimits,
    ) -> None:
        self._scheduler = scheduler
        self._transfers = transfers
        self._slab = slab
        self._folder = folder
        self._model = model
        self._numerics = numerics
        self._wall_clock = wall_clock
        self._limits = limits
        self._files = FileThread("parking")
        self._requests: deque[Request] = deque()
        #: A request is with the thread.
        self._working = False
        self._replies: list[Reply] = []

    def start(self, request: Request) -> None:
        """Take a request in; `poll` gives its reply."""
        self._requests.append(request)

    @property
    def busy(self) -> bool:
        """Whether `poll` has something to do, now or soon."""
        return self._working or bool(self._requests or self._replies)

    def fileno(self) -> int:
        """Becomes readable when the thread has done something for `poll`."""
        return self._files.fileno()

    def poll(self) -> list[Reply]:
        """Go on with what the thread has done, and begin the next request.

        Returns:
            Replies since the last call, in the order of their requests.
        """
        self._files.finish()
        while self._requests and not self._working and self._begin(self._requests[0]):
            self._requests.popleft()
        replies, self._replies = self._replies, []
        return replies

    def close(self) -> None:
        """Do what the thread has begun, then end it; the rest is not done."""
        self._files.close()

    def _begin(self, request: Request) -> bool:
        """False when the request has to wait for the next turn's copies."""
        match request:
            case Park():
                return self._park(request)
            case Restore():
                self._restore(request)
            case Forget():
                self._in_thread(lambda: forget(self._folder, request.session), _forgotten)
        return True

    # --- park -----------------------------------------------------------------------------

    def _park(self, request: Park) -> bool:
        reuse = self._scheduler.reuse
        pinned = reuse.pin_longest(unpack_ids(request.context), request.salt)
        if pinned is None:
            self._reply(_not_parked(request, NotFound(_NOT_SAVED)))
            return True
        entry, prefix = pinned
        if entry not in self._transfers.host.entries():
            self._scheduler.add_transfers(reuse.unpin(entry))
            return False
        saved = self._transfers.host.get(entry)

        def done(result: int | SuperfluidError) -> None:
            self._scheduler.add_transfers(reuse.unpin(entry))
            if isinstance(result, SuperfluidError):
                self._reply(_not_parked(request, result))
            else:
                tokens = len(prefix.tokens)
                self._reply(Parked(session=request.session, tokens=tokens, file_bytes=result))

        self._in_thread(lambda: self._write(request, prefix, saved), done)
        return True

    def _write(self, request: Park, prefix: Prefix, saved: SavedLane) -> int:
        """In the thread: make room, then write the file; its bytes."""
        size = _LEAST_BYTES_OF_HEADER + len(prefix.tokens) * (
            saved.layout.token_bytes + _TOKEN_BYTES_OF_HEADER
        )
        if size > self._limits.max_bytes:
            raise StorageFull(
                f"session {request.session} takes {size} bytes to park, and all files together may "
                f"take {self._limits.max_bytes}; allow more"
            )
        purge_lanes(
            self._folder,
            now_s=self._wall_clock(),
            max_age_s=self._limits.max_age_s,
            max_bytes=self._limits.max_bytes - size,
        )
        return park(
            self._folder,
            request.session,
            saved,
            ids=prefix.tokens,
            spans=prefix.spans,
            exact_tokens=prefix.exact_tokens,
            model=self._model,
            numerics=self._numerics,
        )

    # --- restore --------------------------------------------------------------------------

    def _restore(self, request: Restore) -> None:
        wanted = Wanted(
            session=request.session,
            model=self._model,
            numerics=self._numerics,
            layout=self._slab.layout,
            max_tokens=self._slab.lane.max_len,
            ids=unpack_ids(request.context),
            spans=make_spans(request.segments, count_ids(request.context)),
            grid=self._scheduler.reuse.grid,
        )

        def found(result: Found | Unusable | SuperfluidError) -> None:
            held = self._held(request, wanted)
            if isinstance(result, Found):
                known = (result.tokens, result.exact_tokens)
                if result.tokens >= BLOCK_TOKENS and known > (held.tokens, held.exact_tokens):
                    self._in_thread(lambda: load_lane(result), loaded)
                    return
            if held.tokens:
                self._reply(held)
            elif len(wanted.ids) <= BLOCK_TOKENS and _is_missing(result):
                self._reply(replace(held, problem=_NEVER_KEPT))
            else:
                self._reply(replace(held, problem=_problem(result)))

        def loaded(result: RestoredLane | Unusable | SuperfluidError) -> None:
            if isinstance(result, RestoredLane):
                self._reply(self._keep(request, wanted, result))
            else:
                self._reply(replace(self._held(request, wanted), problem=_problem(result)))

        self._in_thread(lambda: find_lane(self._folder, wanted), found)

    def _keep(self, request: Restore, wanted: Wanted, lane: RestoredLane) -> Restored:
        """Put what was read where the session's next submit finds it."""
        tokens = lane.saved.tokens
        prefix = Prefix(wanted.ids[:tokens], lane.spans, lane.exact_tokens, request.salt)
        adopted = self._scheduler.reuse.adopt(prefix)
        if adopted is None:
            return replace(self._held(request, wanted), problem=_NO_ROOM)
        entry, ops = adopted
        self._transfers.restored[entry] = lane.saved
        self._scheduler.add_transfers(ops)
        return Restored(
            session=request.session,
            tokens=tokens,
            exact_tokens=lane.exact_tokens,
            problem=shown(lane.problem),
        )

    def _held(self, request: Restore, wanted: Wanted) -> Restored:
        """What host memory has of a session already."""
        reuse = self._scheduler.reuse
        pinned = reuse.pin_longest(wanted.ids[:-1], request.salt)
        if pinned is None:
            return Restored(session=request.session)
        entry, held = pinned
        self._scheduler.add_transfers(reuse.unpin(entry))
        spans, grid = (wanted.spans, held.spans), wanted.grid
        tokens = usable(*spans, len(held.tokens), exact=False, grid=grid)
        exact = usable(*spans, held.exact_tokens, exact=True, grid=grid)
        problem = "" if exact == tokens else _OTHER_WAY
        return Restored(session=request.session, tokens=tokens, exact_tokens=exact, problem=problem)

    # --- inside ---------------------------------------------------------------------------

    def _in_thread(
        self, work: Callable[[], T], then: Callable[[T | SuperfluidError], None]
    ) -> None:
        """Have work done, and its result or fault handled in a later `poll`."""
        results: list[T | SuperfluidError] = []

        def run() -> None:
            try:
                results.append(work())
            except SuperfluidError as error:
                results.append(error)
            except OSError:
                raise
            except Exception as error:  # noqa: BLE001 - the thread is for the next request, too
                log.error("session_file_failed", error=repr(error))
                results.append(Internal(f"{self._folder}: {error!r}; the worker's log has more"))

        def finish(error: OSError | None) -> None:
            self._working = False
            then(self._unusable(error) if error else results[0])

        self._working = True
        self._files.submit(run, finish)

    def _unusable(self, error: OSError) -> StorageFull:
        return StorageFull(
            f"{self._folder} can not be used: {error.strerror}; make room there, or have it belong "
            "to whom the agent runs as"
        )

    def _reply(self, reply: Reply) -> None:
        log.info(
            "session_file", session=reply.session, kind=type(reply).__name__, tokens=reply.tokens
        )
        self._replies.append(reply)


def refuse(request: Request, why: str = _NO_FOLDER) -> Reply | None:
    """The reply of a worker that parks nothing, by default for want of a folder."""
    error = UnsupportedOnFleet(why)
    if isinstance(request, Forget):
        return None
    if isinstance(request, Park):
        return _not_parked(request, error)
    return Restored(session=request.session, problem=error.message)


def _forgotten(result: bool | SuperfluidError) -> None:
    """Nobody is told of it, so the log is."""
    if isinstance(result, SuperfluidError):
        log.error("session_file_not_removed", error=result.message)


def _not_parked(request: Park, error: SuperfluidError) -> Parked:
    return Parked(session=request.session, code=error.code, message=shown(error.message))


def _is_missing(result: Found | Unusable | SuperfluidError) -> bool:
    return isinstance(result, Unusable) and result.code == MISSING


def _problem(result: Found | Unusable | SuperfluidError) -> str:
    """Why a file brought nothing."""
    if isinstance(result, Found):
        return _TOO_SHORT
    return shown(result.reason if isinstance(result, Unusable) else result.message)

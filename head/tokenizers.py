"""Tokenizers of models that the head has no folder of: fetched from a node, once for each digest.

    offered by a node ──kept──▶ checked ────────────────▶ described ──▶ adopted by the text desk
                       └─not──▶ job ──parts──▶ written ──┘

A folder of the head's own goes first, unless no node has, or had, the tokenizer in it. A model's
files stay what they are while any node that is up offers the same. A node whose files
were refused, or did not come, is asked again later, and others at once. After a restart a model
that no node serves has what was fetched of it last. What waits while no node has the model waits as
long as a request does for a node (head/waiting.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bus.errors import Internal, SuperfluidError
from bus.ids import ModelName, NodeIdentity
from bus.messages.job_bodies import pack_body
from bus.messages.text import Described
from bus.text.tokenizer_export import TOKENIZER_JOB, TokenizerBody, TokenizerIntake
from bus.timers import Timers
from head.fleet import Fleet
from head.fleet_node import Node
from head.job_kinds import JobDone, JobSpec
from head.jobs import JobDesk
from head.kept_tokenizers import LIMIT, TokenizerKey, TokenizerStore
from head.pending_texts import Continue
from head.texts import TextDesk
from head.tokenizer_offers import had_by_any, may_come, offers_of
from head.tokenizer_refusals import files_gone, not_fetched, not_kept, other_digest

#: How long one fetch may take; what waits for it waits no longer.
FETCH_WALL_MS = 120_000
#: Fetches at once: each has its bytes in memory.
MAX_AT_ONCE = 2
#: A node whose tokenizer could not be fetched is asked again after this long, twice as long after
#: each further failure.
FIRST_RETRY_S = 1.0
MAX_RETRY_S = 60.0


@dataclass(slots=True, eq=False)
class _Fetch:
    """One model's tokenizer on its way. `node` is who is asked; None for what is kept here."""

    key: TokenizerKey
    intake: TokenizerIntake
    node: Node | None = None
    incarnation: int = 0
    #: Of the job at the node, once and while there is one.
    job: int | None = None


@dataclass(slots=True)
class _Failure:
    """Why a node gave nothing of a model, and when it is asked for the same again."""

    key: TokenizerKey
    incarnation: int
    error: SuperfluidError
    again_s: float
    times: int


class TokenizerDesk:
    """Owned by the core.

    Invariant: a model of `_fetches` is on its way and ends by `adopt`, `give_up`, or another fetch.

    Args:
        node_wait_s: how long what needs a tokenizer waits for a node that may come.
    """

    def __init__(
        self,
        *,
        texts: TextDesk,
        fleet: Fleet,
        jobs: JobDesk,
        store: TokenizerStore,
        timers: Timers,
        node_wait_s: float,
    ) -> None:
        self._texts = texts
        self._fleet = fleet
        self._jobs = jobs
        self._store = store
        self._timers = timers
        self._node_wait_s = node_wait_s
        self._fetches: dict[ModelName, _Fetch] = {}
        #: What the text desk has of each model.
        self._adopted: dict[ModelName, TokenizerKey] = {}
        self._failures: dict[tuple[ModelName, NodeIdentity], _Failure] = {}
        #: Models that are waited for while no node has them, and until when.
        self._patience: dict[ModelName, float] = {}
        #: Fetches that wait for their turn, and those that have it.
        self._line: deque[_Fetch] = deque()
        self._asking: set[_Fetch] = set()
        self._settled: list[Callable[[float], None]] = []
        #: Who waits for tokenizers that models had before.
        self._recalled: dict[TokenizerKey, list[Continue]] = {}
        self._own: frozenset[ModelName] = frozenset()
        texts.source = self

    # --- inputs -------------------------------------------------------------------------------

    def node_changed(self, node: Node, now: float) -> None:
        """A node's link or the models on it have changed."""
        for model in list(node.models):
            self._look(model, now)

    def folders_changed(self, now: float) -> None:
        """The head's models folder was read; nothing is done where it has the same models."""
        own = frozenset(self._texts.folders)
        if own != self._own:
            changed, self._own = own ^ self._own, own
            for model in changed:
                self._look(model, now)

    def settle(self, now: float) -> None:
        """The store has done something."""
        self._store.settle()
        settled, self._settled = self._settled, []
        for each in settled:
            each(now)

    def begin(self, model: ModelName) -> SuperfluidError | None:
        """Have a model's tokenizer, if it can be had: None, else why not.

        What nodes offer is fetched by itself; what is kept, when it is first asked for.
        """
        if model in self._fetches:
            return None
        offers = offers_of(self._fleet, model)
        kept = next((key for key in self._store.kept() if key.model == model), None)
        if kept is not None and not offers:
            self._start(_Fetch(kept, TokenizerIntake(kept.text_digest)))
            return None
        if not offers and may_come(self._fleet, model):
            # As soon as the time is known.
            self._timers.at(0.0, partial(self._look, model))
            return None
        return self._why_not(model)

    def described(self, model: ModelName, now: float) -> None:
        """The head knows what is in its own folder of a model."""
        if model in self._texts.folders:
            self._look(model, now)

    def damaged(self, model: ModelName, now: float) -> SuperfluidError:
        """Files that were adopted are gone: they are fetched again."""
        key = self._adopted.pop(model, None)
        if key is not None:
            self._store.remove(key)
            self._texts.disown(model)
            self._look(model, now)
        return files_gone(model)

    def recall(self, model: ModelName, digest: int, then: Continue) -> bool:
        """Read what is kept of a tokenizer that a model had before; False when nothing is.

        Args:
            then: gets its description, which the text desk has by then, or an error.
        """
        keys = [key for key in self._store.kept() if key.model == model]
        key = next((key for key in keys if key.digest == digest), None)
        is_next = not self._texts.has_folder(model) and key == next(iter(keys), None)
        if key is None or is_next:
            # What is kept last is what the model has next.
            return False
        recalled = self._recalled.setdefault(key, [])
        recalled.append(then)
        if len(recalled) == 1:
            self._store.find(key, lambda found: self._settled.append(partial(read, found)))

        def read(found: Path | SuperfluidError | None, now: float) -> None:
            if isinstance(found, Path):
                self._texts.describe(str(found), tell)
            else:
                tell(not_kept(key), now)

        def tell(reply: object, now: float) -> None:
            if isinstance(reply, Described):
                self._texts.remember(model, reply)
            for waiter in self._recalled.pop(key):
                waiter(reply, now)

        return True

    # --- for reports --------------------------------------------------------------------------

    def state(self, model: ModelName) -> str:
        """Where a model's tokenizer is: `own`, `fetched`, `fetching`, or empty for nowhere."""
        if model in self._adopted:
            return "fetched"
        if model in self._texts.folders:
            return "own"
        return "fetching" if model in self._fetches else ""

    def problem(self, model: ModelName) -> str:
        """Why the head has no tokenizer of a model; empty when it has one, or will in a moment."""
        return "" if self.state(model) else self._why_not(model).message

    # --- choosing -----------------------------------------------------------------------------

    def _look(self, model: ModelName, now: float) -> None:
        """Fetch what nodes offer of a model, if that is not what the head has."""
        offers = offers_of(self._fleet, model)
        if model in self._texts.folders and not self._is_odd(model, offers):
            self._cancel(model, now)
            if self._adopted.pop(model, None) is not None:
                self._texts.disown(model)
            return
        if self._adopted.get(model) in offers:
            self._cancel(model, now)
            return
        fetch = self._fetches.get(model)
        if fetch is not None and _goes_on(fetch, offers):
            return
        self._cancel(model, now)
        if self._has_room(model):
            for key, nodes in offers.items():
                for node in nodes:
                    if not node.draining and self._may_ask(key, node, now):
                        made = _Fetch(key, TokenizerIntake(key.text_digest), node, node.incarnation)
                        self._patience.pop(model, None)
                        self._start(made, now)
                        return
        self._wait(model, now)

    def _wait(self, model: ModelName, now: float) -> None:
        """Nothing is fetched of a model: what waits for it does so for a bounded time."""
        if not self._texts.is_awaited(model):
            self._patience.pop(model, None)
            return
        if may_come(self._fleet, model):
            if model not in self._patience:
                self._patience[model] = now + self._node_wait_s
                self._timers.at(self._patience[model], partial(self._look, model))
            if now < self._patience[model]:
                return
        self._patience.pop(model, None)
        self._texts.give_up(model, self._why_not(model), now)

    def _has_room(self, model: ModelName) -> bool:
        """Whether one more may be fetched; those that no node serves make room."""
        if len({*self._adopted, *self._fetches} - {model}) < LIMIT:
            return True
        unused = next((other for other in self._adopted if not offers_of(self._fleet, other)), None)
        if unused is None:
            return False
        del self._adopted[unused]
        self._texts.disown(unused)
        return True

    def _is_odd(self, model: ModelName, offers: Collection[TokenizerKey]) -> bool:
        """Whether the head's own folder of a model has another tokenizer than all nodes had.

        Nodes that are down count, too: it does not change with an outage.
        """
        own = self._texts.own_digest(model)
        if not own or not (offers or model in self._adopted):
            return False
        return not had_by_any(self._fleet, model, own)

    def _may_ask(self, key: TokenizerKey, node: Node, now: float) -> bool:
        failure = self._failures.get((key.model, node.identity))
        if failure is None or (failure.key, failure.incarnation) != (key, node.incarnation):
            return True
        return now >= failure.again_s

    # --- one fetch ----------------------------------------------------------------------------

    def _start(self, fetch: _Fetch, now: float | None = None) -> None:
        self._fetches[fetch.key.model] = fetch
        if fetch.key in self._store.kept():
            self._store.find(fetch.key, self._later(self._found, fetch))
        elif now is not None:
            self._ask_later(fetch, now)

    def _later(
        self, then: Callable[[_Fetch, Path | SuperfluidError | None, float], None], fetch: _Fetch
    ) -> Callable[[Path | SuperfluidError | None], None]:
        """What the store calls; the desk goes on at `settle`, while the fetch still counts."""

        def settle(found: Path | SuperfluidError | None, now: float) -> None:
            if self._fetches.get(fetch.key.model) is fetch:
                then(fetch, found, now)

        return lambda found: self._settled.append(partial(settle, found))

    def _found(self, fetch: _Fetch, found: Path | SuperfluidError | None, now: float) -> None:
        if isinstance(found, Path):
            self._describe(fetch, found, is_new=False)
        elif fetch.node is not None:
            self._ask_later(fetch, now)
        else:
            self._over(fetch, now)

    def _ask_later(self, fetch: _Fetch, now: float) -> None:
        self._line.append(fetch)
        self._ask_next(now)

    def _ask_next(self, now: float) -> None:
        while self._line and len(self._asking) < MAX_AT_ONCE:
            fetch = self._line.popleft()
            self._asking.add(fetch)
            self._ask(fetch, now)

    def _ask(self, fetch: _Fetch, now: float) -> None:
        key, node = fetch.key, fetch.node
        spec = JobSpec(
            model=key.model,
            kind=TOKENIZER_JOB,
            body=pack_body(TokenizerBody(digest=key.digest, text_digest=key.text_digest)),
            wall_ms=FETCH_WALL_MS,
            tokenizer_digest=key.digest,
            only=frozenset({node.identity} if node is not None else ()),
        )
        try:
            number = self._jobs.submit(
                spec, partial(self._part, fetch), partial(self._end, fetch), now
            )
        except SuperfluidError as error:
            self._end(fetch, error, now)
            return
        if fetch in self._asking:
            fetch.job = number

    def _part(self, fetch: _Fetch, part: bytes, now: float) -> None:
        try:
            fetch.intake.take(part)
        except SuperfluidError as error:
            self._leave(fetch, now)
            self._failed(fetch, error, now)

    def _end(self, fetch: _Fetch, result: JobDone | SuperfluidError, now: float) -> None:
        fetch.job = None
        self._leave(fetch, now)
        if self._fetches.get(fetch.key.model) is not fetch:
            return
        if isinstance(result, SuperfluidError):
            self._failed(fetch, result, now)
            return
        in_use = (*self._adopted.values(), *(each.key for each in self._fetches.values()))
        self._store.write(fetch.key, fetch.intake, in_use, self._later(self._written, fetch))

    def _written(self, fetch: _Fetch, found: Path | SuperfluidError | None, now: float) -> None:
        if isinstance(found, Path):
            self._describe(fetch, found, is_new=True)
        else:
            self._failed(fetch, found or Internal("nothing was written"), now)

    def _describe(self, fetch: _Fetch, folder: Path, *, is_new: bool) -> None:
        key = fetch.key

        def then(reply: object, now: float) -> None:
            if self._fetches.get(key.model) is not fetch:
                return
            if isinstance(reply, Described) and reply.digest == key.digest:
                if is_new:
                    self._store.confirm(key)
                del self._fetches[key.model]
                self._patience.pop(key.model, None)
                if fetch.node is not None:
                    self._failures.pop((key.model, fetch.node.identity), None)
                self._adopted[key.model] = key
                self._texts.adopt(key.model, str(folder), reply, now)
                return
            error = reply if isinstance(reply, SuperfluidError) else other_digest(key)
            if is_new or error.retry_after_ms is None:
                self._store.remove(key)
            self._failed(fetch, error, now)

        self._texts.describe(str(folder), then)

    # --- ends ---------------------------------------------------------------------------------

    def _failed(self, fetch: _Fetch, error: SuperfluidError, now: float) -> None:
        if fetch.node is not None:
            which = (fetch.key.model, fetch.node.identity)
            before = self._failures.get(which)
            times = before.times + 1 if before is not None else 1
            again_s = now + min(FIRST_RETRY_S * 2 ** min(times - 1, 10), MAX_RETRY_S)
            self._failures[which] = _Failure(fetch.key, fetch.incarnation, error, again_s, times)
            self._timers.at(again_s, partial(self._look, fetch.key.model))
        self._over(fetch, now)

    def _over(self, fetch: _Fetch, now: float) -> None:
        """A fetch gave nothing: others are tried, or what waits fails."""
        del self._fetches[fetch.key.model]
        self._look(fetch.key.model, now)

    def _cancel(self, model: ModelName, now: float) -> None:
        fetch = self._fetches.pop(model, None)
        if fetch is not None:
            self._leave(fetch, now)

    def _leave(self, fetch: _Fetch, now: float) -> None:
        """A fetch needs its node no more; the next one has its turn."""
        if fetch.job is not None:
            self._jobs.cancel(fetch.job, now)
            fetch.job = None
        if fetch in self._line:
            self._line.remove(fetch)
        if fetch in self._asking:
            self._asking.discard(fetch)
            self._ask_next(now)

    def _why_not(self, model: ModelName) -> SuperfluidError:
        failures = {
            name: failure.error.message
            for (failed, name), failure in self._failures.items()
            if failed == model and (node := self._fleet.get(name)) is not None and node.up
        }
        error = not_fetched(model, self._fleet, failures, len(self._adopted))
        return error or self._texts.no_folder(model)


def _goes_on(fetch: _Fetch, offers: dict[TokenizerKey, list[Node]]) -> bool:
    """Whether a fetch still brings what is wanted."""
    if fetch.node is None:
        # Of what is kept: unless nodes have something else by now.
        return not offers or fetch.key in offers
    return fetch.node in offers.get(fetch.key, ()) and fetch.node.incarnation == fetch.incarnation

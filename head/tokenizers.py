"""Tokenizers of models that the head has no folder of: fetched from a node, once for each digest.

    offered by a node ──kept──▶ checked ────────────────▶ described ──▶ adopted by the text desk
                       └─not──▶ job ──parts──▶ written ──┘

A folder of the head's own goes first, unless no node has, or had, the tokenizer in it. A model's
files stay what they are while any node that is up offers the same; drained ones count where no
other has the model. A node whose files were refused, or did not come, is asked again later, and
others at once. After a restart a model that no node serves has what was fetched of it last. What
waits while no node has the model waits as long as a request does for a node (head/waiting.py), of a
new head for any model; what stored answers go on with is waited for as long as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from bus.errors import Internal, SuperfluidError
from bus.ids import ModelName
from bus.messages.job_bodies import pack_body
from bus.messages.text import Described
from bus.text.tokenizer_export import TOKENIZER_JOB, TokenizerBody, TokenizerIntake
from bus.timers import Timers
from head.fetch_failures import FetchFailures
from head.fetch_turns import FetchTurns
from head.fleet import Fleet
from head.fleet_node import Node
from head.job_kinds import JobDone, JobSpec
from head.jobs import JobDesk
from head.kept_tokenizers import LIMIT, TokenizerKey, TokenizerStore
from head.texts import TextDesk
from head.tokenizer_fetch import Fetch
from head.tokenizer_offers import had_by_any, may_come, offers_of
from head.tokenizer_patience import TokenizerPatience
from head.tokenizer_recalls import Recalls
from head.tokenizer_refusals import (
    files_gone,
    not_fetched,
    other_digest,
    says_nothing,
    takes_long,
)

#: How long one fetch may take; what waits for it, and for its turn, waits no longer.
FETCH_WALL_MS = 120_000
#: A node that gives nothing for so long gives nothing.
STALL_S = 30.0


class TokenizerDesk:
    """Owned by the core.

    Invariant: a model of `_fetches` is on its way and ends by `adopt`, `give_up`, or another fetch.

    Args:
        node_wait_s: how long what needs a tokenizer waits for a node that may come.
        now: this moment; nodes may be on their way.
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
        now: float,
    ) -> None:
        self._texts = texts
        self._fleet = fleet
        self._jobs = jobs
        self._store = store
        self._timers = timers
        self._fetches: dict[ModelName, Fetch] = {}
        #: What the text desk has of each model.
        self._adopted: dict[ModelName, TokenizerKey] = {}
        self._failures = FetchFailures()
        self._patience = TokenizerPatience(
            fleet=fleet,
            timers=timers,
            node_wait_s=node_wait_s,
            now=now,
            look=self._look,
            awaited=lambda: texts.awaited,
        )
        self._turns = FetchTurns[Fetch](self._ask)
        self._settled: list[Callable[[float], None]] = []
        self.recall = Recalls(texts, store, self._settled.append).recall
        self._own: frozenset[ModelName] = frozenset()
        texts.source = self

    # --- inputs -------------------------------------------------------------------------------

    def node_changed(self, node: Node, now: float) -> None:
        """A node's link or the models on it have changed."""
        if not node.up:
            self._patience.node_gone(now)
        for model in list(node.models):
            self._look(model, now)

    def expect(self, model: ModelName, until_s: float) -> None:
        """A stored answer goes on when a node comes back with its model, until then at least."""
        self._patience.expect(model, until_s)
        self.begin(model)

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
        settled = self._settled.copy()
        self._settled.clear()
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
            self._start(Fetch(kept, TokenizerIntake(kept.text_digest)))
            return None
        known = not offers and may_come(self._fleet, model)
        if known or self._patience.is_due(model, is_offered=bool(offers)):
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
        if fetch is not None and fetch.goes_on(offers):
            return
        self._cancel(model, now)
        if self._has_room(model) and (made := self._choose(offers, now)) is not None:
            self._patience.over(model)
            self._start(made, now)
            return
        self._wait(model, now, is_offered=bool(offers))

    def _choose(self, offers: dict[TokenizerKey, list[Node]], now: float) -> Fetch | None:
        """What came first of all that is offered, of the node that is asked for least."""
        for key, nodes in offers.items():
            if able := [n for n in nodes if self._failures.may_ask(key, n, now)]:
                node = min(able, key=lambda n: (n.draining, self._turns.load(n.identity)))
                return Fetch(key, TokenizerIntake(key.text_digest), node, node.incarnation)
        return None

    def _wait(self, model: ModelName, now: float, *, is_offered: bool) -> None:
        """Nothing is fetched of a model: what waits for it does so for a bounded time."""
        if model not in self._texts.awaited:
            self._patience.over(model)
        elif not self._patience.lasts(model, now, is_offered=is_offered):
            self._texts.give_up(model, self._why_not(model), now)

    def _has_room(self, model: ModelName) -> bool:
        """Whether one more may be fetched; those that no node serves make room.

        What waits for its turn takes none: it may never come.
        """
        fetched = {m for m, each in self._fetches.items() if not self._turns.waits(each)}
        if len({*self._adopted, *fetched} - {model}) < LIMIT:
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

    # --- one fetch ----------------------------------------------------------------------------

    def _start(self, fetch: Fetch, now: float | None = None) -> None:
        self._fetches[fetch.key.model] = fetch
        if fetch.key in self._store.kept():
            self._store.find(fetch.key, self._later(self._found, fetch))
        elif fetch.node is not None and now is not None:
            self._turns.join(fetch, fetch.node.identity, now)
        if now is not None and self._fetches.get(fetch.key.model) is fetch:
            self._bound(fetch, now)

    def _bound(self, fetch: Fetch, now: float) -> None:
        """What waits for a fetch does not do so for ever, not even for its turn."""

        def late(at: float) -> None:
            # Who is told may ask for more, and end or begin something.
            self._bound(fetch, at)
            self._texts.give_up(fetch.key.model, takes_long(fetch.key.model), at)

        fetch.late_timer = self._timers.at(now + FETCH_WALL_MS / 1000, late)

    def _later(
        self, then: Callable[[Fetch, Path | SuperfluidError | None, float], None], fetch: Fetch
    ) -> Callable[[Path | SuperfluidError | None], None]:
        """What the store calls; the desk goes on at `settle`, while the fetch still counts."""

        def settle(found: Path | SuperfluidError | None, now: float) -> None:
            if self._fetches.get(fetch.key.model) is fetch:
                then(fetch, found, now)

        return lambda found: self._settled.append(partial(settle, found))

    def _found(self, fetch: Fetch, found: Path | SuperfluidError | None, now: float) -> None:
        if isinstance(found, Path):
            self._describe(fetch, found, is_new=False)
        elif fetch.node is not None:
            self._turns.join(fetch, fetch.node.identity, now)
        else:
            self._over(fetch, now)

    def _ask(self, fetch: Fetch, now: float) -> None:
        key, node = fetch.key, fetch.node
        if not self._has_room(key.model):
            self._leave(fetch, now)
            self._over(fetch, now)
            return
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
        if self._turns.has_turn(fetch):
            fetch.job = number
            fetch.heard_s = now
            self._watch(fetch)

    def _watch(self, fetch: Fetch) -> None:
        def look(now: float) -> None:
            if now < fetch.heard_s + STALL_S:
                self._watch(fetch)
            else:
                self._leave(fetch, now)
                self._failed(fetch, says_nothing(STALL_S), now)

        fetch.stall_timer = self._timers.at(fetch.heard_s + STALL_S, look)

    def _part(self, fetch: Fetch, part: bytes, now: float) -> None:
        fetch.heard_s = now
        try:
            fetch.intake.take(part)
        except SuperfluidError as error:
            self._leave(fetch, now)
            self._failed(fetch, error, now)

    def _end(self, fetch: Fetch, result: JobDone | SuperfluidError, now: float) -> None:
        fetch.job = None
        self._leave(fetch, now)
        if self._fetches.get(fetch.key.model) is not fetch:
            return
        if isinstance(result, SuperfluidError):
            self._failed(fetch, result, now)
            return
        in_use = (*self._adopted.values(), *(each.key for each in self._fetches.values()))
        self._store.write(fetch.key, fetch.intake, in_use, self._later(self._written, fetch))

    def _written(self, fetch: Fetch, found: Path | SuperfluidError | None, now: float) -> None:
        if isinstance(found, Path):
            self._describe(fetch, found, is_new=True)
        else:
            self._failed(fetch, found or Internal("nothing was written"), now)

    def _describe(self, fetch: Fetch, folder: Path, *, is_new: bool) -> None:
        key = fetch.key

        def then(reply: object, now: float) -> None:
            if self._fetches.get(key.model) is not fetch:
                return
            if isinstance(reply, Described) and reply.digest == key.digest:
                if is_new:
                    self._store.confirm(key)
                self._forget(fetch)
                self._patience.over(key.model)
                if fetch.node is not None:
                    self._failures.remove(key.model, fetch.node.identity)
                self._adopted[key.model] = key
                self._texts.adopt(key.model, str(folder), reply, now)
                return
            error = reply if isinstance(reply, SuperfluidError) else other_digest(key)
            if is_new or error.retry_after_ms is None:
                self._store.remove(key)
            self._failed(fetch, error, now)

        self._texts.describe(str(folder), then)

    # --- ends ---------------------------------------------------------------------------------

    def _failed(self, fetch: Fetch, error: SuperfluidError, now: float) -> None:
        if fetch.node is not None:
            key, node = fetch.key, fetch.node.identity
            again_s = self._failures.add(key, node, fetch.incarnation, error, now)
            self._timers.at(again_s, partial(self._look, key.model))
        self._over(fetch, now)

    def _over(self, fetch: Fetch, now: float) -> None:
        """A fetch gave nothing: others are tried, or what waits fails."""
        self._forget(fetch)
        self._look(fetch.key.model, now)

    def _cancel(self, model: ModelName, now: float) -> None:
        if (fetch := self._fetches.get(model)) is not None:
            self._forget(fetch)
            self._leave(fetch, now)

    def _forget(self, fetch: Fetch) -> None:
        del self._fetches[fetch.key.model]
        self._timers.cancel(fetch.late_timer)

    def _leave(self, fetch: Fetch, now: float) -> None:
        """A fetch needs its node no more; the next one has its turn."""
        self._timers.cancel(fetch.stall_timer)
        if fetch.job is not None:
            self._jobs.cancel(fetch.job, now)
            fetch.job = None
        self._turns.leave(fetch, now)

    def _why_not(self, model: ModelName) -> SuperfluidError:
        failures = self._failures.of(model, self._fleet)
        error = not_fetched(model, self._fleet, failures, len(self._adopted))
        return error or self._texts.no_folder(model)

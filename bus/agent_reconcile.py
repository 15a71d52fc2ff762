"""How a node finds out, on a new link, what of its sessions the head still means.

The head lists every session that it has placed here, in pages. After the last page the node drops
what is not listed, acknowledges what is durable, and answers with what it holds and will send
again. Nothing about sessions leaves the node before that: the head could not tell what it means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bus.agent_generations import NodeGenerations
from bus.agent_records import Generation, Held
from bus.errors import WireError
from bus.ids import SessionId
from bus.messages import link, parts

#: Sessions of one node; what a NodeConfirm and a LeaseRenew can name.
MAX_SESSIONS = 65_536
#: What one page holds.
PAGE_ITEMS = 1024
#: Events that are sent again travel in messages of about this size.
RESEND_BYTES = 256 * 1024
RESEND_RUNS = 1024


class ReconcilePages:
    """The pages of one Reconcile, until the last has come."""

    def __init__(self) -> None:
        self._listed: dict[SessionId, parts.SessionView] = {}
        self._pages = 0
        #: Sessions whose files are to be kept.
        self.parked: set[SessionId] = set()

    def add(self, page: link.Reconcile) -> dict[SessionId, parts.SessionView] | None:
        """Take the next page; every session that the head listed, after the last.

        Raises:
            WireError: a page is missing, a session is listed twice, or there are too many.
        """
        if page.page != self._pages:
            raise WireError(f"page {page.page} of Reconcile came when {self._pages} was next")
        self._pages += 1
        if len(self._listed) + len(page.sessions) > MAX_SESSIONS:
            raise WireError(f"Reconcile lists more than {MAX_SESSIONS} sessions for one node")
        for view in page.sessions:
            if view.session in self._listed:
                raise WireError(f"Reconcile lists session {view.session} twice")
            self._listed[view.session] = view
        if len(self.parked) + len(page.parked) > MAX_SESSIONS:
            raise WireError(f"Reconcile names more than {MAX_SESSIONS} parked sessions")
        self.parked.update(page.parked)
        # A page without a session says nothing; a row of them would never end.
        if page.more and not (page.sessions or page.parked):
            raise WireError(f"page {page.page} of Reconcile is empty and not the last")
        return None if page.more else self._listed


def keep_listed(
    held: Held, view: parts.SessionView, generations: NodeGenerations
) -> tuple[Generation, ...]:
    """Bring a held session to what the head knows of it; the generations that go on.

    Ended are those that the head did not list, those whose finish it has, and those of which it
    knows less than it acknowledged or more than there is: such a head is not the one that asked
    for them.
    """
    listed = {known.generation: known for known in view.generations}
    kept = []
    for found in generations.of_session(held.session):
        known = listed.get(found.generation)
        window = found.window
        if (
            known is None
            or known.finished
            or not window.committed <= known.committed <= window.next_seq
        ):
            generations.end(found)
            continue
        generations.acknowledge(found, known.committed)
        if not window.is_acknowledged:
            kept.append(found)
    held.forget_generates(
        {g for g, known in listed.items() if not known.finished}
        - {found.generation for found in kept}
    )
    if held.context.matches(view.tokens, view.digest):
        held.incomplete = False
    return tuple(kept)


def held_view(held: Held, kept: Iterable[Generation]) -> parts.HeldView:
    """A session as the node has it, with what it sends again."""
    return parts.HeldView(
        session=held.session,
        epoch=held.epoch,
        tokens=len(held.context),
        digest=held.context.digest(),
        generations=tuple(
            parts.ResendView(generation=found.generation, first_seq=found.window.committed)
            for found in kept
        ),
    )


def ack_pages(
    held: Sequence[parts.HeldView], dropped: Sequence[parts.LeaseRef]
) -> list[link.ReconcileAck]:
    """The answer, in pages; one even when there is nothing to say."""
    count = max(1, -(-max(len(held), len(dropped)) // PAGE_ITEMS))
    return [
        link.ReconcileAck(
            page=page,
            more=page + 1 < count,
            sessions=tuple(held[page * PAGE_ITEMS : (page + 1) * PAGE_ITEMS]),
            dropped=tuple(dropped[page * PAGE_ITEMS : (page + 1) * PAGE_ITEMS]),
        )
        for page in range(count)
    ]


def events_again(generations: Iterable[Generation]) -> Iterator[link.TokenEvents]:
    """What is not acknowledged of these generations, in messages of bounded size."""
    runs: list[parts.TokenRun] = []
    size = 0
    for found in generations:
        run = found.retained_run()
        if run is None:
            continue
        if runs and (size + found.window.retained_bytes > RESEND_BYTES or len(runs) == RESEND_RUNS):
            yield link.TokenEvents(runs=tuple(runs))
            runs, size = [], 0
        runs.append(run)
        size += found.window.retained_bytes
    if runs:
        yield link.TokenEvents(runs=tuple(runs))

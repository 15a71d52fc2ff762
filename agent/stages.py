"""The stages of chains that this node's workers are: between the link and their pipes. Pure.

    StageOpen ──▶ asked ──StageOpened──▶ open ◀──StageRun and StageUnit, both ways──▶
                    │                     │
                    └─────────────────────┴── StageClose, StageFailed, the worker or the link
                                              ends, or a message does not reach the worker ──▶ gone

A driver serves its model only while its chain is open. What it had when that closes is lost, which
the head is told of before each generation's own Lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent.actions import Action, Note, SendToWorker
from agent.served_model import NO_WORKER, ServedModel
from bus.agent_session import AgentSession
from bus.errors import Invalid, QueueFull
from bus.ids import GenerationId, ModelName, WorkerIncarnation
from bus.messages import link_stages, worker_stages
from bus.messages.link_jobs import MODEL_NOT_READY, MODEL_NOT_SERVED
from bus.messages.link_stages import MAX_REASON_BYTES

#: Stages of chains that a node has at once.
MAX_SEATS = 256


@dataclass(slots=True)
class _Seat:
    """One stage of a chain, and the model whose worker it is."""

    chain: int
    index: int
    stages: int
    model: ModelName
    is_open: bool = False

    @property
    def drives(self) -> bool:
        return self.index == self.stages - 1


class NodeStages:
    """Owned by the node's core, which shares `models`.

    Invariant: `_seats` and `_of_model` have the same stages; a driver is `ready` exactly while it
    has one that is open.

    Args:
        do: takes actions.
        tell: sends a message to the head, if one is there.
        changed: called when a driver became ready, or is no more.
    """

    def __init__(
        self,
        models: Mapping[ModelName, ServedModel],
        session: AgentSession,
        *,
        do: Callable[[Action], None],
        tell: Callable[[object], None],
        changed: Callable[[float], None],
    ) -> None:
        self._models = models
        self._session = session
        self._do = do
        self._tell = tell
        self._changed = changed
        #: By chain and index.
        self._seats: dict[tuple[int, int], _Seat] = {}
        self._of_model: dict[tuple[int, ModelName], _Seat] = {}

    # --- the head -----------------------------------------------------------------------------

    def receive(self, message: object, now: float) -> bool:
        """Take a message of the head; False when it is not about stages."""
        match message:
            case link_stages.StageRun():
                self._run(message)
            case link_stages.StageOpen():
                self._open(message, now)
            case link_stages.StageClose(chain=chain, reason=reason):
                if self._end(chain, reason or "the head closed the chain", is_told=True):
                    self._changed(now)
            case _:
                return False
        return True

    def link_down(self) -> None:
        """The link is gone, over which all units of work go."""
        for chain in {seat.chain for seat in self._seats.values()}:
            self._end(chain, "the link to the head ended", is_told=True)

    def _run(self, message: link_stages.StageRun) -> None:
        seat = self._seats.get((message.chain, message.hop))
        if seat is not None and seat.is_open:
            unit = worker_stages.StageUnit(
                chain=message.chain,
                group=message.group,
                unit=message.unit,
                hidden=message.hidden,
            )
            self._do(SendToWorker(model=seat.model, message=unit))

    def _open(self, message: link_stages.StageOpen, now: float) -> None:
        refusal = self._why_not(message)
        if refusal is not None:
            code, why = refusal
            self._tell(
                link_stages.StageOpened(
                    chain=message.chain, index=message.index, code=code, message=_cut(why)
                )
            )
            return
        seat = _Seat(message.chain, message.index, message.stages, message.model)
        if seat.drives and self._end_of(message.model, "the head opened another chain"):
            self._changed(now)
        self._seats[message.chain, message.index] = seat
        self._of_model[message.chain, message.model] = seat
        order = worker_stages.StageOpen(
            chain=message.chain,
            groups=message.groups,
            lanes=message.lanes,
            window=message.window,
            host_tokens=message.host_tokens,
            hidden_type=message.hidden_type,
            numerics=message.numerics,
        )
        self._do(SendToWorker(model=message.model, message=order))

    def _why_not(self, message: link_stages.StageOpen) -> tuple[str, str] | None:
        """Why a model's worker can be no stage of a chain: a code, and the reason."""
        model, found = message.model, self._models.get(message.model)
        if found is None or found.is_unloading:
            return MODEL_NOT_SERVED, f"this node does not serve {model}"
        if found.stage is None or found.drives != (message.index == message.stages - 1):
            return Invalid.code, f"{model} here is no stage {message.index} of {message.stages}"
        if found.loaded is None:
            return MODEL_NOT_READY, f"{model} is {found.phase} on this node"
        if (message.chain, message.index) in self._seats or (message.chain, model) in (
            self._of_model
        ):
            return Invalid.code, f"{model} has that place in the chain already"
        if len(self._seats) >= MAX_SEATS:
            return QueueFull.code, f"this node is in {MAX_SEATS} chains"
        return None

    # --- workers ------------------------------------------------------------------------------

    def opened(self, found: ServedModel, message: worker_stages.StageOpened, now: float) -> None:
        """A worker has made room for a chain, or could not."""
        seat = self._of_model.get((message.chain, found.name))
        if seat is None or seat.is_open:
            return
        self._tell(
            link_stages.StageOpened(
                chain=message.chain,
                index=seat.index,
                window=message.window,
                lanes=message.lanes,
                host_tokens=message.host_tokens,
                numerics=message.numerics,
                code=message.code,
                message=message.message,
            )
        )
        if message.code:
            self._drop(seat)
            return
        seat.is_open = True
        if seat.drives:
            found.chain_opened(message)
            self._changed(now)
        self._note("chain_opened", seat)

    def unit(self, found: ServedModel, message: worker_stages.StageUnit, now: float) -> None:
        """A worker has done its part of a unit of work."""
        seat = self._of_model.get((message.chain, found.name))
        if seat is not None and seat.is_open:
            self._tell(
                link_stages.StageRun(
                    chain=message.chain,
                    hop=(seat.index + 1) % seat.stages,
                    group=message.group,
                    unit=message.unit,
                    hidden=message.hidden,
                )
            )

    def failed(self, found: ServedModel, message: worker_stages.StageFailed, now: float) -> None:
        """A worker could not do a unit of work, and has closed the chain."""
        why = f"{found.name} failed: {message.message}"
        if (message.chain, found.name) in self._of_model and self._end(message.chain, why):
            self._changed(now)

    def not_sent(self, model: ModelName, chain: int, now: float) -> None:
        """A message about a chain did not reach a worker, which takes nothing at present."""
        why = f"the worker of {model} takes no more work at present"
        if (chain, model) in self._of_model and self._end(chain, why):
            self._changed(now)

    def worker_gone(
        self, model: ModelName, reason: str, worker: WorkerIncarnation = NO_WORKER
    ) -> None:
        """A model's worker is gone, or is about to be; what its status is then, others tell.

        Args:
            worker: that died; none when its model is unloaded.
        """
        self._end_of(model, reason, worker)

    # --- ends ---------------------------------------------------------------------------------

    def _end_of(self, model: ModelName, reason: str, worker: WorkerIncarnation = NO_WORKER) -> bool:
        """End all chains that a model is in; whether a driver has none any more."""
        ended = False
        for chain in [chain for chain, name in self._of_model if name == model]:
            ended |= self._end(chain, reason, worker=worker)
        return ended

    def _end(
        self,
        chain: int,
        reason: str,
        *,
        worker: WorkerIncarnation = NO_WORKER,
        is_told: bool = False,
    ) -> bool:
        """A chain is over here; an unknown one is passed over.

        Args:
            worker: that died, and was the reason.
            is_told: the head knows, and is told only what the driver had.

        Returns:
            Whether its driver is here.
        """
        seats = [seat for seat in self._seats.values() if seat.chain == chain]
        for seat in seats:
            self._drop(seat)
            close = worker_stages.StageClose(chain=chain, reason=_cut(reason))
            self._do(SendToWorker(model=seat.model, message=close))
            self._note("chain_closed", seat, reason)

        def notice(had: tuple[GenerationId, ...]) -> link_stages.StageClose:
            return link_stages.StageClose(
                chain=chain, reason=_cut(reason), worker=worker, generations=had
            )

        driver = next((seat.model for seat in seats if seat.drives), None)
        if driver is not None:
            self._models[driver].chain_closed(reason)
            self._session.chain_closed(driver, reason, notice)
        elif seats and not is_told:
            self._tell(notice(()))
        return driver is not None

    def _drop(self, seat: _Seat) -> None:
        del self._seats[seat.chain, seat.index], self._of_model[seat.chain, seat.model]

    def _note(self, event: str, seat: _Seat, reason: str = "") -> None:
        pairs: dict[str, object] = {
            "model": seat.model,
            "chain": f"{seat.chain:016x}",
            "stage": f"{seat.index + 1}/{seat.stages}",
        }
        self._do(Note(event=event, pairs=pairs | ({"reason": reason} if reason else {})))

    def validate_state(self) -> None:
        """Check the invariants; for tests.

        Raises:
            ValueError: one does not hold.
        """
        if {id(seat) for seat in self._seats.values()} != set(map(id, self._of_model.values())):
            raise ValueError("the stages of chains are counted wrongly")
        open_here = {s.model for s in self._seats.values() if s.drives and s.is_open}
        for model in self._models.values():
            if model.drives and (model.phase == "ready") != (model.name in open_here):
                raise ValueError(f"{model.name} is {model.phase}, which its chain is not")


def _cut(reason: str) -> str:
    return reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")

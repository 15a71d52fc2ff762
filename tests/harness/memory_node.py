"""A node in memory: its real core and link, driven as agent/node.py drives them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from agent.actions import (
    Action,
    FindModel,
    ForgetParked,
    KeepParked,
    KnowModel,
    RememberModel,
    SendToWorker,
    StartWorker,
    StopWorker,
)
from agent.core import AgentCore
from bus.acceptor import Acceptor
from bus.agent_jobs import JobHandler
from bus.agent_records import SendToHead
from bus.capabilities import BLOBS, CAPABILITIES
from bus.crypto import KeyPair
from bus.endpoint import Endpoint
from bus.ids import NodeIdentity, PackedIds, SessionId, WorkerIncarnation
from bus.link import LinkDown, LinkIdentity, LinkUp, MessageReceived
from bus.messages.link import (
    SESSION_COMMANDS,
    Declined,
    HeadConfirm,
    Heartbeat,
    SessionRevoke,
)
from bus.messages.link_parking import SessionPark
from bus.messages.worker import Submit
from tests.harness.blob_rig import BlobsInMemory
from tests.harness.memory_ends import Dialer, Listener
from tests.harness.memory_parts import MODEL, WINDOW, MadeUpWorker, expected_tokens
from tests.harness.memory_process import Process
from tests.harness.memory_side import SideWorkers
from tests.harness.memory_worker import MadeUpModel

#: Of a node of an earlier version.
WITHOUT_FILES = tuple(name for name in CAPABILITIES if name != BLOBS)

if TYPE_CHECKING:
    from tests.harness.memory_fleet import MemoryFleet


#: A repeated command comes again within this.
REPEAT_S = 1.0
#: A worker that is stopped is gone after this.
STOP_S = 0.05


class NodeHost(Process):
    """One machine: an agent, its link and its worker, over all their lives.

    Every connection has an address of its own; what was on its way when it was cut is gone.
    """

    def __init__(self, fleet: MemoryFleet, name: str, *, listens: bool = False) -> None:
        super().__init__(fleet, name)
        self.listens = listens
        self.key = KeyPair.generate(fleet.entropy)
        self.boot = 0
        self.incarnations = itertools.count(1)
        #: The cable is out: no connection can be made.
        self.cut = False
        self.core: AgentCore | None = None
        self.end: Dialer | Listener | None = None
        self.worker: MadeUpWorker | None = None
        self.worker_paused = False
        #: Its workers of further models, and what does jobs that need no worker, by kind.
        self.side = SideWorkers(self)
        self.job_handlers: dict[str, JobHandler] = {}
        #: What it has on disk: whether it serves the model when it is started.
        self.serves = True
        self.window = WINDOW
        self.load_s = 0.0
        #: What its workers answer to a prompt: so many tokens.
        self.answer = expected_tokens
        self.model = MadeUpModel()
        #: Of its workers, as in `MadeUpWorker`.
        self.numerics = "made-up"
        self.cached: Callable[[Submit], int] = lambda _: 0
        #: Whether its workers take no notice of stop strings.
        self.is_deaf = False
        #: Its folder of files, over all its lives; None takes none.
        self.files: BlobsInMemory | None = None
        #: Its folder of parked sessions, over all its lives.
        self.parked: dict[SessionId, PackedIds] = {}
        #: The address of the link that is up, when it listens.
        self._head: bytes | None = None
        self._seen_heads: dict[bytes, tuple[int, int]] = {}
        self._link_id = 0
        #: How often each session was revoked.
        self._held_life: dict[SessionId, int] = {}

    @property
    def alive(self) -> bool:
        return self.core is not None

    @property
    def endpoint(self) -> Endpoint | None:
        """The link, or the handshake under way."""
        if isinstance(self.end, Dialer):
            return self.end.endpoint
        if isinstance(self.end, Listener) and self._head is not None:
            return self.end.acceptor.endpoint(self._head)
        return None

    @property
    def address(self) -> bytes:
        """Of its present connection to the head; empty for none."""
        if isinstance(self.end, Dialer):
            return self.end.address
        return self._head or b""

    # --- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        self.begin()
        self.boot += 1
        if self.files is not None:
            self.files.restart()
        models = [*([MODEL] if self.serves else ()), *self.side.makers]
        core = AgentCore(
            NodeIdentity(self.name),
            self.boot,
            models,
            files=self.files,
            job_handlers=self.job_handlers,
        )
        self.core = core
        self._head = None
        identity = LinkIdentity(
            role="node",
            name=self.name,
            static=self.key,
            tokens=(self.fleet.token,),
            incarnation=self.boot,
            confirm=core.confirm,
            capabilities=CAPABILITIES if self.files is not None else WITHOUT_FILES,
        )
        self.end = self._listener(identity) if self.listens else self._dialer(identity)
        self.fleet.watch.node_started(self)
        if self.serves:
            self._start_worker()
        self.side.start()
        if isinstance(self.end, Dialer):
            self.end.open()
        self.turn()

    def _dialer(self, identity: LinkIdentity) -> Dialer:
        def endpoint() -> Endpoint:
            return Endpoint(
                identity,
                initiator=True,
                entropy=self.fleet.entropy,
                limits=self.fleet.limits,
                heartbeat=self._heartbeat,
            )

        return Dialer(self, self._head_listener, endpoint)

    def _listener(self, identity: LinkIdentity) -> Listener:
        acceptor = Acceptor(
            identity,
            entropy=self.fleet.entropy,
            limits=self.fleet.limits,
            last_seen=self._seen_heads.get,
            heartbeat=self._heartbeat,
        )
        return Listener(self, acceptor)

    def _head_listener(self) -> Listener | None:
        head = self.fleet.head
        return None if head is None or self.cut else head.listener

    def kill(self) -> None:
        """kill -9 of the agent; its worker dies with it."""
        if self.core is None:
            return
        running = list(self.worker.running) if self.worker else []
        end, self.end = self.end, None
        self.core = self.worker = None
        self.side.forget()
        self.begin()
        self.fleet.watch.worker_died(self, running)
        self.fleet.watch.node_died(self)
        if isinstance(end, Dialer) and end.connection is not None:
            end.connection.close(end)
        elif isinstance(end, Listener):
            end.close_all()

    def cut_connection(self) -> None:
        """The cable breaks; both sides notice."""
        for connection in list(self.fleet.network.connections):
            if self.name in connection.way(0):
                connection.close(None)

    # --- its worker ---------------------------------------------------------------------------

    def kill_worker(self, respawn_s: float = 0.25) -> None:
        if self.worker is None or self.core is None:
            return
        made, self.worker = self.worker, None
        core = self.core
        self.fleet.watch.worker_died(self, list(made.running))

        def exited() -> None:
            core.worker_exited(MODEL, made.incarnation, -9, respawn_s, self.now())
            self.fleet.after(respawn_s, lambda: self._respawn(core))

        self.post(exited)

    def _respawn(self, core: AgentCore) -> None:
        def respawn() -> None:
            is_served = any(served.name == MODEL for served in core.local_models())
            if self.core is core and self.worker is None and is_served:
                self._start_worker()

        self.post(respawn)

    def next_incarnation(self) -> WorkerIncarnation:
        """For a worker that starts now."""
        return WorkerIncarnation((self.boot << 32) | next(self.incarnations))

    def _start_worker(self) -> None:
        if self.core is None:
            return
        incarnation = self.next_incarnation()
        made = self.worker = MadeUpWorker(
            incarnation,
            window=self.window,
            answer=self.answer,
            model=self.model,
            burst=self.fleet.burst,
            mark=self.fleet.mark,
            computed=partial(self.fleet.watch.computed, self),
            numerics=self.numerics,
            cached=self.cached,
            is_deaf=self.is_deaf,
            parked=self.parked,
            kind="encoder" if self.fleet.encoder else "",
        )
        self.worker_paused = False
        self.core.worker_started(MODEL, incarnation, self.now())
        if self.load_s:
            self.fleet.after(self.load_s, lambda: self.post(lambda: self._ready(made)))
        else:
            self._ready(made)

    def _stop_worker(self, core: AgentCore) -> None:
        """The model was unloaded: its worker ends, and none follows it."""
        made, self.worker = self.worker, None
        self.fleet.watch.worker_stopped(self)
        if made is None:
            core.worker_stopped(MODEL, self.now())
            return

        def gone() -> None:
            if self.core is core:
                core.worker_exited(MODEL, made.incarnation, -15, None, self.now())
                core.worker_stopped(MODEL, self.now())

        self.fleet.after(STOP_S, lambda: self.post(gone))

    def _ready(self, made: MadeUpWorker) -> None:
        if self.worker is made:
            self.fleet.watch.worker_ready(self)
            self._from_worker(made, made.ready())
            self.fleet.after(self.fleet.step_s, lambda: self._step(made))

    def _step(self, made: MadeUpWorker) -> None:
        if self.worker is not made:
            return
        if made.poisoned:
            self.kill_worker(self.fleet.respawn_s)
            return
        if not self.worker_paused:
            messages = made.step(self.fleet.now)
            if messages:
                self.post(partial(self._all_from_worker, made, messages))
        self.fleet.after(self.fleet.step_s, lambda: self._step(made))

    def _all_from_worker(self, made: MadeUpWorker, messages: list[object]) -> None:
        for message in messages:
            self._from_worker(made, message)

    def _from_worker(self, made: MadeUpWorker, message: object) -> None:
        # A dead worker's last words are read before its death is noticed.
        if self.core is not None:
            self.core.worker_message(MODEL, made.incarnation, message, self.now())

    # --- the loop -----------------------------------------------------------------------------

    def turn(self) -> None:
        core, end = self.core, self.end
        if core is None or end is None:
            return
        for address, link_id, event in end.take():
            self._link_event(core, address, link_id, event)
        core.files_settled()
        self._act(core, end)
        core.validate_state()
        end.set_busy(core.is_busy)
        end.flush()
        self.arm()

    def _link_event(self, core: AgentCore, address: bytes, link_id: int, event: object) -> None:
        watch, now = self.fleet.watch, self.now()
        match event:
            case LinkUp(peer=peer, confirm=confirm) if isinstance(confirm, HeadConfirm):
                self._head, self._link_id = address, link_id
                if self.listens:
                    self._seen_heads[peer.public] = (peer.incarnation, peer.hello_counter)
                watch.link_up("node", self.name, link_id)
                core.link_up(confirm, now)
            case LinkDown():
                if address == self._head:
                    self._head = None
                    watch.link_down("node", self.name, link_id)
                    core.link_down(now)
            case MessageReceived(message=message):
                if address == self._head:
                    watch.accepted("node", self.name, link_id, message)
                    core.link_message(message, now)
                    self._repeat(core, address, link_id, message)

    def _repeat(self, core: AgentCore, address: bytes, link_id: int, message: object) -> None:
        """A head may give a command again; the node must take that for nothing new."""
        rng = self.fleet.rng
        if not self.fleet.repeat or not isinstance(message, SESSION_COMMANDS):
            return
        if isinstance(message, SessionRevoke | SessionPark):
            self._end_life(message.session)
        if rng.random() >= self.fleet.repeat:
            return

        life = self._held_life.get(message.session, 0)

        def again() -> None:
            is_there = self.core is core and (address, link_id) == (self._head, self._link_id)
            # What was revoked or declined since has no commands that could be given again.
            if is_there and life == self._held_life.get(message.session, 0):
                core.link_message(message, self.now())

        self.fleet.after(rng.random() * REPEAT_S, lambda: self.post(again))

    def _end_life(self, session: SessionId) -> None:
        self._held_life[session] = self._held_life.get(session, 0) + 1

    def _act(self, core: AgentCore, end: Dialer | Listener) -> None:
        while actions := core.actions():
            for action in actions:
                if isinstance(action, SendToHead):
                    if isinstance(action.message, Declined):
                        self._end_life(action.message.session)
                    if self._head is not None:
                        end.send(self._head, action.message)
                elif not isinstance(action, SendToWorker):
                    self._act_on_model(core, action)
                elif action.model in self.side.makers:
                    self.side.receive(action.model, action.message)
                elif self.worker is not None:
                    made = self.worker
                    if isinstance(action.message, Submit):
                        self.fleet.watch.submitted(self, action.message)
                    for message in made.receive(action.message, self.fleet.now):
                        self._from_worker(made, message)

    def _act_on_model(self, core: AgentCore, action: Action) -> None:
        match action:
            case FindModel(command=command, model=model):
                core.model_found(command, model, 0)
            case KnowModel(command=command, model=model):
                core.model_known(command, model)
            case StartWorker():
                self._start_worker()
            case StopWorker():
                self._stop_worker(core)
            case KeepParked(sessions=sessions):
                for session in self.parked.keys() - sessions:
                    del self.parked[session]
            case ForgetParked(session=session):
                self.parked.pop(session, None)
            case RememberModel(served=served):
                self.serves = served
                if not served:
                    self.fleet.watch.model_withdrawn(self)

    def due(self) -> float | None:
        if self.core is None or self.end is None:
            return None
        times = (self.core.next_timeout(), self.end.next_timeout())
        return min((time for time in times if time is not None), default=None)

    def fire(self, now: float) -> None:
        if self.core is not None and self.end is not None:
            self.end.handle_timeout(now)
            self.core.handle_timeout(now)

    def _heartbeat(self) -> Heartbeat:
        core = self.core
        lag_ms = self.fleet.next_heartbeat()
        return Heartbeat(loop_lag_ms=lag_ms) if core is None else core.heartbeat(lag_ms)

"""The head's process: one loop that joins the core to its store, links, clients and text processes.

A turn: everything readable goes into the core; then its effects come out, rows to the store's
writer and outputs through the gate. A finished commit wakes the loop and lets what waited leave.
"""

from __future__ import annotations

import contextlib
import os
import time
from functools import partial

from bus.blob_folder import BlobFolder
from bus.errors import SuperfluidError, TooLarge
from bus.ids import BootCounter, WorkerIncarnation
from bus.log import EventLog
from bus.messages.api import MARK, encode_body, error_body
from bus.state import StateFolder
from bus.transport import clock
from bus.transport.api_server import MAX_BATCH_BYTES, ApiServer
from bus.transport.loop import Loop
from bus.transport.pool import ProcessPool
from bus.version import __version__
from head.backups import Backup
from head.config import HeadConfig
from head.core import HeadCore
from head.effects import (
    BackUp,
    ClientKey,
    CloseLink,
    DropText,
    Output,
    Reply,
    SendLink,
    TextJob,
)
from head.gate import OutputGate
from head.kept_tokenizers import KeptTokenizers
from head.links import FleetLinks
from head.model_folders import find_folders, find_stamps
from head.reserve import Reserve
from head.store import Store
from head.store_care import StoreCare
from head.text_pool import TextPool

#: How often the models folder is looked at for new models.
MODELS_EVERY_S = 2.0
#: A client for which so many messages wait gets no more of its answers until it has taken them.
STALLED_AT = 256
#: How long text processes get to end.
TEXT_GRACE_S = 2.0
#: How long the last commits and frames may take at the end.
DRAIN_S = 2.0


class HeadServer:
    """One running head. Main thread only.

    Args:
        config: checked.
        state: the state folder.
    """

    def __init__(self, config: HeadConfig, state: StateFolder) -> None:
        self._config = config
        self._state = state
        self._log = EventLog("head")
        self._gate = OutputGate()
        #: Clients that read too slowly for what they asked; they are told to connect again.
        self._given_up: set[ClientKey] = set()
        #: Clients that do not take what they were sent.
        self._stalled: set[ClientKey] = set()
        self._models_at = 0.0

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then commit, say goodbye and return.

        Raises:
            SuperfluidError: it can not start, or the store failed.
        """
        with contextlib.ExitStack() as stack:
            self._open(stack)
            self._announce()
            stack.callback(self._state.remove_head)
            self._loop.run()
            self._log.info("stopping")
            self._drain()
        self._log.info("stopped")

    # --- start and end ------------------------------------------------------------------------

    def _open(self, stack: contextlib.ExitStack) -> None:
        config, state = self._config, self._state
        stack.enter_context(state.lock("head"))
        loop = self._loop = stack.enter_context(Loop())
        reserve = Reserve(state.store, config.store.room_policy)
        self._store, stored = Store.open(state.store, reserve=reserve, wall_s=time.time())
        stack.callback(self._store.close)
        files = stack.enter_context(BlobFolder(state.path / "blobs", config.blobs.budget_bytes))
        tokenizers = stack.enter_context(KeptTokenizers(state.path / "tokenizers"))
        now = clock.now()
        self._core = HeadCore(
            config.core_policy(),
            stored,
            entropy=os.urandom,
            now=now,
            wall_s=time.time(),
            files=files,
            tokenizers=tokenizers,
        )
        self._care = StoreCare(
            self._store.file,
            reserve,
            self._log,
            tell=self._core.storage.tell,
            write_back=self._store.write_back_log,
        )
        stack.callback(self._care.close)
        self._api = ApiServer(config.api.socket or f"ipc://{state.run / 'api.sock'}")
        stack.callback(self._api.close)
        self._links = FleetLinks(loop, config.fleet, state, stored, self._core.enrolment, self._log)
        stack.callback(self._links.close)
        self._core.dialed = self._links.dialed
        numbers = BootCounter(stored.boot)
        pool = ProcessPool(loop, state.run, lambda: WorkerIncarnation(numbers.next()))
        stack.callback(pool.close, TEXT_GRACE_S)
        limits = config.text
        log_path = state.log / "text.log"
        self._texts = TextPool(pool, limits.processes, limits.cpu_s, limits.memory_bytes, log_path)
        self._api.attach(loop, self._read_clients)
        loop.add_reader(self._store.fileno(), self._committed)
        loop.add_reader(files.fileno(), self._core.uploads.settle)
        loop.add_reader(tokenizers.fileno(), lambda: self._core.tokenizers.settle(clock.now()))
        loop.add_reader(self._care.fileno(), self._care.settle)
        loop.add_timer_source(self._care.next_timeout, self._care.handle_timeout)
        loop.add_timer_source(self._core.next_timeout, self._core.handle_timeout)
        # Before the first request: one that came with the restart would find no model.
        self._look_for_models(now)
        loop.add_timer_source(lambda: self._models_at, self._look_for_models)
        loop.on_turn(self._turn)
        loop.stop_on_signals()

    def _announce(self) -> None:
        """Say where this head is to be found, once it can be."""
        self._state.write_head(
            {"version": __version__, "api": self._api.address, "fleet": self._links.address}
        )
        self._log.info(
            "started",
            head=self._core.head_id,
            boot=self._core.boot,
            pid=os.getpid(),
            version=__version__,
            api=self._api.address,
            fleet=self._links.address,
        )

    def _drain(self) -> None:
        """Let commits finish and what waited for them leave, for a bounded time."""
        until = clock.now() + DRAIN_S
        while self._gate.waiting and clock.now() < until:
            self._loop.turn(0.05)

    # --- a turn -------------------------------------------------------------------------------

    def _read_clients(self) -> None:
        size_bytes = 0
        for client, frames in self._api.receive():
            size_bytes += sum(map(len, frames))
            if client in self._given_up:
                self._tell_given_up(client)
            else:
                self._core.client_request(client, frames, clock.now())
        for client in self._api.gone():
            self._given_up.discard(client)
            self._core.client_gone(client, clock.now())
        if size_bytes >= MAX_BATCH_BYTES:
            # Files go up: streams get their turn in between.
            self._loop.end_reading()

    def _committed(self) -> None:
        durable = self._store.completed()
        if durable > self._gate.durable_lsn:
            self._release(self._gate.durable(durable))

    def _look_for_models(self, now: float) -> None:
        self._models_at = now + MODELS_EVERY_S
        folders = find_folders(self._state.models)
        self._core.models_found(folders, now, find_stamps(folders))

    def _turn(self, now: float) -> None:
        for client in self._api.gone():
            self._given_up.discard(client)
            self._core.client_gone(client, now)
        for client in [found for found in self._stalled if not self._api.backlog(found)]:
            self._stalled.discard(client)
            self._core.client_reads(client, now)
        for reply in self._texts.replies():
            self._core.text_reply(reply, now)
        self._links.deliver(self._core, now)
        persist, released = self._gate.admit(self._core.effects())
        if persist is not None:
            self._store.submit(persist)
        self._release(released)
        self._links.flush(now)

    def _release(self, outputs: list[Output]) -> None:
        for output in outputs:
            match output:
                case SendLink(link=link, message=message):
                    self._links.send(link, message)
                case Reply(client=client, body=body):
                    self._reply(client, [MARK, encode_body(body)])
                case TextJob(message=job, client=client):
                    self._texts.submit(client, job)
                case DropText(job=number):
                    self._texts.drop(number)
                case BackUp() as job:
                    self._care.back_up(job.file, job.keep, partial(self._backed_up, job))
                case CloseLink(link=link, reason=reason):
                    self._log.warning("link_closed", link=link, reason=reason)
                    self._links.close_link(link, reason)

    def _reply(self, client: ClientKey, frames: list[bytes]) -> None:
        if client in self._given_up:
            return
        if self._api.send(client, frames):
            if client not in self._stalled and self._api.backlog(client) >= STALLED_AT:
                self._stalled.add(client)
                self._core.client_stalled(client)
            return
        if self._api.backlog(client):
            self._log.warning("client_too_slow", client=client.hex())
            self._given_up.add(client)
            self._core.client_gone(client, clock.now())

    def _backed_up(self, job: BackUp, made: Backup | SuperfluidError) -> None:
        if isinstance(made, SuperfluidError):
            body = error_body(job.request, made)
        else:
            body = {"id": job.request, "kind": "end", **made.to_map()}
        self._core.outbox.reply(Reply(client=job.client, body=body))

    def _tell_given_up(self, client: ClientKey) -> None:
        error = TooLarge(
            "this connection left too much unread and was given up; connect again and attach "
            "from your cursor"
        )
        self._api.send(client, [MARK, encode_body(error_body(None, error))])

"""The head's core: sessions, nodes, answers and the client API, without I/O, clock or randomness.

The driver (head/server.py, or a harness under virtual time) hands in what happened with `now`, then
takes `effects()`: rows to keep and outputs that may leave once those rows are durable. It calls
`handle_timeout` when `next_timeout` has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bus.errors import DecodeError, Invalid, SuperfluidError
from bus.ids import ModelName, RequestId, SessionId
from bus.messages.api import (
    QOS_CLASSES,
    GenerationOptions,
    decode_body,
    error_body,
    id_of_unreadable,
    read_envelope,
    readable_id,
)
from bus.messages.link import (
    Declined,
    Heartbeat,
    LeaseRenew,
    Lost,
    ModelAnswer,
    NeedFull,
    NodeConfirm,
    NodeStatus,
    ReconcileAck,
    Refused,
    TokenEvents,
    WorkerDied,
)
from bus.messages.link_jobs import JobEnd, JobPart
from bus.messages.link_parking import SessionParked, SessionRestored
from bus.messages.link_stages import StageClose, StageOpened, StageRun
from bus.messages.link_transfers import XferCredit, XferDone
from bus.messages.sampling import SamplingParams
from bus.timers import Timers
from bus.transfer import BlobStore
from bus.version import __version__
from head import reports
from head.answers import Answer
from head.api import Api
from head.book import AnswerBook
from head.effects import ClientKey, Effects, LinkKey, Reply
from head.enrolment import Enrolment, Way
from head.fleet import Fleet
from head.fleet_node import DialedAddress
from head.kept_tokenizers import NO_TOKENIZERS, TokenizerStore
from head.media import Media
from head.model_desk import ModelDesk
from head.node_marks import NodeMarks
from head.numbers import Numbers
from head.operation import ApiRequest
from head.outbox import Outbox
from head.pipelines import Pipelines
from head.put_back import PutBack
from head.recovery import Recovery
from head.rows import PutPeer, StoredAnswer, StoredState
from head.runs import RunPolicy, Runs
from head.storage import Storage
from head.texts import TextDesk
from head.tokenizers import TokenizerDesk
from head.unread import UnreadAnswers
from head.uploads import NO_FILES, Uploads

#: How often finished answers are looked through for ones past their retention.
PURGE_EVERY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CorePolicy:
    """The core's options, from the configuration. Times in seconds."""

    runs: RunPolicy = RunPolicy()
    #: A client's plain requests are cancelled when it is gone this long.
    disconnect_grace_s: float = 5.0
    #: Finished answers stay readable this long.
    retain_s: float = 3600.0
    #: What happens to nodes that are not known.
    enrolment: Way = "open"


class HeadCore:
    """One per head process.

    Args:
        policy: options.
        stored: what the store gave at start.
        entropy: gives random bytes, for seeds and names.
        now: this moment, and `wall_s` the same as wall time.
        files: where files are kept that clients put.
        tokenizers: where those are kept that were fetched from nodes.
    """

    def __init__(
        self,
        policy: CorePolicy,
        stored: StoredState,
        *,
        entropy: Callable[[int], bytes],
        now: float,
        wall_s: float,
        files: BlobStore = NO_FILES,
        tokenizers: TokenizerStore = NO_TOKENIZERS,
    ) -> None:
        self._policy = policy
        self._entropy = entropy
        self.head_id = stored.head_id
        self._started_s = now
        self._numbers = Numbers(stored.boot)
        self._timers = Timers()
        self.storage = Storage()
        self.put_back = PutBack(stored.settings)
        self.outbox = Outbox()
        self.texts = TextDesk(self.outbox)
        self.book = AnswerBook(self.outbox, self.texts, boot_wall_offset_s=wall_s - now)
        self.fleet = Fleet(policy.runs.waiting.return_s)
        self.texts.other_digest = self.fleet.first_digest
        self.texts.other_kind = self.fleet.kind
        #: Gives the addresses that are dialed, for reports.
        self.dialed: Callable[[], Sequence[DialedAddress]] = tuple
        self.enrolment = Enrolment(policy.enrolment, self.outbox, stored.node_keys, stored.settings)
        self.marks = NodeMarks(self.outbox, stored.settings)
        self.runs = Runs(
            policy=policy.runs,
            numbers=self._numbers,
            now=now,
            outbox=self.outbox,
            book=self.book,
            fleet=self.fleet,
            texts=self.texts,
            files=files,
            timers=self._timers,
        )
        self.tokenizers = TokenizerDesk(
            texts=self.texts,
            fleet=self.fleet,
            jobs=self.runs.jobs,
            store=tokenizers,
            timers=self._timers,
            node_wait_s=policy.runs.waiting.node_wait_s,
            now=now,
        )
        self.pipelines = Pipelines(
            outbox=self.outbox,
            fleet=self.fleet,
            timers=self._timers,
            next_number=self._numbers.chains.next,
            died=self.runs.stage_died,
        )
        self.models = ModelDesk(
            outbox=self.outbox,
            fleet=self.fleet,
            timers=self._timers,
            next_command=self._numbers.commands.next,
        )
        self.uploads = Uploads(self.outbox, files, self._timers, self.runs.blobs_in_use)
        self.media = Media(files, self.uploads)
        self._unread = UnreadAnswers(
            grace_s=policy.disconnect_grace_s, timers=self._timers, cancel=self.runs.cancel
        )
        self._api = Api(self)
        self.runs.made.restore(stored.sessions)
        self._recover(stored.answers, now)
        self._timers.at(now + PURGE_EVERY_S, self._purge)

    @property
    def boot(self) -> int:
        """The boot number that this head's numbers carry now."""
        return self._numbers.boot

    # --- inputs -------------------------------------------------------------------------------

    def client_request(self, client: ClientKey, frames: list[bytes], now: float) -> None:
        """Frames of an API client."""
        request: RequestId | None = None
        try:
            body = decode_body(frames)
            request = readable_id(body)
            envelope = read_envelope(frames, body)
            self._api.handle(ApiRequest(client, envelope, body, tuple(frames[2:])), now)
        except DecodeError as error:
            wrong = Invalid(error.message, param=error.param)
            self.fail_request(client, id_of_unreadable(frames), wrong)
        except SuperfluidError as error:
            self.fail_request(client, request, error)

    def client_gone(self, client: ClientKey, now: float, *, left: bool = False) -> None:
        """A client's connection ended: what it alone read is cancelled after a grace.

        Args:
            left: it said goodbye, so that it is not waited for.
        """
        self.texts.client_gone(client)
        self._api.client_gone(client)
        self.uploads.client_gone(client)
        self.runs.jobs.client_gone(client, now)
        for answer in self.book.client_gone(client):
            self.runs.caught_up(answer, now)
            self._unread.reader_gone(answer, now, left=left)

    def client_stalled(self, client: ClientKey) -> None:
        """A client does not take what it was sent."""
        self.book.stall(client)
        self.runs.jobs.client_stalled(client)

    def client_reads(self, client: ClientKey, now: float) -> None:
        """It has taken all of it."""
        self.runs.jobs.client_reads(client, now)
        for answer in self.book.unstall(client):
            self.runs.caught_up(answer, now)

    def link_up(
        self, link: LinkKey, confirm: NodeConfirm, now: float, seen: PutPeer | None = None
    ) -> None:
        """A node's link is up; `seen` is its Hello, to be kept."""
        if seen is not None:
            self.outbox.persist(seen)
        if not self._go_above(link, confirm):
            return
        if (known := self.fleet.get(confirm.identity)) and known.link is not None:
            self.link_down(known.link, "its node made another", now)
        node = self.fleet.link_up(link, confirm, now)
        node.mark = self.marks.of(node.identity)
        self.runs.link_up(link, node, confirm, now)
        self.models.link_up(node)
        self.pipelines.changed(node, now)
        self.tokenizers.node_changed(node, now)

    def link_message(self, link: LinkKey, message: object, now: float) -> None:
        match message:
            case TokenEvents():
                self.runs.token_events(link, message, now)
            case StageRun():
                self.pipelines.run(link, message, now)
            case LeaseRenew():
                self.runs.renew(link, message)
            case NodeStatus():
                self._status(link, message, now)
            case Lost():
                self.runs.lost(link, message, now)
            case WorkerDied():
                self.runs.worker_died(link, message, now)
            case Declined():
                self.runs.declined(link, message, now)
            case Refused():
                self.runs.refused(link, message, now)
            case NeedFull():
                self.runs.need_full(link, message, now)
            case SessionParked():
                self.runs.parked(link, message)
            case SessionRestored():
                self.runs.parking.restored(link, message)
            case ReconcileAck():
                self.runs.reconciled(link, message, now)
            case StageOpened():
                self.pipelines.opened(link, message, now)
            case StageClose():
                self.pipelines.closed(link, message, now)
            case ModelAnswer():
                self.models.answered(link, message)
            case JobPart() | JobEnd():
                self.runs.jobs.receive(link, message, now)
            case XferCredit() | XferDone():
                self.runs.blobs.receive(link, message, now)
            case Heartbeat():
                self.fleet.heartbeat(link, message)
            case _:
                self.outbox.close_link(link, f"a node sent a {type(message).__name__}")

    def _status(self, link: LinkKey, message: NodeStatus, now: float) -> None:
        opens = self.fleet.status(link, message, now)
        if (node := self.fleet.by_link(link)) is not None:
            self.pipelines.changed(node, now)
        if message.draining:
            self.runs.drains.look(now)
        if opens and node is not None:
            self.runs.opened(now)
            self.tokenizers.node_changed(node, now)

    def link_down(self, link: LinkKey, reason: str, now: float, *, left: bool = False) -> None:
        """A link ended; `left` when its node said goodbye."""
        node = self.fleet.link_down(link, reason, now, left=left)
        if node is not None:
            self.runs.link_down(link, node, reason, now, left=left)
            self.pipelines.link_down(node, reason, now)
            self.tokenizers.node_changed(node, now)

    def text_reply(self, message: object, now: float) -> None:
        """A reply of a text process, or a `TextFailed` that stands for its death."""
        self.texts.reply(message, now)

    def models_found(
        self,
        folders: Mapping[ModelName, str],
        now: float,
        stamps: Mapping[ModelName, object] | None = None,
    ) -> None:
        """What the head's models folder holds, by name; see `TextDesk.models_found`."""
        self.texts.models_found(folders, stamps)
        self.tokenizers.folders_changed(now)

    def handle_timeout(self, now: float) -> None:
        self._timers.fire(now)

    # --- outputs ------------------------------------------------------------------------------

    def next_timeout(self) -> float | None:
        return self._timers.next_timeout()

    def effects(self) -> Effects:
        """What this round gave; empties it."""
        return self.outbox.drain()

    # --- for the API's operations ---------------------------------------------------------------

    def new_answer(
        self,
        owner: str,
        request: GenerationOptions,
        sampling: SamplingParams,
        now: float,
        session: SessionId | None = None,
    ) -> Answer:
        """An answer for a request, with its seed drawn when it names none.

        Args:
            session: the made session that it is a turn of.
        """
        self.storage.check_new_work()
        number = self._numbers.answers.next()
        if request.seed is None:
            sampling = replace(sampling, seed=int.from_bytes(self._entropy(8), "little"))
        lasting = request.key is not None or session is not None
        keep = request.on_disconnect or ("keep" if lasting else "cancel")
        return Answer(
            id=number,
            session=session or self._session_id(number),
            owner=owner,
            key=request.key,
            model=request.model,
            sampling=sampling,
            max_new=request.max_new,
            wall_ms=request.max_wall_ms,
            qos=QOS_CLASSES[request.qos],
            exact=request.exact,
            pause_when_slow=request.pause_when_slow,
            keep=keep == "keep",
            accepted_s=now,
        )

    def new_session_id(self) -> SessionId:
        """A name for a session that a client makes."""
        self.storage.check_new_work()
        return self._session_id(self._numbers.answers.next())

    def fail_request(
        self, client: ClientKey, request: RequestId | None, error: SuperfluidError
    ) -> None:
        """The error reply of a request that opened no answer."""
        self.outbox.reply(Reply(client=client, body=error_body(request, error)))

    def status(self, now: float) -> dict[str, Any]:
        """One map with all that `sfctl status` shows."""
        return {
            "head": {
                "id": self.head_id,
                "version": __version__,
                "boot": self.boot,
                "uptime_s": round(now - self._started_s, 3),
                "placement": self._policy.runs.waiting.placement,
            },
            **reports.everything(self, now),
        }

    # --- inside -------------------------------------------------------------------------------

    def _session_id(self, number: int) -> SessionId:
        return SessionId(f"s-{number:x}-{self._entropy(4).hex()}")

    def _go_above(self, link: LinkKey, confirm: NodeConfirm) -> bool:
        """Take higher numbers than any that a node has seen; False when there are none."""
        try:
            row = self._numbers.above(confirm.highest_epoch)
        except Invalid as error:
            self.outbox.close_link(link, error.message)
            return False
        if row is not None:
            self.outbox.persist(row)
        return True

    def _recover(self, answers: Iterable[StoredAnswer], now: float) -> None:
        recovery = Recovery(
            policy=self._policy.runs,
            requeue_s=self._policy.disconnect_grace_s,
            book=self.book,
            runs=self.runs,
            tokenizers=self.tokenizers,
            put_back=self.put_back,
            unread=self._unread,
            timers=self._timers,
        )
        for answer in answers:
            recovery.take_up(answer, now)

    def _purge(self, now: float) -> None:
        renewed = self._numbers.renew()
        if renewed is not None:
            self.outbox.persist(renewed)
        self.book.purge(now - self._policy.retain_s)
        self.runs.made.purge(now - self._policy.retain_s)
        self._timers.at(now + PURGE_EVERY_S, self._purge)

"""What every API operation works with: one request of a client, and the core that serves it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgpack

from bus.errors import SuperfluidError
from bus.ids import RequestId, SessionId
from bus.messages.api import Envelope, GenerationOptions
from bus.messages.sampling import SamplingParams
from head.answers import Answer
from head.book import AnswerBook
from head.effects import ClientKey, LinkKey, Reply
from head.enrolment import Enrolment
from head.fleet import Fleet
from head.fleet_node import DialedAddress
from head.model_desk import ModelDesk
from head.node_marks import NodeMarks
from head.outbox import Outbox
from head.pipelines import Pipelines
from head.put_back import PutBack
from head.runs import Runs
from head.storage import Storage
from head.texts import TextDesk

if TYPE_CHECKING:
    from head.media import Media
    from head.tokenizers import TokenizerDesk
    from head.uploads import Uploads

#: What a repeat of a request may change: how it is sent and read, not what is asked.
NOT_ASKED = frozenset({"id", "credit", "key", "on_disconnect", "pause_when_slow"})
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request whose envelope is sound; `body` has the operation's own keys, unchecked.

    `blobs` are the frames after the body.
    """

    client: ClientKey
    envelope: Envelope
    body: dict[str, Any]
    blobs: tuple[bytes, ...] = ()

    @property
    def id(self) -> RequestId:
        return self.envelope.id

    def digest(self) -> bytes:
        """Equal for requests that ask for the same, and for no others."""
        asked = {
            name: value
            for name, value in self.body.items()
            if name not in NOT_ASKED and value is not None
        }
        packed = msgpack.packb(_sorted(asked))
        return hashlib.blake2b(packed, digest_size=DIGEST_BYTES).digest()

    def end(self, body: dict[str, Any]) -> Reply:
        """Its one `end`."""
        return Reply(client=self.client, body={"id": self.id, "kind": "end", **body})


class Core(Protocol):
    """What the operations need of the head's core."""

    outbox: Outbox
    texts: TextDesk
    tokenizers: TokenizerDesk
    book: AnswerBook
    fleet: Fleet
    enrolment: Enrolment
    marks: NodeMarks
    runs: Runs
    models: ModelDesk
    pipelines: Pipelines
    uploads: Uploads
    media: Media
    storage: Storage
    put_back: PutBack

    @property
    def dialed(self) -> Callable[[], Sequence[DialedAddress]]: ...

    def new_answer(
        self,
        owner: str,
        request: GenerationOptions,
        sampling: SamplingParams,
        now: float,
        session: SessionId | None = None,
    ) -> Answer: ...

    def new_session_id(self) -> SessionId: ...

    def fail_request(
        self, client: ClientKey, request: RequestId | None, error: SuperfluidError
    ) -> None: ...

    def client_gone(self, client: ClientKey, now: float, *, left: bool = False) -> None: ...

    def link_down(self, link: LinkKey, reason: str, now: float, *, left: bool = False) -> None: ...

    def status(self, now: float) -> dict[str, Any]: ...


def _sorted(value: Any) -> Any:
    """A decoded body with its maps in order of their keys."""
    if isinstance(value, dict):
        # Keys of inner maps may be text and bytes side by side.
        keys = sorted(value, key=repr)
        return {key: _sorted(value[key]) for key in keys}
    return [_sorted(each) for each in value] if isinstance(value, list | tuple) else value

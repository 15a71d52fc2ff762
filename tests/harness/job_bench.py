"""A head whose nodes do jobs as a test types them in, beside what `Bench` has."""

from __future__ import annotations

from typing import Any

import msgpack

from bus.capabilities import CAPABILITIES
from bus.errors import SuperfluidError
from bus.ids import ModelName, NodeIdentity, WorkerIncarnation
from bus.messages.api import MARK, encode_body
from bus.messages.link import NodeConfirm, NodeStatus
from bus.messages.link_jobs import JobCancel, JobEnd, JobMore, JobPart, JobStart
from bus.messages.parts import ModelStatus
from bus.transfer import BlobStore
from head.core import CorePolicy
from head.job_kinds import JobDone, JobSpec
from head.uploads import NO_FILES
from tests.harness.head_bench import CLIENT, Bench
from tests.harness.memory_text import DIGEST

ENCODER = ModelName("enc")
WHISPER = ModelName("whisper")
FOLDERS = {ENCODER: "/encoder", ModelName("toy"): "/toy"}
WINDOW = 64


class JobBench(Bench):
    """Serves an encoder or a transcriber; `got` has what the owners of jobs were told."""

    def __init__(self, policy: CorePolicy | None = None, files: BlobStore = NO_FILES) -> None:
        super().__init__(policy=policy, files=files)
        self.core.models_found(FOLDERS, 0.0)
        self.settle()
        self.got: dict[int, list[bytes]] = {}
        self.ends: dict[int, JobDone | SuperfluidError] = {}

    @property
    def desk(self) -> Any:
        return self.core.runs.jobs

    def settle(self) -> None:
        super().settle()
        self.core.runs.jobs.validate_state()

    # --- nodes --------------------------------------------------------------------------------

    def encoder(
        self,
        link: int,
        name: str = "n1",
        *,
        capabilities: tuple[str, ...] = CAPABILITIES,
        **status: Any,
    ) -> None:
        """A node that serves the encoder comes up on a link."""
        self._serve(link, name, capabilities, status)

    def transcriber(self, link: int, name: str = "n1") -> None:
        """A node that serves the transcriber does; the head gets a copy of it."""
        self.core.models_found(FOLDERS | {WHISPER: "/whisper"}, self.now)
        self._serve(link, name, CAPABILITIES, {"name": WHISPER, "kind": "transcriber"})

    def _serve(
        self, link: int, name: str, capabilities: tuple[str, ...], status: dict[str, Any]
    ) -> None:
        confirm = NodeConfirm(
            identity=NodeIdentity(name),
            incarnation=1,
            software="x",
            models=(model_status(**_with_worker(status)),),
            capabilities=capabilities,
        )
        self.core.link_up(link, confirm, self.now)
        self.settle()

    def status(self, link: int, **status: Any) -> None:
        """A node says how its encoder is."""
        self.hear(link, NodeStatus(models=(model_status(**status),)))

    def starts(self, link: int) -> list[JobStart]:
        return self.on(link, JobStart)

    def cancels(self, link: int) -> list[int]:
        return [message.job for message in self.on(link, JobCancel)]

    def granted(self, link: int) -> list[int]:
        return [message.parts for message in self.on(link, JobMore)]

    def part(self, link: int, start: JobStart, seq: int, body: bytes = b"\x80") -> None:
        self.hear(link, JobPart(job=start.job, seq=seq, body=body))

    def end(self, link: int, start: JobStart, parts: int = 0, **fields: Any) -> None:
        self.hear(link, JobEnd(job=start.job, parts=parts, **fields))

    # --- owners -------------------------------------------------------------------------------

    def submit(self, kind: str = "embed", model: ModelName = ENCODER, **spec: Any) -> int:
        """A part of the head asks for a job."""
        numbers: list[int] = []

        def on_part(body: bytes, now: float) -> None:
            self.got.setdefault(numbers[0], []).append(body)

        def on_end(result: JobDone | SuperfluidError, now: float) -> None:
            self.ends[numbers[0] if numbers else 0] = result

        asked = JobSpec(model=model, kind=kind, body=spec.pop("body", b"\x80"), **spec)
        numbers.append(self.desk.submit(asked, on_part, on_end, self.now))
        self.settle()
        return numbers[0]

    # --- clients ------------------------------------------------------------------------------

    def op(self, op: str, id: bytes = b"e", client: bytes = CLIENT, **body: Any) -> None:
        asked = encode_body({"op": op, "id": id, **body})
        self.core.client_request(client, [MARK, asked], self.now)
        self.settle()


def model_status(**changes: Any) -> ModelStatus:
    """Of the encoder, ready unless changed."""
    fields: dict[str, Any] = {
        "name": ENCODER,
        "phase": "ready",
        "window_tokens": WINDOW,
        "lanes_total": 1,
        "tokenizer_digest": DIGEST,
        "worker": WorkerIncarnation(1),
        "kind": "encoder",
    }
    return ModelStatus(**fields | changes)


def packed(**keys: Any) -> bytes:
    """A body."""
    data: bytes = msgpack.packb(keys)
    return data


def _with_worker(status: dict[str, Any]) -> dict[str, Any]:
    worker = status.get("worker", 1)
    return status | {"worker": WorkerIncarnation(worker)}

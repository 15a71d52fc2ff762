"""A head that has no model folder, and the nodes that it fetches tokenizers from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bus.capabilities import CAPABILITIES
from bus.ids import ModelName, NodeIdentity, WorkerIncarnation
from bus.messages.api import MARK, encode_body
from bus.messages.link import NodeConfirm
from bus.messages.link_jobs import JobEnd, JobPart, JobStart
from bus.messages.parts import ModelStatus
from bus.messages.text import Describe, Described, Encode, TextFailed
from bus.text.tokenizer_export import TOKENIZER_JOB, export_parts
from bus.text.tokenizer_files import text_digest
from head.core import CorePolicy, HeadCore
from head.kept_tokenizers import TokenizerKey
from head.rows import StoredState
from tests.harness.head_bench import CLIENT, TOY, Bench
from tests.harness.memory_text import DIGEST
from tests.harness.memory_tokenizers import MemoryTokenizers

FILES = {"tokenizer.json": b'{"model": {}}', "chat_template.jinja": b"x" * 200_000}
TEXT = text_digest(FILES)
KEY = TokenizerKey(TOY, DIGEST, TEXT)
EMPTY = StoredState(boot=3, head_id="h", answers=())


class FetchBench(Bench):
    """A head without a folder of any model, and the nodes that it asks."""

    def __init__(self, *kept: TokenizerKey, stored: StoredState = EMPTY) -> None:
        self.store = MemoryTokenizers()
        #: What a description says in place of the digest that the folder's name has.
        self.says: dict[str, int | TextFailed] = {}
        #: What texts end with that are to be encoded.
        self.fails: TextFailed | None = None
        super().__init__()
        self.store.whole += kept
        self.core = HeadCore(
            CorePolicy(),
            stored,
            entropy=bytes,
            now=0.0,
            wall_s=1e9,
            tokenizers=self.store,
        )
        self.settle()

    def settle(self) -> None:
        super().settle()
        while self.store.is_due:
            self.core.tokenizers.settle(self.now)
            super().settle()

    def text_reply(self, job: object) -> object:
        reply = super().text_reply(job)
        if isinstance(job, Encode) and self.fails is not None:
            return replace(self.fails, job=job.job)
        if isinstance(job, Describe) and isinstance(reply, Described):
            said = self.says.get(job.folder)
            if isinstance(said, TextFailed):
                return replace(said, job=job.job)
            named = int(job.folder[:16], 16) if job.folder[:1] != "/" else DIGEST
            return replace(reply, digest=said or named)
        return reply

    def serve(
        self,
        link: int,
        name: str,
        *models: ModelStatus,
        incarnation: int = 1,
        capabilities: tuple[str, ...] = CAPABILITIES,
    ) -> None:
        confirm = NodeConfirm(
            identity=NodeIdentity(name),
            incarnation=incarnation,
            software="x",
            models=models or (status(),),
            capabilities=capabilities,
        )
        self.core.link_up(link, confirm, self.now)
        self.settle()

    def starts(self, link: int) -> list[JobStart]:
        found = self.on(link, JobStart)
        assert all(start.kind == TOKENIZER_JOB for start in found)
        return found

    def give(
        self, link: int, start: JobStart, files: Mapping[str, bytes] = FILES, *parts: bytes
    ) -> None:
        """A node's whole answer."""
        sent = [*export_parts(files), *parts]
        for seq, part in enumerate(sent):
            self.hear(link, JobPart(job=start.job, seq=seq, body=part))
        self.hear(link, JobEnd(job=start.job, parts=len(sent)))

    def ask_for(self, request: bytes, model: str = "toy", **body: Any) -> None:
        asked = {"op": "generate", "id": request, "model": model, "prompt": "hi", **body}
        self.core.client_request(CLIENT, [MARK, encode_body(asked)], self.now)
        self.settle()

    def error(self, request: bytes) -> dict[str, Any]:
        found: list[dict[str, Any]] = [
            reply["error"]
            for reply in self.replies
            if reply["id"] == request and reply["kind"] == "error"
        ]
        (only,) = found
        return only

    def state(self, model: ModelName = TOY) -> str:
        return self.core.tokenizers.state(model)


def status(
    model: str = "toy", digest: int = DIGEST, text: int = TEXT, phase: str = "ready"
) -> ModelStatus:
    return ModelStatus(
        name=ModelName(model),
        phase=phase,
        window_tokens=64,
        lanes_total=2,
        tokenizer_digest=digest if phase == "ready" else 0,
        text_digest=text if phase == "ready" else 0,
        worker=WorkerIncarnation(1),
    )

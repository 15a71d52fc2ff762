"""Nodes that do jobs: an encoder and a transcriber on each; tokenizers that the head fetches."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

from bus.agent_jobs import JobHandler, RunningJob
from bus.ids import WorkerIncarnation
from bus.messages import text
from bus.messages.job_bodies import unpack_body
from bus.text.tokenizer_export import (
    TOKENIZER_JOB,
    TokenizerBody,
    TokenizerIntake,
    export_parts,
)
from bus.text.tokenizer_files import text_digest
from head.kept_tokenizers import Found, TokenizerKey
from tests.harness.blob_rig import GENEROUS, BlobsInMemory
from tests.harness.memory_text import DIGEST, text_reply
from tests.harness.memory_tokenizers import MemoryTokenizers
from tests.harness.memory_transcriber import MadeUpTranscriber
from tests.harness.memory_worker import MadeUpWorker
from tests.sim.world.chat_text import chat_reply
from tests.sim.world.job_plans import ENCODER, WHISPER
from tests.sim.world.record import Violation

if TYPE_CHECKING:
    from tests.harness.memory_node import NodeHost
    from tests.sim.world.world import World

FILES = {"tokenizer.json": b'{"model": {}}', "chat_template.jinja": b"x" * 300_000}
TEXT_DIGEST = text_digest(FILES)
#: Windows that a transcriber makes in a step.
BURSTS = (1, 4)
#: What a node keeps of files: all, or what four jobs need and little more.
FILE_BYTES = (GENEROUS, 100_000)


class MadeUpExport(JobHandler):
    """Gives the files of the encoder."""

    def start(self, job: RunningJob, now: float) -> None:
        wanted = unpack_body(TokenizerBody, job.body)
        if (wanted.digest, wanted.text_digest, job.model) != (DIGEST, TEXT_DIGEST, ENCODER):
            raise Violation(f"a node is asked for {wanted} of {job.model}")
        job.parts_from(export_parts(FILES))


class KeptTokenizers(MemoryTokenizers):
    """The head's disk: what was fetched once is there for good."""

    def write(
        self,
        key: TokenizerKey,
        intake: TokenizerIntake,
        in_use: Collection[TokenizerKey],
        then: Found,
    ) -> None:
        if key in self.whole:
            raise Violation(f"the tokenizer of {key.model} was fetched, and is here already")
        super().write(key, intake, in_use, then)

    def confirm(self, key: TokenizerKey) -> None:
        if self.written[key] != FILES:
            raise Violation(f"what was fetched of {key.model} is not what nodes have")
        super().confirm(key)


def set_up_jobs(world: World) -> None:
    """Have all nodes of a world do jobs."""
    fleet, rng = world.fleet, world.rng
    fleet.text_reply = _reply if not world.profile.chats else _chat_reply
    fleet.folders = {WHISPER: "/whisper"}
    if rng.random() < 0.5:
        fleet.tokenizers = KeptTokenizers()
    else:
        fleet.folders[ENCODER] = "/encoder"
    burst, budget_bytes = rng.choice(BURSTS), rng.choice(FILE_BYTES)
    for node in fleet.nodes:
        node.files = BlobsInMemory(budget_bytes)
        node.job_handlers[TOKENIZER_JOB] = MadeUpExport()
        node.side.makers = {ENCODER: _encoder, WHISPER: partial(_transcriber, node, burst)}


def _encoder(incarnation: WorkerIncarnation) -> MadeUpWorker:
    return MadeUpWorker(incarnation, kind="encoder", text_digest=TEXT_DIGEST)


def _transcriber(node: NodeHost, burst: int, incarnation: WorkerIncarnation) -> MadeUpTranscriber:
    assert node.files is not None
    return MadeUpTranscriber(incarnation, node.files.data, burst)


def _reply(job: object) -> object:
    """Of a text process; folders that were fetched have the encoder."""
    folder = getattr(job, "folder", "")
    if isinstance(job, text.Describe) and not folder.startswith("/"):
        return text_reply(text.Describe(job=job.job, folder="/encoder"))
    return text_reply(job)


def _chat_reply(job: object) -> object:
    is_toy = getattr(job, "folder", "") == "/models/toy"
    return chat_reply(job) if is_toy else _reply(job)

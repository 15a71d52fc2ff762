"""AgentCore and the files of requests: received, in use while a generation runs, missing."""

from __future__ import annotations

import pytest

from agent.actions import SendToWorker
from agent.core import AgentCore
from bus.agent_records import SendToHead
from bus.blob_receiver import REST_S
from bus.context import EMPTY_DIGEST
from bus.ids import (
    CommandId,
    Epoch,
    GenerationId,
    ModelName,
    NodeIdentity,
    NumericsId,
    SessionId,
    WorkerIncarnation,
    pack_ids,
)
from bus.messages import link, link_transfers, parts, worker
from bus.messages.sampling import SamplingParams
from tests.harness.blob_rig import BlobsInMemory, blob_of

TOY, W1 = ModelName("toy"), WorkerIncarnation(1)
FIRST, SECOND = b"first file", b"second"


class Node:
    """A node with a worker that is ready, a link, and a budget for files."""

    def __init__(self, budget_bytes: int = 1000) -> None:
        self.store = BlobsInMemory(budget_bytes)
        self.core = AgentCore(NodeIdentity("n1"), 1, [TOY], files=self.store)
        self.core.worker_started(TOY, W1, 0.0)
        ready = worker.Ready(
            worker=W1,
            window_tokens=100,
            lanes=8,
            kv_total_tokens=1000,
            numerics=NumericsId("n"),
            tokenizer_digest=1,
            device="cpu",
            load_s=0.1,
        )
        self.core.worker_message(TOY, W1, ready, 0.0)
        self.link_up()

    def link_up(self) -> None:
        head = link.HeadConfirm(identity="head-1", boot=1, software="superfluid")
        self.core.link_up(head, 0.0)
        self.core.link_message(link.Reconcile(page=0, more=False), 0.0)
        self.taken()

    def taken(self) -> list[object]:
        self.core.files_settled()
        actions = self.core.actions()
        self.core.validate_state()
        sent = [a.message for a in actions if isinstance(a, SendToHead | SendToWorker)]
        return [message for message in sent if not isinstance(message, link.NodeStatus)]

    def tell(self, *messages: object) -> list[object]:
        for message in messages:
            self.core.link_message(message, 0.0)
        return self.taken()

    def receive(self, data: bytes, transfer: int = 1) -> list[object]:
        blob = blob_of(data)
        return self.tell(
            link_transfers.XferBegin(transfer=transfer, kind="request", blob=blob),
            link_transfers.XferChunk(transfer=transfer, offset=0, data=data),
            link_transfers.XferEnd(transfer=transfer),
        )

    def generate(self, number: int, *files: bytes) -> list[object]:
        session, epoch = SessionId(f"s{number}"), Epoch(number)
        return self.tell(
            link.SessionAssign(
                command=CommandId(number * 10),
                session=session,
                epoch=epoch,
                model=TOY,
                lease_ms=20_000,
            ),
            link.AppendContent(
                command=CommandId(number * 10 + 1),
                session=session,
                epoch=epoch,
                base_tokens=0,
                base_digest=EMPTY_DIGEST,
                ids=pack_ids([1]),
            ),
            link.GenerateReq(
                command=CommandId(number * 10 + 2),
                session=session,
                epoch=epoch,
                generation=GenerationId(number),
                sampling=SamplingParams(),
                max_new_tokens=1,
                prompt_tokens=1,
                blobs=tuple(blob_of(data) for data in files),
            ),
        )


def test_a_file_is_received_and_its_path_goes_to_the_worker() -> None:
    node = Node()
    assert node.receive(FIRST)[-1] == link_transfers.XferDone(
        transfer=1, sha256=blob_of(FIRST).sha256, result="ok"
    )
    (submit,) = node.generate(1, FIRST)
    assert isinstance(submit, worker.Submit)
    assert submit.files == (f"/files/{blob_of(FIRST).sha256.hex()}",)


def test_a_request_whose_file_is_not_here_is_declined() -> None:
    node = Node()
    node.receive(FIRST)
    (declined,) = node.generate(1, FIRST, SECOND)
    assert isinstance(declined, link.Declined)
    assert declined.code == "blob_missing"
    # The same command again, once the file is there, is a new one.
    node.receive(SECOND, 2)
    (submit,) = node.generate(1, FIRST, SECOND)
    assert isinstance(submit, worker.Submit)
    assert len(submit.files) == 2


def test_files_stay_while_their_generation_runs() -> None:
    node = Node(budget_bytes=len(FIRST) + 1)
    node.receive(FIRST)
    node.generate(1, FIRST)
    (done,) = [m for m in node.receive(SECOND, 2) if isinstance(m, link_transfers.XferDone)]
    assert (done.result, done.code) == ("error", "storage_full")
    finish = parts.Finish(reason="length")
    run = worker.OutputRun(generation=GenerationId(1), first_index=0, finish=finish)
    node.core.worker_message(TOY, W1, worker.Output(runs=(run,), stats=worker.WorkerStats()), 0.0)
    assert node.receive(SECOND, 3)[-1] == link_transfers.XferDone(
        transfer=3, sha256=blob_of(SECOND).sha256, result="ok"
    )
    assert node.store.length(blob_of(FIRST).sha256) is None


def test_what_a_lost_link_left_is_taken_up_or_goes() -> None:
    node = Node()
    begin = link_transfers.XferBegin(transfer=1, kind="request", blob=blob_of(FIRST))
    node.tell(begin, link_transfers.XferChunk(transfer=1, offset=0, data=FIRST[:4]))
    node.core.link_down(5.0)
    assert node.taken() == []
    node.link_up()
    assert node.tell(begin) == [link_transfers.XferCredit(transfer=1, offset=4, limit=len(FIRST))]
    node.core.link_down(10.0)
    node.core.handle_timeout(10.0 + REST_S)
    assert node.store.index.used_bytes == 0


def test_the_status_has_the_budget() -> None:
    node = Node(budget_bytes=12345)
    node.core.host_sampled(parts.HostStatus(memory_total_bytes=7))
    assert node.core.confirm().host.blob_budget_bytes == 12345


@pytest.mark.parametrize("files", [(), (FIRST,)])
def test_a_node_that_keeps_no_files_declines_those_that_name_some(files: tuple[bytes, ...]) -> None:
    node = Node()
    node.core._blobs = None
    (answer,) = node.generate(1, *files)
    if files:
        assert isinstance(answer, link.Declined)
        assert answer.code == "blob_missing"
    else:
        assert isinstance(answer, worker.Submit)

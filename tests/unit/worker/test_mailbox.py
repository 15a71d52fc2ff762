"""A worker's messages over a pipe that does not always take them."""

from __future__ import annotations

from collections import deque

import msgpack
import pytest

from agent.worker.mailbox import MOST_AT_ONCE, MOST_KEPT, SEND_RETRY_S, Mailbox
from bus.ids import GenerationId, pack_ids
from bus.messages.sampling import SamplingParams
from bus.messages.worker import WORKER, Ping, Rejected, Stop, Submit
from bus.struct_codec import StructCodec


class MemoryPipe:
    """Gives `inbox`; takes as many messages as it has `room` for."""

    def __init__(self, *inbox: bytes, room: int = 0) -> None:
        self.inbox = deque(inbox)
        self.room = room
        self.sent: list[object] = []
        self.waits: list[float | None] = []
        self.sendable_waits: list[float] = []

    def recv(self, timeout_s: float | None) -> bytes | None:
        self.waits.append(timeout_s)
        return self.inbox.popleft() if self.inbox else None

    def send(self, data: bytes) -> bool:
        if not self.room:
            return False
        self.room -= 1
        self.sent.append(WORKER.decode(data))
        return True

    def wait_sendable(self, timeout_s: float) -> None:
        self.sendable_waits.append(timeout_s)


def test_messages_leave_in_order_and_none_is_dropped() -> None:
    pipe = MemoryPipe(room=1)
    mailbox = Mailbox(pipe)
    for nonce in range(3):
        mailbox.post(Ping(nonce=nonce))
    assert pipe.sent == [Ping(nonce=0)]
    assert mailbox.is_full
    pipe.room = 5
    mailbox.send()
    assert pipe.sent == [Ping(nonce=0), Ping(nonce=1), Ping(nonce=2)]
    assert not mailbox.is_full


def test_only_the_first_message_is_waited_for_and_what_is_none_is_passed_over() -> None:
    pipe = MemoryPipe(WORKER.encode(Ping(nonce=1)), b"\xff no message", WORKER.encode(Stop()))
    assert list(Mailbox(pipe).receive(2.5)) == [Ping(nonce=1), Stop()]
    assert pipe.waits == [2.5, 0.0, 0.0, 0.0]


SUBMIT = StructCodec.of(Submit).encode(
    Submit(
        generation=GenerationId(7),
        context=pack_ids([1]),
        sampling=SamplingParams(),
        max_new_tokens=1,
        prompt_tokens=1,
    )
)


@pytest.mark.parametrize(
    "values",
    [
        [1, 7],
        [1, 7, b"\1"],
        [1, *SUBMIT[:3], -1, *SUBMIT[4:]],
        [1, 7, *SUBMIT[1:2], [float("nan")], *SUBMIT[3:]],
        [1, 7, b"", [1.0, 0, 1.0, 0.0, 0, False, 1.0, 0.0, 0.0, b"", [], 0, b"", ["\ud800"]]],
    ],
    ids=["short", "no ids", "negative", "no number", "half a character"],
)
def test_a_submit_that_can_not_be_read_is_rejected(values: list[object]) -> None:
    pipe = MemoryPipe(msgpack.packb(values, unicode_errors="surrogatepass"), room=5)
    assert list(Mailbox(pipe).receive(0.0)) == []
    (rejected,) = pipe.sent
    assert isinstance(rejected, Rejected)
    assert (rejected.generation, rejected.code) == (7, "invalid")
    assert rejected.message.startswith("the request can not be read: ")


def test_what_names_nobody_is_only_logged() -> None:
    none: list[object] = [[1], [1, -1], [1, 2**63 * 2.0], [1, "7"], [5], [5, "x"], [30, 7], 7, {}]
    for values in none:
        pipe = MemoryPipe(msgpack.packb(values), room=5)
        assert list(Mailbox(pipe).receive(0.0)) == []
        assert pipe.sent == []


def test_one_who_sends_without_a_pause_is_heard_in_parts() -> None:
    pipe = MemoryPipe(*[WORKER.encode(Ping(nonce=1))] * (MOST_AT_ONCE + 5))
    mailbox = Mailbox(pipe)
    assert len(list(mailbox.receive(0.0))) == MOST_AT_ONCE
    assert len(list(mailbox.receive(0.0))) == 5


def test_one_who_reads_nothing_is_not_heard_while_too_much_is_kept() -> None:
    pipe = MemoryPipe(WORKER.encode(Stop()))
    mailbox = Mailbox(pipe)
    for nonce in range(MOST_KEPT):
        mailbox.post(Ping(nonce=nonce))
    assert list(mailbox.receive(None)) == []
    assert (pipe.waits, pipe.sendable_waits) == ([], [SEND_RETRY_S])
    pipe.room = 1
    mailbox.send()
    assert list(mailbox.receive(None)) == [Stop()]

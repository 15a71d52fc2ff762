"""The operation `transcribe` against the real core: what clients and nodes get."""

from __future__ import annotations

from typing import Any

import pytest

from bus.ids import WorkerIncarnation
from bus.messages.job_bodies import (
    TranscribeBody,
    TranscribeEnd,
    TranscribePart,
    pack_body,
    unpack_body,
)
from bus.messages.link_jobs import JobStart
from bus.messages.link_transfers import XferBegin, XferDone
from bus.messages.worker import SpokenSegment
from tests.harness.blob_rig import BlobsInMemory, blob_of
from tests.harness.job_bench import ENCODER, WHISPER, JobBench, packed

DATA = b"sound"
HELLO = SpokenSegment(start_s=1.0, end_s=2.5, text="Hello")
SHOWN = {"start_s": 1.0, "end_s": 2.5, "text": "Hello"}


@pytest.fixture
def bench() -> JobBench:
    files = BlobsInMemory()
    files.put(DATA)
    return JobBench(files=files)


def ask(bench: JobBench, **keys: Any) -> None:
    bench.op("transcribe", **{"model": WHISPER, "sha256": blob_of(DATA).sha256} | keys)


def started(bench: JobBench, link: int) -> JobStart:
    """The job that a node has got, once it has the file."""
    bench.wait(0.0)
    (begin,) = bench.on(link, XferBegin)
    assert begin.blob == blob_of(DATA)
    sha256 = begin.blob.sha256
    bench.hear(link, XferDone(transfer=begin.transfer, sha256=sha256, result="ok"))
    (start,) = bench.starts(link)
    assert (start.kind, start.blobs) == ("transcribe", (begin.blob,))
    return start


def window(next_s: float, *segments: SpokenSegment, language: str = "en") -> bytes:
    return pack_body(TranscribePart(segments=segments, next_s=next_s, language=language))


def error_of(bench: JobBench) -> dict[str, Any]:
    error: dict[str, Any] = bench.replies[-1]["error"]
    return error


def test_windows_come_as_they_are_and_one_end(bench: JobBench) -> None:
    bench.transcriber(1)
    ask(bench, language="en")
    start = started(bench, 1)
    assert unpack_body(TranscribeBody, start.body) == TranscribeBody(language="en")
    bench.part(1, start, 0, window(28.0, HELLO))
    bench.part(1, start, 1, window(40.0))
    bench.end(1, start, parts=2, body=pack_body(TranscribeEnd(language="en", duration_s=40.25)))
    assert bench.replies == [
        {
            "id": b"e",
            "kind": "event",
            "type": "segments",
            "segments": [SHOWN],
            "next_s": 28.0,
            "language": "en",
        },
        {
            "id": b"e",
            "kind": "event",
            "type": "segments",
            "segments": [],
            "next_s": 40.0,
            "language": "en",
        },
        {
            "id": b"e",
            "kind": "end",
            "finish": "done",
            "language": "en",
            "duration_s": 40.25,
            "node": "n1",
        },
    ]


def test_another_node_goes_on_behind_the_last_window(bench: JobBench) -> None:
    bench.transcriber(1)
    ask(bench, from_s=1.0)
    start = started(bench, 1)
    assert unpack_body(TranscribeBody, start.body) == TranscribeBody(from_s=1.0)
    bench.part(1, start, 0, window(28.0, HELLO, language="de"))
    bench.transcriber(2, "n2")
    bench.end(1, start, code="worker_lost", message="it died")
    again = started(bench, 2)
    # The language that was heard stays.
    assert unpack_body(TranscribeBody, again.body) == TranscribeBody(language="de", from_s=28.0)
    bench.part(2, again, 0, window(31.0, language="de"))
    bench.end(2, again, parts=1, body=pack_body(TranscribeEnd(language="de", duration_s=31.0)))
    assert [reply.get("next_s") for reply in bench.replies] == [28.0, 31.0, None]
    assert bench.replies[-1]["node"] == "n2"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"\xc1", "not msgpack: FormatError"),
        (b"\x90", "the body of a TranscribePart should be a map"),
        (packed(segments=[], next_s=-1.0), "next_s"),
        (window(28.0), "a window to 28.0 s where one from 28.0 s on was due"),
        (window(5.0), "a window to 5.0 s where one from 28.0 s on was due"),
        (window(40.0, HELLO), "a segment from 1.0 s to 2.5 s in the window from 28.0 s on"),
        (
            window(40.0, SpokenSegment(start_s=30.0, end_s=29.0, text="a")),
            "a segment from 30.0 s to 29.0 s in the window from 28.0 s on",
        ),
        (
            window(
                40.0,
                SpokenSegment(start_s=30.0, end_s=31.0, text="a"),
                SpokenSegment(start_s=29.0, end_s=31.0, text="b"),
            ),
            "a segment from 29.0 s to 31.0 s in the window from 30.0 s on",
        ),
    ],
)
def test_windows_that_a_node_makes_up_are_its_fault(
    bench: JobBench, body: bytes, says: str
) -> None:
    bench.transcriber(1)
    ask(bench)
    start = started(bench, 1)
    bench.part(1, start, 0, window(28.0, HELLO))
    bench.part(1, start, 1, body)
    error = error_of(bench)
    assert (error["code"], error.get("param")) == ("internal", None)
    assert error["details"] == {"node": "n1"}
    assert says in error["message"]
    assert bench.cancels(1) == [start.job]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"\xc1", "not msgpack: FormatError"),
        (packed(duration_s=-1.0), "duration_s"),
        (packed(language="en", duration_s=3.0), "a file of 3.0 s after a window to 28.0 s"),
    ],
)
def test_an_end_that_is_none_is_the_nodes_fault(bench: JobBench, body: bytes, says: str) -> None:
    bench.transcriber(1)
    ask(bench)
    start = started(bench, 1)
    bench.part(1, start, 0, window(28.0, HELLO))
    bench.end(1, start, parts=1, body=body)
    error = error_of(bench)
    assert (error["code"], error["details"]) == ("internal", {"node": "n1"})
    assert says in error["message"]


def test_a_cancel_ends_it_although_its_end_waits_for_credit(bench: JobBench) -> None:
    bench.transcriber(1)
    ask(bench, credit=1)
    start = started(bench, 1)
    bench.part(1, start, 0, window(28.0, HELLO))
    bench.part(1, start, 1, window(40.0))
    bench.end(1, start, parts=2, body=pack_body(TranscribeEnd(language="en", duration_s=40.25)))
    bench.op("cancel", id=b"x", about=b"e")
    assert bench.replies[1:] == [
        {"id": b"e", "kind": "end", "finish": "cancelled"},
        {"id": b"x", "kind": "end"},
    ]


def test_a_job_that_is_lost_three_times_is_lost(bench: JobBench) -> None:
    bench.transcriber(1)
    ask(bench)
    start = started(bench, 1)
    for worker in (2, 3, 4):
        bench.end(1, start, code="worker_lost", message="it died")
        incarnation = WorkerIncarnation(worker)
        bench.status(1, name=WHISPER, kind="transcriber", worker=incarnation)
        start = bench.starts(1)[-1]
    assert len(bench.starts(1)) == 3
    assert error_of(bench)["code"] == "node_lost"


# --- files on their way -----------------------------------------------------------------------


def on_its_way(bench: JobBench, link: int) -> XferBegin:
    """The transfer of the file, which the node has not by now."""
    bench.wait(0.0)
    assert bench.starts(link) == []
    begin: XferBegin = bench.on(link, XferBegin)[-1]
    return begin


def arrives(bench: JobBench, link: int, begin: XferBegin) -> None:
    done = XferDone(transfer=begin.transfer, sha256=begin.blob.sha256, result="ok")
    bench.hear(link, done)


def test_links_that_end_before_the_file_is_there_are_no_losses_of_the_job(bench: JobBench) -> None:
    ask(bench)
    for link in range(1, 6):
        bench.transcriber(link)
        on_its_way(bench, link)
        bench.down(link)
    bench.transcriber(6)
    start = started(bench, 6)
    assert not bench.replies
    bench.end(6, start, body=pack_body(TranscribeEnd(language="en", duration_s=1.0)))
    assert bench.replies[-1]["finish"] == "done"


def test_without_another_node_one_that_was_not_begun_has_no_node(bench: JobBench) -> None:
    bench.transcriber(1)
    ask(bench)
    on_its_way(bench, 1)
    bench.down(1)
    bench.wait(9.0)
    assert not bench.replies
    bench.wait(2.0)
    assert error_of(bench)["code"] == "no_node"


@pytest.mark.parametrize("others", [True, False], ids=["another-node", "none-yet"])
def test_a_drained_node_begins_none_whose_file_is_on_its_way(bench: JobBench, others: bool) -> None:
    bench.transcriber(1)
    ask(bench)
    if others:
        bench.transcriber(2, "n2")
    begin = on_its_way(bench, 1)
    bench.op("node.drain", id=b"d", name="n1")
    assert bench.replies[-1]["state"] == "drained"
    arrives(bench, 1, begin)
    if not others:
        bench.transcriber(2, "n2")
    started(bench, 2)
    assert bench.starts(1) == []


def test_one_that_was_begun_stays_on_a_drained_node(bench: JobBench) -> None:
    bench.transcriber(1)
    ask(bench)
    start = started(bench, 1)
    bench.transcriber(2, "n2")
    bench.op("node.drain", id=b"d", name="n1")
    assert bench.replies[-1]["state"] == "draining"
    bench.end(1, start, body=pack_body(TranscribeEnd(language="en", duration_s=1.0)))
    assert (bench.replies[-1]["finish"], bench.starts(2)) == ("done", [])


def test_a_drained_node_without_the_file_gets_neither_again(bench: JobBench) -> None:
    bench.transcriber(1)
    ask(bench)
    start = started(bench, 1)
    bench.op("node.drain", id=b"d", name="n1")
    bench.end(1, start, code="blob_missing", message="it is gone")
    bench.transcriber(2, "n2")
    started(bench, 2)
    assert (len(bench.starts(1)), len(bench.on(1, XferBegin))) == (1, 1)


def test_a_node_that_has_work_again_goes_on(bench: JobBench) -> None:
    bench.transcriber(1)
    ask(bench)
    on_its_way(bench, 1)
    bench.op("node.drain", id=b"d", name="n1")
    bench.op("node.undrain", id=b"u", name="n1")
    arrives(bench, 1, on_its_way(bench, 1))
    assert len(bench.starts(1)) == 1


@pytest.mark.parametrize(
    ("keys", "code", "param"),
    [
        ({"sha256": bytes(32)}, "blob_missing", "sha256"),
        ({"sha256": b"short"}, "invalid", "sha256"),
        ({"sha256": "text"}, "invalid", "sha256"),
        ({"from_s": -1.0}, "invalid", "from_s"),
        ({"from_s": float("nan")}, "invalid", "from_s"),
        ({"language": 5}, "invalid", "language"),
        ({"model": ENCODER}, "invalid", "model"),
        ({"model": "none"}, "not_found", "model"),
    ],
)
def test_bad_requests_are_named(
    bench: JobBench, keys: dict[str, Any], code: str, param: str
) -> None:
    bench.transcriber(1)
    bench.wait(11.0)
    ask(bench, **keys)
    assert (error_of(bench)["code"], error_of(bench)["param"]) == (code, param)
    assert bench.starts(1) == []


def test_a_new_head_waits_for_the_nodes_that_may_have_the_model(bench: JobBench) -> None:
    ask(bench)
    bench.op("transcribe", id=b"other", model="other", sha256=blob_of(DATA).sha256)
    bench.wait(9.0)
    assert not bench.replies
    bench.transcriber(1)
    started(bench, 1)
    bench.wait(1.0)
    (reply,) = bench.replies
    assert (reply["id"], reply["error"]["code"]) == (b"other", "not_found")


def test_what_a_node_refuses_is_the_clients_error(bench: JobBench) -> None:
    bench.transcriber(1)
    ask(bench, language="de")
    start = started(bench, 1)
    bench.end(1, start, code="invalid", message="en and not 'de'", param="language")
    assert (error_of(bench)["code"], error_of(bench)["param"]) == ("invalid", "language")


def test_a_cancel_ends_the_job_at_the_node(bench: JobBench) -> None:
    bench.transcriber(1)
    ask(bench)
    start = started(bench, 1)
    bench.op("cancel", id=b"x", about=b"e")
    assert bench.cancels(1) == [start.job]
    assert {"id": b"e", "kind": "end", "finish": "cancelled"} in bench.replies


def test_no_text_is_made_of_a_transcriber(bench: JobBench) -> None:
    bench.transcriber(1)
    bench.op("generate", model=WHISPER, prompt="a")
    assert error_of(bench)["message"].startswith(
        "whisper is a transcriber: it writes what it hears"
    )

"""What has ended is kept for its retention, which may be none."""

from __future__ import annotations

from head.core import PURGE_EVERY_S, CorePolicy
from tests.harness.head_bench import Bench, run
from tests.harness.session_talk import Talk


def test_without_a_retention_what_has_ended_goes_with_the_next_purge() -> None:
    talk = Talk()
    talk.bench.core._policy = CorePolicy(retain_s=0.0)
    talk.append("hi")
    talk.bench.hear(1, run(talk.turn(), 0, 65, finish="eos"))
    talk.bench.wait(PURGE_EVERY_S + 1)
    assert len(talk.bench.core.book) == 0
    # The session has not ended: it stays, with what its turn made.
    assert talk.get(limit=9)["ids"] == list(b"hiA")
    talk.call("session.finish", session=talk.session)
    talk.bench.wait(PURGE_EVERY_S + 1)
    assert talk.get()["error"]["code"] == "not_found"


def test_without_a_retention_a_slow_reader_still_gets_all() -> None:
    bench = Bench(policy=CorePolicy(retain_s=0.0))
    bench.node(1)
    request = bench.ask(credit=2)
    bench.hear(1, run(request, 0, 65))
    bench.hear(1, run(request, 1, 66, 67, finish="eos"))
    bench.wait(PURGE_EVERY_S + 1)
    assert len(bench.core.book) == 1
    from bus.messages.api import MARK, encode_body
    from tests.harness.head_bench import CLIENT

    more = {"op": "more", "id": b"m", "about": b"r", "credit": 9}
    bench.core.client_request(CLIENT, [MARK, encode_body(more)], bench.now)
    bench.settle()
    assert bench.tokens() == [65, 66, 67]
    bench.wait(PURGE_EVERY_S + 1)
    assert len(bench.core.book) == 0

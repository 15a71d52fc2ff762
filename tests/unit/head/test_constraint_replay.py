"""A moved answer whose constraint its new node refuses: the next node, or an error; never without.

The design has it so: next candidate, then an error with the partial result.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from bus.messages.link import GenerateReq, Lost, TokenEvents
from bus.messages.parts import Finish
from head.failover import REPLAY_CODES
from tests.harness.head_bench import Bench, run


def refusal(request: GenerateReq, code: str) -> TokenEvents:
    (end,) = run(request, 0).runs
    finish = Finish(reason="refused", error_code=code, message="token 3 of 3 does not fit")
    return TokenEvents(runs=(replace(end, finish=finish),))


@pytest.fixture
def bench() -> Bench:
    """A stream of two tokens that had to leave its node."""
    made = Bench()
    made.node(1)
    request = made.ask(max_new=10, constraint={"regex": "[A-Z]+"})
    made.hear(1, run(request, 0, 65, 66))
    made.node(2, "n2")
    made.node(3, "n3")
    made.down(1, left=True)
    assert isinstance(made.last(GenerateReq), GenerateReq)
    return made


@pytest.mark.parametrize("code", sorted(REPLAY_CODES))
def test_the_next_node_is_tried_under_the_same_constraint(code: str, bench: Bench) -> None:
    first = bench.last(GenerateReq)
    (link,) = [on for on, message in bench.sent if message is first]
    bench.hear(link, refusal(first, code))
    second = bench.last(GenerateReq)
    assert second.epoch > first.epoch
    assert second.sampling == first.sampling
    assert second.sampling.constraint
    (other,) = [on for on, message in bench.sent if message is second]
    assert {link, other} == {2, 3}
    bench.hear(other, run(second, 0, 67, finish="eos"))
    assert bench.tokens() == [65, 66, 67]


def test_when_every_node_refuses_it_ends_with_the_error_and_what_it_has(bench: Bench) -> None:
    for _ in range(2):
        request = bench.last(GenerateReq)
        (link,) = [on for on, message in bench.sent if message is request]
        bench.hear(link, refusal(request, "constraint_replay_failed"))
    error = bench.replies[-1]["error"]
    assert error["code"] == "constraint_replay_failed"
    assert error["details"]["offset"] == 2
    assert "does not fit" in error["message"]
    assert bench.tokens() == [65, 66]
    assert len({m.generation for _, m in bench.sent if isinstance(m, GenerateReq)}) == 3


def test_full_nodes_are_waited_for_before_it_is_given_up() -> None:
    bench = Bench()
    bench.node(1)
    request = bench.ask(max_new=10, constraint={"regex": "[A-Z]+"})
    bench.hear(1, run(request, 0, 65))
    bench.node(2, "n2")
    for number in range(5):
        bench.ask(b"o%d" % number, max_new=10)
    bench.down(1, left=True)
    bench.node(3, "n3")
    (moved,) = [m for m in bench.on(3, GenerateReq) if m.session == request.session]
    bench.hear(3, refusal(moved, "constraint_replay_failed"))
    assert not any(reply["kind"] == "error" for reply in bench.replies)
    other = bench.on(2, GenerateReq)[0]
    bench.hear(2, run(other, 0, 90, finish="eos"))
    bench.wait(0.0)
    assert bench.on(2, GenerateReq)[-1].session == request.session


def test_a_first_refusal_is_the_callers_to_mend() -> None:
    bench = Bench()
    bench.node(1)
    bench.node(2, "n2")
    request = bench.ask(max_new=10, constraint={"regex": "[A-Z]+"})
    (link,) = [on for on, message in bench.sent if message is request]
    bench.hear(link, refusal(request, "constraint_invalid"))
    assert bench.replies[-1]["error"]["code"] == "constraint_invalid"


def test_lost_is_no_refusal(bench: Bench) -> None:
    request = bench.last(GenerateReq)
    (link,) = [on for on, message in bench.sent if message is request]
    lost = Lost(
        session=request.session,
        epoch=request.epoch,
        generation=request.generation,
        worker=0,  # type: ignore[arg-type]
        reason="its lease ran out",
    )
    bench.hear(link, lost)
    bench.wait(1.0)
    assert not any(reply["kind"] == "error" for reply in bench.replies)

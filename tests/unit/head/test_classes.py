"""QoS classes at the head: who is sent to a node that is full of lower classes' work."""

from __future__ import annotations

from typing import Any

import pytest

from bus.messages.api import MARK, encode_body
from bus.messages.link import GenerateReq
from tests.harness.head_bench import CLIENT, TOY, Bench, run


class Fleet(Bench):
    """One node of two lanes; requests are named by what they begin with."""

    def __init__(self) -> None:
        super().__init__()
        self.node(1)

    def put(self, name: str, qos: str, count: int) -> None:
        for number in range(count):
            self.request(f"{name}{number}", qos)

    def request(self, name: str, qos: str) -> None:
        body: dict[str, Any] = {"op": "generate", "id": name.encode(), "model": TOY, "qos": qos}
        body |= {"tokens": [ord(letter) for letter in name], "max_new": 4}
        self.core.client_request(CLIENT, [MARK, encode_body(body)], self.now)
        self.settle()

    @property
    def sent_classes(self) -> list[int]:
        """The classes of the generations that the node was asked for, in order."""
        assigned = {m.session: m.qos for m in self.on(1) if hasattr(m, "qos")}
        return [assigned[request.session] for request in self.on(1, GenerateReq)]

    def end(self, number: int) -> None:
        """The node ends the generation that it was asked for as the number-th."""
        self.hear(1, run(self.on(1, GenerateReq)[number], 0, 65, finish="eos"))
        self.wait(0.0)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def test_interactive_work_does_not_wait_for_background_work(fleet: Fleet) -> None:
    fleet.put("b", "background", 20)
    assert fleet.sent_classes == [3, 3, 3]
    fleet.put("i", "interactive", 5)
    assert fleet.sent_classes == [3, 3, 3, 0, 0, 0]


def test_completions_pass_background_work_but_not_interactive_work(fleet: Fleet) -> None:
    fleet.put("b", "background", 4)
    fleet.put("i", "interactive", 2)
    fleet.put("c", "completion", 3)
    fleet.put("a", "agent", 1)
    assert fleet.sent_classes == [3, 3, 3, 0, 0, 1]


def test_background_work_waits_until_nobody_is_before_it(fleet: Fleet) -> None:
    fleet.put("b", "background", 4)
    fleet.put("i", "interactive", 4)
    assert fleet.sent_classes == [3, 3, 3, 0, 0, 0]
    fleet.end(3)
    assert fleet.sent_classes[6:] == [0]
    for number in (4, 5, 6, 0):
        fleet.end(number)
    assert fleet.sent_classes[7:] == [3]


def test_background_work_that_waited_long_holds_up_no_interactive_work(fleet: Fleet) -> None:
    fleet.put("b", "background", 100)
    fleet.wait(300.0)
    fleet.put("i", "interactive", 1)
    assert fleet.sent_classes[-1] == 0

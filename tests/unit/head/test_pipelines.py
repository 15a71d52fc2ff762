"""Chains as the head's core opens, runs and closes them, told by its messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bus.capabilities import CAPABILITIES, STAGES
from bus.ids import GenerationId, ModelName, NodeIdentity, NumericsId, WorkerIncarnation
from bus.messages.link import GenerateReq, Lost, NodeConfirm, NodeStatus
from bus.messages.link_stages import StageClose, StageOpen, StageOpened, StageRun
from bus.messages.parts import HostStatus, ModelStatus, StageStatus
from head.pipelines import OPEN_S, REST_S
from head.rows import StoredState
from tests.harness.head_bench import TOY, Bench, run
from tests.harness.memory_parts import DIGEST

FIRST = ModelStatus(
    name=ModelName("toy.1of2"),
    phase="ready",
    window_tokens=512,
    lanes_total=4,
    worker=WorkerIncarnation(1),
    kind="stage",
    stage=StageStatus(
        model=TOY, whole="w", index=0, stages=2, first=0, end=15, layers=30, hidden=576
    ),
)
LAST = replace(
    FIRST,
    name=TOY,
    phase="loading",
    worker_phase="stages",
    kind="",
    stage=StageStatus(
        model=TOY, whole="w", index=1, stages=2, first=15, end=30, layers=30, hidden=576
    ),
)
#: Head of boot 3.
CHAIN = 3 << 32 | 1
EXECUTOR, DRIVER = 1, 2


class Stages(Bench):
    """A core with nodes that have stages; an executor is on link 1, the driver on link 2."""

    def up(self, link: int, *models: ModelStatus, name: str = "", **fields: Any) -> None:
        confirm = NodeConfirm(
            identity=NodeIdentity(name or f"n{link}"),
            incarnation=1,
            software="x",
            models=models,
            **({"capabilities": CAPABILITIES} | fields),
        )
        self.core.link_up(link, confirm, self.now)
        self.settle()

    def says(self, link: int, *models: ModelStatus) -> None:
        self.hear(link, NodeStatus(models=models))

    def opens(self, link: int, index: int, chain: int = CHAIN, **fields: Any) -> None:
        self.hear(link, StageOpened(chain=chain, index=index, **fields))

    def open(self, chain: int = CHAIN) -> None:
        """Both have opened, and the driver is ready."""
        self.opens(EXECUTOR, 0, chain, window=100, lanes=4, host_tokens=7)
        self.opens(DRIVER, 1, chain, window=90, lanes=4, numerics=NumericsId("both"))
        self.says(DRIVER, ready())

    @property
    def state(self) -> list[str]:
        return [chain["state"] for chain in self.core.pipelines.report()]


def ready(worker: int = 1) -> ModelStatus:
    return replace(
        LAST,
        phase="ready",
        worker_phase="idle",
        window_tokens=90,
        tokenizer_digest=DIGEST,
        numerics=NumericsId("both"),
        worker=WorkerIncarnation(worker),
    )


@pytest.fixture
def bench() -> Stages:
    made = Stages()
    made.up(EXECUTOR, FIRST)
    made.up(DRIVER, LAST)
    return made


@pytest.fixture
def opened(bench: Stages) -> Stages:
    bench.open()
    return bench


def test_executors_are_asked_first_and_the_driver_with_what_they_gave(bench: Stages) -> None:
    common: dict[str, Any] = {"chain": CHAIN, "stages": 2, "groups": 2, "lanes": 4}
    assert bench.on(EXECUTOR, StageOpen) == [
        StageOpen(model=FIRST.name, index=0, window=512, **common)
    ]
    assert not bench.on(DRIVER, StageOpen)
    numerics = NumericsId("a")
    bench.opens(EXECUTOR, 0, window=100, lanes=4, host_tokens=7, numerics=numerics)
    assert bench.on(DRIVER, StageOpen) == [
        StageOpen(model=TOY, index=1, window=100, host_tokens=7, numerics=(numerics,), **common)
    ]
    assert bench.state == ["opening"]
    bench.opens(DRIVER, 1, window=90, lanes=4)
    assert bench.state == ["open"]


def test_units_go_from_stage_to_stage_past_what_waits_for_the_store(opened: Stages) -> None:
    unit = StageRun(chain=CHAIN, hop=0, group=1, unit=b"unit")
    opened.core.link_message(DRIVER, unit, opened.now)
    effects = opened.core.effects()
    assert [(each.link, each.message) for each in effects.forwards] == [(EXECUTOR, unit)]
    assert not effects.outputs
    on = replace(unit, hop=1, hidden=b"\0\0\0\0")
    opened.core.link_message(EXECUTOR, on, opened.now)
    (forward,) = opened.core.effects().forwards
    assert (forward.link, forward.message) == (DRIVER, on)
    # The same object: nothing of it was made again.
    assert forward.message is on


@pytest.mark.parametrize(
    ("link", "hop"), [(EXECUTOR, 0), (DRIVER, 1), (DRIVER, 2), (EXECUTOR, 255), (3, 0)]
)
def test_unit_of_who_is_not_the_stage_before_ends_the_link(
    opened: Stages, link: int, hop: int
) -> None:
    opened.up(3)
    opened.hear(link, StageRun(chain=CHAIN, hop=hop, group=0, unit=b""))
    ((closed, why),) = opened.closed
    assert closed == link
    assert "in another's place" in why


@pytest.mark.parametrize(
    ("link", "hop", "group"), [(EXECUTOR, 1, 0), (DRIVER, 0, 2), (DRIVER, 0, 255)]
)
def test_unit_out_of_turn_ends_the_chain(opened: Stages, link: int, hop: int, group: int) -> None:
    opened.hear(link, StageRun(chain=CHAIN, hop=hop, group=group, unit=b""))
    assert not opened.closed
    assert opened.on(DRIVER, StageClose)[0].chain == CHAIN
    assert opened.on(EXECUTOR, StageClose)[0].chain == CHAIN


def test_a_group_has_one_unit_under_way(opened: Stages) -> None:
    unit = StageRun(chain=CHAIN, hop=0, group=0, unit=b"")
    opened.hear(DRIVER, unit)
    opened.hear(DRIVER, replace(unit, group=1))
    assert not opened.on(DRIVER, StageClose)
    opened.hear(DRIVER, unit)
    assert opened.on(DRIVER, StageClose)


def test_unit_of_a_chain_that_is_not_open_is_late(bench: Stages) -> None:
    for chain in (CHAIN, CHAIN + 1):
        bench.core.link_message(DRIVER, StageRun(chain=chain, hop=0, group=0, unit=b""), 0.0)
        effects = bench.core.effects()
        assert not effects.forwards
        assert not effects.outputs


def test_who_was_not_asked_opens_nothing(bench: Stages) -> None:
    bench.opens(EXECUTOR, 1)
    bench.opens(DRIVER, 0)
    bench.opens(DRIVER, 1)
    assert [link for link, _ in bench.closed] == [EXECUTOR, DRIVER, DRIVER]
    assert bench.state == ["opening"]


def test_who_opens_twice_ends_its_link_and_one_that_is_late_nothing(opened: Stages) -> None:
    opened.opens(EXECUTOR, 0)
    assert [link for link, _ in opened.closed] == [EXECUTOR]
    opened.opens(EXECUTOR, 0, chain=CHAIN - 1)
    assert len(opened.closed) == 1


def test_executor_that_does_not_answer_is_left_alone_for_a_while(bench: Stages) -> None:
    bench.up(3, FIRST)
    bench.wait(OPEN_S)
    assert bench.on(EXECUTOR, StageClose)[0].reason == "n1 did not open toy.1of2 in 30 s"
    # The other one is asked at once, under the next number.
    assert bench.last(StageOpen).chain == CHAIN + 1
    assert bench.sent[-1][0] == 3


def test_driver_that_can_not_open_is_asked_again_later(bench: Stages) -> None:
    bench.opens(EXECUTOR, 0, window=100)
    bench.opens(DRIVER, 1, code="config_invalid", message="no room")
    assert [message.chain for message in bench.on(EXECUTOR, StageClose)] == [CHAIN]
    assert not bench.state
    bench.wait(REST_S)
    assert bench.on(EXECUTOR, StageOpen)[1].chain == CHAIN + 1


def test_status_that_crossed_the_end_of_a_chain_makes_no_driver_ready(opened: Stages) -> None:
    opened.hear(EXECUTOR, StageClose(chain=CHAIN, reason="no memory"))
    opened.says(DRIVER, ready())
    view = opened.core.fleet.snapshot(TOY, opened.now).nodes[1]
    assert view.serving is None
    assert view.why_not == "has a chain that is being opened"
    opened.open(CHAIN + 1)
    assert opened.core.fleet.snapshot(TOY, opened.now).nodes[1].serving is not None


@pytest.mark.parametrize(
    "status",
    [
        replace(FIRST, worker=WorkerIncarnation(2)),
        replace(FIRST, phase="loading"),
        replace(FIRST, phase="unloading"),
        replace(FIRST, phase="failed"),
        None,
    ],
)
def test_status_of_an_executor_that_can_not_go_on_ends_the_chain(
    opened: Stages, status: ModelStatus | None
) -> None:
    opened.says(EXECUTOR, *([status] if status else []))
    assert [message.chain for message in opened.on(DRIVER, StageClose)] == [CHAIN]
    # Of the one whose worker is another, a new chain is made at once.
    again = status is not None and status.phase == "ready"
    assert opened.state == (["opening"] if again else [])


@pytest.mark.parametrize("link", [EXECUTOR, DRIVER])
def test_link_that_ends_ends_the_chain(opened: Stages, link: int) -> None:
    opened.down(link)
    other = EXECUTOR + DRIVER - link
    (close,) = opened.on(other, StageClose)
    assert close.reason == f"the link to n{link} ended (cut)"
    assert not opened.state


def test_load_alone_changes_nothing(opened: Stages) -> None:
    before = len(opened.sent)
    host = HostStatus(memory_free_bytes=5)
    opened.hear(EXECUTOR, NodeStatus(models=(replace(FIRST, lanes_used=2, steps=9),), host=host))
    assert len(opened.sent) == before


def test_node_of_a_version_without_stages_is_in_no_chain() -> None:
    bench = Stages()
    older = tuple(name for name in CAPABILITIES if name != STAGES)
    bench.up(EXECUTOR, FIRST, capabilities=older)
    bench.up(DRIVER, LAST)
    assert not bench.on(EXECUTOR, StageOpen)
    view = bench.core.fleet.snapshot(TOY, 0.0).nodes[1]
    assert "n1 has layers 0-14 and runs a version that does not know 'stages': update it" in (
        view.why_not
    )


def test_executor_may_be_in_several_chains(opened: Stages) -> None:
    opened.up(3, LAST)
    assert opened.on(EXECUTOR, StageOpen)[1].chain == CHAIN + 1
    opened.down(3)
    assert opened.state == ["open"]
    assert [message.chain for message in opened.on(EXECUTOR, StageClose)] == [CHAIN + 1]


# --- who is to blame ----------------------------------------------------------------------------


def suspicions(bench: Stages) -> list[int]:
    return [len(answer.suspicion.seen) for answer in bench.core.book if not answer.ended]


def dies(bench: Stages, chain: int = CHAIN, worker: int = 1) -> None:
    """The executor's worker dies."""
    why = StageClose(chain=chain, reason="signal 9", worker=WorkerIncarnation(worker))
    bench.hear(EXECUTOR, why)


def loses(bench: Stages, *requests: GenerateReq, chain: int = CHAIN, also: int = 0) -> None:
    """The driver's node says what the chain had."""
    generations = [one.generation for one in requests] + ([GenerationId(also)] if also else [])
    bench.hear(DRIVER, StageClose(chain=chain, generations=tuple(generations)))
    for one in requests:
        bench.hear(
            DRIVER,
            Lost(
                session=one.session,
                epoch=one.epoch,
                generation=one.generation,
                worker=WorkerIncarnation(0),
                reason="its chain is over",
            ),
        )


def test_death_of_an_executor_counts_against_what_the_driver_had(opened: Stages) -> None:
    request = opened.ask(max_new=40)
    dies(opened)
    (close,) = opened.on(DRIVER, StageClose)
    assert (close.worker, close.reason) == (1, "n1: signal 9")
    assert suspicions(opened) == [0]
    loses(opened, request)
    assert suspicions(opened) == [1]
    (answer,) = (one for one in opened.core.book if not one.ended)
    assert answer.suspicion.seen[0].worker == ("n1", 1)
    assert not answer.suspicion.seen[0].unclear
    # Again, with the next worker.
    opened.says(EXECUTOR, replace(FIRST, worker=WorkerIncarnation(2)))
    opened.open(CHAIN + 1)
    opened.wait(1.0)
    request = opened.last(GenerateReq)
    dies(opened, CHAIN + 1, worker=2)
    loses(opened, request, chain=CHAIN + 1)
    errors = [reply["error"]["code"] for reply in opened.replies if reply["kind"] == "error"]
    assert errors == ["request_kills_workers"]


def test_death_with_what_the_head_does_not_know_any_more_is_certain_of_nobody(
    opened: Stages,
) -> None:
    request = opened.ask(max_new=40)
    dies(opened)
    loses(opened, request, also=99)
    (answer,) = (one for one in opened.core.book if not one.ended)
    assert answer.suspicion.seen[0].unclear


def test_driver_whose_link_ends_before_it_said_what_it_had_leaves_it_unclear(
    opened: Stages,
) -> None:
    request = opened.ask(max_new=40)
    opened.hear(DRIVER, run(request, 0, 65))
    dies(opened)
    opened.down(DRIVER)
    (answer,) = (one for one in opened.core.book if not one.ended)
    (death,) = answer.suspicion.seen
    assert death.worker == ("n1", 1)
    assert death.unclear


def test_end_without_a_death_is_nobodys_fault(opened: Stages) -> None:
    request = opened.ask(max_new=40)
    opened.hear(EXECUTOR, StageClose(chain=CHAIN, reason="a unit could not be done"))
    loses(opened, request)
    assert suspicions(opened) == [0]
    # The same worker is asked again at once.
    opened.open(CHAIN + 1)
    opened.wait(1.0)
    again = opened.last(GenerateReq)
    assert again.epoch > request.epoch


def test_chain_is_closed_by_its_own_nodes_alone(opened: Stages) -> None:
    opened.up(3)
    opened.hear(3, StageClose(chain=CHAIN))
    assert [link for link, _ in opened.closed] == [3]
    assert opened.state == ["open"]


def test_numbers_of_chains_carry_the_boot_number() -> None:
    later = Stages(stored=StoredState(boot=4, head_id="h", answers=()))
    later.up(EXECUTOR, FIRST)
    later.up(DRIVER, LAST)
    assert later.last(StageOpen).chain == 4 << 32 | 1


def test_weights_of_stages_are_compared_with_nobodys(opened: Stages) -> None:
    """Two splits of one model have other layers in their last folders."""
    opened.says(DRIVER, replace(ready(), weights_digest=5))
    opened.up(3, replace(ready(), stage=None, weights_digest=6))
    rows = [row for node in opened.core.status(0.0)["nodes"] for row in node["models"]]
    assert [row["weights_problem"] for row in rows] == ["", "", ""]

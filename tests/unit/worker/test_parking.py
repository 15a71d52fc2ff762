"""Parked sessions through the engine: what is told, and that the text goes on as if nothing was."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.models.folder import ModelFolder
from agent.worker.engine import Engine
from agent.worker.lane_folder import lane_path
from agent.worker.model_runner import ModelRunner
from agent.worker.parking import Parking, ParkLimits, refuse
from bus.errors import NotFound, StorageFull, UnsupportedOnFleet
from bus.ids import GenerationId, NumericsId, SessionId, pack_ids
from bus.messages.parts import Segment
from bus.messages.sampling import SamplingParams
from bus.messages.worker import Forget, Park, Parked, Restore, Restored, Submit
from tests.harness.lane_run import GREEDY, SEEDED
from tests.harness.models import DECODERS, toy_model_folder

SESSION = SessionId("s-1")
SALT = b"salt"
PROMPT = np.random.default_rng(9).integers(32, 127, 100).tolist()
ANSWER = 90
WALL_S = 1_000_000.0


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    return ModelRunner(toy_model_folder(), device="cpu", lanes=2, kv_bytes=8 << 20, threads=1)


class Node:
    """An engine with its parking; a new one of the same folder is a worker that was restarted."""

    def __init__(
        self,
        runner: ModelRunner,
        folder: Path,
        *,
        host_bytes: int = 16 << 20,
        limits: ParkLimits | None = None,
        numerics: NumericsId | None = None,
        wall_clock: Callable[[], float] = lambda: WALL_S,
    ) -> None:
        self.engine = Engine(runner, host_kv_bytes=host_bytes)
        self.parking = Parking(
            self.engine.scheduler,
            self.engine.transfers,
            runner.slab,
            folder=folder,
            model=runner.folder.digest,
            numerics=numerics or runner.numerics,
            wall_clock=wall_clock,
            limits=limits or ParkLimits(),
        )

    def run(self, submit: Submit) -> tuple[list[int], int]:
        """Tokens, and how many of the prompt were not computed."""
        self.engine.submit(submit, 0.0)
        tokens, cached = [], 0
        while not self.engine.idle:
            for emission in self.engine.turn(0.0):
                tokens += [] if emission.token is None else [emission.token]
                cached = emission.finish.usage.cached_tokens if emission.finish else cached
            self.engine.check_integrity()
        return tokens, cached

    def ask(self, request: Park | Restore | Forget) -> Parked | Restored | None:
        self.parking.start(request)
        replies: list[Parked | Restored] = []
        while self.parking.busy:
            self.engine.turn(0.0)
            replies += self.parking.poll()
            if self.parking.busy:
                select.select([self.parking.fileno()], [], [], 5.0)
        self.engine.turn(0.0)
        self.engine.check_integrity()
        return replies[0] if replies else None


@pytest.fixture
def nodes(runner: ModelRunner, tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    before, after = Node(runner, tmp_path), Node(runner, tmp_path)
    with closing(before.parking), closing(after.parking):
        yield before, after


def submit(
    generation: int,
    params: SamplingParams,
    generated: list[int],
    count: int,
    *,
    exact: bool = False,
) -> Submit:
    return Submit(
        generation=GenerationId(generation),
        context=pack_ids([*PROMPT, *generated]),
        sampling=params,
        max_new_tokens=count,
        prompt_tokens=len(PROMPT),
        generated_tokens=len(generated),
        segments=segments(generated),
        exact=exact,
        salt=SALT,
    )


def segments(generated: list[int]) -> tuple[Segment, ...]:
    return (Segment(tokens=len(PROMPT)), Segment(tokens=len(generated), by_step=True))


def park(generated: list[int]) -> Park:
    return Park(session=SESSION, context=pack_ids([*PROMPT, *generated]), salt=SALT)


def restore(generated: list[int]) -> Restore:
    return Restore(
        session=SESSION,
        context=pack_ids([*PROMPT, *generated]),
        segments=segments(generated),
        salt=SALT,
    )


@pytest.fixture(scope="module", params=DECODERS[:2])
def any_runner(request: pytest.FixtureRequest) -> ModelRunner:
    make: Callable[[], ModelFolder] = request.param
    return ModelRunner(make(), device="cpu", lanes=2, kv_bytes=64 << 20, threads=1)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_session_goes_on_in_a_new_worker_as_if_nothing_had_been(
    any_runner: ModelRunner, params: SamplingParams, exact: bool, tmp_path: Path
) -> None:
    before, after = Node(any_runner, tmp_path), Node(any_runner, tmp_path)
    whole, _ = Node(any_runner, tmp_path, host_bytes=0).run(submit(1, params, [], ANSWER))
    with closing(before.parking), closing(after.parking):
        told, _ = before.run(submit(1, params, [], 60))
        assert told == whole[:60]
        parked = before.ask(park(told))
        # The last token is not computed yet.
        size = lane_path(tmp_path, SESSION).stat().st_size
        assert parked == Parked(session=SESSION, tokens=159, file_bytes=size)
        restored = after.ask(restore(told))
        assert restored == Restored(session=SESSION, tokens=159, exact_tokens=159)
        rest, cached = after.run(submit(2, params, told, 30, exact=exact))
    assert told + rest == whole
    assert cached == len(PROMPT)


def test_what_is_not_in_memory_can_not_be_parked(nodes: tuple[Node, Node]) -> None:
    reply = nodes[0].ask(park([]))
    assert isinstance(reply, Parked)
    assert (reply.tokens, reply.code) == (0, NotFound.code)
    assert "nothing to park" in reply.message


def test_a_session_is_parked_in_the_turn_after_its_end(nodes: tuple[Node, Node]) -> None:
    """The lane is saved with the next unit of work, and the request waits for that."""
    node = nodes[0]
    node.engine.submit(submit(1, GREEDY, [], 60), 0.0)
    while not node.engine.scheduler.at_rest:
        node.engine.turn(0.0)
    assert node.engine.scheduler.has_transfers
    node.parking.start(park([]))
    assert node.parking.poll() == []
    reply = node.ask(Forget(session=SessionId("other")))
    assert isinstance(reply, Parked)
    assert reply.tokens == 100


def test_other_salts_do_not_meet(nodes: tuple[Node, Node]) -> None:
    told, _ = nodes[0].run(submit(1, GREEDY, [], 60))
    reply = nodes[0].ask(replace(park(told), salt=b"another"))
    assert isinstance(reply, Parked)
    assert reply.tokens == 0


def test_a_session_that_was_never_parked_says_so(nodes: tuple[Node, Node]) -> None:
    reply = nodes[0].ask(restore([]))
    assert isinstance(reply, Restored)
    assert reply.tokens == 0
    assert "not parked here" in reply.problem


@pytest.mark.parametrize("tokens", [24, 64, 65])
def test_one_that_is_too_short_to_be_kept_says_so(nodes: tuple[Node, Node], tokens: int) -> None:
    prompt = PROMPT[: tokens - 4]
    asked = replace(
        submit(1, GREEDY, [], 4), context=pack_ids(prompt), prompt_tokens=len(prompt), segments=()
    )
    told, _ = nodes[0].run(asked)
    context = pack_ids([*prompt, *told])
    parked = nodes[0].ask(replace(park([]), context=context))
    by_step = Segment(tokens=len(told), by_step=True)
    wanted = replace(restore([]), context=context, segments=(Segment(tokens=len(prompt)), by_step))
    reply = nodes[1].ask(wanted)
    assert isinstance(parked, Parked)
    assert isinstance(reply, Restored)
    if tokens > 64:
        assert (parked.tokens, reply.tokens, reply.problem) == (64, 64, "")
    else:
        assert (parked.tokens, reply.tokens) == (0, 0)
        assert "at most 64 tokens is not kept" in reply.problem


def test_other_numerics_are_used_but_not_for_exact_requests(
    runner: ModelRunner, nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    told, _ = nodes[0].run(submit(1, GREEDY, [], 60))
    nodes[0].ask(park(told))
    other = Node(runner, tmp_path, numerics=NumericsId("other"))
    with closing(other.parking):
        reply = other.ask(restore(told))
        assert isinstance(reply, Restored)
        assert (reply.tokens, reply.exact_tokens) == (159, 0)
        assert "numerics" in reply.problem
        assert other.run(submit(2, GREEDY, told, 5, exact=True))[1] == 0
        assert other.run(submit(3, GREEDY, told, 5))[1] == 100


def test_a_damaged_file_is_told_and_the_text_is_the_same(nodes: tuple[Node, Node]) -> None:
    told, _ = nodes[0].run(submit(1, GREEDY, [], 60))
    nodes[0].ask(park(told))
    path = lane_path(nodes[0].parking._folder, SESSION)
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    reply = nodes[1].ask(restore(told))
    assert isinstance(reply, Restored)
    assert reply.tokens == 0
    assert "damaged" in reply.problem
    rest, cached = nodes[1].run(submit(2, GREEDY, told, 30))
    assert cached == 0
    assert told + rest == nodes[1].run(submit(3, GREEDY, [], ANSWER))[0]


@pytest.mark.parametrize("parked", [True, False])
def test_what_memory_has_already_is_neither_read_nor_kept_twice(
    nodes: tuple[Node, Node], parked: bool
) -> None:
    told, _ = nodes[0].run(submit(1, GREEDY, [], 60))
    if parked:
        nodes[0].ask(park(told))
    before = nodes[0].engine.stats().kv_host_bytes
    reply = nodes[0].ask(restore(told))
    assert reply == Restored(session=SESSION, tokens=159, exact_tokens=159)
    assert nodes[0].engine.stats().kv_host_bytes == before


def test_memory_that_was_computed_in_another_way_is_not_called_exact(
    nodes: tuple[Node, Node],
) -> None:
    told, _ = nodes[0].run(submit(1, GREEDY, [], 60))
    reply = nodes[0].ask(replace(restore(told), segments=()))
    assert isinstance(reply, Restored)
    # As one chunk, of which no single token may be left.
    assert (reply.tokens, reply.exact_tokens) == (158, 100)
    assert "another way" in reply.problem


def test_no_host_memory_is_told(
    runner: ModelRunner, nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    told, _ = nodes[0].run(submit(1, GREEDY, [], 60))
    nodes[0].ask(park(told))
    poor = Node(runner, tmp_path, host_bytes=0)
    with closing(poor.parking):
        reply = poor.ask(restore(told))
    assert isinstance(reply, Restored)
    assert reply.tokens == 0
    assert "no room" in reply.problem


def test_files_keep_to_their_budget(runner: ModelRunner, tmp_path: Path) -> None:
    token_bytes = runner.slab.layout.token_bytes
    node = Node(runner, tmp_path, limits=ParkLimits(max_bytes=200 * token_bytes + (1 << 16)))
    with closing(node.parking):
        node.run(submit(1, GREEDY, [], 20))
        node.ask(replace(park([]), session=SessionId("a")))
        node.ask(replace(park([]), session=SessionId("b")))
        assert os.listdir(tmp_path) == ["b.lane"]
    node = Node(runner, tmp_path, limits=ParkLimits(max_bytes=50 * token_bytes))
    with closing(node.parking):
        node.run(submit(1, GREEDY, [], 20))
        reply = node.ask(park([]))
        assert isinstance(reply, Parked)
        assert (reply.tokens, reply.code) == (0, StorageFull.code)
        assert os.listdir(tmp_path) == ["b.lane"]


def test_a_folder_that_is_none_is_told_with_what_to_do(runner: ModelRunner, tmp_path: Path) -> None:
    folder = tmp_path / "parked"
    folder.touch()
    node = Node(runner, folder)
    with closing(node.parking):
        tokens, _ = node.run(submit(1, GREEDY, [], ANSWER))
        reply = node.ask(park(tokens))
        assert isinstance(reply, Parked)
        assert (reply.tokens, reply.code) == (0, StorageFull.code)
        assert reply.message.startswith(f"{folder} can not be used: Not a directory; make room")
        assert node.ask(Forget(session=SESSION)) is None


def test_a_forgotten_session_is_gone(nodes: tuple[Node, Node]) -> None:
    told, _ = nodes[0].run(submit(1, GREEDY, [], 20))
    nodes[0].ask(park(told))
    assert nodes[0].ask(Forget(session=SESSION)) is None
    assert os.listdir(nodes[0].parking._folder) == []
    assert nodes[0].ask(Forget(session=SESSION)) is None


def test_a_worker_without_a_folder_says_so() -> None:
    parked, restored = refuse(park([])), refuse(restore([]))
    assert isinstance(parked, Parked)
    assert isinstance(restored, Restored)
    assert parked.code == UnsupportedOnFleet.code
    assert "folder" in restored.problem
    assert refuse(Forget(session=SESSION)) is None


def test_a_fault_that_nobody_foresaw_is_told_and_the_next_request_is_served(
    runner: ModelRunner, tmp_path: Path
) -> None:
    def broken_clock() -> float:
        raise ZeroDivisionError

    node = Node(runner, tmp_path, wall_clock=broken_clock)
    with closing(node.parking):
        tokens, _ = node.run(submit(1, GREEDY, [], ANSWER))
        parked = node.ask(park(tokens))
        assert isinstance(parked, Parked)
        assert (parked.tokens, parked.code) == (0, "internal")
        restored = node.ask(restore(tokens))
        assert isinstance(restored, Restored)
        assert restored.tokens >= 64, "host memory has it still"

"""The scheduler by itself: a model that is a dict of what was fed takes the engine's place."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from agent.worker.scheduler import (
    EXTRA_WAITING,
    DecodeStep,
    Emission,
    MoveLane,
    PrefillChunk,
    Scheduler,
)
from bus.errors import ContextLengthExceeded, Internal, Invalid, QueueFull
from bus.ids import GenerationId, pack_ids
from bus.messages.link import Finish, SamplingParams, Segment, Usage
from bus.messages.worker import Submit

EOS = 9
NEXT = 5

STEP, CHUNK = True, False


def submit(
    generation: int,
    context: int | list[int] = 4,
    *,
    max_new: int = 3,
    wall_ms: int = 0,
    segments: tuple[Segment, ...] = (),
    ignore_eos: bool = False,
) -> Submit:
    ids = list(range(100, 100 + context)) if isinstance(context, int) else context
    return Submit(
        generation=GenerationId(generation),
        context=pack_ids(ids),
        sampling=SamplingParams(temperature=0.0, ignore_eos=ignore_eos),
        max_new_tokens=max_new,
        prompt_tokens=len(ids),
        wall_ms=wall_ms,
        segments=segments,
    )


@dataclass
class Driver:
    """Runs turns as an engine does, and checks each against the lanes' contents.

    `cells[lane]` holds, for each position, the token fed and whether by step: what a KV slab would
    depend on. `fed` keeps, for each generation, the same of its own tokens.
    """

    lanes: int = 4
    window: int = 1000
    tokens: list[int | None] = field(default_factory=list)
    now: float = 0.0
    elapsed_s: float = 0.01

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(lanes=self.lanes, window=self.window, vocab=5000, eos_ids=[EOS])
        self.cells: list[dict[int, tuple[int, bool]]] = [{} for _ in range(self.lanes)]
        self.chunks: list[tuple[int, int, int]] = []
        self.kinds: list[str] = []
        self.widths: list[int] = []
        self.moves: list[MoveLane] = []
        self.emitted: list[Emission] = []

    def submit(self, message: Submit) -> None:
        self.scheduler.submit(message, self.now)
        self.scheduler.check_integrity()

    def turn(self) -> bool:
        """One turn; False when there was nothing to run."""
        work = self.scheduler.next_work(self.now)
        if isinstance(work, PrefillChunk):
            self._run_chunk(work)
        elif isinstance(work, DecodeStep):
            self._run_step(work)
        self.emitted += self.scheduler.take_emissions()
        self.scheduler.check_integrity()
        return work is not None

    def run(self) -> None:
        while self.turn():
            pass

    def _run_chunk(self, chunk: PrefillChunk) -> None:
        self.kinds.append("chunk")
        self.chunks.append((int(chunk.sequence.generation), chunk.past, len(chunk.ids)))
        for position, token in enumerate(chunk.ids, chunk.past):
            self.cells[chunk.lane][position] = (token, CHUNK)
        drawn: int | None = None
        if chunk.draw:
            self._check_lane(chunk.sequence.generation, chunk.lane, chunk.past + len(chunk.ids))
            drawn = self._next_token()
        self.scheduler.commit_chunk(chunk, drawn, now=self.now, elapsed_s=self.elapsed_s)

    def _run_step(self, step: DecodeStep) -> None:
        self.kinds.append("step")
        self.widths.append(len(step.rows))
        self.moves += step.moves
        for move in step.moves:
            self.cells[move.dst] = {p: self.cells[move.src][p] for p in range(move.tokens)}
        for lane, (token, length) in enumerate(zip(step.ids, step.lengths, strict=True)):
            self.cells[lane][length - 1] = (token, STEP)
        for row in step.drawing:
            sequence = step.rows[row]
            assert sequence is not None
            self._check_lane(sequence.generation, row, step.lengths[row])
        drawn = [self._next_token() for _ in step.drawing]
        self.scheduler.commit_step(step, drawn, now=self.now, elapsed_s=self.elapsed_s)

    def _check_lane(self, generation: int, lane: int, length: int) -> None:
        """Every cell a drawing row attends to holds its own token, fed the way it must be."""
        sequence = self.scheduler._known[GenerationId(generation)]
        want, start = [], 0
        for span in sequence.spans:
            want += [span.by_step] * (span.stop - start)
            start = span.stop
        want += [STEP] * (length - start)
        got = [self.cells[lane][position] for position in range(length)]
        assert got == list(zip(sequence.tokens[:length], want, strict=True))

    def _next_token(self) -> int | None:
        return self.tokens.pop(0) if self.tokens else NEXT

    def ids(self, generation: int) -> list[int]:
        return [e.token for e in self.emitted if e.generation == generation and e.token is not None]

    def finish(self, generation: int) -> Finish:
        (finish,) = [e.finish for e in self.emitted if e.generation == generation and e.finish]
        return finish


# --- one generation ---------------------------------------------------------------------------


def test_a_prompt_is_prefilled_and_its_first_token_comes_from_the_chunk() -> None:
    driver = Driver(tokens=[7, 8, 6])
    driver.submit(submit(1, 4, max_new=3))
    assert driver.turn()
    assert driver.emitted == [Emission(GenerationId(1), 0, 7, None)]
    driver.run()
    assert driver.kinds == ["chunk", "step", "step"]
    assert driver.ids(1) == [7, 8, 6]
    assert driver.finish(1) == Finish(
        reason="length", usage=Usage(prompt_tokens=4, completion_tokens=3)
    )
    assert driver.scheduler.lanes_used == 0
    assert driver.scheduler.kv_live_tokens == 0


@pytest.mark.parametrize("max_new", [0, 1])
def test_g9_a_budget_of_no_or_one_token(max_new: int) -> None:
    driver = Driver()
    driver.submit(submit(1, max_new=max_new))
    driver.run()
    assert driver.ids(1) == [NEXT] * max_new
    assert driver.finish(1).reason == "length"
    assert driver.kinds == ["chunk"] * max_new


def test_g9_a_wall_budget_of_a_millisecond_expires() -> None:
    driver = Driver(now=100.0)
    driver.submit(submit(1, wall_ms=1))
    assert driver.scheduler.next_deadline() == pytest.approx(100.001)
    driver.now = 100.002
    driver.run()
    assert driver.finish(1).reason == "expired"
    assert driver.ids(1) == []
    assert driver.kinds == []


def test_a_token_drawn_after_the_wall_budget_is_given_and_ends_it_as_expired_not_eos() -> None:
    driver = Driver(tokens=[NEXT, EOS])
    driver.submit(submit(1, wall_ms=1000, max_new=2))
    driver.turn()
    work = driver.scheduler.next_work(0.5)
    assert isinstance(work, DecodeStep)
    driver.scheduler.commit_step(work, [EOS], now=1.5, elapsed_s=1.0)
    (emission,) = driver.scheduler.take_emissions()
    assert emission.token == EOS
    assert emission.finish is not None
    assert emission.finish.reason == "expired"


def test_g9_an_empty_prompt_is_a_clear_error() -> None:
    with pytest.raises(Invalid, match="prompt is empty") as caught:
        Driver().submit(submit(1, 0))
    assert caught.value.param == "prompt"


def test_g6_a_prompt_that_fits_generates_up_to_the_window() -> None:
    driver = Driver(window=10)
    driver.submit(submit(1, 7, max_new=1000))
    driver.run()
    assert driver.ids(1) == [NEXT] * 3
    assert driver.finish(1).reason == "length"


def test_a_prompt_as_long_as_the_window_ends_at_once() -> None:
    driver = Driver(window=10)
    driver.submit(submit(1, 10))
    driver.run()
    assert driver.finish(1).reason == "length"
    assert driver.ids(1) == []


def test_a_prompt_over_the_window_is_refused_with_both_numbers() -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        Driver(window=10).submit(submit(1, 11))
    assert caught.value.details == {"length": 11, "max": 10}


def test_a_token_outside_the_vocabulary_is_refused_by_name() -> None:
    with pytest.raises(Invalid, match="5000"):
        Driver().submit(submit(1, [1, 5000, 2]))


def test_segments_that_do_not_cover_the_context_are_refused() -> None:
    with pytest.raises(Invalid, match="cover 3 tokens and the context has 4"):
        Driver().submit(submit(1, 4, segments=(Segment(tokens=3),)))


def test_eos_ends_and_is_given_and_goes_before_length() -> None:
    driver = Driver(tokens=[7, EOS])
    driver.submit(submit(1, max_new=2))
    driver.run()
    assert driver.ids(1) == [7, EOS]
    assert driver.finish(1).reason == "eos"


def test_ignore_eos_goes_on() -> None:
    driver = Driver(tokens=[EOS, EOS, EOS])
    driver.submit(submit(1, max_new=3, ignore_eos=True))
    driver.run()
    assert driver.ids(1) == [EOS] * 3
    assert driver.finish(1).reason == "length"


def test_logits_that_are_no_numbers_end_that_generation_alone() -> None:
    driver = Driver(tokens=[NEXT, NEXT, NEXT, None, 7])
    driver.submit(submit(1, max_new=5))
    driver.submit(submit(2, max_new=2))
    driver.run()
    assert driver.finish(1).reason == "error"
    assert driver.finish(1).error_code == "internal"
    assert driver.ids(2) == [NEXT, 7]
    assert driver.finish(2).reason == "length"


def test_a_failed_run_ends_what_was_in_it() -> None:
    driver = Driver()
    driver.submit(submit(1))
    work = driver.scheduler.next_work(0.0)
    assert isinstance(work, PrefillChunk)
    driver.scheduler.fail(work, Internal("ONNX Runtime failed"))
    driver.run()
    assert driver.finish(1).message == "ONNX Runtime failed"
    assert driver.scheduler.idle


def test_a_generation_that_is_known_already_changes_nothing() -> None:
    driver = Driver()
    driver.submit(submit(1, max_new=2))
    driver.turn()
    driver.submit(submit(1, max_new=2))
    driver.run()
    assert driver.ids(1) == [NEXT] * 2


# --- chunks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "sizes"),
    [
        (1, [1]),
        (2, [2]),
        (128, [128]),
        (129, [127, 2]),
        (130, [128, 2]),
        (257, [128, 127, 2]),
        (300, [128, 128, 44]),
    ],
)
def test_chunks_have_2_to_128_tokens(prompt: int, sizes: list[int]) -> None:
    driver = Driver()
    driver.submit(submit(1, prompt, max_new=1))
    driver.run()
    assert [size for _, _, size in driver.chunks] == sizes
    assert sum(sizes) == prompt


def test_beside_decoding_a_chunk_is_what_fits_into_the_turn_target() -> None:
    driver = Driver()
    driver.submit(submit(1, 4, max_new=100))
    driver.turn()
    driver.elapsed_s = 0.01
    driver.turn()  # a step of 10 ms
    driver.submit(submit(2, 500, max_new=1))
    driver.elapsed_s = 0.1
    driver.turn()  # nothing is known of chunks yet: the least
    assert driver.chunks[-1] == (2, 0, 32)
    assert driver.scheduler.chunk_rate == pytest.approx(320)
    driver.elapsed_s = 0.01
    driver.turn()
    driver.elapsed_s = 0.02
    driver.turn()  # 40 ms at 320 tokens/s would be 12 tokens: the least again
    assert driver.chunks[-1] == (2, 32, 32)
    assert driver.scheduler.chunk_rate == pytest.approx(320 + (1600 - 320) / 4)
    driver.scheduler.chunk_rate = 2000.0
    driver.elapsed_s = 0.01
    driver.turn()
    driver.turn()
    assert driver.chunks[-1] == (2, 64, 80)  # 40 ms at 2000 tokens/s
    driver.scheduler.chunk_rate = 1e6
    driver.turn()
    driver.turn()
    assert driver.chunks[-1] == (2, 144, 128)


def test_slow_steps_widen_the_turn() -> None:
    driver = Driver()
    driver.submit(submit(1, 4, max_new=100))
    driver.turn()
    driver.elapsed_s = 0.1
    driver.turn()
    driver.scheduler.chunk_rate = 1000.0
    driver.submit(submit(2, 500))
    driver.turn()
    assert driver.chunks[-1] == (2, 0, 100)  # 2 * 100 ms less the step's 100 ms


def test_chunks_and_steps_alternate_while_both_wait() -> None:
    driver = Driver()
    driver.submit(submit(1, 4, max_new=100))
    driver.turn()
    driver.submit(submit(2, 700, max_new=1))
    driver.kinds.clear()
    for _ in range(6):
        driver.turn()
    assert driver.kinds == ["step", "chunk", "step", "chunk", "step", "chunk"]


# --- replay -----------------------------------------------------------------------------------


def test_replayed_tokens_go_by_step_and_give_nothing_until_the_last() -> None:
    driver = Driver(tokens=[7])
    segments = (Segment(tokens=4), Segment(tokens=3, by_step=True))
    driver.submit(submit(1, 7, max_new=1, segments=segments))
    driver.run()
    assert driver.kinds == ["chunk", "step", "step", "step"]
    assert driver.ids(1) == [7]
    assert driver.finish(1).usage == Usage(prompt_tokens=7, completion_tokens=1)


def test_segments_of_several_turns_alternate() -> None:
    driver = Driver()
    segments = (
        Segment(tokens=3),
        Segment(tokens=2, by_step=True),
        Segment(tokens=0, by_step=True),
        Segment(tokens=1),
        Segment(tokens=4),
    )
    driver.submit(submit(1, 10, max_new=2, segments=segments))
    driver.run()
    assert driver.chunks == [(1, 0, 3), (1, 5, 5)]
    assert driver.kinds == ["chunk", "step", "step", "chunk", "step"]
    assert driver.ids(1) == [NEXT] * 2


def test_a_context_that_is_all_steps_needs_no_chunk() -> None:
    driver = Driver()
    driver.submit(submit(1, 3, max_new=1, segments=(Segment(tokens=3, by_step=True),)))
    driver.run()
    assert driver.kinds == ["step"] * 3
    assert driver.ids(1) == [NEXT]


# --- many -------------------------------------------------------------------------------------


def test_first_come_first_served_over_fewer_lanes() -> None:
    driver = Driver(lanes=2)
    for generation in range(1, 6):
        driver.submit(submit(generation, max_new=2))
    assert driver.scheduler.queued == 5
    driver.run()
    first_tokens = [int(e.generation) for e in driver.emitted if e.index == 0 and e.token]
    assert first_tokens == [1, 2, 3, 4, 5]
    assert [driver.ids(g) for g in range(1, 6)] == [[NEXT] * 2] * 5


def test_too_many_waiting_are_refused() -> None:
    driver = Driver(lanes=2)
    for generation in range(2 + EXTRA_WAITING):
        driver.submit(submit(generation))
    with pytest.raises(QueueFull):
        driver.submit(submit(99))
    driver.run()
    driver.submit(submit(99))


def test_a_hole_is_filled_by_the_last_lane() -> None:
    driver = Driver(lanes=4)
    driver.submit(submit(1, 4, max_new=6))
    driver.submit(submit(2, 6, max_new=30))
    driver.submit(submit(3, 8, max_new=30))
    while not driver.moves:
        driver.turn()
    # Generation 1 in lane 0 ended; 3 in lane 2 takes its place, and steps have two rows again.
    (move,) = driver.moves
    assert (move.src, move.dst) == (2, 0)
    assert driver.widths[-2:] == [3, 2]
    driver.run()
    assert driver.ids(2) == driver.ids(3) == [NEXT] * 30


def test_a_prefilling_lane_below_runs_along_unharmed() -> None:
    # A conversation goes back from steps to a chunk while a lane above it decodes.
    driver = Driver(lanes=4)
    segments = (Segment(tokens=2), Segment(tokens=4, by_step=True), Segment(tokens=90))
    driver.submit(submit(1, 96, max_new=5, segments=segments))
    driver.submit(submit(2, 4, max_new=40))
    driver.run()
    assert driver.ids(1) == [NEXT] * 5
    assert driver.ids(2) == [NEXT] * 40


# --- cancel, pause, expiry ---------------------------------------------------------------------


def test_g2_cancel_while_waiting() -> None:
    driver = Driver(lanes=1)
    driver.submit(submit(1, max_new=2))
    driver.submit(submit(2))
    driver.turn()
    driver.scheduler.cancel(GenerationId(2))
    driver.run()
    assert driver.finish(2) == Finish(reason="cancelled", usage=Usage(prompt_tokens=4))
    assert driver.finish(1).reason == "length"


def test_g2_cancel_between_chunks_frees_the_lane() -> None:
    driver = Driver(lanes=1)
    driver.submit(submit(1, 300))
    driver.turn()
    assert driver.scheduler.kv_live_tokens == 128
    driver.scheduler.cancel(GenerationId(1))
    assert driver.scheduler.lanes_used == 0
    assert not driver.scheduler.idle  # the finish waits to be taken
    assert not driver.turn()
    assert driver.finish(1).reason == "cancelled"
    assert driver.scheduler.idle


def test_g2_cancel_while_decoding_counts_what_was_made() -> None:
    driver = Driver()
    driver.submit(submit(1, max_new=100))
    for _ in range(4):
        driver.turn()
    driver.scheduler.cancel(GenerationId(1))
    driver.run()
    assert driver.ids(1) == [NEXT] * 4
    assert driver.emitted[-1].index == 4
    assert driver.finish(1).usage.completion_tokens == 4


def test_cancel_of_an_unknown_generation_is_passed_over() -> None:
    driver = Driver()
    driver.scheduler.cancel(GenerationId(7))
    driver.scheduler.pause(GenerationId(7))
    driver.run()
    assert driver.emitted == []


def test_a_paused_lane_runs_along_and_goes_on_as_if_nothing_was() -> None:
    driver = Driver(lanes=2)
    driver.submit(submit(1, 4, max_new=6))
    driver.submit(submit(2, 4, max_new=20))
    for _ in range(5):
        driver.turn()
    driver.scheduler.pause(GenerationId(1))
    before = len(driver.ids(1))
    for _ in range(6):
        driver.turn()
    assert len(driver.ids(1)) == before
    driver.scheduler.pause(GenerationId(1), False)
    driver.run()
    assert len(driver.ids(1)) == 6
    assert len(driver.ids(2)) == 20


def test_pausing_a_prefill_lets_the_next_one_start() -> None:
    driver = Driver(lanes=2)
    driver.submit(submit(1, 300, max_new=2))
    driver.submit(submit(2, 4, max_new=2))
    driver.turn()
    driver.scheduler.pause(GenerationId(1))
    driver.run()
    assert driver.finish(2).reason == "length"
    assert driver.ids(1) == []
    assert driver.scheduler.idle
    driver.scheduler.pause(GenerationId(1), False)
    driver.run()
    assert driver.ids(1) == [NEXT] * 2


def test_a_paused_one_that_waits_is_passed_over() -> None:
    driver = Driver(lanes=1)
    driver.submit(submit(1, max_new=1))
    driver.submit(submit(2, max_new=1))
    driver.scheduler.pause(GenerationId(1))
    driver.run()
    assert driver.ids(2) == [NEXT]
    assert driver.ids(1) == []


def test_all_lanes_paused_is_idle_though_others_wait() -> None:
    driver = Driver(lanes=1)
    driver.submit(submit(1, max_new=9))
    driver.submit(submit(2))
    driver.turn()
    driver.scheduler.pause(GenerationId(1))
    assert driver.scheduler.idle
    assert not driver.turn()


def test_a_paused_one_still_expires_and_cancels() -> None:
    driver = Driver()
    driver.submit(submit(1, wall_ms=100))
    driver.submit(submit(2))
    driver.scheduler.pause(GenerationId(1))
    driver.scheduler.pause(GenerationId(2))
    driver.scheduler.cancel(GenerationId(2))
    driver.now = 0.2
    driver.run()
    assert driver.finish(1).reason == "expired"
    assert driver.finish(2).reason == "cancelled"


def test_expiry_while_decoding() -> None:
    driver = Driver()
    driver.submit(submit(1, max_new=1000, wall_ms=1000))
    for _ in range(5):
        driver.turn()
        driver.now += 0.1
    driver.now = 1.0
    driver.run()
    assert driver.ids(1) == [NEXT] * 5
    assert driver.finish(1).reason == "expired"


def test_hundreds_of_generations_with_pauses_and_cancels_end_once_each() -> None:
    """Every turn checks that a drawing row attends to nothing but its own tokens."""
    driver = Driver(lanes=5, window=400)
    pending = list(range(200))
    state = 12345
    while pending or not driver.scheduler.idle or driver.scheduler._known:
        state = (state * 1103515245 + 12345) % 2**31  # a C library's rand(): the same every run
        dice, who = state >> 8 & 15, GenerationId(state >> 12 & 255)
        if pending and driver.scheduler.queued < 5:
            length, steps = 1 + (state >> 6) % 150, (state >> 3) % 9
            segments = (Segment(tokens=length), Segment(tokens=steps, by_step=True))
            driver.submit(
                submit(pending.pop(), length + steps, max_new=dice * 3, segments=segments)
            )
        if dice == 0:
            driver.scheduler.cancel(who)
        elif dice < 3:
            driver.scheduler.pause(who)
        elif dice < 7 or driver.scheduler.idle:
            for generation in list(driver.scheduler._known):
                driver.scheduler.pause(generation, False)
        driver.turn()
    finished = sorted(int(e.generation) for e in driver.emitted if e.finish)
    assert finished == list(range(200))
    assert driver.scheduler.kv_live_tokens == 0
    assert driver.moves

"""One sequence in one lane of a `ModelRunner`, fed by hand: what an undisturbed stream gives.

As a program, it takes a parked lane up in a process of its own and goes on (`go_on_elsewhere`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.models.folder import ModelFolder
from agent.worker.draw_state import DrawState
from agent.worker.lane_file import Restored, Wanted, park, restore
from agent.worker.model_runner import ModelRunner
from agent.worker.sampler import sample
from agent.worker.spans import Span, Spans
from bus.ids import SessionId
from bus.messages.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
SEEDED = SamplingParams(
    temperature=0.9, top_p=0.95, seed=20_26, ignore_eos=True, repetition_penalty=1.1
)
CHUNK = 128
SESSION = SessionId("s")


@dataclass
class LaneRun:
    """A prompt by chunk, then generated tokens by step; lanes below run along on nothing."""

    runner: ModelRunner
    lane: int
    params: SamplingParams
    prompt: list[int]
    generated: list[int] = field(default_factory=list)
    computed: int = 0

    def __post_init__(self) -> None:
        figures = self.runner.folder.signature
        self._state = DrawState(
            self.params,
            vocab=figures.vocab,
            eos_ids=self.runner.folder.eos_ids,
            special_ids=frozenset(),
            prompt=self.prompt,
            generated=self.generated,
            vocabulary=list,
            grammar=None,
        )

    @property
    def tokens(self) -> array[int]:
        return array("I", [*self.prompt, *self.generated])

    @property
    def spans(self) -> Spans:
        """How the tokens in the lane were computed."""
        if self.computed <= len(self.prompt):
            return (Span(self.computed, False),)
        return (Span(len(self.prompt), False), Span(self.computed, True))

    def run(self, count: int) -> list[int]:
        """Go on until the answer has `count` tokens."""
        while len(self.generated) < count:
            logits = self._chunk() if self.computed < len(self.prompt) else self._step()
            if self.computed == len(self.prompt) + len(self.generated):
                (drawn,) = sample(logits, [self._state], [self.computed])
                assert drawn.token is not None
                self._state.take(drawn.token)
                self.generated.append(drawn.token)
        return self.generated

    def prefill(self) -> npt.NDArray[np.float32]:
        """The prompt's last logits."""
        while self.computed < len(self.prompt):
            logits = self._chunk()
        row: npt.NDArray[np.float32] = logits[0].copy()
        return row

    def _chunk(self) -> npt.NDArray[np.float32]:
        left = len(self.prompt) - self.computed
        size = min(left, CHUNK if left != CHUNK + 1 else CHUNK - 1)
        ids = self.prompt[self.computed : self.computed + size]
        logits = self.runner.prefill_chunk(self.lane, ids, self.computed)
        self.computed += size
        return logits

    def _step(self) -> npt.NDArray[np.float32]:
        token = self.tokens[self.computed]
        self.computed += 1
        logits = self.runner.decode([0] * self.lane + [token], [1] * self.lane + [self.computed])
        row: npt.NDArray[np.float32] = logits[self.lane :]
        return row


def go_on_elsewhere(folder: ModelFolder, lanes: Path, run: LaneRun, count: int) -> dict[str, Any]:
    """Restore `SESSION` in a new process from folder `lanes`, go on, and tell what came of it."""
    order = {
        "model": str(folder.path),
        "lanes": str(lanes),
        "seeded": run.params == SEEDED,
        "prompt": run.prompt,
        "generated": run.generated,
        "count": count,
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", __name__, json.dumps(order)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def park_run(folder: Path, run: LaneRun, tokens: int) -> None:
    """Park the first `tokens` tokens of a run's lane for `SESSION`."""
    park(
        folder,
        SESSION,
        run.runner.slab.read_lane(run.lane, tokens),
        ids=run.tokens[:tokens],
        spans=run.spans,
        exact_tokens=tokens,
        model=run.runner.folder.digest,
        numerics=run.runner.numerics,
    )


def wanted_by(run: LaneRun) -> Wanted:
    """What a run needs: its prompt by chunk, its answer by step."""
    return Wanted(
        session=SESSION,
        model=run.runner.folder.digest,
        numerics=run.runner.numerics,
        layout=run.runner.slab.layout,
        max_tokens=run.runner.window,
        ids=run.tokens,
        spans=(Span(len(run.prompt), False), Span(len(run.tokens), True)),
    )


def main(arguments: Sequence[str]) -> int:
    order = json.loads(arguments[0])
    folder = ModelFolder.open(Path(order["model"]))
    runner = ModelRunner(folder, device="cpu", lanes=2, kv_bytes=128 << 20, threads=1)
    params = SEEDED if order["seeded"] else GREEDY
    run = LaneRun(runner, 1, params, order["prompt"], order["generated"])
    restored = restore(Path(order["lanes"]), wanted_by(run))
    assert isinstance(restored, Restored), restored
    runner.slab.write_lane(run.lane, restored.saved, restored.saved.tokens)
    run.computed = restored.saved.tokens
    run.run(order["count"])
    told = {
        "tokens": run.generated,
        "restored": restored.saved.tokens,
        "exact": restored.exact,
        "problem": restored.problem,
    }
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

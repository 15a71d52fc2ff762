"""What a model must hold on a GPU, as checks that need nothing but numpy and ONNX Runtime.

`tests/gpu` runs them under pytest, `bench/gpu.py` without. Each gives figures, and raises
`CheckFailed`, or `NotPossible` where what it is about is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from agent.models import selftest
from agent.models.folder import ModelFolder
from agent.worker.kv_cache import SavedLane
from agent.worker.model_runner import ModelRunner

Figures = Mapping[str, object]

LANES = 8
#: 4 GiB on a GPU; a host's slab takes memory only as it is written.
KV_BYTES = 1 << 28
PROMPT_TOKENS = 96
ANSWER_TOKENS = 24
#: Nats between the same float16 graph on the GPU and on a CPU. Int8 activations are 4e-3 from
#: float32, so more than the first is another model, and more than the second broken.
MEAN_DIVERGENCE = 1e-3
WORST_DIVERGENCE = 2e-2


class CheckFailed(Exception):
    """A check does not hold; the text says what was found."""


class NotPossible(Exception):
    """A check can not be made here; the text says why."""


def lanes_are_bit_exact(folder: ModelFolder, device: str) -> Figures:
    """A lane that is written, copied and read is the same bit by bit, and others stay."""
    slab = _runner(folder, device).slab
    tokens = min(50, slab.lane.max_len - 1)
    saved = _any_bits(SavedLane.empty(slab.layout, tokens))
    slab.write_lane(1, saved, tokens)
    slab.copy_lane(1, 3, tokens)
    for lane in (1, 3):
        _same(_bits(slab.read_lane(lane, tokens)), _bits(saved), f"lane {lane}")
    part = tokens // 2
    _same(_bits(slab.read_lane(3, part)), _bits(saved)[:, :, :part], "a part of lane 3")
    if _bits(slab.read_lane(2, tokens)).any():
        raise CheckFailed("lane 2 was written to")
    return {"tokens": tokens, "bytes": saved.nbytes}


def batches_agree(folder: ModelFolder, device: str) -> Figures:
    """Greedy ids of a prompt are the same, whatever runs beside it."""
    runner = _runner(folder, device)
    prompts = _prompts(folder, 5)
    alone = [_greedy(runner, [prompt])[0] for prompt in prompts]
    for batch in (2, 3, 5):
        for row, ids in enumerate(_greedy(runner, prompts[:batch])):
            if ids != alone[row]:
                raise CheckFailed(f"prompt {row} gives {ids} among {batch}, and {alone[row]} alone")
    return {"prompts": len(prompts), "tokens": ANSWER_TOKENS}


def close_to_the_cpu(folder: ModelFolder, device: str) -> Figures:
    """Logits after chunks are those of the same graph on a CPU, but for rounding."""
    runner = _runner(folder, device)
    graph = folder.graph if runner.target.gpu is None else folder.graph_float16
    assert graph is not None  # The runner took it.
    reference = selftest.open_session(graph)
    (prompt,) = _prompts(folder, 1)
    expected = selftest.prompt_logits(reference, folder.signature, prompt)
    divergences = []
    for count in range(8, PROMPT_TOKENS + 1, 8):
        found = runner.prefill_chunk(0, prompt[:count], 0)[0]
        divergences.append(_divergence(expected[count - 1], found))
    mean, worst = float(np.mean(divergences)), float(np.max(divergences))
    if not mean <= MEAN_DIVERGENCE or not worst <= WORST_DIVERGENCE:
        raise CheckFailed(f"divergence {mean:.2e} nats on average, {worst:.2e} at worst")
    return {"mean_nats": mean, "worst_nats": worst}


def graphs_change_nothing(folder: ModelFolder, device: str) -> Figures:
    """Steps that are replayed give the logits of steps that are run, bit by bit."""
    captured = _runner(folder, device)
    if not captured.graphs:
        raise NotPossible("steps are not captured here; the log says why")
    plain = _runner(folder, device, graphs=False)
    prompts = _prompts(folder, 5)
    for batch in (1, 3, 5):
        lengths = [len(prompt) for prompt in prompts[:batch]]
        for runner in (captured, plain):
            for lane, prompt in enumerate(prompts[:batch]):
                runner.prefill_chunk(lane, prompt, 0)
        for step in range(1, 9):
            ids = [step + lane for lane in range(batch)]
            now = [length + step for length in lengths]
            _same(captured.decode(ids, now), plain.decode(ids, now), f"a step of {batch} rows")
    return {"steps": 24}


CHECKS: Mapping[str, Callable[[ModelFolder, str], Figures]] = {
    check.__name__: check
    for check in (
        lanes_are_bit_exact,
        batches_agree,
        close_to_the_cpu,
        graphs_change_nothing,
    )
}


def _runner(folder: ModelFolder, device: str, *, graphs: bool = True) -> ModelRunner:
    runner = ModelRunner(
        folder, device=device, lanes=LANES, kv_bytes=KV_BYTES, threads=2, graphs=graphs
    )
    runner.self_test()
    return runner


def _prompts(folder: ModelFolder, count: int) -> list[list[int]]:
    """Of lengths that differ."""
    random = np.random.default_rng(11)
    return [
        random.integers(0, folder.signature.vocab, PROMPT_TOKENS - 7 * row).tolist()
        for row in range(count)
    ]


def _greedy(runner: ModelRunner, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    answers = [
        [int(runner.prefill_chunk(lane, prompt, 0).argmax())] for lane, prompt in enumerate(prompts)
    ]
    for _ in range(ANSWER_TOKENS - 1):
        lengths = [
            len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True)
        ]
        logits = runner.decode([answer[-1] for answer in answers], lengths)
        for answer, row in zip(answers, logits, strict=True):
            answer.append(int(row.argmax()))
    return answers


def _divergence(expected: npt.NDArray[np.float32], found: npt.NDArray[np.float32]) -> float:
    """Kullback-Leibler, in nats."""
    p, q = (_log_softmax(logits.astype(np.float64)) for logits in (expected, found))
    return float((np.exp(p) * (p - q)).sum())


def _log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = logits - logits.max()
    found: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return found


def _any_bits(saved: SavedLane) -> SavedLane:
    """Numbers, infinities and NaNs with payloads."""
    raw = np.random.default_rng(3).integers(0, 256, saved.nbytes, dtype=np.uint8)
    saved.data[...] = raw.view(saved.data.dtype).reshape(saved.data.shape)
    return saved


def _bits(saved: SavedLane) -> npt.NDArray[np.uint8]:
    flat = np.ascontiguousarray(saved.data)
    return flat.view(np.uint8).reshape(*saved.data.shape, saved.data.dtype.itemsize)


def _same(found: npt.NDArray[np.generic], expected: npt.NDArray[np.generic], what: str) -> None:
    if not np.array_equal(found, expected):
        differing = int((found != expected).sum())
        raise CheckFailed(f"{what}: {differing} of {found.size} values differ")

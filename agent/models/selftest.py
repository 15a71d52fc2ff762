"""The one-token test of a model: a short prompt must still give the token it gave when made.

It catches what sizes and hashes do not: a runtime whose kernels compute something else, a graph
that a provider can not run.

A stage is tried by itself, by some of the values that it gives. Stages behind the first take fixed
noise for each token of the prompt, the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agent.models.blocks import FloatArray
from agent.models.folder import ModelFolder, SelfTest, Signature
from agent.models.onnx_runtime import onnxruntime
from bus.errors import ModelIncomplete

#: How far below the best the expected token's logit may be. Rounding activations to int8 moves
#: logits by 0.2 or so, and processors' kernels round differently; a damaged model is far off.
TOLERANCE = 1.0

#: Prompts to choose the test from.
TEXTS = ("The capital of France is", "1, 2, 3, 4, 5,", "Once upon a time there was a")

#: How far from what they were a stage's values may be, in parts of their length. Measured: 0.02 to
#: 0.16 between kernels that round activations to int8 and those that do not; values that have
#: nothing in common are 1.4 apart.
STAGE_TOLERANCE = 0.5

#: Values of a stage's test, evenly spaced among those that it gives.
_STAGE_VALUES = 64
#: Noise lies within so much of zero. More of it is farther from what stages are made for, and
#: rounding counts more.
_NOISE = 0.125
#: Bits of a draw that a float32 holds.
_NOISE_BITS = 24

#: Positions in the throw-away cache of the test.
_ROOM = 64


def open_session(graph: Path, *, threads: int = 1, packed: bool = True) -> Any:
    """Open a graph on the CPU provider, quietly.

    Args:
        graph: its file.
        threads: of the session.
        packed: whether weights are put in memory as kernels like them; else they stay in their
            file, one at a time is unpacked, and activations are not rounded.

    Returns:
        An `onnxruntime.InferenceSession`.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if not packed:
        options.add_session_config_entry("session.disable_prepacking", "1")
        # what is unpacked of a weight goes back to the system before the next one is
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def prompt_logits(
    session: Any, signature: Signature, prompt: Sequence[int], rows: Sequence[int] | None = None
) -> FloatArray:
    """Run a prompt as one chunk over an empty cache.

    Args:
        session: an open graph of a whole model, of either precision, on any provider.
        signature: the folder's figures.
        prompt: 2 token ids or more.
        rows: positions to give logits of; all by default.

    Returns:
        Logits of those positions, float32 `[rows, vocab]`.
    """
    return _logits(session, signature, [prompt], range(len(prompt)) if rows is None else rows)


def step_logits(session: Any, signature: Signature, tokens: Sequence[int]) -> FloatArray:
    """Run one token for each of several lanes over empty caches, as one step.

    Returns:
        Logits after each, float32 `[tokens, vocab]`.
    """
    return _logits(session, signature, [[token] for token in tokens], range(len(tokens)))


def _logits(
    session: Any, signature: Signature, batch: Sequence[Sequence[int]], rows: Sequence[int]
) -> FloatArray:
    return _run(session, signature, np.array(batch, np.int64), rows)


def _run(session: Any, signature: Signature, x: Any, rows: Sequence[int]) -> FloatArray:
    """What a graph gives first, over empty caches: logits of rows, or the hidden state."""
    lanes, length = x.shape[:2]
    types = {value.name: value.type for value in session.get_inputs()}
    half = "tensor(float16)"
    caches = [types[name] for name in signature.inputs if name.startswith("past.")]
    room = max(_ROOM, length)
    shape = (lanes, signature.kv_heads, room, signature.head_dim)
    cache = np.zeros(shape, np.float16 if half in caches else np.float32)
    first = signature.inputs[0]
    feeds: dict[str, Any] = {
        first: x.astype(np.float16) if types[first] == half else x,
        "seqlens_k": np.full(lanes, length - 1, np.int32),
        "total_sequence_length": np.array(length, np.int32),
    }
    gives = "hidden_out"
    if "logits_idx" in signature.inputs:
        gives = "logits"
        feeds["logits_idx"] = np.array(rows, np.int64)
    for name in signature.inputs:
        feeds.setdefault(name, cache)
    return np.asarray(session.run([gives], feeds)[0], np.float32)


def choose(session: Any, signature: Signature, prompts: Iterable[Sequence[int]]) -> SelfTest:
    """Make the test from the prompt whose answer is the clearest.

    Raises:
        ModelIncomplete: the graph gives logits that are no numbers.
    """
    tests = []
    for prompt in prompts:
        logits = prompt_logits(session, signature, prompt)[-1]
        if not np.isfinite(logits).all():
            raise ModelIncomplete("the imported graph gives logits that are no numbers")
        second, best = np.partition(logits, -2)[-2:]
        tests.append(SelfTest(tuple(prompt), int(logits.argmax()), round(float(best - second), 3)))
    return max(tests, key=lambda test: test.margin)


def check(session: Any, folder: ModelFolder) -> None:
    """Run the folder's test in an open session.

    Raises:
        ModelIncomplete: the graph no longer gives the token that it gave when it was made, or of
            a stage, the values.
    """
    if folder.stage is not None:
        _check_stage(session, folder)
        return
    test = folder.self_test
    logits = prompt_logits(session, folder.signature, test.prompt)[-1]
    lead = float(logits.max() - logits[test.next_token])
    if not np.isfinite(logits).all() or lead > TOLERANCE:
        raise ModelIncomplete(
            f"model {folder.name} fails its self-test: it gave token {int(logits.argmax())} where "
            f"it gave {test.next_token} when it was made; make it again with "
            f"`{folder.import_command}`",
            param="model",
        )


# --- stages -------------------------------------------------------------------------------------


def run_stage(session: Any, signature: Signature, x: Any) -> FloatArray:
    """Run one prompt, as one chunk over an empty cache.

    Args:
        session: an open graph of a stage.
        signature: its figures.
        x: ids `[1, S]`, or what the stage before gave of them, `[1, S, hidden]`.

    Returns:
        float32 `[1, S, hidden]`, or of the last stage the logits after the prompt, `[1, vocab]`.
    """
    return _run(session, signature, x, [x.shape[1] - 1])


def stage_prompt(prompts: Iterable[Sequence[int]]) -> Sequence[int]:
    """The prompt that stages are tried with: the first that attention has something to do with.

    Raises:
        ModelIncomplete: the tokenizer makes no tokens of any.
    """
    for prompt in prompts:
        if len(prompt) > 1:
            return prompt
    raise ModelIncomplete(
        "its tokenizer makes no tokens of plain text; take another file of the model"
    )


def choose_stage(session: Any, signature: Signature, prompt: Sequence[int]) -> SelfTest:
    """Make the test of a stage.

    Raises:
        ModelIncomplete: the graph gives values that are no numbers.
    """
    values = _stage_values(session, signature, prompt)
    if not np.isfinite(values).all():
        raise ModelIncomplete("the graph of a stage gives values that are no numbers")
    vector = tuple(float(f"{value:.6g}") for value in values)
    return SelfTest(tuple(prompt), -1, 0.0, vector)


def _check_stage(session: Any, folder: ModelFolder) -> None:
    test = folder.self_test
    expected = np.array(test.vector, np.float32)
    values = _stage_values(session, folder.signature, test.prompt)
    apart = float(np.linalg.norm(values - expected))
    if not apart <= STAGE_TOLERANCE * float(np.linalg.norm(expected)):
        raise ModelIncomplete(
            f"model {folder.name} fails its self-test: the values that it gives are {apart:.3g} "
            f"from those it gave when it was made; make it again with `{folder.import_command}`",
            param="model",
        )


def _stage_values(session: Any, signature: Signature, prompt: Sequence[int]) -> FloatArray:
    """Values after a prompt, evenly spaced; of logits what they are above their mean."""
    ids = np.array([prompt], np.int64)
    x = ids if signature.inputs[0] == "input_ids" else noise(prompt, signature.hidden)
    given = run_stage(session, signature, x)
    last = given.reshape(-1, given.shape[-1])[-1]
    if "logits_idx" in signature.inputs:
        last = last - last.mean()
    places = np.linspace(0, len(last) - 1, min(_STAGE_VALUES, len(last))).astype(np.int64)
    found: FloatArray = last[places]
    return found


def noise(prompt: Sequence[int], hidden: int) -> FloatArray:
    """A hidden state that stands for a prompt's: `[1, S, hidden]`, evenly drawn by each token's id.

    Source: PCG64 (O'Neill, 2014), whose bits numpy keeps as they are; `Generator`'s it may change.
    """
    bits = np.stack([np.random.PCG64(token).random_raw(hidden) for token in prompt])
    drawn = (bits >> np.uint64(64 - _NOISE_BITS)).astype(np.float32)
    half = np.float32(1 << (_NOISE_BITS - 1))
    state: FloatArray = (drawn / half - np.float32(1)) * np.float32(_NOISE)
    return state[None]

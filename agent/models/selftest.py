"""The one-token test of a model: a short prompt must still give the token it gave when made.

It catches what sizes and hashes do not: a runtime whose kernels compute something else, a graph
that a provider can not run.
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

#: Positions in the throw-away cache of the test.
_ROOM = 64


def open_session(graph: Path, *, threads: int = 1) -> Any:
    """Open a graph on the CPU provider, quietly.

    Returns:
        An `onnxruntime.InferenceSession`.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
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
    lanes, length = len(batch), len(batch[0])
    half = any(value.type == "tensor(float16)" for value in session.get_inputs())
    room = max(_ROOM, length)
    shape = (lanes, signature.kv_heads, room, signature.head_dim)
    cache = np.zeros(shape, np.float16 if half else np.float32)
    feeds: dict[str, Any] = {
        "input_ids": np.array(batch, np.int64),
        "seqlens_k": np.full(lanes, length - 1, np.int32),
        "total_sequence_length": np.array(length, np.int32),
        "logits_idx": np.array(rows, np.int64),
    }
    for name in signature.inputs:
        feeds.setdefault(name, cache)
    return np.asarray(session.run(["logits"], feeds)[0], np.float32)


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
        ModelIncomplete: the graph no longer gives the token that it gave when it was made.
    """
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

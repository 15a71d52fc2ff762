"""Compares a rewritten graph with the one it was made of, on a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from agent.models.blocks import FloatArray
from agent.models.folder import Signature
from agent.models.foreign_files import ForeignFolder
from agent.models.selftest import open_session, prompt_logits, step_logits
from bus.errors import Invalid, ModelIncomplete, SuperfluidError

#: How far logits of the two graphs may lie apart, by the widest spread of them: products of other
#: shapes round differently, and with int8 activations that moves logits by a hundredth or so.
AGREEMENT = 0.05


@contextmanager
def loading(source: ForeignFolder) -> Iterator[None]:
    """What ONNX Runtime says of a graph that it does not take, as an error of ours."""
    try:
        yield
    except SuperfluidError:
        raise
    except Exception as error:  # its errors share no narrower base
        raise Invalid(
            f"ONNX Runtime does not run {source.graph}: {str(error)[:400]}; choose another variant "
            "or import the model's GGUF file",
            param="model",
        ) from error


def source_logits(source: ForeignFolder, prompt: Sequence[int]) -> FloatArray:
    """What the graph gives as it was made: `[rows, vocab]` of all positions or the last one."""
    with loading(source):
        session = open_session(source.graph)
        feeds: dict[str, Any] = {}
        for value in session.get_inputs():
            feeds[value.name] = _feed(value, source, prompt)
        logits = session.run([source.logits], feeds)[0]
    found: FloatArray = np.asarray(logits, np.float32).reshape(-1, source.figures.vocab)
    return found


def _feed(value: Any, source: ForeignFolder, prompt: Sequence[int]) -> Any:
    """One input of the source's graph for a prompt over an empty cache."""
    kind = {"tensor(int32)": np.int32, "tensor(float)": np.float32}.get(
        value.type, np.float16 if "float16" in value.type else np.int64
    )
    if value.name == "input_ids":
        return np.array([prompt], kind)
    if value.name == "position_ids":
        return np.arange(len(prompt), dtype=kind)[None]
    if value.name == "attention_mask":
        return np.ones((1, len(prompt)), kind)
    if len(value.shape) == 4:
        return np.zeros((1, source.figures.kv_heads, 0, source.figures.head_dim), kind)
    return np.zeros([1] * len(value.shape), kind)


def compare(
    source: ForeignFolder,
    expected: FloatArray,
    session: Any,
    signature: Signature,
    prompt: list[int],
) -> None:
    """Both graphs must give the same, whichever rows are asked for.

    Args:
        source: for messages.
        expected: what its graph gave after each token of the prompt, or after the last one.
        session: of the rewritten graph.
        signature: of that graph.

    Raises:
        ModelIncomplete: they do not.
    """
    spread = float(np.ptp(expected)) or 1.0
    every = prompt_logits(session, signature, prompt)[-len(expected) :]
    last = prompt_logits(session, signature, prompt, [len(prompt) - 1])
    gaps = (np.abs(expected - every).max(), np.abs(expected[-1] - last).max())
    apart = float(max(gaps)) / spread
    # A gap that is no number is not below the limit either.
    if not (np.isfinite(gaps).all() and apart <= AGREEMENT):
        raise ModelIncomplete(
            f"the rewritten graph of {source.graph} gives other logits than the source's (apart by "
            f"{apart:.2g} of their spread), so it is not served; import the model's GGUF file",
            param="model",
        )


def check_lanes(
    source: ForeignFolder, session: Any, signature: Signature, tokens: Sequence[int]
) -> None:
    """Lanes that run together must give what each gives alone.

    Args:
        source: for messages.
        session: of the rewritten graph.
        signature: of that graph.
        tokens: one for each lane.

    Raises:
        Invalid: they do not, as in a graph that was made for one request at a time.
    """
    alone = np.concatenate([step_logits(session, signature, [token]) for token in tokens])
    try:
        beside = step_logits(session, signature, tokens)
        apart = float(np.abs(alone - beside).max()) / (float(np.ptp(alone)) or 1.0)
        why = f"logits are apart by {apart:.2g} of their spread"
    except Exception as error:  # noqa: BLE001 - ONNX Runtime's share no narrower base
        apart, why = float("inf"), str(error)[:400]
    if not apart <= AGREEMENT:
        raise Invalid(
            f"{source.graph} was made for one request at a time, and here several run side by side "
            f"({why}); choose another variant or import the model's GGUF file",
            param="model",
        )

"""From an encoder's graph to vectors of texts, and the test that a folder's graph still works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agent.models.blocks import FloatArray
from agent.models.folder import ModelFolder, SelfTest
from bus.errors import ModelIncomplete

#: Values of a vector that the self-test keeps.
TEST_VALUES = 16
#: How far each may be off. Float32 kernels differ by 1e-5; a damaged model is far off.
TOLERANCE = 0.005
#: Below it a vector has no direction.
_LEAST_NORM = 1e-12


def hidden_states(session: Any, inputs: Sequence[Sequence[int]]) -> list[FloatArray]:
    """Run texts as one batch, padded to the longest.

    Args:
        session: an open encoder graph.
        inputs: token ids of each text, special ones included, none empty.

    Returns:
        The last hidden states of each text's own tokens, float32 `[tokens, hidden]`.
    """
    shape = (len(inputs), max(map(len, inputs)))
    ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row, tokens in enumerate(inputs):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
    states = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
    return [states[row, : len(tokens)] for row, tokens in enumerate(inputs)]


def pool(states: FloatArray, pooling: str, *, normalize: bool) -> FloatArray:
    """One vector of a text.

    Args:
        states: of the text's own tokens, `[tokens, hidden]`.
        pooling: `mean` over the tokens, or `cls`, the first one's.
        normalize: make its length 1.

    Returns:
        float32 `[hidden]`; a vector without direction stays as it is.
    """
    chosen = states[0] if pooling == "cls" else states.mean(0, dtype=np.float64)
    vector = np.asarray(chosen, np.float64)
    if normalize:
        vector = vector / max(float(np.linalg.norm(vector)), _LEAST_NORM)
    return vector.astype(np.float32)


def make_test(session: Any, prompt: Sequence[int]) -> SelfTest:
    """The self-test of a graph that was just made.

    Raises:
        ModelIncomplete: the graph gives values that are no numbers.
    """
    vector = pool(hidden_states(session, [prompt])[0], "mean", normalize=True)
    if not np.isfinite(vector).all():
        raise ModelIncomplete("the imported graph gives vectors that are no numbers")
    values = tuple(round(float(value), 6) for value in vector[:TEST_VALUES])
    return SelfTest(tuple(prompt), next_token=-1, margin=0.0, vector=values)


def check_vectors(session: Any, folder: ModelFolder) -> None:
    """Run an encoder folder's self-test.

    Raises:
        ModelIncomplete: the graph no longer gives the vector that it gave when it was made.
    """
    test = folder.self_test
    vector = pool(hidden_states(session, [test.prompt])[0], "mean", normalize=True)
    wrong = np.abs(vector[: len(test.vector)] - np.array(test.vector)).max()
    if not wrong <= TOLERANCE:
        raise ModelIncomplete(
            f"model {folder.name} fails its self-test: its vector is off by {wrong:.3g}; "
            f"make it again with `{folder.import_command}`",
            param="model",
        )

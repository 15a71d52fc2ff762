"""A transcriber's graphs run once, and the test that a folder's graphs still work.

The test hears a made-up spectrogram and compares the first token that is written, and some logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agent.models.blocks import FloatArray
from agent.models.folder import ModelFolder, SelfTest, Signature
from agent.models.transcriber_figures import TranscriberFigures
from bus.errors import ModelIncomplete

#: Logits that the self-test keeps.
TEST_VALUES = 16
#: How far each may be off. Float32 kernels differ by 1e-3; a damaged model is far off.
TOLERANCE = 0.05


def prompt_tokens(figures: TranscriberFigures, language: str) -> tuple[int, ...]:
    """What a transcript with timestamps begins with; `language` is one of the figures'."""
    if not figures.multilingual:
        return (figures.begin,)
    return figures.begin, figures.languages[language], figures.transcribe


def empty_past(signature: Signature) -> dict[str, FloatArray]:
    """Keys and values of no token, by the names of the text graph's inputs."""
    shape = (1, signature.heads, 0, signature.head_dim)
    names = [name for name in signature.inputs if name.startswith("past.")]
    return {name: np.zeros(shape, np.float32) for name in names}


def hear(session: Any, mel: FloatArray) -> dict[str, Any]:
    """Run the audio graph over a window.

    Args:
        session: of the audio graph.
        mel: `[mels, frames]`.

    Returns:
        What the text graph needs of it, by the names of its inputs.
    """
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"mel": mel[None]}), strict=True))


def write(
    session: Any, feeds: Mapping[str, Any], token: int, position: int
) -> tuple[FloatArray, dict[str, Any]]:
    """Run the text graph for one token.

    Args:
        session: of the text graph.
        feeds: what was heard, and keys and values of the tokens before.
        token: the one that the run reads; `position` counts from 0.

    Returns:
        The logits after it, `[vocab]`, and the keys and values with it.
    """
    made = session.run(
        None,
        {
            **feeds,
            "input_ids": np.array([[token]], np.int64),
            "position": np.array([position], np.int64),
        },
    )
    names = [output.name for output in session.get_outputs()]
    logits, *present = made
    past = {
        name.replace("present", "past"): value
        for name, value in zip(names[1:], present, strict=True)
    }
    return np.asarray(logits[0], np.float32), past


def make_test(audio: Any, text: Any, figures: TranscriberFigures, signature: Signature) -> SelfTest:
    """The self-test of graphs that were just made.

    Raises:
        ModelIncomplete: they give logits that are no numbers.
    """
    prompt = prompt_tokens(figures, next(iter(figures.languages)))
    logits = _logits(audio, text, figures, signature, prompt)
    if not np.isfinite(logits).all():
        raise ModelIncomplete("the imported graphs give logits that are no numbers")
    second, best = np.partition(logits, -2)[-2:]
    values = tuple(round(float(value), 5) for value in logits[:TEST_VALUES])
    return SelfTest(prompt, int(logits.argmax()), round(float(best - second), 3), values)


def check_transcriber(audio: Any, text: Any, folder: ModelFolder) -> None:
    """Run a transcriber folder's self-test.

    Raises:
        ModelIncomplete: it is no transcriber's, or the graphs no longer give what they gave.
    """
    test, figures = folder.self_test, folder.transcriber
    if figures is None:
        raise ModelIncomplete(f"model {folder.name} transcribes no speech", param="model")
    logits = _logits(audio, text, figures, folder.signature, test.prompt)
    wrong = np.abs(logits[: len(test.vector)] - np.array(test.vector)).max()
    lead = float(logits.max() - logits[test.next_token])
    if not (wrong <= TOLERANCE and lead <= TOLERANCE):
        raise ModelIncomplete(
            f"model {folder.name} fails its self-test: its logits are off by {wrong:.3g}; "
            f"make it again with `{folder.import_command}`",
            param="model",
        )


def _logits(
    audio: Any,
    text: Any,
    figures: TranscriberFigures,
    signature: Signature,
    prompt: tuple[int, ...],
) -> FloatArray:
    heard = hear(audio, _made_up_mel(figures))
    past: dict[str, Any] = dict(empty_past(signature))
    for position, token in enumerate(prompt):
        logits, past = write(text, {**heard, **past}, token, position)
    return logits


def _made_up_mel(figures: TranscriberFigures) -> FloatArray:
    """A tone that rises and falls, in the range of spectrograms."""
    frames = np.arange(2 * figures.audio_positions, dtype=np.float64)
    bins = np.arange(figures.mels, dtype=np.float64)[:, None]
    centre = figures.mels * (0.5 + 0.4 * np.sin(frames / 90))
    return (1.5 * np.exp(-(((bins - centre) / 4) ** 2)) - 0.5).astype(np.float32)

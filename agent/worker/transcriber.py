"""A Whisper in ONNX Runtime sessions: spectrograms of windows in, tokens out, a few at a time.

It runs on CPU, whatever the machine has: a folder has float32 graphs only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agent.models.blocks import FloatArray
from agent.models.folder import AUDIO_GRAPH, ModelFolder
from agent.models.transcriber_figures import TranscriberFigures
from agent.models.transcriber_selftest import (
    check_transcriber,
    empty_past,
    hear,
    prompt_tokens,
    write,
)
from agent.worker.log_mel import LogMel
from agent.worker.numerics import transcriber_numerics_id
from agent.worker.sessions import open_on_cpu
from agent.worker.timestamp_rules import TimestampRules, log_softmax
from bus.errors import Internal, Invalid, ModelIncomplete

#: Nobody speaks in a window that the model thinks so of, and has no better words for.
NO_SPEECH = 0.6
UNSURE = -1.0


@dataclass(slots=True)
class WindowRun:
    """A window on its way to its transcript.

    Attributes:
        heard: what the audio graph made of it.
        past: keys and values of the tokens that were read.
        position: of the next token that is read, from 0.
        next_logits: from which the next token is chosen, `[vocab]`.
        tokens: of the transcript so far, from the first timestamp on.
        done: the transcript has its end.
        no_speech: probability that nobody speaks.
        surety: sum of the logarithms of the tokens' probabilities.
    """

    heard: dict[str, Any]
    past: dict[str, Any]
    position: int
    next_logits: FloatArray
    no_speech: float
    tokens: list[int] = field(default_factory=list)
    done: bool = False
    surety: float = 0.0

    @property
    def is_speech(self) -> bool:
        """Whether somebody speaks: words that the model is sure of are always speech."""
        return self.no_speech <= NO_SPEECH or self.surety / (len(self.tokens) + 1) > UNSURE


class Transcriber:
    """Owns the sessions. One thread drives it.

    Args:
        folder: an opened folder of kind transcriber.
        threads: of the sessions; 0 takes all processors that this process may use.

    Raises:
        ModelIncomplete: it is of another kind, or its graphs can not be loaded.
    """

    def __init__(self, folder: ModelFolder, *, threads: int = 0) -> None:
        self.folder = folder
        self.figures = _figures(folder)
        self.numerics = transcriber_numerics_id(folder)
        self._audio = open_on_cpu(folder, folder.path / AUDIO_GRAPH, threads)
        self._text = open_on_cpu(folder, folder.graph, threads)
        self._mel = LogMel(self.figures.mels)
        self._rules = TimestampRules(self.figures)
        #: A window's transcript is half of what fits at most; as its makers did.
        self._longest = folder.signature.max_positions // 2

    def self_test(self) -> None:
        """Run the folder's test.

        Raises:
            ModelIncomplete: the graphs no longer give what they gave when they were made.
        """
        check_transcriber(self._audio, self._text, self.folder)

    def check_language(self, language: str) -> None:
        """Accept a language, or none.

        Raises:
            Invalid: the model does not transcribe it.
        """
        known = self.figures.languages
        if language and language not in known:
            have = ", ".join(known) if len(known) < 10 else f"{len(known)} other languages"
            raise Invalid(
                f"model {self.folder.name} transcribes {have} and not {language[:20]!r}; choose a "
                "model that does, or leave the language out",
                param="language",
            )

    def begin(self, samples: FloatArray, language: str) -> tuple[WindowRun, str]:
        """Hear a window.

        Args:
            samples: at 16 kHz, 30 s at most.
            language: one that the model has; empty is the one that it hears.

        Returns:
            The window, whose transcript is to be made by `go_on`, and its language.

        Raises:
            Internal: ONNX Runtime failed.
        """
        try:
            heard = hear(self._audio, self._mel.window(samples))
            past: dict[str, Any] = dict(empty_past(self.folder.signature))
            logits, past = write(self._text, {**heard, **past}, self.figures.begin, 0)
            no_speech = float(np.exp(log_softmax(logits)[self.figures.no_speech]))
            language = language or self._heard_language(logits)
            rest = prompt_tokens(self.figures, language)[1:]
            for position, token in enumerate(rest, start=1):
                logits, past = write(self._text, {**heard, **past}, token, position)
        except Exception as error:  # its errors share no narrower base
            raise Internal(f"ONNX Runtime failed in a run: {error}") from error
        return WindowRun(heard, past, 1 + len(rest), logits, no_speech), language

    def go_on(self, run: WindowRun, tokens: int) -> None:
        """Write some more tokens, or what is left of the transcript.

        Raises:
            Internal: ONNX Runtime failed, or gave logits that are no numbers.
        """
        for _ in range(tokens):
            if run.done:
                return
            self._choose(run)

    def _choose(self, run: WindowRun) -> None:
        allowed = self._rules.apply(run.next_logits, run.tokens)
        token = int(allowed.argmax())
        surety = float(log_softmax(allowed)[token])
        if not np.isfinite(surety):
            raise Internal(
                f"model {self.folder.name} gives logits that are no numbers; import it again"
            )
        run.surety += surety
        if token == self.figures.end:
            run.done = True
            return
        run.tokens.append(token)
        if len(run.tokens) >= self._longest:
            run.done = True
            return
        try:
            feeds = {**run.heard, **run.past}
            run.next_logits, run.past = write(self._text, feeds, token, run.position)
        except Exception as error:  # its errors share no narrower base
            raise Internal(f"ONNX Runtime failed in a run: {error}") from error
        run.position += 1

    def _heard_language(self, logits: FloatArray) -> str:
        """The likeliest language, by the logits after the first token."""
        known = self.figures.languages
        if not self.figures.multilingual:
            return next(iter(known))
        return max(known, key=lambda code: float(logits[known[code]]))


def _figures(folder: ModelFolder) -> TranscriberFigures:
    if folder.transcriber is None:
        raise ModelIncomplete(f"model {folder.name} transcribes no speech", param="model")
    return folder.transcriber

"""One job of a transcriber: from its file's samples to windows of text, a step at a time.

    wait for samples ──▶ hear ──▶ write, some tokens a step ──▶ told ──▶ the next window, or the end

Windows do not depend on each other, so the job can go on anywhere from the last `next_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from agent.models.transcriber_figures import TIMESTAMP_S
from agent.worker.audio_source import AudioSource
from agent.worker.log_mel import RATE, WINDOW_SAMPLES, FloatArray
from agent.worker.speech_segments import WINDOW_TICKS, Stretch, split_window
from agent.worker.transcriber import Transcriber, WindowRun
from bus.ids import GenerationId
from bus.messages.worker import SpokenSegment, Transcribed, TranscribedWindow

#: Tokens of a step: some 50 ms of work.
STEP_TOKENS = 8
#: How long a step waits for samples.
WAIT_S = 0.02
_TICK_SAMPLES = round(TIMESTAMP_S * RATE)
#: So little at the end of a file is no speech.
_LEAST_SAMPLES = RATE // 10

#: Of samples: no louder than the smallest steps of 16 bits. Models hear words in it all the same.
_SILENCE = 2 / 32768

#: Makes text of token ids.
Decode = Callable[[Sequence[int]], str]


class Transcription:
    """Owns the source of samples; `close` ends it.

    Args:
        job: its number.
        source: of the samples from `from_s` on.
        transcriber: hears and writes.
        decode: makes text of tokens.
        language: one that the model has, or empty.
        from_s: where the first window begins.
    """

    def __init__(
        self,
        job: GenerationId,
        source: AudioSource,
        transcriber: Transcriber,
        decode: Decode,
        *,
        language: str = "",
        from_s: float = 0.0,
    ) -> None:
        self.job = job
        self._source = source
        self._transcriber = transcriber
        self._decode = decode
        #: Empty until one was heard.
        self._language = language or transcriber.figures.only_language
        #: Where the window begins, in ticks; and the samples from there on.
        self._place = round(from_s / TIMESTAMP_S)
        self._samples: FloatArray = np.zeros(0, np.float32)
        self._run: WindowRun | None = None
        #: Tokens that were written, of all windows.
        self.written = 0

    def step(self) -> TranscribedWindow | Transcribed | None:
        """Do some work; gives a window when one is whole, or the end, after which there is none.

        Raises:
            SuperfluidError: of the file, or of the model.
        """
        if self._run is None:
            return self._begin()
        before = len(self._run.tokens)
        self._transcriber.go_on(self._run, STEP_TOKENS)
        self.written += len(self._run.tokens) - before
        return self._told(self._run) if self._run.done else None

    @property
    def in_window(self) -> bool:
        """Whether a window was begun and is not whole."""
        return self._run is not None

    def close(self) -> None:
        """End the source."""
        self._source.close()

    def _begin(self) -> TranscribedWindow | Transcribed | None:
        missing = WINDOW_SAMPLES - len(self._samples)
        if not self._source.fill(missing, WAIT_S):
            return None
        self._samples = np.concatenate([self._samples, self._source.take(missing)])
        if len(self._samples) < _LEAST_SAMPLES:
            return self._ended()
        if float(np.abs(self._samples).max()) <= _SILENCE:
            return self._window((), WINDOW_TICKS)
        self._run, self._language = self._transcriber.begin(self._samples, self._language)
        return None

    def _ended(self) -> Transcribed:
        # All of them, as the place where it began may lie behind the end.
        duration_s = round(self._source.samples / RATE, 3)
        return Transcribed(job=self.job, language=self._language, duration_s=duration_s)

    def _told(self, run: WindowRun) -> TranscribedWindow:
        content = -(-len(self._samples) // _TICK_SAMPLES)
        window = split_window(run.tokens, self._transcriber.figures, content)
        self._run = None
        if not run.is_speech:
            return self._window((), WINDOW_TICKS)
        return self._window(window.stretches, window.advance)

    def _window(self, stretches: Sequence[Stretch], advance: int) -> TranscribedWindow:
        # The audio may end within the window; what is left of it is less than a tick then.
        advance = min(advance, len(self._samples) // _TICK_SAMPLES)
        segments = tuple(
            segment for stretch in stretches if (segment := self._segment(stretch)).text
        )
        self._place += advance
        self._samples = self._samples[advance * _TICK_SAMPLES :]
        return TranscribedWindow(
            job=self.job,
            segments=segments,
            next_s=_seconds(self._place),
            language=self._language,
        )

    def _segment(self, stretch: Stretch) -> SpokenSegment:
        return SpokenSegment(
            start_s=_seconds(self._place + stretch.start),
            end_s=_seconds(self._place + stretch.end),
            text=self._decode(stretch.tokens).strip(),
        )


def _seconds(ticks: int) -> float:
    """Rounded, so that it reads as it is meant: 0.06 and not 0.060000000000000005."""
    return round(ticks * TIMESTAMP_S, 2)

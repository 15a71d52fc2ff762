"""What the record of a transcriber says beside its graphs' signature: a Whisper's tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Seconds of audio that one window has, of every Whisper.
WINDOW_S = 30.0
#: Seconds between two timestamp tokens.
TIMESTAMP_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriberFigures:
    """How a Whisper is fed and what it must not say.

    Attributes:
        mels: bins of its spectrogram.
        audio_positions: rows that its encoder makes of a window.
        begin: token that a transcript begins with.
        end: token that ends one; text tokens are below it.
        transcribe: task token of a multilingual model; -1 of one that has a single language.
        no_speech: token whose probability says that nobody speaks.
        no_timestamps: token that asks for none.
        first_timestamp: token of 0.00 s; the last one is the vocabulary's last.
        suppressed: tokens that are never chosen.
        suppressed_first: tokens that are not chosen first.
        languages: code to token, of a multilingual model; one with a single language has it alone,
            with token -1.
    """

    mels: int
    audio_positions: int
    begin: int
    end: int
    transcribe: int
    no_speech: int
    no_timestamps: int
    first_timestamp: int
    suppressed: tuple[int, ...]
    suppressed_first: tuple[int, ...]
    languages: Mapping[str, int]

    @property
    def multilingual(self) -> bool:
        """Whether a language is chosen by a token."""
        return self.transcribe >= 0

    @property
    def only_language(self) -> str:
        """The language of a model that has one; empty of one that has many."""
        return "" if self.multilingual else next(iter(self.languages))


def figures_from_record(entry: Mapping[str, Any]) -> TranscriberFigures:
    """Take the record's JSON apart.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: it is not as it was written.
    """
    lists = {
        key: tuple(int(token) for token in entry[key]) for key in ("suppressed", "suppressed_first")
    }
    languages = {str(code): int(token) for code, token in entry["languages"].items()}
    if not languages:
        raise ValueError("a transcriber without a language")
    whole = {
        key: int(entry[key])
        for key in (
            *("mels", "audio_positions", "begin", "end", "transcribe", "no_speech"),
            *("no_timestamps", "first_timestamp"),
        )
    }
    return TranscriberFigures(
        mels=whole["mels"],
        audio_positions=whole["audio_positions"],
        begin=whole["begin"],
        end=whole["end"],
        transcribe=whole["transcribe"],
        no_speech=whole["no_speech"],
        no_timestamps=whole["no_timestamps"],
        first_timestamp=whole["first_timestamp"],
        languages=languages,
        suppressed=lists["suppressed"],
        suppressed_first=lists["suppressed_first"],
    )

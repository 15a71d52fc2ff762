"""Sounds, and files of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

FloatArray = npt.NDArray[np.float32]
FORMATS = ("wav", "flac", "mp3")


def tone(seconds: float, rate: int = 16_000, hz: float = 440.0) -> FloatArray:
    """A tone of a third of the loudest."""
    return (np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate) / 3).astype(np.float32)


def write_sound(path: Path, samples: FloatArray, rate: int = 16_000, subtype: str = "") -> Path:
    """Write samples `[frames]` or `[frames, channels]`; the format is the name's ending."""
    default = {".mp3": "MPEG_LAYER_III", ".wav": "PCM_16", ".flac": "PCM_16"}[path.suffix]
    soundfile.write(path, samples, rate, subtype=subtype or default)
    return path

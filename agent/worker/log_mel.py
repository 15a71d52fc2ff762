"""Log-mel spectrograms, as Whisper hears them.

Frames of 25 ms every 10 ms under a Hann window; the energies of their spectrum in triangular bands
of Slaney's mel scale, each of area 1; the logarithm to base 10, no more than 8 below its largest
value, and moved to around 0.

Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (arXiv
2212.04356), section 2.2; the scale: Slaney, "Auditory Toolbox" (Interval Research 1998-010).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]

RATE = 16_000
FRAME = 400
HOP = 160
#: Samples of a window, and its frames.
WINDOW_SAMPLES = 30 * RATE
WINDOW_FRAMES = WINDOW_SAMPLES // HOP

#: Linear up to here, logarithmic beyond.
_BEND_HZ = 1000.0
_HZ_PER_MEL = 200.0 / 3
_BEND_MEL = _BEND_HZ / _HZ_PER_MEL
#: Each mel beyond multiplies by the 27th root of 6.4.
_STEP = np.log(6.4) / 27
_LEAST, _RANGE = 1e-10, 8.0


def hz_to_mel(hz: DoubleArray) -> DoubleArray:
    """Frequencies in Hz as mels of Slaney's scale."""
    above = _BEND_MEL + np.log(np.maximum(hz, _BEND_HZ) / _BEND_HZ) / _STEP
    return np.asarray(np.where(hz < _BEND_HZ, hz / _HZ_PER_MEL, above))


def mel_to_hz(mel: DoubleArray) -> DoubleArray:
    """Mels of Slaney's scale as frequencies in Hz."""
    above = _BEND_HZ * np.exp(_STEP * (np.maximum(mel, _BEND_MEL) - _BEND_MEL))
    return np.asarray(np.where(mel < _BEND_MEL, mel * _HZ_PER_MEL, above))


def mel_filters(mels: int) -> DoubleArray:
    """Weights of the spectrum's frequencies in each band, `[mels, FRAME / 2 + 1]`.

    Band `i` rises from edge `i` to edge `i + 1` and falls to edge `i + 2`, of edges that are even
    in mels from 0 Hz to half the rate.
    """
    top = hz_to_mel(np.array(RATE / 2))
    edges = mel_to_hz(np.linspace(0.0, float(top), mels + 2))
    hz = np.linspace(0, RATE / 2, FRAME // 2 + 1)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (hz - low) / (centre - low), (high - hz) / (high - centre)
    return np.asarray(np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low))


class LogMel:
    """Spectrograms of windows; `mels` is the model's."""

    def __init__(self, mels: int) -> None:
        self._filters = mel_filters(mels).astype(np.float32)
        angle = 2 * np.pi * np.arange(FRAME) / FRAME
        self._hann = (0.5 - 0.5 * np.cos(angle)).astype(np.float32)

    def window(self, samples: FloatArray) -> FloatArray:
        """The spectrogram of a window.

        Args:
            samples: at 16 kHz, in -1 to 1, `WINDOW_SAMPLES` at most; silence follows fewer.

        Returns:
            float32 `[mels, WINDOW_FRAMES]`.
        """
        padded = np.zeros(WINDOW_SAMPLES, np.float32)
        padded[: len(samples)] = samples
        padded = np.pad(padded, FRAME // 2, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(padded, FRAME)[::HOP][:WINDOW_FRAMES]
        spectrum = np.fft.rfft(frames * self._hann, axis=1)
        energy = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
        logs = np.log10(np.maximum(self._filters @ energy.T, _LEAST))
        logs = np.maximum(logs, logs.max() - _RANGE)
        return np.asarray((logs + 4) / 4, np.float32)

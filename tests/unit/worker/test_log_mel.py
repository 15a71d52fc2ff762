"""Log-mel spectrograms: the scale's own figures, and sounds whose spectrum is known."""

from __future__ import annotations

import numpy as np
import pytest

from agent.worker.log_mel import (
    RATE,
    WINDOW_FRAMES,
    WINDOW_SAMPLES,
    LogMel,
    hz_to_mel,
    mel_filters,
    mel_to_hz,
)


def test_the_scale_has_the_figures_of_its_definition() -> None:
    # Slaney: 3 mels each 200 Hz up to 1,000 Hz; 27 more multiply by 6.4.
    known = {0.0: 0.0, 200.0: 3.0, 1000.0: 15.0, 6400.0: 42.0}
    found = hz_to_mel(np.array(list(known)))
    assert np.allclose(found, list(known.values()))
    assert np.allclose(mel_to_hz(found), list(known))


def test_bands_have_area_one_and_lie_in_a_row() -> None:
    # Finely sampled a band's area is 1; with 40 Hz between frequencies that holds of wide bands.
    filters = mel_filters(80)
    assert filters.shape == (80, 201)
    assert np.allclose(filters[60:].sum(1) * 40, 1, atol=0.02)
    peaks = filters.argmax(1) * 40.0
    assert (np.diff(peaks) >= 0).all()
    # 80 bands and their edges share 45.25 mels: the first band's peak is at 0.5586 mels.
    centre = 45.245_640_471_924_965 / 81
    assert mel_to_hz(np.array(centre)) == pytest.approx(37.239, abs=1e-3)
    assert filters[0, 1] == pytest.approx(_triangle(40.0, 0.0, 37.239, 74.478), abs=1e-5)


def _triangle(hz: float, low: float, centre: float, high: float) -> float:
    rising, falling = (hz - low) / (centre - low), (high - hz) / (high - centre)
    return max(0.0, min(rising, falling)) * 2 / (high - low)


def test_silence_is_the_lowest_value_everywhere() -> None:
    found = LogMel(80).window(np.zeros(1000, np.float32))
    # log10(1e-10) is -10, and (-10 + 4) / 4 is -1.5.
    assert found.shape == (80, WINDOW_FRAMES)
    assert found.dtype == np.float32
    assert np.allclose(found, -1.5)


@pytest.mark.parametrize("mels", [80, 128])
def test_a_tone_is_loudest_in_its_band(mels: int) -> None:
    for hz in (440.0, 1000.0, 3000.0):
        samples = np.sin(2 * np.pi * hz * np.arange(2 * RATE) / RATE).astype(np.float32)
        found = LogMel(mels).window(samples)
        expected = mel_filters(mels)[:, round(hz / 40)].argmax()
        assert abs(int(found[:, 50].argmax()) - int(expected)) <= 1
        # Silence after two seconds is as far below as is kept.
        assert found[:, 300:].max() == pytest.approx(found.max() - 2, abs=1e-5)


def test_the_values_are_those_of_a_direct_transform() -> None:
    rng = np.random.default_rng(5)
    samples = rng.normal(0, 0.1, WINDOW_SAMPLES).astype(np.float32)
    found = LogMel(80).window(samples)
    frame = samples[1600 - 200 : 1600 + 200].astype(np.float64)
    hann = np.sin(np.pi * np.arange(400) / 400) ** 2
    turns = np.exp(-2j * np.pi * np.outer(np.arange(201), np.arange(400)) / 400)
    energy = np.abs(turns @ (frame * hann)) ** 2
    known = (np.log10(mel_filters(80) @ energy) + 4) / 4
    assert np.abs(found[:, 10] - known).max() < 1e-4

"""Changing the rate of sound: tones stay tones, and nothing depends on how the sound is cut."""

from __future__ import annotations

import numpy as np
import pytest

from agent.worker.resampling import FloatArray, Resampler

RATES = (8_000, 11_025, 22_050, 24_000, 44_100, 48_000, 96_000, 44_101)


def tone(hz: float, rate: int, seconds: float) -> FloatArray:
    return np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate).astype(np.float32)


def resampled(samples: FloatArray, old: int, new: int, cuts: tuple[int, ...] = ()) -> FloatArray:
    resampler = Resampler(old, new)
    parts = [resampler.push(part) for part in np.split(samples, cuts)]
    return np.concatenate([*parts, resampler.finish()])


@pytest.mark.parametrize("old", RATES)
@pytest.mark.parametrize("hz", [50.0, 997.0, 3300.0])
def test_a_tone_is_the_same_tone_at_another_rate(old: int, hz: float) -> None:
    made = resampled(tone(hz, old, 1.5), old, 16_000)
    known = tone(hz, 16_000, 1.5)
    assert abs(len(made) - len(known)) <= 1
    # The ends are faded by the silence around the tone.
    inner = slice(800, 23_000)
    assert np.abs(made[inner] - known[inner]).max() < 2e-3


@pytest.mark.parametrize("old", [44_100, 48_000])
def test_what_the_new_rate_can_not_hold_is_gone(old: int) -> None:
    for hz in (9_000.0, 12_000.0, 20_000.0):
        assert np.abs(resampled(tone(hz, old, 1.0), old, 16_000)[800:15_000]).max() < 1e-3


def test_a_level_stays_the_level() -> None:
    made = resampled(np.full(48_000, 0.25, np.float32), 48_000, 16_000)
    assert np.abs(made[200:15_800] - 0.25).max() < 1e-5


def test_the_same_rate_changes_nothing() -> None:
    samples = tone(440, 16_000, 0.5)
    assert np.array_equal(resampled(samples, 16_000, 16_000), samples)


@pytest.mark.parametrize("old", [8_000, 22_050, 48_000])
def test_cuts_do_not_show(old: int) -> None:
    rng = np.random.default_rng(old)
    samples = rng.normal(0, 0.3, 5 * old).astype(np.float32)
    whole = resampled(samples, old, 16_000)
    cuts = tuple(sorted(rng.integers(0, len(samples), 7).tolist()))
    pieces = resampled(samples, old, 16_000, cuts)
    assert len(pieces) == len(whole) == 80_000
    assert np.abs(pieces - whole).max() < 1e-5


@pytest.mark.parametrize("length", [0, 1, 5, 100])
def test_short_sounds_have_their_length(length: int) -> None:
    made = resampled(np.ones(length, np.float32), 48_000, 16_000)
    assert len(made) == -(-length // 3)

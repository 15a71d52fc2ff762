"""A transcriber's windows: the reference's words, languages, silence and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.models.encoder_importer import import_encoder
from agent.models.folder import ModelFolder
from agent.models.whisper_importer import import_whisper
from agent.worker.log_mel import WINDOW_SAMPLES, LogMel
from agent.worker.timestamp_rules import TimestampRules
from agent.worker.transcriber import Transcriber
from bus.errors import Invalid, ModelIncomplete
from tests.harness.small_encoder import write_small_encoder
from tests.harness.small_whisper import (
    HEADS,
    LAYERS,
    TEXTS,
    control_tokens,
    small_weights,
    write_small_whisper,
)
from tests.harness.whisper_reference import ReferenceWhisper

MANY = ("en", "de", "yue")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    base = tmp_path_factory.mktemp("whisper")
    return import_whisper(write_small_whisper(base / "source"), base / "small")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Transcriber:
    base = tmp_path_factory.mktemp("whisper")
    source = write_small_whisper(base / "source", languages=MANY)
    return Transcriber(import_whisper(source, base / "many"), threads=1)


def noise(seconds: float) -> np.ndarray:
    return np.random.default_rng(1).normal(0, 0.1, round(16_000 * seconds)).astype(np.float32)


def greedy(reference: ReferenceWhisper, transcriber: Transcriber, prompt: list[int]) -> list[int]:
    """What the reference writes, without a cache, under the same rules."""
    heard = reference.heard(LogMel(80).window(noise(10)))
    rules, tokens = TimestampRules(transcriber.figures), list[int]()
    while len(tokens) < TEXTS // 2:
        logits = reference.logits(heard, prompt + tokens)[-1].astype(np.float32)
        token = int(rules.apply(logits, tokens).argmax())
        if token == transcriber.figures.end:
            break
        tokens.append(token)
    return tokens


def test_a_window_is_written_as_the_reference_does(folder: ModelFolder) -> None:
    transcriber = Transcriber(folder, threads=1)
    transcriber.self_test()
    run, language = transcriber.begin(noise(10), "")
    for _ in range(TEXTS):
        transcriber.go_on(run, 1)
    assert (run.done, language) == (True, "en")
    reference = ReferenceWhisper(small_weights(folder.signature.vocab), LAYERS, HEADS)
    assert run.tokens == greedy(reference, transcriber, [257])
    assert len(run.tokens) > 3


def test_steps_do_not_show(folder: ModelFolder) -> None:
    transcriber = Transcriber(folder, threads=1)
    runs = [transcriber.begin(noise(10), "en")[0] for _ in range(2)]
    transcriber.go_on(runs[0], 1000)
    while not runs[1].done:
        transcriber.go_on(runs[1], 3)
    assert runs[0].tokens == runs[1].tokens
    assert runs[0].surety == pytest.approx(runs[1].surety)


def test_a_language_is_named_or_heard(many: Transcriber) -> None:
    controls = control_tokens(MANY)
    weights = small_weights(many.folder.signature.vocab)
    reference = ReferenceWhisper(weights, LAYERS, HEADS)
    heard = reference.heard(LogMel(80).window(noise(10)))
    logits = reference.logits(heard, [controls["<|startoftranscript|>"]])[-1]
    run, language = many.begin(noise(10), "")
    assert language == max(MANY, key=lambda code: logits[controls[f"<|{code}|>"]])
    shares = np.exp(logits - logits.max())
    known = shares[controls["<|nocaptions|>"]] / shares.sum()
    assert run.no_speech == pytest.approx(known, rel=1e-3)
    prompt = [controls[f"<|{name}|>"] for name in ("startoftranscript", "yue", "transcribe")]
    run, language = many.begin(noise(10), "yue")
    known = reference.logits(heard, prompt)[-1]
    assert (language, run.position) == ("yue", 3)
    assert np.abs(run.next_logits - known).max() < 1e-3


def test_other_languages_are_refused_by_name(folder: ModelFolder, many: Transcriber) -> None:
    transcriber = Transcriber(folder, threads=1)
    for language in ("", "en"):
        transcriber.check_language(language)
    with pytest.raises(Invalid, match="model small transcribes en and not 'de'") as refused:
        transcriber.check_language("de")
    assert refused.value.param == "language"
    many.check_language("de")
    with pytest.raises(Invalid, match="model many transcribes en, de, yue and not 'fr'"):
        many.check_language("fr")


def test_nobody_speaks_when_the_model_thinks_so_and_is_unsure(folder: ModelFolder) -> None:
    transcriber = Transcriber(folder, threads=1)
    run, _ = transcriber.begin(noise(1), "en")
    run.tokens, run.surety = [265, 72, 300], -6.0
    for no_speech, surety, speaks in (
        (0.5, -6.0, True),
        (0.7, -6.0, False),
        (0.7, -3.0, True),  # -0.75 a token: sure enough.
    ):
        run.no_speech, run.surety = no_speech, surety
        assert run.is_speech is speaks


def test_whole_windows_and_short_ones_are_heard(folder: ModelFolder) -> None:
    transcriber = Transcriber(folder, threads=1)
    for samples in (noise(30), noise(0.1), np.zeros(WINDOW_SAMPLES, np.float32)):
        run, _ = transcriber.begin(samples, "en")
        assert np.isfinite(run.next_logits).all()


def test_other_models_are_no_transcribers(folder: ModelFolder, tmp_path: Path) -> None:
    encoder = import_encoder(write_small_encoder(tmp_path / "a"), tmp_path / "enc")
    with pytest.raises(ModelIncomplete, match="enc transcribes no speech"):
        Transcriber(encoder)
    off = tuple(value + 1 for value in folder.self_test.vector)
    wrong = replace(folder, self_test=replace(folder.self_test, vector=off))
    with pytest.raises(ModelIncomplete, match="fails its self-test"):
        Transcriber(wrong, threads=1).self_test()

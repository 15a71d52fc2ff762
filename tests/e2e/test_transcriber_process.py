"""A real worker process with a transcriber's folder: segments, cancels, refusals and heartbeats."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from agent.models.encoder_importer import import_encoder
from agent.models.folder import ModelFolder
from agent.models.whisper_importer import import_whisper
from bus.ids import GenerationId, pack_ids
from bus.messages.sampling import SamplingParams
from bus.messages.worker import (
    UNASKED,
    Cancel,
    Embed,
    EmbedFailed,
    Ping,
    Pong,
    Ready,
    Stop,
    Submit,
    Transcribe,
    Transcribed,
    TranscribedWindow,
    TranscribeFailed,
)
from bus.text.tokenizer import TextModel
from tests.e2e.test_model_commands import sfctl
from tests.harness.models import whisper_folder
from tests.harness.small_encoder import write_small_encoder
from tests.harness.small_whisper import write_small_whisper
from tests.harness.sounds import tone, write_sound
from tests.harness.speech import english_clips, joined, word_errors, words
from tests.harness.worker_agent import Agent

PROGRAM = [sys.executable, "-P", "-m", "agent.models"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    base = tmp_path_factory.mktemp("whisper")
    return import_whisper(write_small_whisper(base / "source"), base / "small")


@pytest.fixture
def agent(small: ModelFolder, run_dir: Path) -> Iterator[Agent]:
    opened = Agent(small.path, run_dir)
    yield opened
    opened.close()


@pytest.fixture
def speech_agent(run_dir: Path) -> Iterator[Agent]:
    opened = Agent(whisper_folder().path, run_dir)
    yield opened
    opened.close()


def transcribe(job: int, file: Path, language: str = "", from_s: float = 0.0) -> Transcribe:
    return Transcribe(job=GenerationId(job), file=str(file), language=language, from_s=from_s)


def windows(agent: Agent, job: int) -> list[TranscribedWindow]:
    """All windows of a job that has ended."""
    return [m for m in agent.messages if isinstance(m, TranscribedWindow) and m.job == job]


def test_a_worker_says_what_it_is_and_serves_files_in_turn(
    agent: Agent, small: ModelFolder, tmp_path: Path
) -> None:
    ready = agent.take(Ready)
    assert (ready.kind, ready.window_tokens, ready.lanes) == ("transcriber", 64, 1)
    assert ready.tokenizer_digest == TextModel.open(small.path).digest
    long = write_sound(tmp_path / "long.wav", tone(100.0))
    short = write_sound(tmp_path / "short.flac", tone(5.5))
    agent.send(transcribe(1, long))
    agent.send(transcribe(2, short, language="en"))
    ends = [agent.take(Transcribed), agent.take(Transcribed)]
    # A window each in turn: the short file does not wait for the long one.
    assert [(end.job, end.duration_s) for end in ends] == [(2, 5.5), (1, 100.0)]
    for job, seconds in ((1, 100.0), (2, 5.5)):
        places = [window.next_s for window in windows(agent, job)]
        assert places == sorted(set(places))
        assert places[-1] == pytest.approx(seconds, abs=0.1)
    agent.send(Stop())
    assert agent.exit_code() == 0


def test_what_can_not_be_transcribed_is_named(agent: Agent, tmp_path: Path) -> None:
    good = write_sound(tmp_path / "a.wav", tone(1.0))
    cut = tmp_path / "b.wav"
    cut.write_bytes(good.read_bytes()[:9000])
    text = tmp_path / "c.txt"
    text.write_text("not a sound")
    for job, request, code, param, says in (
        (1, transcribe(1, good, "de"), "invalid", "language", "transcribes en and not 'de'"),
        (2, transcribe(2, cut), "invalid", "file", "its data chunk has"),
        (3, transcribe(3, text), "invalid", "file", "no WAV, FLAC or MP3"),
        (4, transcribe(4, tmp_path / "none"), "blob_missing", "", "No such file"),
    ):
        agent.send(request)
        failed = agent.take(TranscribeFailed)
        assert (failed.job, failed.code, failed.param) == (job, code, param)
        assert says in failed.message
    agent.send(transcribe(5, good))
    assert agent.take(Transcribed).job == 5


def test_texts_are_refused(agent: Agent) -> None:
    agent.send(Embed(job=GenerationId(1), inputs=(pack_ids([5]),)))
    failed = agent.take(EmbedFailed)
    assert (failed.code, failed.param) == ("invalid", "model")
    assert "model small transcribes speech" in failed.message
    submit = Submit(
        generation=GenerationId(2),
        context=pack_ids([2, 5]),
        sampling=SamplingParams(),
        max_new_tokens=4,
        prompt_tokens=2,
    )
    agent.send(submit)
    assert "transcribes speech" in agent.finish(2).message


def test_an_encoder_refuses_audio(tmp_path: Path, run_dir: Path) -> None:
    encoder = import_encoder(write_small_encoder(tmp_path / "source"), tmp_path / "enc")
    agent = Agent(encoder.path, run_dir)
    try:
        agent.send(transcribe(1, write_sound(tmp_path / "a.wav", tone(1.0))))
        failed = agent.take(TranscribeFailed)
        assert (failed.code, failed.param) == ("invalid", "model")
        assert failed.message.startswith("model enc hears no audio")
    finally:
        agent.close()


def test_more_files_than_a_node_takes_are_put_off(agent: Agent, tmp_path: Path) -> None:
    file = write_sound(tmp_path / "a.wav", tone(300.0))
    for job in range(1, 10):
        agent.send(transcribe(job, file))
    failed = agent.take(TranscribeFailed)
    assert (failed.job, failed.code) == (9, "queue_full")
    for job in range(1, 9):
        agent.send(Cancel(generation=GenerationId(job)))
    agent.send(Ping(nonce=5))
    pong = agent.take(Pong, lambda m: m.nonce == 5)
    assert (pong.stats.phase, pong.stats.queued) == ("idle", 0)


@pytest.mark.model
def test_speech_is_written_down_with_its_times(speech_agent: Agent) -> None:
    clips = english_clips()
    found = {}
    for job, clip in enumerate(clips):
        speech_agent.send(transcribe(job, clip.path, "en"))
        end = speech_agent.take(Transcribed)
        (window,) = windows(speech_agent, job)
        (segment,) = window.segments
        assert 0 <= segment.start_s < segment.end_s <= end.duration_s
        found[clip.path.stem] = words(segment.text)
    said = {clip.path.stem: words(clip.text) for clip in clips}
    for name in ("hello_world", "quick_brown_fox"):
        assert found[name] == said[name]
    # As faster-whisper in float32 (make report-wer): ten numbers are written in digits.
    wrong = sum(word_errors(said[name], found[name]) for name in said)
    assert wrong / sum(map(len, said.values())) <= 10 / 21 + 0.02


@pytest.mark.model
def test_a_job_goes_on_from_any_window(speech_agent: Agent, tmp_path: Path) -> None:
    clips = [clip for clip in english_clips() if clip.path.stem != "counting"]
    file = write_sound(tmp_path / "talk.flac", joined(clips, 1.5, 75.0))
    speech_agent.send(transcribe(1, file))
    whole_end = speech_agent.take(Transcribed)
    whole = windows(speech_agent, 1)
    said = [segment for window in whole for segment in window.segments]
    assert len(whole) >= 3
    assert all(a.end_s <= b.start_s for a, b in pairwise(said))
    fox = words("The quick brown fox jumps over the lazy dog")
    assert sum(words(segment.text) == fox for segment in said) >= 6
    speech_agent.send(transcribe(2, file, from_s=whole[0].next_s))
    end = speech_agent.take(Transcribed)
    assert windows(speech_agent, 2) == [
        TranscribedWindow(
            job=GenerationId(2), segments=w.segments, next_s=w.next_s, language=w.language
        )
        for w in whole[1:]
    ]
    assert end.duration_s == whole_end.duration_s == 75.0


@pytest.mark.model
def test_a_cancel_and_a_ping_wait_for_less_than_a_window(
    speech_agent: Agent, tmp_path: Path
) -> None:
    file = write_sound(tmp_path / "talk.wav", joined(english_clips(), 0.5, 300.0))
    speech_agent.take(Ready)
    speech_agent.send(transcribe(1, file))
    speech_agent.take(TranscribedWindow)
    speech_agent.take(Pong, lambda m: m.nonce == UNASKED and m.stats.phase == "decode")
    speech_agent.send(Ping(nonce=7))
    speech_agent.send(Cancel(generation=GenerationId(1)))
    speech_agent.send(Ping(nonce=8))
    speech_agent.take(Pong, lambda m: m.nonce == 7)
    # Nothing of it comes after the answer to what was sent behind the cancel.
    stats = speech_agent.take(Pong, lambda m: m.nonce == 8).stats
    assert (stats.phase, stats.queued) == ("idle", 0)
    told = len(windows(speech_agent, 1))
    assert told <= 2
    speech_agent.send(Ping(nonce=9))
    speech_agent.take(Pong, lambda m: m.nonce == 9)
    assert len(windows(speech_agent, 1)) == told


@pytest.mark.model
def test_silence_is_not_transcribed(speech_agent: Agent, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    steps = (rng.integers(-1, 2, 16_000 * 45) / 32768).astype(np.float32)
    for job, sound in enumerate((tone(12.0) * 0, steps)):
        speech_agent.send(transcribe(job, write_sound(tmp_path / f"{job}.wav", sound)))
        end = speech_agent.take(Transcribed)
        assert (end.duration_s, end.language) == (len(sound) / 16_000, "en")
        told = windows(speech_agent, job)
        assert [window.next_s for window in told] == [[12.0], [30.0, 45.0]][job]
        assert not any(window.segments for window in told)


def test_the_programs_import_list_check_and_show_a_whisper(tmp_path: Path) -> None:
    source, state = write_small_whisper(tmp_path / "Some-Whisper"), tmp_path / "state"
    done = subprocess.run([*PROGRAM, "check", source], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[0])
    assert (found["usable"], found["architecture"], found["languages"]) == (True, "whisper", ["en"])
    made = sfctl(state, "import", source)
    assert (made.exit_code, made.stdout.strip()) == (0, str(state / "models" / "some-whisper"))
    for name in ("show", "check"):
        shown = sfctl(state, name, "some-whisper")
        assert shown.exit_code == 0
        lines = [line.split(None, 1) for line in shown.stdout.splitlines()]
        assert ["architecture", "whisper"] in lines
        assert ["kind", "transcriber" if name == "show" else "folder"] in lines

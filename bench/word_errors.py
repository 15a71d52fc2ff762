"""Word error rates of Whisper tiny.en: ours, and those of an independent float32 reference.

On the English clips of the wheel pytest-audioeval, and on a talk that is made of them with pauses,
which takes several windows. Words are compared in lower case and without punctuation. The last line
is for programs; the exit status is 1 when ours is more than 0.02 above the reference's.

    python -m bench.word_errors
    python -m bench.word_errors --speed      ours alone, without the reference's environment
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import soundfile

from agent.worker.audio_source import AudioSource
from agent.worker.log_mel import RATE
from agent.worker.transcriber import Transcriber
from agent.worker.transcription import Decode, Transcription
from bench.build_peers import PEERS, WHISPER, build, peer_python
from bus.ids import GenerationId
from bus.messages.worker import Transcribed, TranscribedWindow
from bus.text.tokenizer import TextModel
from tests.harness.models import whisper_folder, whisper_source
from tests.harness.speech import english_clips, joined, spoken, word_errors, words

#: How far ours may be above the reference's.
MOST_ABOVE = 0.02
THREADS = 2
_TALK_S, _PAUSE_S = 120.0, 0.8


@dataclass(frozen=True, slots=True)
class Transcript:
    """What was heard in a file, and how long it took."""

    text: str
    seconds: float
    cpu_seconds: float = 0.0


def ours(files: Sequence[Path]) -> list[Transcript]:
    """What the worker's transcriber hears."""
    folder = whisper_folder()
    transcriber = Transcriber(folder, threads=THREADS)
    vocabulary = TextModel.open(folder.path).vocabulary

    def text(tokens: Sequence[int]) -> str:
        return b"".join(vocabulary[token] for token in tokens).decode("utf-8", "replace")

    return [_transcribed(file, transcriber, text) for file in files]


def _transcribed(file: Path, transcriber: Transcriber, text: Decode) -> Transcript:
    start, start_cpu_s, said = time.perf_counter(), _cpu_s(), list[str]()
    job = Transcription(GenerationId(1), AudioSource(file), transcriber, text)
    try:
        while not isinstance(told := job.step(), Transcribed):
            if isinstance(told, TranscribedWindow):
                said += [segment.text for segment in told.segments]
    finally:
        job.close()
    taken_s, cpu_s = time.perf_counter() - start, _cpu_s() - start_cpu_s
    return Transcript(" ".join(said), taken_s, cpu_s)


def _cpu_s() -> float:
    """CPU time of this process and of the decoders that it has ended."""
    return sum(os.times()[:4])


def reference(files: Sequence[Path]) -> list[Transcript]:
    """What faster-whisper hears, in an environment of its own."""
    PEERS.mkdir(parents=True, exist_ok=True)
    build(WHISPER, 1)
    command = [str(peer_python(WHISPER)), "-m", "bench.whisper_side"]
    command += ["--folder", str(whisper_source()), "--threads", str(THREADS), *map(str, files)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return [Transcript(**json.loads(line)) for line in done.stdout.splitlines()]


def main() -> int:
    """Print the rates, and how fast they were had."""
    parser = argparse.ArgumentParser(prog="bench.word_errors")
    parser.add_argument("--speed", action="store_true", help="ours alone, twice as long a talk")
    options = parser.parse_args()
    return _speed() if options.speed else _compare()


def _speed() -> int:
    """Print how much of its time a talk takes."""
    seconds, clips = 2 * _TALK_S, english_clips()
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "talk.wav"
        soundfile.write(file, joined(clips, _PAUSE_S, seconds), RATE, subtype="FLOAT")
        # The first is not counted: it is where everything is read and grown.
        _, made = ours([clips[0].path, file])
    rate = _rate([spoken(clips, _PAUSE_S, seconds)], [made])
    print(
        f"whisper: a second of a talk of {seconds:.0f} s takes {made.seconds / seconds:.3f} s, "
        f"and {made.cpu_seconds / seconds:.3f} s of CPU time; {THREADS} threads, "
        f"{os.cpu_count()} cores; wer={rate:.4f}"
    )
    return 0


def _compare() -> int:
    clips = english_clips()
    talk, talk_text = joined(clips, _PAUSE_S, _TALK_S), spoken(clips, _PAUSE_S, _TALK_S)
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "talk.wav"
        soundfile.write(file, talk, RATE, subtype="FLOAT")
        files = [*(clip.path for clip in clips), file]
        texts = [*(clip.text for clip in clips), talk_text]
        found = {"ours": ours(files), "reference": reference(files)}
    seconds = [soundfile.info(clip.path).duration for clip in clips] + [_TALK_S]
    rates = {name: _rate(texts[:-1], made[:-1]) for name, made in found.items()}
    talks = {name: _rate(texts[-1:], made[-1:]) for name, made in found.items()}
    for name, made in found.items():
        for path, transcript in zip(files, made, strict=True):
            print(f"{name:9} {path.stem:16} {transcript.seconds:6.2f} s  {transcript.text[:90]}")
    for name, made in found.items():
        factor = made[-1].seconds / seconds[-1]
        print(
            f"{name:9} clips: wer={rates[name]:.4f}  talk of {_TALK_S:.0f} s: "
            f"wer={talks[name]:.4f}, {factor:.3f} of its time on {THREADS} threads"
        )
    print(
        f"wer: ours={rates['ours']:.4f} reference={rates['reference']:.4f} "
        f"talk_ours={talks['ours']:.4f} talk_reference={talks['reference']:.4f}"
    )
    above = max(rated["ours"] - rated["reference"] for rated in (rates, talks))
    return int(above > MOST_ABOVE)


def _rate(texts: Sequence[str], made: Sequence[Transcript]) -> float:
    said = [words(text) for text in texts]
    wrong = sum(word_errors(a, words(b.text)) for a, b in zip(said, made, strict=True))
    return wrong / sum(map(len, said))


if __name__ == "__main__":
    sys.exit(main())

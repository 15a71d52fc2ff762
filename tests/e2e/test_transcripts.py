"""Transcripts end to end: client, head, agent, a transcriber's worker and its audio process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.models.whisper_importer import import_whisper
from bench.cluster import Cluster
from bus.errors import BlobMissing, Invalid, NotFound, TooLarge
from bus.messages.worker import SpokenSegment
from tests.harness.models import toy_model_folder, whisper_folder
from tests.harness.small_whisper import write_small_whisper
from tests.harness.sounds import tone, write_sound
from tests.harness.speech import english_clips, joined, words

LIMIT_S = 120.0


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A fleet of one node with the small Whisper."""
    folder = tmp_path_factory.mktemp("small-whisper")
    import_whisper(write_small_whisper(folder / "source"), folder / "small")
    with Cluster(folder / "small", threads=1) as cluster:
        yield cluster


def test_a_file_is_put_once_and_heard_from_any_place(small: Cluster, tmp_path: Path) -> None:
    noise = np.random.default_rng(4).normal(0, 0.1, 16_000 * 40).astype(np.float32)
    file = write_sound(tmp_path / "a.wav", noise)
    heard = small.client.transcribe("small", file, language="en")
    said = list(heard)
    (node,) = small.client.nodes()
    assert (heard.language, heard.duration_s, heard.node) == ("en", 40.0, node["identity"])
    assert heard.next_s == pytest.approx(40.0, abs=0.1)
    sha256 = small.client.put_file(file)
    assert small.client.operation("has_blob", sha256=sha256) == {
        "has": True,
        "length": file.stat().st_size,
    }
    again = small.client.transcribe("small", file, from_s=39.5)
    assert [segment for segment in again if segment.start_s < 39.5] == []
    assert again.duration_s == 40.0
    beyond = small.client.transcribe("small", file, from_s=99.0)
    assert (list(beyond), beyond.duration_s) == ([], 40.0)
    assert list(small.client.transcribe("small", file)) == said


def test_large_files_come_whole(small: Cluster, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    samples = (rng.integers(-1, 2, (16_000 * 60, 8)) / 32768).astype(np.float32)
    file = write_sound(tmp_path / "a.wav", samples)
    assert file.stat().st_size > 15_000_000
    heard = small.client.transcribe("small", file)
    assert (list(heard), heard.duration_s) == ([], 60.0)


def test_errors_are_typed(small: Cluster, tmp_path: Path) -> None:
    client, good = small.client, write_sound(tmp_path / "a.flac", tone(2.0))
    cut = tmp_path / "b.flac"
    cut.write_bytes(good.read_bytes()[:3000])
    with pytest.raises(Invalid, match="FLAC data can not be decoded after") as damaged:
        list(client.transcribe("small", cut))
    assert damaged.value.param == "file"
    with pytest.raises(Invalid, match="small transcribes en and not 'de'") as language:
        list(client.transcribe("small", good, language="de"))
    assert language.value.param == "language"
    with pytest.raises(Invalid, match="can not be read"):
        client.transcribe("small", tmp_path / "none")
    with pytest.raises(NotFound, match="other"):
        list(client.transcribe("other", good))
    with pytest.raises(BlobMissing, match="put it with put_blob"):
        client.operation("transcribe", model="small", sha256=bytes(32))
    with pytest.raises(Invalid, match="small is a transcriber: it writes what it hears") as text:
        client.generate("small", "a").result()
    assert text.value.param == "model"
    with pytest.raises(Invalid, match="kind transcriber and makes no embeddings"):
        client.embed("small", "a")


def test_audio_that_is_too_long_is_told_with_figures(small: Cluster, tmp_path: Path) -> None:
    file = write_sound(tmp_path / "a.flac", np.zeros(8_000 * 14_500, np.float32), 8_000)
    with pytest.raises(TooLarge, match="the audio is 14500 s long and 14400 s are taken") as long:
        list(small.client.transcribe("small", file))
    assert long.value.details == {"length": 14_500, "max": 14_400}


def test_another_model_hears_nothing(tmp_path: Path) -> None:
    with Cluster(toy_model_folder().path, threads=1) as cluster:
        file = write_sound(tmp_path / "a.wav", tone(1.0))
        with pytest.raises(Invalid, match="toy is a model of kind decoder") as wrong:
            list(cluster.client.transcribe("toy", file))
        assert wrong.value.param == "model"


@pytest.mark.model
def test_a_worker_killed_in_the_middle_repeats_nothing(tmp_path: Path) -> None:
    """Another node goes on behind the last whole window; sfctl shows the same afterwards."""
    clips = [clip for clip in english_clips() if clip.path.stem != "counting"]
    file = write_sound(tmp_path / "talk.flac", joined(clips, 1.5, 130.0))
    said: list[SpokenSegment] = []
    first, ended = threading.Event(), threading.Event()
    with Cluster(whisper_folder().path, threads=1, nodes=2) as cluster:

        def ask() -> None:
            with cluster.connect() as client:
                heard = client.transcribe("whisper-tiny-en", file)
                for segment in heard:
                    said.append(segment)
                    first.set()
                assert heard.duration_s == 130.0
            ended.set()

        asking = threading.Thread(target=ask)
        asking.start()
        assert first.wait(LIMIT_S)
        busy = [n for n in ("node-1", "node-2") if _decoders(cluster.workers(n))]
        assert len(busy) == 1
        assert not ended.is_set()
        for pid in cluster.workers(busy[0]):
            os.kill(pid, signal.SIGKILL)
        asking.join(LIMIT_S)
        assert ended.is_set()
        assert "SIGKILL" in cluster.log(busy[0])
        known = list(cluster.client.transcribe("whisper-tiny-en", file))
        assert said == known
        fox = words("The quick brown fox jumps over the lazy dog")
        assert sum(words(segment.text) == fox for segment in said) >= 12
        shown = cluster.sfctl("transcribe", "whisper-tiny-en", str(file), "-f", "json")
        lines = [json.loads(line) for line in shown.splitlines()]
        assert [(line["start_s"], line["text"]) for line in lines] == [
            (segment.start_s, segment.text) for segment in known
        ]


def _decoders(workers: list[int]) -> list[int]:
    """Processes of these workers that decode audio."""
    found = []
    for pid in workers:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def test_sfctl_says_what_is_wrong(small: Cluster, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"no audio")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        small.sfctl("transcribe", "small", str(tmp_path / "a.wav"))
    assert failed.value.returncode == 2
    assert "the file is no WAV, FLAC or MP3 audio" in failed.value.stderr

"""CTranslate2 files: values as NumPy has them, and files that were made to harm."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from agent.models.ct2_file import Ct2File
from bus.errors import Invalid, NotFound
from tests.harness.small_whisper import model_bytes, text, variable

ROWS = np.array([[127, -127], [64, 0]], np.int8)
PLAIN = {
    "a": variable("a", np.array([1.5, -2.25], np.float32)),
    "b": variable("b", np.array([[1.0], [-2.0]], np.float16)),
    # 0x3f80 is 1, 0xc040 is -3.
    "c": variable("c", np.array([0x3F80, 0xC040], np.uint16), "bfloat16"),
    "d": variable("d", ROWS),
    "d_scale": variable("d_scale", np.array([127, 32], np.float32)),
    "e": variable("e", np.array([512, -1024], np.int16)),
    "e_scale": variable("e_scale", np.array(512, np.float32)),
    "f": variable("f", np.array(6, np.int16)),
}


def opened(folder: Path, content: bytes) -> Ct2File:
    file = folder / "model.bin"
    file.write_bytes(content)
    return Ct2File(file)


def test_values_are_those_of_the_file(tmp_path: Path) -> None:
    file = opened(tmp_path, model_bytes(PLAIN, {"g": "b"}))
    assert (file.specification, file.revision, len(file.variables)) == ("WhisperSpec", 3, 8)
    assert file.floats("a").tolist() == [1.5, -2.25]
    assert file.floats("b").tolist() == file.floats("g").tolist() == [[1.0], [-2.0]]
    assert file.floats("c").tolist() == [1.0, -3.0]
    # Integers stand for themselves over their scale: one a row, or one for all.
    assert file.floats("d").tolist() == [[1.0, -1.0], [2.0, 0.0]]
    assert file.floats("e").tolist() == [1.0, -2.0]
    assert {file.floats(name).dtype for name in "abcde"} == {np.dtype(np.float32)}
    assert file.integer("f") == 6
    assert file.has("g")
    assert not file.has("h")


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    file = opened(tmp_path, model_bytes(PLAIN))
    with pytest.raises(Invalid, match="no variable h"):
        file.floats("h")
    with pytest.raises(Invalid, match="a is no whole number"):
        file.integer("a")
    with pytest.raises(NotFound, match="there is no file"):
        Ct2File(tmp_path / "other")


@pytest.mark.parametrize(
    "scale",
    [np.zeros(2, np.float32), np.full(2, np.nan, np.float32), np.ones(3, np.float32)],
)
def test_integers_need_a_usable_scale(tmp_path: Path, scale: np.ndarray) -> None:
    rows = {"d": PLAIN["d"], "d_scale": variable("d_scale", scale)}
    with pytest.raises(Invalid, match="d has no usable scale"):
        opened(tmp_path, model_bytes(rows)).floats("d")


def claimed(name: str, *, rank: int = 1, size: int = 4, number: int = 0, nbytes: int = 16) -> bytes:
    return text(name) + struct.pack("<BIBI", rank, size, number, nbytes)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cut short"),
        (b"GGUF", "of version"),
        (model_bytes(PLAIN, version=5), "of version 5"),
        (model_bytes(PLAIN)[:-5], "ends within its variable f"),
        (model_bytes(PLAIN)[:-1], "cut short"),
        (model_bytes(PLAIN) + b"x", "ends at"),
        (model_bytes({"a": claimed("a", nbytes=15)}), "takes 15 bytes where its shape takes 16"),
        (model_bytes({"a": claimed("a")}), "ends within its variable a"),
        (model_bytes({"a": claimed("a", number=9)}), "of type 9"),
        (model_bytes({"a": text("a") + b"\xff" + b"\1" * 900}), "255 dimensions"),
        (model_bytes({"a": PLAIN["a"], "b": PLAIN["a"]}), "a stands there twice"),
        (model_bytes({"a": b"\2\0\n\0" + PLAIN["a"][4:]}), "a name in it is no text"),
        (model_bytes({"a": b"\1\0\0"}), "a name in it is 1 bytes long"),
        (model_bytes(PLAIN, {"g": "h"}), "alias g stands for no variable"),
        (model_bytes(PLAIN, {"a": "b"}), "alias a stands for no variable, or for two"),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(Invalid, match=says) as refused:
        opened(tmp_path, content)
    assert str(tmp_path / "model.bin") in refused.value.message
    assert refused.value.param == "file"


def test_a_claim_of_much_takes_no_memory(tmp_path: Path) -> None:
    huge = struct.pack("<I", 6) + text("WhisperSpec") + struct.pack("<II", 3, 1)
    huge += claimed("a", size=1 << 29, nbytes=1 << 31)
    many = struct.pack("<I", 6) + text("WhisperSpec") + struct.pack("<II", 3, (1 << 32) - 1)
    tracemalloc.start()
    for content in (huge, many):
        with pytest.raises(Invalid):
            opened(tmp_path, content)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_changed_bytes_are_read_or_refused(tmp_path: Path) -> None:
    rng, whole = random.Random(6), model_bytes(PLAIN, {"g": "b"})
    refused = 0
    for _ in range(600):
        content = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        try:
            file = opened(tmp_path, bytes(content[: rng.randint(0, len(content) * 2)]))
            for name in file.variables:
                file.floats(name)
        except Invalid:
            refused += 1
    assert refused > 300

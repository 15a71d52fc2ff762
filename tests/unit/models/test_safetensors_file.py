"""Safetensors files: values as NumPy has them, and headers that were made to harm."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.models.safetensors_file import MAX_HEADER_BYTES, SafetensorsFile
from bus.errors import Invalid, NotFound

#: Of the format's description: one tensor and a text.
PLAIN = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
    "b": {"dtype": "F16", "shape": [2], "data_offsets": [8, 12]},
}
DATA = struct.pack("<2f", 1.5, -2.25) + bytes.fromhex("003c00c0")


def raw(header: Any, data: bytes = DATA, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def opened(folder: Path, content: bytes) -> SafetensorsFile:
    file = folder / "x.safetensors"
    file.write_bytes(content)
    return SafetensorsFile(file)


def with_a(**values: Any) -> dict[str, Any]:
    return PLAIN | {"a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]} | values}


def test_values_are_those_of_the_file(tmp_path: Path) -> None:
    file = opened(tmp_path, raw(PLAIN))
    assert file.metadata == {"format": "pt"}
    assert list(file.tensors) == ["a", "b"]
    assert file.floats("a").tolist() == [[1.5], [-2.25]]
    # 0x3c00 is 1 and 0xc000 is -2 in IEEE 754 half precision.
    assert file.floats("b").tolist() == [1.0, -2.0]
    assert file.floats("b").dtype == np.float32


def test_bf16_is_the_upper_half_of_float32(tmp_path: Path) -> None:
    header = {"c": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}
    # 0x3f80 is 1, 0xc040 is -3, 0x7f80 is infinite.
    file = opened(tmp_path, raw(header, bytes.fromhex("803f40c0807f")))
    assert file.floats("c").tolist() == [1.0, -3.0, float("inf")]


def test_a_header_may_end_in_spaces_and_a_tensor_have_no_values(tmp_path: Path) -> None:
    header = PLAIN | {"empty": {"dtype": "F32", "shape": [0, 5], "data_offsets": [12, 12]}}
    file = opened(tmp_path, raw(json.dumps(header).encode() + b"   "))
    assert file.floats("empty").shape == (0, 5)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no whole safetensors file"),
        (b"1234567", "no whole safetensors file"),
        (raw(PLAIN, length=1 << 63), "no whole safetensors file"),
        (raw(PLAIN, length=(1 << 64) - 1), "no whole safetensors file"),
        (struct.pack("<Q", MAX_HEADER_BYTES + 1) + bytes(MAX_HEADER_BYTES + 9), "are the most"),
        (raw(PLAIN, length=0), "header is no JSON object"),
        (raw(b"GGUF"), "header is no JSON object"),
        (raw(b"{"), "header is no JSON"),
        (raw(b'{"a": \xff}'), "header is no JSON"),
        (raw(b'{"a":' + b"[" * 100_000), "header is no JSON"),
        (raw(b'{"a": NaN}'), "NaN is no number"),
        (raw(b'{"a": 1, "a": 2}'), "stands there twice"),
        (raw(b'{"a": ' + b"9" * 5000 + b"}"), "header is no JSON"),
        (raw(PLAIN | {"__metadata__": 3}), "__metadata__ are no texts"),
        (raw(PLAIN | {"__metadata__": {"a": 3}}), "__metadata__ are no texts"),
        (raw(PLAIN | {"a": 3}), "what it says of its tensor 'a'"),
        (raw(PLAIN | {"a": {"dtype": "F32", "shape": []}}), "what it says of its tensor 'a'"),
        (raw(with_a(more=1)), "what it says of its tensor 'a'"),
        (raw(with_a(dtype="F33")), "of type 'F33'"),
        (raw(with_a(dtype=["F32"])), "of type"),
        (raw(with_a(shape=3)), "no usable shape"),
        (raw(with_a(shape=[-2, -1])), "no usable shape"),
        (raw(with_a(shape=[True, 2])), "no usable shape"),
        (raw(with_a(shape=[2.0])), "no usable shape"),
        (raw(with_a(shape=[1 << 41])), "no usable shape"),
        (raw(with_a(shape=[1] * 9)), "no usable shape"),
        (raw(with_a(shape=[1 << 40] * 8)), "where its shape takes"),
        (raw(with_a(shape=[3])), "takes 8 bytes where its shape takes 12"),
        (raw(with_a(data_offsets=[8, 0])), "no usable data_offsets"),
        (raw(with_a(data_offsets=[0, 8, 16])), "no usable data_offsets"),
        (raw(with_a(data_offsets=[-8, 0])), "no usable data_offsets"),
        (raw(with_a(data_offsets=[4, 12])), "does not begin where the last one ends"),
        (raw(with_a(data_offsets=[1 << 61, (1 << 61) + 8])), "does not begin where"),
        (raw(PLAIN, DATA[:-1]), "and its tensors end at"),
        (raw(PLAIN, DATA + b"x"), "and its tensors end at"),
        (raw({"a" * 2000: PLAIN["a"]}, DATA[:8]), "name is longer"),
        (raw({f"t{i}": 0 for i in range(70_000)}), "70000 tensors"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(Invalid, match=says) as caught:
        opened(tmp_path, content)
    assert "; " in caught.value.message
    assert len(caught.value.message) < 1000


def test_no_file() -> None:
    with pytest.raises(NotFound, match="there is no file"):
        SafetensorsFile(Path("/nonexistent/x.safetensors"))


def test_what_can_not_be_read_as_floats_is_refused(tmp_path: Path) -> None:
    header = PLAIN | {"n": {"dtype": "I32", "shape": [1], "data_offsets": [12, 16]}}
    file = opened(tmp_path, raw(header, DATA + bytes(4)))
    with pytest.raises(Invalid, match="type I32; use one of F32, F16, BF16"):
        file.floats("n")
    with pytest.raises(Invalid, match="has no tensor 'm'"):
        file.floats("m")
    file.path.write_bytes(file.path.read_bytes()[:-10])
    with pytest.raises(Invalid, match="shorter"):
        file.floats("b")


def test_damaged_bytes_are_a_typed_error_or_a_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    whole = raw(PLAIN)
    refused = 0
    for _ in range(1500):
        content = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            content[int(rng.integers(len(content)))] = int(rng.integers(256))
        if rng.random() < 0.3:
            del content[int(rng.integers(len(content))) :]
        try:
            file = opened(tmp_path, bytes(content))
            for name in file.tensors:
                file.floats(name)
        except Invalid:
            refused += 1
    assert refused > 1000


def test_a_claim_costs_no_memory(tmp_path: Path) -> None:
    header = with_a(shape=[1 << 40, 1 << 20], data_offsets=[0, 1 << 62])
    (tmp_path / "x.safetensors").write_bytes(raw(header))
    tracemalloc.start()
    with pytest.raises(Invalid):
        SafetensorsFile(tmp_path / "x.safetensors")
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()

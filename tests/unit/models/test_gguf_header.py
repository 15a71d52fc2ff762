"""Headers of GGUF files: as gguf reads them, and those that were made to harm."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import pytest

from agent.models.blocks import BlockWeight
from agent.models.gguf_file import GgufFile, read_parts
from agent.models.gguf_header import MAX_ITEMS, TYPES, read_header
from bus.errors import Invalid, NotFound
from tests.harness.gguf_models import FAMILIES, SmallModel, write_model

MIB = 1 << 20


def text(value: bytes | str, length: int | None = None) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...] = (32, 1), kind: int = 0, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def header(
    pairs: bytes = b"",
    tensors: bytes = b"",
    counts: tuple[int, int] = (0, 0),
    version: int = 3,
    magic: bytes = b"GGUF",
) -> bytes:
    """A file with so many tensors and pairs, and these bytes of them."""
    return magic + struct.pack("<IQQ", version, *counts) + pairs + tensors


def read(folder: Path, raw: bytes) -> Any:
    file = folder / "x.gguf"
    file.write_bytes(raw)
    return read_header(file)


def test_sizes_of_types_are_those_of_gguf() -> None:
    for number, found in TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert found.name == kind.name
        assert (found.values, found.block_bytes) == gguf.GGML_QUANT_SIZES[kind]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_is_read_as_gguf_reads_it(tmp_path: Path, family: str) -> None:
    file = write_model(tmp_path / "m.gguf", SmallModel(family=family, choose=lambda name: "Q4_K"))
    found, expected = read_header(file), gguf.GGUFReader(str(file))
    fields = {
        key: field.contents()
        for key, field in expected.fields.items()
        if not key.startswith("GGUF.")
    }
    assert found.metadata == fields
    for row in expected.tensors:
        ours = found.tensors[row.name]
        assert (ours.offset, ours.nbytes) == (row.data_offset, row.n_bytes)
        assert ours.shape == tuple(row.shape)
        assert ours.type_name == row.tensor_type.name
    assert found.end == found.file_bytes - (-found.end % 32)


def test_no_file() -> None:
    with pytest.raises(NotFound, match="there is no file"):
        read_header(Path("/nonexistent/x.gguf"))


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "no whole GGUF file"),
        (b"GGU", "no whole GGUF file"),
        (b"PK\3\4" + bytes(40), "no whole GGUF file; name a .gguf file"),
        (header(version=1), "of GGUF version 1"),
        (header(version=int.from_bytes((3).to_bytes(4, "big"), "little")), "big-endian"),
        (header()[:10], "10 bytes end its header"),
        (header(counts=(2**63, 0)), "claims 9223372036854775808 tensors"),
        (header(counts=(0, 2**40)), "claims 1099511627776 pairs"),
        (header(counts=(0, 3)), "bytes end its header"),
        (header(text("k", 2**62), counts=(0, 1)), "bytes in one text"),
        (header(text("k", 60_000), counts=(0, 1)), "bytes end its header"),
        (header(pair("k", 8, text("v", 2**63)), counts=(0, 1)), "bytes in one text"),
        (header(pair("k", 8, text(b"\xff\xfe")), counts=(0, 1)), "at byte .* is no UTF-8"),
        (header(text(b"\xc3\x28") + bytes(12), counts=(0, 1)), "is no UTF-8"),
        (header(pair("k", 13, b""), counts=(0, 1)), "of type 13"),
        (header(pair("k", 4, bytes(4)) * 2, counts=(0, 2)), "key 'k' stands there twice"),
        (header(pair("k", 9, struct.pack("<IQ", 4, 2**60)), counts=(0, 1)), "items in its arrays"),
        (header(pair("k", 9, struct.pack("<IQ", 4, MAX_ITEMS)), counts=(0, 1)), "end its header"),
        (header(pair("k", 9, struct.pack("<IQ", 8, MAX_ITEMS)), counts=(0, 1)), "end its header"),
        (header(pair("k", 9, struct.pack("<IQIQ", 9, 1, 9, 1)), counts=(0, 1)), "items are of"),
        (header(tensors=tensor("t", (32,) * 5), counts=(1, 0)), "5 dimensions"),
        (header(tensors=tensor("t", (2**41,)), counts=(1, 0)), "values in one dimension"),
        (header(tensors=tensor("t", (0, 1)), counts=(1, 0)), "'t' has no values"),
        (header(tensors=tensor("t", ()), counts=(1, 0)), "'t' has no values"),
        (header(tensors=tensor("t", (31, 1), kind=2), counts=(1, 0)), "no whole blocks"),
        (header(tensors=tensor("t", offset=1), counts=(1, 0)), "does not begin where it may"),
        (header(tensors=tensor("t") * 2, counts=(2, 0)), "'t' stands there twice"),
        (
            header(pair("general.alignment", 4, struct.pack("<I", 3)), counts=(0, 1)),
            "alignment is 3",
        ),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, raw: bytes, says: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Invalid, match=says):
            read(tmp_path, raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB


def test_an_unknown_type_is_kept_by_its_number(tmp_path: Path) -> None:
    found = read(tmp_path, header(tensors=tensor("t", kind=99), counts=(1, 0)))
    assert found.tensors["t"].type_name == "99"
    assert found.tensors["t"].nbytes is None


def test_where_tensors_would_end_is_known_of_a_file_cut_short(tmp_path: Path) -> None:
    raw = header(tensors=tensor("t", (1 << 20, 1 << 19)), counts=(1, 0))
    found = read(tmp_path, raw)
    assert found.file_bytes == len(raw)
    assert found.end == -(-len(raw) // 32) * 32 + (1 << 41)


def test_arrays_of_many_texts_cost_a_small_multiple_of_their_bytes(tmp_path: Path) -> None:
    items = text("ab") * 200_000
    raw = header(pair("k", 9, struct.pack("<IQ", 8, 200_000) + items), counts=(0, 1))
    file = tmp_path / "x.gguf"
    file.write_bytes(raw)
    tracemalloc.start()
    try:
        assert len(read_header(file).metadata["k"]) == 200_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * len(raw)


def split(folder: Path, model: SmallModel) -> list[Path]:
    """A model in two files, as gguf's writer splits it."""
    whole = gguf.GGUFReader(str(write_model(folder / "whole.gguf", model)))
    paths = [folder / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    for number, path in enumerate(paths):
        writer = gguf.GGUFWriter(str(path), model.family)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        for key, field in whole.fields.items():
            if number == 0 and not key.startswith(("GGUF.", "general.architecture")):
                sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(key, field.contents(), field.types[0], sub)
        for row in whole.tensors[number::2]:
            writer.add_tensor(row.name, row.data, raw_dtype=row.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def test_a_split_file_is_one_model(tmp_path: Path) -> None:
    first, second = split(tmp_path, SmallModel(choose=lambda name: "Q8_0"))
    together, whole = GgufFile(first), GgufFile(tmp_path / "whole.gguf")
    assert together.paths == [first, second]
    assert set(together.names()) == set(whole.names())
    assert together.config == whole.config
    for name in ("blk.1.ffn_up.weight", "token_embd.weight"):
        ours, theirs = together.matrix(name), whole.matrix(name)
        assert isinstance(ours, BlockWeight)
        assert isinstance(theirs, BlockWeight)
        assert (ours.q == theirs.q).all()
    with pytest.raises(Invalid, match=r"part 2 of 2; name the first: .*00001-of-00002"):
        read_parts(second)
    second.rename(tmp_path / "elsewhere")
    with pytest.raises(Invalid, match=r"first of 2 parts .* no m-00002-of-00002\.gguf"):
        read_parts(first)
    first.rename(tmp_path / "renamed.gguf")
    with pytest.raises(Invalid, match="give the parts their names again"):
        read_parts(tmp_path / "renamed.gguf")

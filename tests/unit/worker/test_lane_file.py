"""Parked lanes: what comes back, and what is never believed."""

from __future__ import annotations

import hashlib
import os
import struct
import tempfile
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.worker.kv_cache import LaneLayout, SavedLane
from agent.worker.lane_file import (
    LANE_FILE,
    MAX_HEADER_BYTES,
    LaneHeader,
    Restored,
    Unusable,
    Wanted,
    find_lane,
    load_lane,
    park,
    restore,
)
from agent.worker.lane_folder import lane_path
from agent.worker.spans import Span, Spans
from bus.context import context_digest
from bus.errors import Internal, StorageFull
from bus.ids import NumericsId, SessionId, pack_ids
from bus.messages.parts import Segment

LAYOUT = LaneLayout(layer_parts=4, kv_heads=2, head_dim=3, dtype="float32")
SESSION = SessionId("s-1-ab")
IDS = array("I", [5, 6, 7, 8, 9, 10])
#: A prompt of four by chunk, then an answer by step.
SPANS: Spans = (Span(4, False), Span(6, True))
START_BYTES = 48


def saved(tokens: int = 6, layout: LaneLayout = LAYOUT) -> SavedLane:
    made = SavedLane.empty(layout, tokens)
    raw = np.random.default_rng(1).integers(0, 256, made.nbytes, dtype=np.uint8)
    made.data[...] = raw.view(made.data.dtype).reshape(made.data.shape)
    return made


def parked(
    folder: Path,
    tokens: int = 6,
    ids: array[int] = IDS,
    *,
    session: SessionId = SESSION,
    exact_tokens: int = 100,
    lane: SavedLane | None = None,
) -> Path:
    park(
        folder,
        session,
        lane or saved(tokens),
        ids=ids[:tokens],
        spans=SPANS,
        exact_tokens=exact_tokens,
        model="m",
        numerics=NumericsId("n"),
    )
    return lane_path(folder, session)


def wanted(ids: list[int], spans: Spans = SPANS) -> Wanted:
    return Wanted(
        session=SESSION,
        model="m",
        numerics=NumericsId("n"),
        layout=LAYOUT,
        max_tokens=100,
        ids=array("I", ids),
        spans=spans,
    )


NEXT = wanted([*IDS, 11, 12, 13], (*SPANS, Span(9, False)))


def bits(values: npt.NDArray[Any]) -> bytes:
    return np.ascontiguousarray(values).tobytes()


def code_of(result: Restored | Unusable) -> str:
    assert isinstance(result, Unusable)
    assert result.reason
    return result.code


# --- what comes back --------------------------------------------------------------------------


def test_a_parked_lane_comes_back_bit_by_bit(tmp_path: Path) -> None:
    path = parked(tmp_path / "deep" / "lanes")
    result = restore(path.parent, NEXT)
    assert isinstance(result, Restored)
    assert (result.saved.tokens, result.exact, result.problem) == (6, True, "")
    assert bits(result.saved.data) == bits(saved().data)
    assert result.spans == SPANS


def test_the_file_is_private_named_by_session_and_alone(tmp_path: Path) -> None:
    folder = tmp_path / "lanes"
    path = parked(folder)
    assert path.name == "s-1-ab.lane"
    assert path.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert os.listdir(folder) == [path.name]


@pytest.mark.parametrize("name", ["..", "../../etc/x", "a/b", ".", "\x00", "ü" * 32, "a\nb"])
def test_any_session_id_names_a_file_in_the_folder(name: str, tmp_path: Path) -> None:
    session = SessionId(name)
    assert parked(tmp_path, 2, session=session).parent == tmp_path
    assert len(os.listdir(tmp_path)) == 1
    result = restore(tmp_path, replace(NEXT, session=session))
    assert isinstance(result, Restored)


def test_the_format_is_what_it_was(tmp_path: Path) -> None:
    """A file of today is read by a later version, and by another node."""
    raw = parked(tmp_path).read_bytes()
    magic, version, length, digest = struct.unpack("<8sII32s", raw[:START_BYTES])
    header = raw[START_BYTES : START_BYTES + length]
    payload = raw[START_BYTES + length :]
    assert (magic, version) == (b"SFLANE\r\n", 1)
    assert digest == hashlib.blake2b(header, digest_size=32).digest()
    assert payload == bits(saved().data)
    about = LANE_FILE.decode(header)
    assert about == LaneHeader(
        session=SESSION,
        model="m",
        numerics=NumericsId("n"),
        layout=LAYOUT,
        ids=pack_ids(IDS),
        segments=(Segment(tokens=4), Segment(tokens=2, by_step=True)),
        exact_tokens=6,
        token_digest=context_digest(pack_ids(IDS)),
        payload_digest=hashlib.blake2b(payload, digest_size=32).digest(),
    )


@pytest.mark.parametrize(
    ("ids", "tokens"),
    [
        ([5, 6, 7, 8, 9, 10, 11], 6),
        ([5, 6, 7, 8, 9, 10], 5),  # the last token is always computed
        ([5, 6, 7, 8, 99, 10, 11], 4),
        ([5, 6, 99, 8, 9, 10, 11], 2),
    ],
)
def test_the_tokens_in_common_are_used(ids: list[int], tokens: int, tmp_path: Path) -> None:
    parked(tmp_path)
    result = restore(tmp_path, wanted(ids))
    assert isinstance(result, Restored)
    assert result.exact
    assert bits(result.saved.data) == bits(saved().data[:, :, :tokens])


def test_no_single_token_of_a_chunk_is_left(tmp_path: Path) -> None:
    parked(tmp_path)
    # Token 3 alone would be a chunk of one, which rounds like a step.
    result = restore(tmp_path, wanted([5, 6, 7, 99, 9, 10], SPANS))
    assert isinstance(result, Restored)
    assert result.saved.tokens == 2


def test_tokens_computed_in_another_way_are_marked(tmp_path: Path) -> None:
    parked(tmp_path)
    result = restore(tmp_path, wanted([*IDS, 11, 12], (Span(8, False),)))
    assert isinstance(result, Restored)
    assert (result.saved.tokens, result.exact) == (6, False)
    assert "another way" in result.problem


def test_other_numerics_of_one_layout_are_used_and_marked(tmp_path: Path) -> None:
    parked(tmp_path)
    result = restore(tmp_path, replace(NEXT, numerics=NumericsId("n2")))
    assert isinstance(result, Restored)
    assert (result.saved.tokens, result.exact) == (6, False)
    assert "numerics n, now n2" in result.problem
    assert bits(result.saved.data) == bits(saved().data)


def test_a_newer_lane_takes_the_place_of_an_older(tmp_path: Path) -> None:
    parked(tmp_path)
    parked(tmp_path, tokens=2)
    result = restore(tmp_path, NEXT)
    assert isinstance(result, Restored)
    assert result.saved.tokens == 2


# --- what is not used, each for its reason ----------------------------------------------------


@pytest.mark.parametrize(
    ("want", "code"),
    [
        (replace(NEXT, session=SessionId("other")), "missing"),
        (replace(NEXT, model="m2"), "other_model"),
        (replace(NEXT, layout=replace(LAYOUT, dtype="float16")), "other_layout"),
        (replace(NEXT, layout=replace(LAYOUT, kv_heads=1, head_dim=6)), "other_layout"),
        (replace(NEXT, max_tokens=5), "too_long"),
        (wanted([99, 6, 7, 8]), "other_text"),
        (wanted([5]), "other_text"),
    ],
)
def test_what_does_not_fit_is_told_by_type(want: Wanted, code: str, tmp_path: Path) -> None:
    parked(tmp_path)
    assert code_of(restore(tmp_path, want)) == code


def test_a_file_under_another_sessions_name_is_not_taken(tmp_path: Path) -> None:
    os.rename(parked(tmp_path), lane_path(tmp_path, SessionId("thief")))
    assert code_of(restore(tmp_path, replace(NEXT, session=SessionId("thief")))) == "other_session"


def test_links_folders_pipes_and_open_files_are_not_taken(tmp_path: Path) -> None:
    path = parked(tmp_path)
    path.chmod(0o640)
    result = restore(tmp_path, NEXT)
    assert code_of(result) == "unreadable"
    assert isinstance(result, Unusable)
    assert f"chmod 600 {path}" in result.reason
    path.chmod(0o600)
    moved = path.rename(tmp_path / "elsewhere")
    path.symlink_to(moved)
    assert code_of(restore(tmp_path, NEXT)) == "unreadable"
    path.unlink()
    os.mkfifo(path, 0o600)
    assert code_of(restore(tmp_path, NEXT)) == "unreadable"
    path.unlink()
    path.mkdir(mode=0o700)
    assert code_of(restore(tmp_path, NEXT)) == "unreadable"


def test_a_file_that_was_replaced_after_the_look_is_not_taken(tmp_path: Path) -> None:
    parked(tmp_path)
    found = find_lane(tmp_path, NEXT)
    assert not isinstance(found, Unusable)
    parked(tmp_path, tokens=3)
    assert code_of(load_lane(found)) == "replaced"


def test_a_file_that_grew_after_the_look_is_damaged(tmp_path: Path) -> None:
    path = parked(tmp_path)
    found = find_lane(tmp_path, NEXT)
    assert not isinstance(found, Unusable)
    path.write_bytes(path.read_bytes() + b"\0")
    assert code_of(load_lane(found)) == "damaged"


@pytest.mark.parametrize("length", [0, 3, 8, START_BYTES - 1, START_BYTES, START_BYTES + 9, -1])
def test_a_truncated_file_is_damaged(length: int, tmp_path: Path) -> None:
    path = parked(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    assert code_of(restore(tmp_path, NEXT)) == "damaged"


def test_a_file_with_more_behind_it_is_damaged(tmp_path: Path) -> None:
    path = parked(tmp_path)
    path.write_bytes(path.read_bytes() + b"\0")
    assert code_of(restore(tmp_path, NEXT)) == "damaged"


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_changed_byte_goes_unseen(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = parked(folder)
        raw = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] ^= data.draw(st.integers(1, 255))
        path.write_bytes(raw)
        want = data.draw(st.sampled_from([NEXT, wanted([5, 6, 7, 8, 99])]))
        assert code_of(restore(folder, want)) in ("damaged", "version")


@settings(max_examples=60, deadline=None)
@given(junk=st.binary(max_size=300), keep=st.sampled_from([0, 8, 12, 16, START_BYTES]))
def test_any_bytes_are_a_typed_result(junk: bytes, keep: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = parked(Path(name))
        path.write_bytes(path.read_bytes()[:keep] + junk)
        assert code_of(restore(Path(name), NEXT)) in ("damaged", "version")


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    path = parked(tmp_path)
    path.write_bytes(bytes(100))
    result = restore(tmp_path, NEXT)
    assert isinstance(result, Unusable)
    assert result.reason == f"{path} is no parked lane; remove it"


def forged(path: Path, size: int | None = None, **changes: Any) -> None:
    """A file whose digests are right and whose figures lie."""
    raw = path.read_bytes()
    _, _, length, _ = struct.unpack("<8sII32s", raw[:START_BYTES])
    about = LANE_FILE.decode(raw[START_BYTES:][:length])
    assert isinstance(about, LaneHeader)
    header = LANE_FILE.encode(replace(about, **changes))
    digest = hashlib.blake2b(header, digest_size=32).digest()
    start = struct.pack("<8sII32s", b"SFLANE\r\n", 1, len(header), digest)
    payload = raw[START_BYTES + length :]
    path.write_bytes(start + header + payload)
    if size is not None:
        os.truncate(path, len(start) + len(header) + size)  # sparse: costs no disk


def test_a_forged_layout_or_length_costs_no_memory(tmp_path: Path) -> None:
    path = parked(tmp_path)
    forged(path, layout=replace(LAYOUT, kv_heads=2**60))
    assert code_of(restore(tmp_path, NEXT)) == "damaged"
    path = parked(tmp_path)
    forged(path, size=6 * 2**30 * LAYOUT.token_bytes, layout=replace(LAYOUT, kv_heads=2**31))
    assert code_of(restore(tmp_path, NEXT)) == "other_layout"
    path = parked(tmp_path)
    many = pack_ids(range(1_000_000))
    forged(
        path,
        size=1_000_000 * LAYOUT.token_bytes,
        ids=many,
        token_digest=context_digest(many),
        segments=(Segment(tokens=1_000_000),),
    )
    assert code_of(restore(tmp_path, NEXT)) == "too_long"


@pytest.mark.parametrize(
    "changes",
    [
        {"segments": (Segment(tokens=5),)},
        {"segments": (Segment(tokens=2**32 - 1),)},
        {"ids": pack_ids([])},
        {"ids": pack_ids([1, 2, 3, 4, 5, 6])},
        {"layout": replace(LAYOUT, dtype="object")},
        {"payload_digest": bytes(32)},
    ],
)
def test_a_header_that_contradicts_itself_is_damaged(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    forged(parked(tmp_path), **changes)
    assert code_of(restore(tmp_path, NEXT)) == "damaged"


def test_a_header_longer_than_any_is_not_read(tmp_path: Path) -> None:
    path = parked(tmp_path)
    raw = path.read_bytes()
    long = struct.pack("<I", MAX_HEADER_BYTES + 1)
    path.write_bytes(raw[:12] + long + raw[16:])
    assert code_of(restore(tmp_path, NEXT)) == "damaged"


# --- what can not be written ------------------------------------------------------------------


def test_a_folder_that_can_not_be_written_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFull, match="make room"):
        parked(tmp_path / "file" / "lanes")


def test_a_write_that_fails_leaves_the_older_file(tmp_path: Path) -> None:
    path = parked(tmp_path)
    before = path.read_bytes()
    # A folder stands where the temporary file goes.
    (tmp_path / f"{path.name}.{os.getpid()}.part").mkdir()
    with pytest.raises(StorageFull):
        parked(tmp_path, tokens=2)
    assert path.read_bytes() == before


def test_a_part_of_a_saved_lane_can_be_parked(tmp_path: Path) -> None:
    parked(tmp_path, 5, exact_tokens=5, lane=saved(6))
    result = restore(tmp_path, NEXT)
    assert isinstance(result, Restored)
    assert bits(result.saved.data) == bits(saved().data[:, :, :5])


def test_what_was_not_exact_when_parked_is_not_exact_after(tmp_path: Path) -> None:
    parked(tmp_path, exact_tokens=2)
    result = restore(tmp_path, NEXT)
    assert isinstance(result, Restored)
    assert (result.saved.tokens, result.exact_tokens, result.exact) == (6, 2, False)


def test_ids_that_do_not_name_the_tokens_are_a_fault_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(Internal):
        parked(tmp_path, 4, lane=saved(3))

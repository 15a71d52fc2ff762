"""Hops are found by the bytes that both ends have noted."""

from __future__ import annotations

from pathlib import Path

from bench.hops import RECORD, HopClocks

WORKER, AGENT, NEXT = 1, 2, 3


def note(folder: Path, pid: int, *passed: tuple[float, bool, int, bytes]) -> None:
    records = [RECORD.pack(int(ms * 1e6), sent, size, text) for ms, sent, size, text in passed]
    (folder / str(pid)).write_bytes(b"".join(records))


def test_ends_are_matched_and_a_record_that_is_half_written_is_not_read(tmp_path: Path) -> None:
    clocks = HopClocks(tmp_path, 2304)
    note(tmp_path, WORKER, (10.0, True, 2400, b"a"), (20.0, True, 2400, b"b"))
    note(
        tmp_path,
        NEXT,
        (11.5, False, 2400, b"a"),
        (19.0, True, 2400, b"b"),
        (22.25, False, 2400, b"b"),
        (23.0, False, 2400, b"of another"),
        (24.0, False, 9999, b"a"),
    )
    with (tmp_path / str(NEXT)).open("ab") as file:
        file.write(b"half")
    assert clocks.hop_ms(WORKER, NEXT) == [1.5, 2.25]
    assert clocks.hop_ms(WORKER, NEXT, held=False) == [-1.0]


def test_bytes_are_of_frames_that_were_sent_with_their_headers(tmp_path: Path) -> None:
    clocks = HopClocks(tmp_path, 2304)
    note(tmp_path, AGENT, (1.0, True, 2383, b"x"), (2.0, False, 2342, b"y"))
    assert clocks.link_bytes(AGENT) == [2383 + 9]
    clocks.clear()
    assert clocks.passed(AGENT) == []

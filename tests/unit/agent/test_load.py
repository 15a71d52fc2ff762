"""Rates and host figures, hand-computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.load import HostLoad, RateMeter, gpu_bytes, memory_bytes
from bus.messages.worker import WorkerStats


def stats(
    tokens: int = 0, busy_s: float = 0.0, lanes: int = 1, prefill: tuple[int, float] = (0, 0.0)
) -> WorkerStats:
    return WorkerStats(
        decode_tokens=tokens,
        decode_busy_s=busy_s,
        lanes_used=lanes,
        prefill_tokens=prefill[0],
        prefill_busy_s=prefill[1],
    )


def test_the_first_sample_is_taken_whole_and_later_ones_smoothed_three_to_one() -> None:
    meter = RateMeter()
    assert meter.decode_rate == 0.0
    meter.add(stats(10, 0.25))
    assert meter.decode_rate == pytest.approx(40.0)
    # 40 more in 0.5 s are 80/s: (3 * 40 + 80) / 4.
    meter.add(stats(50, 0.75))
    assert meter.decode_rate == pytest.approx(50.0)


def test_less_than_200_ms_of_work_is_no_sample_yet() -> None:
    meter = RateMeter()
    meter.add(stats(5, 0.1))
    assert meter.decode_rate == 0.0
    meter.add(stats(10, 0.19))
    assert meter.decode_rate == 0.0
    # 21 tokens in 0.21 s of work, over all three looks.
    meter.add(stats(21, 0.21))
    assert meter.decode_rate == pytest.approx(100.0)


def test_the_decode_rate_is_per_lane() -> None:
    meter = RateMeter()
    # Four lanes make 100 tokens in half a second: 200/s together, 50/s each.
    meter.add(stats(100, 0.5, lanes=4))
    assert meter.decode_rate == pytest.approx(50.0)


def test_lanes_that_were_freed_in_between_count() -> None:
    meter = RateMeter()
    meter.add(stats(0, 0.0, lanes=2))
    meter.add(stats(40, 0.4, lanes=0))
    assert meter.decode_rate == pytest.approx(50.0)


def test_idle_and_prefill_time_leave_the_decode_rate_alone() -> None:
    meter = RateMeter()
    meter.add(stats(10, 0.25))
    for _ in range(5):
        meter.add(stats(10, 0.25))
    meter.add(stats(10, 0.25, prefill=(512, 1.28)))
    assert meter.decode_rate == pytest.approx(40.0)
    assert meter.prefill_rate == pytest.approx(400.0)


def test_a_new_worker_begins_its_counters_and_keeps_the_rates() -> None:
    meter = RateMeter()
    meter.add(stats(1000, 25.0))
    meter.restart()
    assert meter.decode_rate == pytest.approx(40.0)
    meter.add(stats(20, 0.25))
    assert meter.decode_rate == pytest.approx((3 * 40 + 80) / 4)


def test_memory_is_read_from_meminfo() -> None:
    text = (
        "MemTotal:       16384 kB\nMemFree:  100 kB\nMemAvailable:    8192 kB\nHugePages_Total: 0\n"
    )
    assert memory_bytes(text) == (16_777_216, 8_388_608)
    assert memory_bytes("") == (0, 0)


def test_gpu_memory_is_added_over_devices() -> None:
    assert gpu_bytes("143771, 143000\n143771, 1000\n") == (287_542 << 20, 144_000 << 20)
    assert gpu_bytes("[N/A], [N/A]\nNVIDIA-SMI has failed\n") == (0, 0)


def test_the_host_is_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 4 kB\nMemAvailable: 1 kB\n")
    (tmp_path / "loadavg").write_text("1.25 0.5 0.25 1/100 4242\n")
    host = HostLoad(tmp_path)
    found = host.read(0.0)
    host.close()
    assert (found.memory_total_bytes, found.memory_free_bytes) == (4096, 1024)
    assert found.load_average == 1.25


def test_a_host_without_proc_has_no_figures(tmp_path: Path) -> None:
    host = HostLoad(tmp_path)
    found = host.read(0.0)
    host.close()
    assert (found.memory_total_bytes, found.load_average) == (0, 0.0)

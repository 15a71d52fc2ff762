"""What the engine's bench makes of its rates, against figures worked out by hand."""

from __future__ import annotations

import pytest

from bench.build_peers import cmake_options
from bench.engine_figures import (
    best_ratios,
    interactive_ratio,
    rate_table,
    ratios,
    summary,
    sustained_ratio,
)
from bench.process_memory import ProcessMemory

RATES = {
    "b1": {
        "engine": [90.0, 80.0, 100.0],
        "loop": [100.0, 100.0, 100.0],
        "genai": [100.0, 40.0, 80.0],
        "llamacpp": [50.0, 100.0, 50.0],
    },
    "prefill": {"engine": [400.0] * 3, "genai": [200.0] * 3, "llamacpp": [100.0] * 3},
}


def test_ratios_are_over_the_best_of_each_round() -> None:
    assert best_ratios(RATES["b1"]) == pytest.approx([0.9, 0.8, 1.25])
    assert ratios(RATES) == {"ratio_b1": 0.9, "ratio_prefill": 2.0}


def test_ratios_are_none_without_others() -> None:
    assert ratios({"b1": {"engine": [1.0], "loop": [1.0]}}) == {"ratio_b1": None}


def test_summary_has_all_that_was_asked_for() -> None:
    found = summary(RATES, {"overhead_b8": 0.012345, "sustained_ratio": None})
    assert found["ratio_mean"] == 1.342  # the root of 0.9 * 2
    assert (found["overhead_b8"], found["sustained_ratio"]) == (0.0123, None)
    assert (found["b1"], found["prefill"]) == (90.0, 400.0)
    assert found["peers"] == {
        "genai": {"b1": 80.0, "prefill": 200.0},
        "llamacpp": {"b1": 50.0, "prefill": 100.0},
    }


def test_table_shows_medians_and_both_ratios() -> None:
    head, first, last = rate_table(RATES)
    assert head.split() == [
        "tokens/s",
        "engine",
        "genai",
        "llamacpp",
        "/loop",
        "/best",
        "quartiles",
    ]
    assert first.split()[:6] == ["b1", "90.0", "80.0", "50.0", "0.900", "0.900"]
    assert last.split()[:5] == ["prefill", "400.0", "200.0", "100.0", "2.000"]


def test_interactive_ratio_takes_the_slower_of_both_less_what_is_allowed() -> None:
    figures = {
        "idle_s": 0.1,
        "reading_s": 0.2,
        "decoding_s": 0.26,
        "turn_s": 0.1,
        "snapshot_s": 0.01,
    }
    assert interactive_ratio(figures) == pytest.approx(1.5)
    assert interactive_ratio(figures | {"reading_s": 0.0, "decoding_s": 0.05}) == 0.0


def test_sustained_ratio_is_of_the_last_minute_over_the_first() -> None:
    assert sustained_ratio([[1.0, 0.9, 1.0], [], [0.5], [0.98, 0.98]]) == pytest.approx(0.98)
    assert sustained_ratio([[1.0]]) is None


def test_processor_flags_choose_the_instructions_and_never_amx() -> None:
    wide = {f"avx512{part}" for part in ("f", "cd", "bw", "dq", "vl")}
    flags = frozenset({"avx", "avx2", "fma", "f16c", "amx_int8"} | wide)
    options = cmake_options(flags)
    assert {"-DGGML_AVX2=ON", "-DGGML_AVX512=ON", "-DGGML_AVX512_VNNI=OFF"} <= {*options}
    assert {"-DGGML_NATIVE=OFF", "-DGGML_AMX_INT8=OFF"} <= {*options}


def test_memory_is_read_from_the_rollup() -> None:
    text = (
        "5591e3c1b000-7ffd2a7f3000 ---p 00000000 00:00 0                          [rollup]\n"
        "Rss:              123456 kB\n"
        "Pss:               98765 kB\n"
        "Anonymous:         45678 kB\n"
    )
    memory = ProcessMemory.parse(text)
    assert (memory.resident, memory.proportional) == (123456 * 1024, 98765 * 1024)
    assert memory.anonymous == 45678 * 1024

"""The GPU bench: a part that fails, hangs or babbles is told, and the next goes on."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from bench import gpu_parts
from bench.gpu import LIMIT_S, PARTS, TESTS_S, Part, run_part, run_tests, run_words
from bench.gpu_checks import CHECKS, CheckFailed, NotPossible, batches_agree
from tests.harness.models import toy_model_folder


def outcome(program: str, limit_s: float = 60.0) -> tuple[str, str]:
    words = [sys.executable, "-c", program]
    result = run_words(words, limit_s, lambda lines: dict(json.loads(lines[-1])))
    return result["outcome"], result.get("why", "")


@pytest.mark.parametrize(
    ("program", "said", "why"),
    [
        ("print('noise'); print('{\"outcome\": \"ok\"}')", "ok", ""),
        ("raise SystemExit(3)", "failed", "ended with 3"),
        ("print('no json')", "failed", "can not be read"),
        ("pass", "failed", "can not be read"),
    ],
)
def test_what_a_process_comes_to(program: str, said: str, why: str) -> None:
    found, reason = outcome(program)
    assert found == said
    assert why in reason


def test_a_part_that_takes_too_long_fails_and_one_without_time_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bench.gpu.LEAST_S", 0.1)
    assert outcome("import time; time.sleep(60)", 0.3)[0] == "failed"
    assert outcome("pass", 0.05) == ("skipped", "the time for all parts was over")


def test_all_parts_end_in_eight_minutes() -> None:
    assert LIMIT_S < 480
    assert {part.name for part in PARTS} == {*gpu_parts.PARTS}
    assert all(part.limit_s <= LIMIT_S for part in PARTS)
    assert TESTS_S <= LIMIT_S


def test_a_part_runs_on_a_cpu_with_a_given_folder() -> None:
    options = Namespace(device="cpu", model_folder=toy_model_folder().path)
    found = run_part(Part("environment", 60.0), options, 60.0)
    assert (found["outcome"], found["model"]) == ("ok", "toy")


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    options = Namespace(device="cpu", model_folder=tmp_path / "none")
    found = run_part(Part("load", 60.0), options, 60.0)
    assert found["outcome"] == "failed"
    assert "there is no model folder" in found["why"]


def test_tests_without_a_gpu_say_why_they_are_skipped() -> None:
    assert "need a GPU" in run_tests(Namespace(device="cpu"), 60.0)["why"]


@pytest.mark.parametrize("check", sorted({*CHECKS} - {"graphs_change_nothing"}))
def test_the_checks_hold_on_a_cpu(check: str) -> None:
    assert CHECKS[check](toy_model_folder(), "cpu")


def test_the_check_of_graphs_says_that_a_cpu_has_none() -> None:
    with pytest.raises(NotPossible, match="not captured"):
        CHECKS["graphs_change_nothing"](toy_model_folder(), "cpu")


def test_a_check_finds_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([[[1]], [[2]], [[3]], [[4]], [[5]], [[1], [9]]])
    monkeypatch.setattr("bench.gpu_checks._greedy", lambda runner, prompts: next(answers))
    with pytest.raises(CheckFailed, match=r"prompt 1 gives \[9\] among 2, and \[2\] alone"):
        batches_agree(toy_model_folder(), "cpu")

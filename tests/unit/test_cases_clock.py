"""Case L9: no lease, timer or rate reads a clock that somebody can set."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus.transport import clock

ROOT = Path(__file__).parents[2]
#: Adapters: they own sockets, processes or a terminal, and wait for those.
ADAPTERS = ("bus/transport/", "bus/client.py", "head/cli/", "agent/worker/engine.py")
#: Where wall time may be read: for people only, in logs, in stored rows and in chat templates, and
#: for the age of files, which outlive a boot.
FOR_PEOPLE = {
    "agent/worker/__main__.py": {"time.time"},
    "bus/admission.py": {"datetime.datetime", "datetime.UTC"},
    "bus/log.py": {"datetime.fromtimestamp"},
    "bus/process_info.py": {"time.time"},
    "head/backups.py": {"datetime.fromtimestamp"},
    "head/cli/backup.py": {"time.time"},
    "head/cli/keys.py": {"time.time"},
    "head/cli/nodes.py": {"time.time"},
    "head/links.py": {"time.time"},
    "head/server.py": {"time.time"},
    "head/schema.py": {"time.time"},
    "head/store_care.py": {"time.time"},
    "head/store_restore.py": {"datetime.fromtimestamp"},
    "head/text/templates.py": {"datetime.now"},
}
#: How long work took, by clocks that nobody sets: told, counted as busy time, or held to a limit.
MEASURED = {
    "agent/worker/__main__.py": {"time.perf_counter"},
    "agent/worker/driver.py": {"time.perf_counter"},
    "agent/worker/driver_group.py": {"time.perf_counter"},
    "agent/worker/encoder_loop.py": {"time.perf_counter"},
    "agent/worker/executor.py": {"time.perf_counter"},
    "agent/worker/grammar.py": {"time.thread_time"},
    "agent/worker/model_runner.py": {"time.perf_counter", "time.process_time"},
    "agent/worker/stage_runner.py": {"time.perf_counter", "time.process_time"},
    "agent/worker/transcriber_loop.py": {"time.perf_counter"},
    "bus/text/constraints.py": {"time.thread_time"},
    "bus/text/tag_ends.py": {"time.thread_time"},
    "head/store.py": {"time.monotonic"},
}
SETTABLE = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"}
#: What limits a rate, or how often a line is written; none of it takes wall time.
RATES = {"repeated", "repeated_within", "take", "at", "is_due"}
MODULES = sorted(
    str(path.relative_to(ROOT))
    for part in ("bus", "agent", "head")
    for path in ROOT.glob(f"{part}/**/*.py")
)


def clock_reads(module: str) -> Iterator[str]:
    """Uses of names of the modules `time` and `datetime`, but for sleeping."""
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if node.value.id in ("time", "datetime") and node.attr != "sleep":
                yield name
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (f"time.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("module", MODULES)
def test_l9_no_clock_is_read_outside_adapters_and_no_wall_clock_in_them(module: str) -> None:
    reads = set(clock_reads(module)) - FOR_PEOPLE.get(module, set())
    if module.startswith(ADAPTERS):
        assert not reads & SETTABLE
    else:
        assert reads <= MEASURED.get(module, set())


@pytest.mark.parametrize("module", sorted(FOR_PEOPLE))
def test_l9_no_rate_or_timer_is_given_wall_time(module: str) -> None:
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in RATES:
            given = {ast.unparse(argument) for argument in node.args}
            assert not given & {"time.time()", "now_wall_s"}, ast.unparse(node)


def test_l9_now_is_boot_time() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = clock.now()
    assert before <= now <= time.clock_gettime(time.CLOCK_BOOTTIME)

"""Real processes are killed, stopped and cut off under load; every stream is whole.

`make chaos` is the long version. Here every kind of strike comes once.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.chaos import TOY, run_part
from bench.chaos_fleet import ChaosFleet
from bench.chaos_rounds import WAYS, Rounds
from head.cli.chaos_faults import KINDS, LocalFleet
from head.cli.chaos_links import cut_links, may_cut_links
from head.cli.chaos_report import figures, is_sound
from tests.harness.models import toy_model_folder

SFCTL = Path(sys.executable).with_name("sfctl")
LIMIT_S = 120.0
SMALL = dataclasses.replace(TOY, streams=8, lanes=8, max_new=200)


def test_every_kind_of_strike_leaves_all_streams_whole() -> None:
    run = run_part(SMALL, toy_model_folder(), seconds=0.0, kinds=list(KINDS), stop_s=1.0)
    found = figures(run.strikes, run.load.tally)
    assert [strike.kind.name for strike in run.strikes] == list(KINDS)
    assert is_sound(found), (found, run.load.tally.said)
    assert (found["kills"], found["stops"], found["cuts"]) == (3, 3, 1)
    assert found["texts_compared"] == found["streams"] >= SMALL.streams
    # What was struck was felt, by all streams that had begun: some may just have followed others.
    (head,) = (strike for strike in run.strikes if strike.kind.name == "head")
    assert SMALL.streams // 2 <= len(head.gaps) <= SMALL.streams
    assert all(gap.longest_s > 0 for gap in head.gaps)


def test_ends_of_all_kinds_leave_nothing_that_keeps_the_next_start_from_it() -> None:
    found = Rounds(toy_model_folder().path, seed=1).run(len(WAYS), lambda line: None)
    assert (found["rounds"], found["orphans"], found["stale"]) == (len(WAYS), 0, 0)


@pytest.fixture(scope="module")
def fleet() -> Iterator[ChaosFleet]:
    """A fleet that somebody runs here; its agents join its head themselves."""
    with ChaosFleet(toy_model_folder().path, lanes=4, proxied=False) as made:
        yield made


def command(fleet: ChaosFleet, *arguments: str) -> list[str]:
    return [str(SFCTL), "--state", str(fleet.path), "chaos", "--streams", "2", *arguments]


def test_sfctl_chaos_strikes_the_fleet_of_its_state_folder(fleet: ChaosFleet) -> None:
    kinds = [kind for kind in ("worker", "cut", "stop-worker") if kind != "cut" or may_cut(fleet)]
    asked = ("--minutes", "0", "--kinds", ",".join(kinds), "--stop-s", "0.5", "--yes")
    done = subprocess.run(
        command(fleet, *asked), capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["kills"], found["stops"], found["cuts"]) == (1, 1, int("cut" in kinds))
    assert (found["failed"], found["lost"], found["repeated"]) == (0, 0, 0)
    assert found["texts_equal"] is True
    assert [line.split()[0] for line in done.stdout.splitlines()[1:-1]] == kinds


def may_cut(fleet: ChaosFleet) -> bool:
    return LocalFleet(fleet.state, fleet.model, stop_s=1.0).may_cut


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_it_stopped_goes_on_however_it_ends(fleet: ChaosFleet, number: signal.Signals) -> None:
    asked = ("--minutes", "1", "--kinds", "stop-agent", "--stop-s", "20", "--yes")
    with subprocess.Popen(
        command(fleet, *asked), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as chaos:
        agents = [node.pid for node in LocalFleet(fleet.state, fleet.model, stop_s=1.0).nodes()]
        await_that(lambda: any(is_stopped(pid) for pid in agents))
        chaos.send_signal(number)
        chaos.communicate(timeout=LIMIT_S)
    await_that(lambda: not any(is_stopped(pid) for pid in agents))
    fleet.sfctl("up")


def test_it_asks_first(fleet: ChaosFleet) -> None:
    done = subprocess.run(
        command(fleet), input="n\n", capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 130
    assert str(fleet.path) in done.stderr
    assert done.stdout == ""


def test_it_strikes_nothing_where_nothing_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [SFCTL, "--state", tmp_path, "chaos", "--yes"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1
    assert "no services run here" in done.stderr


def test_cutting_a_link_ends_that_connection_only() -> None:
    code = (
        "import socket, sys\n"
        "links = [socket.create_connection(('127.0.0.1', int(p))) for p in sys.argv[1:]]\n"
        "[print(link.recv(1), flush=True) for link in links]\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as other:
        ports = [str(each.getsockname()[1]) for each in (one, other)]
        with subprocess.Popen(
            [sys.executable, "-c", code, *ports], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            ends = [each.accept()[0] for each in (one, other)]
            if not may_cut_links(child.pid):
                pytest.skip("this system lets nobody cut links of other processes")
            assert cut_links(child.pid, f"tcp://127.0.0.1:{ports[0]}") == 1
            assert ends[0].recv(1) == b""
            assert child.stdout.readline() == "b''\n"
            ends[1].send(b"!")
            assert child.stdout.readline() == "b'!'\n"
            for each in ends:
                each.close()


def is_stopped(pid: int) -> bool:
    text = Path(f"/proc/{pid}/stat").read_text()
    return text.rpartition(")")[2].split()[0] == "T"


def await_that(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)

"""Rounds of starting a fleet and ending it in every way: nothing may be left, the next must start.

Each round is `sfctl up`, one end, `sfctl down`. What supervisord ever started is noted before the
end; a process of it that is there after `down` is an orphan, and a socket file that keeps the next
`up` from starting is stale.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.chaos_fleet import NODES, ChaosFleet
from head.cli.processes import ProcessId, descendants, end, services_of, wait_ended
from head.cli.supervision import Supervisor

#: How long what lost its parent may take to notice.
_NOTICE_S = 5.0
Say = Callable[[str], None]


class Rounds:
    """Ends of a fleet with the toy model, one head and two agents.

    Args:
        model_folder: what it serves.
        seed: draws the order of the ends.
    """

    def __init__(self, model_folder: Path, seed: int) -> None:
        self._folder = model_folder
        self._rng = random.Random(seed)

    def run(self, rounds: int, say: Say) -> dict[str, Any]:
        """Do them; gives `rounds`, `orphans`, `stale` and the seconds of start and end."""
        orphans = stale = 0
        starts: list[float] = []
        downs: list[float] = []
        with ChaosFleet(self._folder, lanes=2, proxied=False) as fleet:
            for number in range(rounds):
                way = WAYS[number % len(WAYS)]
                before = _all_of(fleet)
                way(fleet, self._rng)
                begin = time.monotonic()
                fleet.sfctl("down")
                downs.append(time.monotonic() - begin)
                left = _left(fleet, before)
                orphans += len(left)
                say(f"round {number + 1}: {way.__name__.strip('_')}, {len(left)} processes left")
                end(left, grace_s=1.0)
                begin = time.monotonic()
                try:
                    fleet.sfctl("up", "--nodes", str(NODES))
                except RuntimeError as error:
                    stale += 1
                    say(f"round {number + 1}: the next start failed: {error}")
                    _clear(fleet)
                starts.append(time.monotonic() - begin)
        return {
            "rounds": rounds,
            "orphans": orphans,
            "stale": stale,
            "up_s_median": round(sorted(starts)[len(starts) // 2], 2),
            "down_s_median": round(sorted(downs)[len(downs) // 2], 2),
        }


def _all_of(fleet: ChaosFleet) -> list[ProcessId]:
    """supervisord and all that is below it."""
    keeper = Supervisor(fleet.state).pid()
    return [*services_of(fleet.path), *descendants(keeper)]


def _left(fleet: ChaosFleet, before: list[ProcessId]) -> list[ProcessId]:
    there = {*before, *services_of(fleet.path)}
    return wait_ended([each for each in there if each.alive], _NOTICE_S)


def _clear(fleet: ChaosFleet) -> None:
    """Remove every socket, to be able to go on."""
    for file in fleet.state.run.iterdir():
        if file.is_socket():
            file.unlink()
    fleet.sfctl("up", "--nodes", str(NODES))


# --- ways to end ------------------------------------------------------------------------------


def _down(fleet: ChaosFleet, rng: random.Random) -> None:
    """Nothing but `sfctl down`."""


def _kill_supervisord(fleet: ChaosFleet, rng: random.Random) -> None:
    os.kill(Supervisor(fleet.state).pid(), signal.SIGKILL)


def _kill_a_child(fleet: ChaosFleet, rng: random.Random) -> None:
    """One of supervisord's own children; its own children are to end with it."""
    victim = rng.choice([each.pid for each in Supervisor(fleet.state).processes()])
    below = descendants(victim)
    os.kill(victim, signal.SIGKILL)
    if left := wait_ended(below, _NOTICE_S):
        raise RuntimeError(f"{len(left)} processes outlive their parent {victim}")


def _kill_children(fleet: ChaosFleet, rng: random.Random) -> None:
    for each in Supervisor(fleet.state).processes():
        os.kill(each.pid, signal.SIGKILL)


def _kill_everything(fleet: ChaosFleet, rng: random.Random) -> None:
    pids = [each.pid for each in _all_of(fleet)]
    rng.shuffle(pids)
    for pid in dict.fromkeys(pids):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # It ended with its parent.


def _stop_supervisord(fleet: ChaosFleet, rng: random.Random) -> None:
    """As the system does at shutdown; `down` meets it while it ends."""
    os.kill(Supervisor(fleet.state).pid(), signal.SIGTERM)


def _kill_supervisord_and_a_child(fleet: ChaosFleet, rng: random.Random) -> None:
    keeper = Supervisor(fleet.state)
    victim, pid = rng.choice(keeper.processes()).pid, keeper.pid()
    os.kill(pid, signal.SIGKILL)
    os.kill(victim, signal.SIGKILL)


WAYS: tuple[Callable[[ChaosFleet, random.Random], None], ...] = (
    _down,
    _kill_supervisord,
    _kill_a_child,
    _kill_children,
    _kill_everything,
    _stop_supervisord,
    _kill_supervisord_and_a_child,
)

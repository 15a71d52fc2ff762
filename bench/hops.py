"""Hops of hidden states between workers: how long each took, and its bytes on the link.

The processes of a fleet note their large messages (`bench/hop_clock`). A hop begins when a worker
hands a stage's output to its socket and ends when the next stage's worker has it in hand: through
both agents and the head. The two have the same bytes, by which they are found.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

#: Of a message: when (ns, monotonic), whether it was sent, its length, and how it begins.
RECORD = struct.Struct("<QBI48s")
#: A ZMTP frame of more than 255 bytes: flags and length.
ZMTP_BYTES = 9
CLOCKS = Path(__file__).parent / "hop_clock"


@dataclass(frozen=True, slots=True)
class Passed:
    """A message that passed a socket of a process."""

    at_ns: int
    sent: bool
    length: int
    begins: bytes


class HopClocks:
    """What the processes note that are started with `settings`.

    Args:
        folder: for the notes, which has nothing else.
        least: bytes of hidden states of a token; shorter messages are passed over.
    """

    def __init__(self, folder: Path, least: int) -> None:
        self._folder = folder
        paths = (str(CLOCKS), str(CLOCKS.parents[1]), os.environ.get("PYTHONPATH"))
        self.settings = {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "HOP_CLOCKS": str(folder),
            "HOP_LEAST": str(least),
        }

    def clear(self) -> None:
        """Forget what was noted."""
        for file in self._folder.iterdir():
            os.truncate(file, 0)

    def passed(self, pid: int) -> list[Passed]:
        """What passed a process since `clear`, in order."""
        noted = (self._folder / str(pid)).read_bytes()
        whole = noted[: len(noted) // RECORD.size * RECORD.size]
        return [Passed(at, bool(sent), *rest) for at, sent, *rest in RECORD.iter_unpack(whole)]

    def hop_ms(self, worker: int, end: int, *, held: bool = True) -> list[float]:
        """Milliseconds of every hop from a worker.

        Args:
            end: the next worker, which has it in hand; or its agent, unless `held`: a worker that
                computes takes what is in its pipe later.
        """
        left = {(each.length, each.begins): each.at_ns for each in self.passed(worker) if each.sent}
        came = (each for each in self.passed(end) if each.sent is not held)
        return [
            (each.at_ns - left[key]) / 1e6
            for each in came
            if (key := (each.length, each.begins)) in left
        ]

    def link_bytes(self, agent: int) -> list[int]:
        """Bytes of every large message that an agent sent to its head, sealed and framed."""
        return [each.length + ZMTP_BYTES for each in self.passed(agent) if each.sent]

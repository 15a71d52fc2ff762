"""What a node's work costs: rates of a worker, memory and load of the host.

Rates are measured over busy time only, so an idle node does not look slow: a sample needs 200 ms
of that kind of work, and is smoothed 3:1 into what was known. The first is taken whole.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bus.messages.parts import HostStatus
from bus.messages.worker import WorkerStats

#: Busy time that a sample needs.
SAMPLE_BUSY_S = 0.2
#: Weight of what was known against 1 for the new sample.
_OLD_WEIGHT = 3
#: Ask the driver for GPU memory at most this often, and give it this long to answer.
GPU_EVERY_S = 10.0
GPU_ANSWER_S = 10.0
_NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=memory.total,memory.free",
    "--format=csv,noheader,nounits",
)
_MIB = 1024 * 1024


@dataclass(slots=True)
class SmoothedRate:
    """Work per busy second of one lane, sampled and smoothed. 0 is not yet known."""

    value: float = 0.0
    _work: float = 0.0
    _busy_s: float = 0.0
    _lane_s: float = 0.0

    def add(self, work: float, busy_s: float, lanes: int = 1) -> None:
        """Count work that `lanes` did together in `busy_s` seconds."""
        self._work += work
        self._busy_s += busy_s
        self._lane_s += busy_s * lanes
        if self._busy_s < SAMPLE_BUSY_S or self._work <= 0:
            return
        sample = self._work / self._lane_s
        first = self.value == 0.0
        self.value = sample if first else (_OLD_WEIGHT * self.value + sample) / (_OLD_WEIGHT + 1)
        self._work = self._busy_s = self._lane_s = 0.0


class RateMeter:
    """Decode rate per lane and prefill rate of one model, in tokens/s, from worker counters."""

    def __init__(self) -> None:
        self._decode = SmoothedRate()
        self._prefill = SmoothedRate()
        self._last = WorkerStats()

    @property
    def decode_rate(self) -> float:
        """Tokens/s that one lane makes while the worker decodes."""
        return self._decode.value

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens/s while the worker prefills."""
        return self._prefill.value

    def restart(self) -> None:
        """The worker is a new process: its counters begin at 0; the rates stay."""
        self._last = WorkerStats()

    def add(self, stats: WorkerStats) -> None:
        """Take a worker's counters; call it with each that comes, in order."""
        last, self._last = self._last, stats
        # A generation that began or ended between the two had a lane for part of the time.
        lanes = max(1, last.lanes_used, stats.lanes_used)
        self._decode.add(
            stats.decode_tokens - last.decode_tokens,
            stats.decode_busy_s - last.decode_busy_s,
            lanes,
        )
        self._prefill.add(
            stats.prefill_tokens - last.prefill_tokens,
            stats.prefill_busy_s - last.prefill_busy_s,
        )


def memory_bytes(meminfo: str) -> tuple[int, int]:
    """Total and available bytes from the text of /proc/meminfo; 0 for what it does not say."""
    kib: dict[str, int] = {}
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            kib[name] = int(words[0])
    return kib.get("MemTotal", 0) * 1024, kib.get("MemAvailable", 0) * 1024


def gpu_bytes(listing: str) -> tuple[int, int]:
    """Total and free bytes over all devices, from lines of "total, free" in MiB."""
    total = free = 0
    for line in listing.splitlines():
        columns = [column.strip() for column in line.split(",")]
        if len(columns) == 2 and all(column.isdecimal() for column in columns):
            total += int(columns[0]) * _MIB
            free += int(columns[1]) * _MIB
    return total, free


class HostLoad:
    """Reads the host's figures; never waits. Owned by the node's adapter.

    GPU memory comes from nvidia-smi where there is one: it runs beside us for its second, and the
    answer is taken at a later look.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._nvidia_smi = shutil.which(_NVIDIA_SMI[0])
        self._asking: subprocess.Popen[str] | None = None
        self._asked_at = float("-inf")
        self._gpu = (0, 0)

    def read(self, now: float) -> HostStatus:
        """The figures of now; those of the GPU are at most some seconds old."""
        self._look_at_gpu(now)
        total, free = memory_bytes(_text(self._proc / "meminfo"))
        load = _text(self._proc / "loadavg").split()
        return HostStatus(
            memory_total_bytes=total,
            memory_free_bytes=free,
            gpu_total_bytes=self._gpu[0],
            gpu_free_bytes=self._gpu[1],
            load_average=float(load[0]) if load else 0.0,
        )

    def _look_at_gpu(self, now: float) -> None:
        if self._asking is not None:
            if self._asking.poll() is not None:
                answer, _ = self._asking.communicate()
                self._gpu = gpu_bytes(answer) if self._asking.returncode == 0 else (0, 0)
                self._asking = None
            elif now - self._asked_at > GPU_ANSWER_S:
                self.close()
        elif self._nvidia_smi is not None and now - self._asked_at >= GPU_EVERY_S:
            self._asked_at = now
            self._asking = subprocess.Popen(
                [self._nvidia_smi, *_NVIDIA_SMI[1:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )

    def close(self) -> None:
        """End a question that is still open. May be called again."""
        if self._asking is not None:
            self._asking.kill()
            self._asking.communicate()
            self._asking = None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def usable_cores() -> int:
    """Cores that this process may run on, at least 1."""
    return max(1, len(os.sched_getaffinity(0)))

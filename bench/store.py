"""What the head's store costs: a request's commits, the same beside a backup, and its size.

python -m bench.store [--commits N] [--answers N] prints a table, and one JSON object as its last
line. The folder is on the disk of `--folder`; a tmpfs would show a store that never waits.
"""

from __future__ import annotations

import argparse
import json
import select
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bus.ids import Epoch, GenerationId, ModelName, NodeIdentity, SessionId, pack_ids
from head.backups import back_up
from head.effects import Persist
from head.rows import (
    MarkSent,
    PurgeAnswers,
    PutAnswer,
    PutFinish,
    PutGeneration,
    PutTokens,
    Row,
)
from head.store import Store
from head.store_file import FILE

#: A chat's turn: a prompt of 300 tokens, and 40 in runs of 16.
PROMPT_TOKENS = 300
RUNS = (1, 16, 16, 7)
#: Answers that one commit has when many come at once, and those that stay readable.
BATCH = 50
KEPT = 5_000
#: What lies in the store while a backup of it is made.
LARGE_ANSWERS = 100_000


class Writer:
    """Commits to a store as the head's loop does, one round at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lsn = 0

    def commit(self, *rows: Row) -> float:
        """Commit and wait until it is durable; gives the seconds that this took."""
        self._lsn += 1
        start = time.perf_counter()
        self._store.submit(Persist(lsn=self._lsn, rows=rows))
        while self._store.completed() < self._lsn:
            select.select([self._store.fileno()], [], [])
        return time.perf_counter() - start


def admitted(number: int, prompt_tokens: int = PROMPT_TOKENS) -> tuple[Row, ...]:
    """The rows of a request that is taken and placed: the one commit before its first token."""
    session = SessionId(f"s-{number:x}")
    answer = PutAnswer(
        answer=number,
        session=session,
        owner="local",
        key=None,
        model=ModelName("smollm2"),
        prompt=pack_ids(range(prompt_tokens)),
        options=bytes(200),
        on_disconnect="cancel",
        created_wall_s=1.0,
    )
    generation = PutGeneration(
        generation=GenerationId(number),
        answer=number,
        session=session,
        epoch=Epoch(number),
        node=NodeIdentity("node-1-0123456789ab"),
        worker=1,
        numerics="0123456789abcdef",
        first_offset=0,
    )
    return answer, generation


def made(number: int) -> Iterator[tuple[Row, ...]]:
    """The rows of each run of its tokens; the last has its end."""
    offset = 0
    for count in RUNS:
        run = PutTokens(
            answer=number,
            generation=GenerationId(number),
            offset=offset,
            ids=pack_ids(range(count)),
        )
        rows: tuple[Row, ...] = (run,) if offset else (MarkSent(answer=number), run)
        offset += count
        if offset == sum(RUNS):
            rows += (ended(number, offset),)
        yield rows


def ended(number: int, tokens: int) -> PutFinish:
    return PutFinish(
        answer=number,
        finish="stop",
        error=b"",
        prompt_tokens=PROMPT_TOKENS,
        cached_tokens=0,
        completion_tokens=tokens,
        finished_wall_s=1.0,
    )


def commits(folder: Path, count: int) -> dict[str, float]:
    """Latencies of one request's commits, alone in the store."""
    store, _ = Store.open(folder)
    writer = Writer(store)
    admissions, runs = [], []
    for number in range(1, count + 1):
        admissions.append(writer.commit(*admitted(number)))
        runs += [writer.commit(*rows) for rows in made(number)]
    store.close()
    return {
        "admit_p50_ms": quantile_ms(admissions, 0.5),
        "admit_p99_ms": quantile_ms(admissions, 0.99),
        "run_p50_ms": quantile_ms(runs, 0.5),
        "run_p99_ms": quantile_ms(runs, 0.99),
    }


def sizes(folder: Path, answers: int) -> dict[str, float]:
    """How large file and log become while answers come, end and are purged."""
    store, _ = Store.open(folder)
    writer = Writer(store)
    file, log = folder / FILE, folder / f"{FILE}-wal"
    file_sizes, log_sizes = [], []
    for first in range(1, answers + 1, BATCH):
        numbers = range(first, min(first + BATCH, answers + 1))
        writer.commit(*(row for number in numbers for row in admitted(number, 20)))
        writer.commit(*(row for number in numbers for rows in made(number) for row in rows))
        if (old := first - KEPT) >= 1:
            writer.commit(PurgeAnswers(answers=tuple(range(old, old + BATCH))))
        file_sizes.append(file.stat().st_size)
        log_sizes.append(log.stat().st_size)
    store.close()
    half = len(file_sizes) // 2
    return {
        "answers": answers,
        "kept": KEPT,
        "file_mib_first_half": mib(max(file_sizes[:half])),
        "file_mib_second_half": mib(max(file_sizes[half:])),
        "log_mib": mib(max(log_sizes)),
    }


def beside_backup(folder: Path) -> dict[str, float]:
    """Latencies of commits while a large store is copied."""
    store, _ = Store.open(folder)
    writer = Writer(store)
    for first in range(1, LARGE_ANSWERS + 1, 1000):
        writer.commit(*(row for n in range(first, first + 1000) for row in admitted(n)))
    size = (folder / FILE).stat().st_size
    target = folder.parent / "copy.db"
    copying = threading.Thread(
        target=lambda: back_up(folder / FILE, target, wall_s=time.time()), name="backup"
    )
    copying.start()
    start, during, number = time.perf_counter(), [], LARGE_ANSWERS
    while copying.is_alive():
        number += 1
        during.append(writer.commit(*admitted(number)))
    copying.join()
    took_s = time.perf_counter() - start
    log_bytes = (folder / f"{FILE}-wal").stat().st_size
    store.write_back_log()
    writer.commit(*admitted(number + 1))
    writer.commit(*admitted(number + 2))
    after_bytes = (folder / f"{FILE}-wal").stat().st_size
    store.close()
    return {
        "backup_of_mib": mib(size),
        "backup_s": round(took_s, 3),
        "beside_p50_ms": quantile_ms(during, 0.5),
        "beside_p99_ms": quantile_ms(during, 0.99),
        "beside_max_ms": quantile_ms(during, 1.0),
        "log_mib_during": mib(log_bytes),
        "log_mib_after": mib(after_bytes),
    }


def quantile_ms(seconds: Sequence[float], part: float) -> float:
    ordered = sorted(seconds)
    return round(ordered[min(int(part * len(ordered)), len(ordered) - 1)] * 1000, 3)


def mib(size: float) -> float:
    return round(size / 2**20, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--commits", type=int, default=2000, help="requests whose commits are timed"
    )
    parser.add_argument("--answers", type=int, default=100_000, help="short answers, for the size")
    parser.add_argument("--folder", type=Path, help="where the store is made, else in TMPDIR")
    options = parser.parse_args()
    found: dict[str, float] = {}
    parts = {
        "commits": lambda at: commits(at, options.commits),
        "sizes": lambda at: sizes(at, options.answers),
        "backup": beside_backup,
    }
    for part in parts.values():
        with tempfile.TemporaryDirectory(prefix="sf-store-", dir=options.folder) as made_folder:
            found |= part(Path(made_folder) / "store")
    for name, value in found.items():
        print(f"{name:22} {value:>12}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()

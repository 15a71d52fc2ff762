"""Whoever takes nothing of its jobs, everybody else's are done, of any class."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bus.messages.link_jobs import FIRST_PARTS, JobMore, JobStart
from tests.harness.job_bench import JobBench, packed

CLIENTS = [b"a", b"b", b"d", b"e"]
JOBS = st.lists(
    st.tuples(st.sampled_from(CLIENTS), st.integers(0, 3), st.integers(0, 40)), max_size=25
)


class Worker:
    """A node that sends of each job all that it may, and ends those of which it has sent all."""

    def __init__(self, bench: JobBench) -> None:
        self.bench = bench
        self.sent: dict[int, int] = {}
        self.done: set[int] = set()

    def work(self) -> bool:
        """One round over all jobs that it has; whether anything came of it."""
        allowed = {start.job: FIRST_PARTS for start in self.bench.starts(1)}
        for more in self.bench.on(1, JobMore):
            allowed[more.job] = more.parts
        open_ = [start for start in self.bench.starts(1) if start.job not in self.done]
        came = [self._go_on(start, allowed[start.job]) for start in open_]
        self.bench.wait(0.0)
        return any(came)

    def _go_on(self, start: JobStart, allowed: int) -> bool:
        before, parts = self.sent.get(start.job, 0), start.body[-1]
        for seq in range(before, min(parts, allowed)):
            self.bench.part(1, start, seq)
        self.sent[start.job] = min(parts, allowed)
        # An end goes out while a further part might.
        if parts < allowed:
            self.done.add(start.job)
            self.bench.end(1, start, parts=parts)
        return parts < allowed or before < allowed


@settings(max_examples=25, deadline=None)
@given(jobs=JOBS, slow=st.sets(st.sampled_from(CLIENTS)), full=st.sets(st.sampled_from(CLIENTS)))
def test_whoever_is_held_everybody_else_is_served(
    jobs: list[tuple[bytes, int, int]], slow: set[bytes], full: set[bytes]
) -> None:
    bench = JobBench()
    bench.encoder(1)
    for client in slow:
        bench.core.client_stalled(client)
    bench.desk.room.holds.full |= full
    for client in sorted(slow | full):  # More than the desk looks at.
        for _ in range(70):
            bench.submit(client=client, body=packed(parts=40))
    due = {
        bench.submit(client=client, qos=qos, body=packed(parts=parts)): client
        for client, qos, parts in jobs
    }
    worker = Worker(bench)
    while worker.work():
        pass
    assert {job for job, client in due.items() if client not in slow | full} <= bench.ends.keys()
    # Once everybody takes everything, all is done.
    bench.desk.room.holds.full.clear()
    for client in slow:
        bench.core.client_reads(client, bench.now)
    bench.desk.schedule_all(bench.now)
    bench.settle()
    while worker.work():
        pass
    assert due.keys() <= bench.ends.keys()
    assert (bench.desk.running, bench.desk.counts()) == (0, {})

"""The order in which jobs that wait begin, by hand-computed cases."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from head.effects import ClientKey
from head.job_line import JobLine, WaitingJob


def job(number: int, at: float = 0.0, *, client: bytes = b"ann", qos: int = 0) -> WaitingJob:
    return WaitingJob(job=number, client=ClientKey(client), qos=qos, queued_s=at)


def line_of(*jobs: WaitingJob) -> JobLine:
    line = JobLine()
    for each in jobs:
        line.push(each)
    return line


def taken(line: JobLine) -> list[int]:
    """All jobs, each taken as soon as it is the next."""
    found = []
    while line.candidates(1):
        found += line.candidates(1)
        line.take(found[-1])
    return found


def test_the_higher_class_goes_first_and_of_a_class_clients_take_turns() -> None:
    line = line_of(
        job(1, qos=3),
        job(2, qos=1),
        job(3, qos=0),
        job(4, qos=0),
        job(5, qos=0, client=b"ben"),
    )
    assert line.candidates(9) == [3, 5, 4, 2, 1]
    assert line.candidates(2) == [3, 5]
    assert taken(line) == [3, 5, 4, 2, 1]
    assert len(line) == 0


def test_of_those_that_have_waited_long_one_gets_every_fourth_turn() -> None:
    # Background counts as interactive after 60 s: as if it had come at 60.
    line = line_of(*(job(n, 0.0, qos=3) for n in (1, 2)))
    for number in range(10, 18):
        line.push(job(number, 61.0))
    expected = [10, 11, 12, 1, 13, 14, 15, 2, 16, 17]
    assert line.candidates(99) == expected
    assert taken(line) == expected


def test_one_that_has_waited_for_less_waits_on() -> None:
    line = line_of(job(1, 0.0, qos=3), *(job(number, 59.0) for number in range(10, 18)))
    assert line.candidates(99) == [*range(10, 18), 1]


def test_a_job_that_begins_anew_is_the_next_of_its_class() -> None:
    line = line_of(job(1), job(2), job(3, client=b"ben"), job(4, qos=1))
    line.take(1)
    line.put_back(job(1))
    assert line.candidates(9) == [1, 3, 2, 4]


def test_several_that_begin_anew_keep_their_order() -> None:
    line = line_of(job(1), job(2), job(3, client=b"ben"), job(4, client=b"ben"), job(5))
    for number in (1, 3, 2):
        line.take(number)
    for number, client in ((1, b"ann"), (3, b"ben"), (2, b"ann")):
        line.put_back(job(number, client=client))
    assert line.candidates(9) == [1, 3, 2, 4, 5]


def test_jobs_of_held_clients_are_no_candidates_and_keep_their_places() -> None:
    held: set[ClientKey] = {ClientKey(b"ann")}
    line = JobLine(lambda: held)
    for each in (*(job(number) for number in range(1, 6)), job(6, client=b"ben", qos=3)):
        line.push(each)
    assert line.candidates(1) == [6]
    assert (line.held(2), len(line)) == ([1, 2], 6)
    held.clear()
    assert line.candidates(2) == [1, 2]
    assert line.held(9) == []


CLIENTS = [b"ann", b"ben", b"eve", b"kim"]
WAITING = st.lists(st.tuples(st.sampled_from(CLIENTS), st.integers(0, 3)), max_size=30)


@settings(max_examples=200, deadline=None)
@given(
    waiting=WAITING,
    held=st.sets(st.sampled_from(CLIENTS)),
    many=st.integers(0, 3),
    fresh=st.integers(0, 2),
)
def test_whoever_is_held_stands_in_nobodys_way(
    waiting: list[tuple[bytes, int]], held: set[bytes], many: int, fresh: int
) -> None:
    keys = {ClientKey(client) for client in held}
    line = JobLine(lambda: keys)
    for number in range(100 if held else 0):
        line.push(job(number, 0.0, client=min(held), qos=many))
    for number, (client, qos) in enumerate(waiting, 1000):
        line.push(job(number, 0.0, client=client, qos=qos))
    due = {number for number, (client, _) in enumerate(waiting, 1000) if client not in held}
    # One more job of a higher class comes with each turn, for ever. All that waits is due after
    # 600 s, so it gets every fourth turn at least; what is held takes none.
    turns = 4 * len(due) + 4
    for number in range(2000, 2000 + turns):
        line.push(job(number, 600.0, client=b"tim", qos=fresh))
        (first,) = line.candidates(1)
        line.take(first)
        due.discard(first)
    assert not due


def test_one_that_finds_no_room_is_passed_and_keeps_its_place() -> None:
    line = line_of(job(1), job(2, client=b"ben"), job(3), job(4, client=b"ben"))
    assert line.candidates(9) == [1, 2, 3, 4]
    line.take(2)
    assert line.candidates(9) == [1, 4, 3]


def test_what_is_over_leaves_wherever_it_stands() -> None:
    line = line_of(job(1), job(2), job(3, qos=2))
    line.remove(1)
    line.remove(3)
    line.remove(7)
    assert line.candidates(9) == [2]
    assert len(line) == 1

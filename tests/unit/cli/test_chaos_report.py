"""What a chaos run tells of itself."""

from __future__ import annotations

import pytest

from head.cli.chaos_faults import KINDS
from head.cli.chaos_report import figures, gap_table, is_sound, percentile
from head.cli.chaos_run import Strike
from head.cli.chaos_streams import Gap, Tally


@pytest.mark.parametrize(("share", "value"), [(0.05, 15), (0.3, 20), (0.4, 20), (0.5, 35), (1, 50)])
def test_percentiles_by_nearest_rank(share: float, value: float) -> None:
    # The worked example of the nearest-rank method in its Wikipedia article.
    assert percentile([35, 20, 15, 50, 40], share) == value
    assert percentile([], share) is None


def strike(name: str, held_s: float, *gaps: tuple[float, float]) -> Strike:
    return Strike(KINDS[name], "x", held_s, 3.0, tuple(Gap(*each) for each in gaps))


STRIKES = [
    strike("worker", 0.0, (0.4, 0.3), (0.2, 0.0)),
    strike("agent", 0.0, (0.9, 0.25)),
    strike("cut", 1.0, (1.2, 0.5)),
    strike("head", 0.0, (2.5, 0.0)),
    strike("stop-head", 2.0, (2.25, 0.0), (0.1, 0.0)),
]


def test_figures_have_each_kind_under_its_name() -> None:
    found = figures(STRIKES, Tally(streams=9, completed=9, compared=9))
    assert (found["streams"], found["kills"], found["stops"], found["cuts"]) == (9, 3, 1, 1)
    assert found["gap_p99_s_worker"] == 0.4
    assert found["gap_without_replay_p99_s_worker"] == 0.2
    assert found["replay_p99_s_worker"] == 0.3
    assert found["gap_p99_s_node"] == 1.2
    assert found["gap_p99_s_head"] == 2.5
    assert found["gap_p99_s_beyond_stop"] == 0.25
    assert is_sound(found)


def test_what_was_not_struck_has_no_gap() -> None:
    found = figures([], Tally())
    assert found["gap_p99_s_head"] is None
    assert list(gap_table([])) != []


@pytest.mark.parametrize(
    "tally", [Tally(failed=1), Tally(lost=1), Tally(repeated=1), Tally(differing=1)]
)
def test_any_harm_to_a_stream_is_not_sound(tally: Tally) -> None:
    assert not is_sound(figures(STRIKES, tally))


def test_the_table_has_a_line_for_each_kind() -> None:
    lines = [line.split() for line in gap_table(STRIKES)]
    assert [line[0] for line in lines[1:]] == ["worker", "agent", "cut", "head", "stop-head"]
    assert lines[1] == ["worker", "1", "2", "0.20", "0.40", "0.40", "0.00", "0.30", "3.00"]

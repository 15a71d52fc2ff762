"""What the bench of simulated fleets holds, on smaller ones: by virtual time, so by the seed."""

from __future__ import annotations

from dataclasses import replace

from bench.fleet_sim_load import Scale, hot_prefix_ratio, load_aware_gain, prefix_gain
from bench.fleet_sim_rejoin import rejoin

#: Twelve nodes of speeds 1:2:4, of each figure the median of three runs.
SMALL = Scale(nodes=12, requests=300, seeds=(1, 2, 3))
#: So many that one in a hundred of half a run is ten.
LONGER = replace(SMALL, requests=2000)


def test_answers_end_sooner_than_in_turn() -> None:
    assert load_aware_gain(SMALL)["load_aware_gain"] >= 1.5


def test_first_tokens_come_sooner_where_prefixes_are_shared() -> None:
    assert prefix_gain(SMALL)["prefix_gain"] >= 2.0


def test_a_hot_prefix_makes_nobody_wait() -> None:
    assert hot_prefix_ratio(SMALL)["hot_prefix_ratio"] <= 1.2


def test_nobody_waits_longer_once_a_hot_prefix_is_on_many_nodes() -> None:
    assert hot_prefix_ratio(LONGER)["hot_prefix_ratio_second_half"] <= 1.2


def test_two_hundred_nodes_are_back_in_time() -> None:
    found = rejoin(200, seeds=(1,))
    assert found["rejoin_s_200_worst"] <= 10.0

"""Seeded bugs in what becomes of answers when workers die, and of whom that is blamed."""

from __future__ import annotations

from tests.sim.world.mutation import Mutant

DEATHS = (
    Mutant(
        name="worker_death_ends_the_answer",
        target="head.failover:Failover.lost",
        find="self.move(session, why, now)",
        replace=('self.end(session, "error", now, self._kills_workers(session.answer, why))'),
        profiles=("worker-killer", "crashy"),
    ),
    Mutant(
        name="what_has_ended_killed_nobody",
        target="head.failover:Failover._suspect",
        find="not is_all or not had <= ran.keys()",
        replace="False",
        profiles=("poison",),
    ),
    Mutant(
        name="killers_are_never_found",
        target="head.suspects:judge",
        find="one.guilty = suspects",
        replace="one.guilty = False and suspects",
        profiles=("poison",),
    ),
    Mutant(
        name="who_has_no_token_is_blamed_alone",
        target="head.suspects:blame",
        find="if one.suspicion.of(worker) is None]",
        replace="if one.suspicion.of(worker) is None and not one.tokens]",
        profiles=("poison",),
    ),
    Mutant(
        name="who_shares_two_deaths_is_guilty",
        target="head.suspects:judge",
        find="suspects[last.worker] == 1 and not last.unclear",
        replace="True",
        profiles=("poison",),
    ),
    Mutant(
        name="suspects_are_not_set_apart",
        target="head.suspects:blame",
        find="one.suspicion.set_apart = True",
        replace="pass",
        profiles=("poison",),
    ),
    Mutant(
        name="suspects_wait_for_nobody",
        target="head.blame:Blame.is_to_wait",
        find="bool(mine.seen) and any(",
        replace="False and any(",
        profiles=("poison",),
    ),
    Mutant(
        name="who_ends_uncleared_leaves_the_blame_to_others",
        target="head.blame:Blame.ended",
        find="elif not cleared:",
        replace="elif False:",
        profiles=("poison",),
    ),
    Mutant(
        name="cancel_is_not_final",
        target="head.runs:Runs.cancel",
        find='self._failover.end(session, "cancelled", now)',
        replace="pass",
        profiles=("calm",),
    ),
)

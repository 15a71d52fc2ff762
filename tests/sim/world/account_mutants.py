"""Seeded bugs of budgets, usage figures, moved events, drains and parked files."""

from __future__ import annotations

from tests.sim.world.mutation import Mutant

MOVES = ("crashy", "worker-killer", "partitions", "everything")

ACCOUNTS = (
    Mutant(
        name="budget_anew_after_move",
        target="head.answers:Answer.budget_left_ms",
        find="return max(round(self.wall_ms - (now - self.budget_from_s) * 1000), 1)",
        replace="return self.wall_ms",
        profiles=MOVES,
    ),
    Mutant(
        name="budget_never_given",
        target="head.answers:Answer.budget_left_ms",
        find="return max(round(self.wall_ms - (now - self.budget_from_s) * 1000), 1)",
        replace="return 0",
        profiles=("calm",),
    ),
    Mutant(
        name="budget_is_lost_in_the_agent",
        target="bus.agent_records:Generation.submit",
        find="wall_ms=self.request.wall_ms",
        replace="wall_ms=0",
        profiles=("calm",),
    ),
    Mutant(
        name="budget_anew_after_restart",
        target="head.restore:answer_from",
        find="budget_from_s=now - stored.used_ms / 1000",
        replace="budget_from_s=now",
        profiles=("crashy", "slow-disk", "everything"),
    ),
    Mutant(
        name="used_budget_is_not_kept",
        target="head.answers:Answer.budget_used_ms",
        find="round((now - self.budget_from_s) * 1000)",
        replace="0",
        profiles=MOVES,
    ),
    Mutant(
        name="overdue_is_never_given_up",
        target="head.generations:Generations._watch_budget",
        find="if self.running.get(generation) is session:",
        replace="if False:",
        profiles=("pauses", "partitions", "everything"),
    ),
    Mutant(
        name="waiting_outlives_its_budget",
        target="head.waiting:WaitingLine._expire",
        find="for entry in queue.expired(now):",
        replace="for entry in ():",
        profiles=("queues",),
    ),
    Mutant(
        name="replayed_counts_wrong",
        target="head.token_intake:TokenIntake._count",
        find="max(context - receipt.cached, 0)",
        replace="context",
        profiles=MOVES,
    ),
    Mutant(
        name="replayed_is_lost_on_restart",
        target="head.restore:answer_from",
        find="replayed_tokens=stored.replayed_tokens",
        replace="replayed_tokens=0",
        profiles=("crashy", "slow-disk", "everything"),
    ),
    Mutant(
        name="cached_is_of_a_replay",
        target="head.token_intake:TokenIntake._count",
        find="if receipt.first_seq == 0 and answer.is_replaying:",
        replace="if receipt.first_seq == 0 and receipt.ids and answer.is_replaying:",
        profiles=MOVES,
    ),
    Mutant(
        name="cached_is_never_told",
        target="head.answers:Answer.end_body",
        find="cached=self.cached_tokens",
        replace="cached=0",
        profiles=("calm",),
    ),
    Mutant(
        name="prompt_counts_the_answer",
        target="head.answers:Answer.end_body",
        find="prompt=self.prompt_tokens",
        replace="prompt=self.context_tokens",
        profiles=("calm",),
    ),
    Mutant(
        name="moved_is_always_exact",
        target="head.generations:Generations._announce",
        find="exact = same and answer.exact",
        replace="exact = answer.exact",
        profiles=MOVES,
    ),
    Mutant(
        name="moved_is_exact_unasked",
        target="head.generations:Generations._announce",
        find="exact = same and answer.exact",
        replace="exact = same",
        profiles=MOVES,
    ),
    Mutant(
        name="moved_is_never_exact",
        target="head.generations:Generations._announce",
        find="exact = same and answer.exact",
        replace="exact = False",
        profiles=MOVES,
    ),
    Mutant(
        name="moved_is_not_told",
        target="head.generations:Generations._announce",
        find="for subscription in answer.subscriptions:",
        replace="for subscription in () if answer.is_replaying else answer.subscriptions:",
        profiles=MOVES,
    ),
    Mutant(
        name="moved_from_its_new_node",
        target="head.generations:Generations._announce",
        find="answer.moved_from, placed.node, offset",
        replace="placed.node, placed.node, offset",
        profiles=MOVES,
    ),
    Mutant(
        name="drain_moves_nothing",
        target="head.drains:Drains._move",
        find="if placement.node is not None:",
        replace="if False:",
        profiles=("rolling",),
    ),
    Mutant(
        name="resumed_anywhere_but_with_its_file",
        target="head.parking:_only",
        find="view.identity == node",
        replace="False",
        also=(
            ("head.parking:ParkingDesk.choose", "if session.file_on else {}", "if None else {}"),
        ),
        profiles=("parks",),
    ),
    Mutant(
        name="parked_file_is_never_read",
        target="head.parking:ParkingDesk.place",
        find="if placed.link is None or not len(session.context) or not _keeps_files(node):",
        replace="if True:",
        profiles=("parks",),
    ),
    Mutant(
        name="slow_readers_hold_nobody_back",
        target="head.answers:Answer.is_held_back",
        find="return self.pause_when_slow and",
        replace="return False and",
        profiles=("wide-window",),
    ),
    Mutant(
        name="suspicion_is_lost_on_restart",
        target="head.suspects:Suspicion.encode",
        find="if not (",
        replace="if True or not (",
        profiles=("poison", "everything", "worker-killer"),
    ),
)

"""Seeded bugs of sessions that are parked, resumed and forked."""

from __future__ import annotations

from tests.sim.world.mutation import Mutant

PARKS = (
    Mutant(
        name="parked_session_takes_a_turn",
        target="head.sessions:Session.check_takes",
        find="if self.parked:",
        replace="if False:",
        profiles=("parks",),
    ),
    Mutant(
        name="park_leaves_its_turn_running",
        target="head.session_operations:SessionOperations.park",
        find="if session.answer is not None:",
        replace="if False:",
        profiles=("parks",),
    ),
    Mutant(
        name="resumed_without_a_new_epoch",
        target="head.generations:Generations._place",
        find="Epoch(self._numbers.epochs.next())",
        replace=(
            "Epoch(self._numbers.epochs.next() if session.answer else self._numbers.epochs.last)"
        ),
        profiles=("parks",),
    ),
    Mutant(
        name="parked_session_keeps_its_place",
        target="head.parking:ParkingDesk.leave",
        find="self._sessions.unplace(session)",
        replace="pass",
        profiles=("parks",),
    ),
    Mutant(
        name="parked_is_forgotten_with_the_head",
        target="head.made_sessions:MadeSessions.restore",
        find="parked=one.parked and not one.ended_wall_s",
        replace="parked=False",
        profiles=("parks",),
    ),
    Mutant(
        name="fork_shares_the_context",
        target="head.made_sessions:MadeSessions.fork",
        find="context.append(parent.context.slice(0, tokens), "
        "parent.context.slice_segments(0, tokens))",
        replace="context = parent.context",
        profiles=("parks",),
    ),
    Mutant(
        name="fork_forgets_how_it_was_computed",
        target="head.session_contents:SessionContents.keep_copied",
        find="FORKED if segment.by_step else 0",
        replace="0",
        profiles=("parks",),
    ),
    Mutant(
        name="files_are_never_swept",
        target="bus.agent_parking:NodeParking.keep",
        find="KeptFiles(frozenset(sessions))",
        replace="None",
        profiles=("parks",),
    ),
)

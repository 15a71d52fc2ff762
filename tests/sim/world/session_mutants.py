"""Seeded bugs of sessions' contexts, turns and moves, and of how long nodes are waited for."""

from __future__ import annotations

from tests.sim.world.mutation import Mutant

CRASHES = ("crashy", "worker-killer", "everything")
MOVES = ("crashy", "worker-killer", "partitions")

SESSIONS = (
    Mutant(
        name="append_on_a_wrong_base",
        target="bus.agent_records:Held.extend",
        find="elif self.context.matches(message.base_tokens, message.base_digest):",
        replace="elif True:",
        # A head that is right about the base, or the length that a request names, make up for it.
        also=(
            (
                "bus.head_session:HeadSession.append",
                "return self._append(context, self.tokens, self.digest)",
                "return self._append(context, self.tokens - 1, self.digest)",
            ),
            (
                "bus.agent_commands:SessionCommands._generate_problem",
                "held.incomplete or expected != len(held.context)",
                "False",
            ),
        ),
        profiles=("multi-turn",),
    ),
    Mutant(
        name="append_forgets_how_it_was_computed",
        target="bus.agent_records:Held.extend",
        find="self.context.append(message.ids, message.segments)",
        replace="self.context.append(message.ids)",
        profiles=("multi-turn",),
    ),
    Mutant(
        name="cancelled_turn_keeps_its_epoch",
        target="head.generations:Generations._place",
        find="if placed is not None and not placed.protocol.stopped:",
        replace="if placed is not None:",
        profiles=("multi-turn",),
    ),
    Mutant(
        name="turn_does_not_join_the_context",
        target="head.made_sessions:MadeSessions.turn_ended",
        find="if answer.keep_output and answer.tokens:",
        replace="if answer.keep_output and len(answer.tokens) > 3:",
        profiles=("multi-turn",),
    ),
    Mutant(
        name="finish_leaves_the_node_in_place",
        target="head.made_sessions:MadeSessions.finish",
        find='self._unplace(session, "finished")',
        replace="pass",
        profiles=("multi-turn",),
    ),
    Mutant(
        name="command_replay_applied",
        target="bus.agent_commands:SessionCommands._generate",
        find="if message.command in held.commands:",
        replace="if False:",
        profiles=("multi-turn", "wide-window"),
    ),
    Mutant(
        name="moved_without_what_was_delivered",
        target="head.generations:Generations.start",
        find="session.context_at(len(answer.tokens))",
        replace="session.context_at(0)",
        profiles=MOVES,
    ),
    Mutant(
        name="moved_with_its_whole_budget",
        target="head.generations:Generations._plan",
        find="answer.max_new - placed.first_offset",
        replace="answer.max_new",
        profiles=MOVES,
    ),
    Mutant(
        name="prompt_of_a_moved_stream_grows",
        target="head.generations:Generations._plan",
        find="generated_tokens=placed.first_offset",
        replace="generated_tokens=0",
        profiles=MOVES,
    ),
    Mutant(
        name="sessions_dropped_with_the_link",
        target="bus.agent_session:AgentSession.link_down",
        find="self._be_silent()",
        replace="self._be_silent(); [self._commands.drop(h) for h in list(self._held.values())]",
        profiles=("calm", "partitions"),
    ),
    Mutant(
        name="lost_link_is_not_waited_for",
        target="head.outages:Outages.link_down",
        find="now + self._reattach_s",
        replace="now",
        profiles=("calm", "partitions"),
    ),
    Mutant(
        name="wait_of_an_earlier_outage",
        target="head.outages:Outages._give_up_at",
        find="if self._outages.get(node) == outage:",
        replace="if True:",
        profiles=("partitions", "wide-window", "lossy"),
    ),
    Mutant(
        name="head_restart_moves_everything",
        target="head.runs:Runs.restore",
        find="now + self._policy.adopt_s",
        replace="now",
        profiles=CRASHES,
    ),
)

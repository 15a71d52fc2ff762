"""The seeded bugs: each is what somebody could well write, and none may get past the oracle."""

from __future__ import annotations

from tests.sim.world.account_mutants import ACCOUNTS
from tests.sim.world.chat_mutants import CHANNELS, CHATS
from tests.sim.world.death_mutants import DEATHS
from tests.sim.world.job_mutants import JOBS
from tests.sim.world.mutation import Mutant
from tests.sim.world.park_mutants import PARKS
from tests.sim.world.session_mutants import SESSIONS

LOSSY = ("lossy", "everything")
CRASHES = ("crashy", "worker-killer", "everything")
CUTS = ("partitions", "lossy", "everything")

LINKS = (
    Mutant(
        name="stale_link_accepted",
        target="bus.frames:derive_frame_keys",
        find="hkdf_key(chaining_key, context +",
        replace="hkdf_key(bytes(32), KEY_INFO +",
        # Keys are of one link, so that an id that is not looked at does no harm by itself.
        also=(
            (
                "bus.endpoint:Endpoint.receive_frame",
                "frame.link_id != self._link.link_id",
                "False",
            ),
            ("bus.acceptor:Acceptor.receive", "endpoint.link_id == frame.link_id", "True"),
        ),
        profiles=("lossy",),
    ),
    Mutant(
        name="no_gap_check",
        target="bus.frames:FrameOpener.open",
        find="if frame.counter > expected:",
        replace="if False:",
        profiles=LOSSY,
    ),
    Mutant(
        name="last_frame_never_missed",
        target="bus.frames:FrameOpener.check_counts",
        find="if phase == self._phase:",
        replace="if False:",
        profiles=("drips",),
    ),
    Mutant(
        name="no_dedup_of_frames",
        target="bus.frames:FrameOpener.open",
        find="if frame.counter < expected:",
        replace="if False:",
        profiles=LOSSY,
    ),
    Mutant(
        name="one_counter_for_all_channels",
        target="bus.frames:FrameOpener.open",
        find="expected = self._expected[frame.channel]",
        replace="expected = frame.counter if frame.channel else self._expected[0]",
        profiles=LOSSY,
    ),
    Mutant(
        name="priority_reorders_commands",
        target="bus.outbox:Outbox.put_message",
        find="LINK.priority(message), data",
        replace='LINK.priority(message) - (type(message).__name__ == "GenerateReq"), data',
        profiles=("calm",),
    ),
)

COMMITS = (
    Mutant(
        name="acknowledged_before_commit",
        target="head.gate:OutputGate._release",
        find="self._waiting[0].after <= self._durable",
        replace=(
            "(self._waiting[0].after <= self._durable or "
            'type(getattr(self._waiting[0].output, "message", 0)).__name__ == "WatermarkAck")'
        ),
        profiles=("slow-disk", "crashy"),
    ),
    Mutant(
        name="delivered_before_commit",
        target="head.gate:OutputGate._release",
        find="self._waiting[0].after <= self._durable",
        replace=(
            "(self._waiting[0].after <= self._durable or "
            'type(self._waiting[0].output).__name__ == "Reply")'
        ),
        profiles=("slow-disk", "crashy"),
    ),
    Mutant(
        name="tagged_one_commit_early",
        target="head.outbox:Outbox.drain",
        find="after=self._lsn",
        replace="after=max(self._lsn - 1, 0)",
        profiles=("slow-disk", "crashy"),
    ),
    Mutant(
        name="boot_number_forgotten_on_restart",
        target="head.core:HeadCore.__init__",
        find="Numbers(stored.boot)",
        replace="Numbers(1)",
        profiles=("crashy", "slow-disk"),
    ),
    Mutant(
        name="generation_id_reused",
        target="head.generations:Generations.start",
        find="GenerationId(self._numbers.generations.next())",
        replace="GenerationId((self._numbers.boot << 32) + 1 + len(self.running))",
        profiles=("calm",),
    ),
    Mutant(
        name="epoch_reused",
        target="head.generations:Generations._place",
        find="Epoch(self._numbers.epochs.next())",
        replace="Epoch((self._numbers.boot << 32) + 1 + len(self.running))",
        profiles=("calm",),
    ),
)

EPOCHS = (
    Mutant(
        name="no_head_epoch_check",
        target="head.token_intake:TokenIntake._token_run",
        find="session = self._generations.running.get(run.generation)",
        replace=(
            "session = self._sessions.get(run.session)\n"
            "    if session is not None and session.placed is not None "
            "and session.placed.protocol.is_generating:\n"
            "        run = __import__('dataclasses').replace(run, "
            "epoch=session.placed.protocol.epoch, generation=session.placed.protocol.generation)"
        ),
        profiles=("multi-turn",),
    ),
    Mutant(
        name="no_self_fence",
        target="bus.node_leases:NodeLeases.expired",
        find="lease.until <= now",
        replace="lease.until <= now - 3600",
        profiles=("partitions", "everything"),
    ),
    Mutant(
        name="lease_counts_from_its_grant",
        target="bus.node_leases:NodeLeases.grant",
        find="since = min(message.sent_at_s, now)",
        replace="since = now",
        profiles=("everything", "partitions"),
    ),
    Mutant(
        name="higher_epoch_leaves_the_lower_running",
        target="bus.agent_commands:SessionCommands._assign",
        find="self._generations.end_session(held.session)",
        replace="pass",
        profiles=("multi-turn", "everything"),
    ),
)

EVENTS = (
    Mutant(
        name="no_dedup_of_events",
        target="bus.head_session:HeadSession.accept",
        find="""    if self.finished or end <= self.next_seq:
        return Receipt(verdict=Verdict.DUPLICATE)
    if run.first_seq > self.next_seq:
        return Receipt(verdict=Verdict.GAP)
    known = self.next_seq - run.first_seq
""",
        replace="""    if self.finished:
        return Receipt(verdict=Verdict.DUPLICATE)
    known = 0
""",
        profiles=("multi-turn", "wide-window"),
    ),
    Mutant(
        name="retransmit_off_by_one",
        target="bus.event_window:EventWindow.retained",
        find="return Retained(self.committed, ids, finish, bytes(self._logprobs))",
        replace=(
            "return Retained(self.committed + 1, PackedIds(ids[4:]), finish, "
            "bytes(self._logprobs[self._record_bytes:]))"
        ),
        profiles=CUTS,
    ),
    Mutant(
        name="retransmit_one_early",
        target="bus.event_window:EventWindow.retained",
        find="return Retained(self.committed,",
        replace="return Retained(max(self.committed - 1, 0),",
        profiles=CUTS,
    ),
    Mutant(
        name="ack_over_a_gap",
        target="head.acks:AckDesk._flush",
        find="committed=watermark",
        replace="committed=watermark + 1",
        profiles=("calm", "partitions"),
    ),
    Mutant(
        name="wrong_watermark_after_reconcile",
        target="bus.agent_reconcile:keep_listed",
        find="generations.acknowledge(found, known.committed)",
        replace="generations.acknowledge(found, known.committed + 1)",
        profiles=CUTS,
    ),
    Mutant(
        name="watermark_of_the_answer_after_restart",
        target="head.generations:Generations.restore",
        find="len(answer.tokens) - placed.first_offset",
        replace="len(answer.tokens)",
        profiles=CRASHES,
    ),
    Mutant(
        name="unbounded_buffer",
        target="bus.event_window:EventWindow.wants_pause",
        find="self._fill() >= PAUSE_AT",
        replace="self._fill() >= 1000",
        profiles=("wide-window",),
    ),
    Mutant(
        name="pause_for_ever",
        target="bus.event_window:EventWindow.wants_resume",
        find="self._fill() < RESUME_BELOW",
        replace="self._fill() < 0",
        profiles=("wide-window",),
    ),
    Mutant(
        name="finished_generations_not_freed",
        target="bus.agent_generations:NodeGenerations.acknowledge",
        find="if found.window.is_acknowledged:",
        replace="if False:",
        profiles=("calm",),
    ),
    Mutant(
        name="finish_never_acknowledged",
        target="head.token_intake:TokenIntake._token_run",
        find="protocol.next_seq, now, urgent=urgent",
        replace=("protocol.next_seq - (receipt.finish is not None), now, urgent=urgent"),
        profiles=("multi-turn", "calm"),
    ),
    Mutant(
        name="logprobs_resent_from_the_beginning",
        target="bus.event_window:EventWindow.acknowledge",
        find="del self._logprobs[: self._record_bytes * kept_from]",
        replace="del self._logprobs[len(self._logprobs) - self._record_bytes * kept_from :]",
        profiles=CUTS,
    ),
    Mutant(
        name="tokens_after_a_stop_are_kept",
        target="head.answer_readers:until_stop",
        find="return kept, reader.over",
        replace="return count_ids(ids), reader.over",
        profiles=("calm", "crowd"),
    ),
    Mutant(
        name="text_after_a_cursor_begins_anew",
        target="head.answers:Subscription._reader",
        find="self.text.push(self.answer.tokens[: self.offset])",
        replace="pass",
        profiles=("crashy", "everything"),
    ),
    Mutant(
        name="cursor_skips_a_token",
        target="head.answers:Subscription._token_reply",
        find="self.offset += len(fresh)",
        replace="self.offset += len(fresh) + (len(fresh) > 3)",
        profiles=("calm",),
    ),
)

MODELS = (
    Mutant(
        name="unload_is_blamed_like_a_death",
        target="bus.agent_session:AgentSession.model_gone",
        find="NO_WORKER",
        replace="WorkerIncarnation(1)",
        profiles=("loading",),
    ),
    Mutant(
        name="unload_says_nothing_of_what_ran",
        target="bus.agent_session:AgentSession.model_gone",
        find="self._lose(found, NO_WORKER, reason, is_over=False)",
        replace="self._give_up(found, is_over=False)",
        profiles=("loading",),
    ),
)

DRAINS = (
    Mutant(
        name="drain_is_forgotten_with_the_link",
        target="head.core:HeadCore.link_up",
        find="node.mark = self.marks.of(node.identity)",
        replace="pass",
        profiles=("drains",),
    ),
    Mutant(
        name="drain_ends_what_it_should_move",
        target="head.drains:Drains._move",
        find="self._failover.move(session, why, now, to=placement.node)",
        replace='self._failover.end(session, "cancelled", now)',
        profiles=("drains",),
    ),
)

MUTANTS = (
    *LINKS,
    *COMMITS,
    *EPOCHS,
    *EVENTS,
    *SESSIONS,
    *DEATHS,
    *MODELS,
    *DRAINS,
    *PARKS,
    *ACCOUNTS,
    *CHATS,
    *CHANNELS,
    *JOBS,
)

"""Seeded bugs of chats: what joins a session's context, and how answers are read in channels."""

from __future__ import annotations

from tests.sim.world.mutation import Mutant

CHATS = (
    Mutant(
        name="chat_is_rendered_whole_again",
        target="head.chat_operations:ChatOperations.session_chat",
        find="after_answer=begun",
        replace="after_answer=False",
        profiles=("chats",),
    ),
    Mutant(
        name="chat_ends_a_turn_twice",
        target="head.chat_turns:fresh_ids",
        find="last in ends and first in ends",
        replace="False",
        profiles=("chats",),
    ),
    Mutant(
        name="chat_that_failed_leaves_its_messages",
        target="head.made_sessions:MadeSessions.turn_ended",
        find="self._contents.cut(session, answer.joined_at)",
        replace="pass",
        profiles=("chats",),
    ),
    Mutant(
        name="chat_that_ended_takes_its_messages_along",
        target="head.made_sessions:MadeSessions.turn_ended",
        find="if answer.error is not None and not answer.tokens and",
        replace="if not answer.tokens and",
        profiles=("chats",),
    ),
    Mutant(
        name="chat_that_failed_is_cut_in_memory_alone",
        target="head.session_contents:SessionContents.cut",
        find="self._outbox.persist(CutContent(session=session.id, first=length))",
        replace="pass",
        profiles=("chats",),
    ),
    Mutant(
        name="chat_cut_is_forgotten_on_restart",
        target="head.restore:answer_from",
        find='joined_at=options.get("joined_at")',
        replace="joined_at=None",
        profiles=("chats",),
    ),
    Mutant(
        name="chat_joins_before_it_is_sure",
        target="head.admission:Admission._with_prompt",
        find="self._check(known, now)",
        replace="self.talk and self._join(self.talk); self._check(known, now)",
        profiles=("chats",),
    ),
    Mutant(
        name="chat_key_is_no_key",
        target="head.chat_operations:ChatOperations.session_chat",
        find="if self._answers.attach_known(request, asked, now, session.id):",
        replace="if (known := self._answers).attach_known(request, asked, now) and known:",
        profiles=("chats",),
    ),
    Mutant(
        name="chat_answer_does_not_join",
        target="head.made_sessions:MadeSessions.turn_ended",
        find="if answer.keep_output and answer.tokens:",
        replace="if answer.keep_output and answer.tokens and answer.joined_at is None:",
        profiles=("chats",),
    ),
)

CHANNELS = (
    Mutant(
        name="channels_begin_anew_at_a_cursor",
        target="head.answers:Subscription._reader",
        find="self.text.push(self.answer.tokens[: self.offset])",
        replace="pass",
        profiles=("chats",),
    ),
    Mutant(
        name="channels_begin_anew_at_a_run",
        target="head.answers:Subscription._token_reply",
        find="found = self._reader(texts).push(fresh)",
        replace="self.text = None; found = self._reader(texts).push(fresh)",
        also=(
            (
                "head.answers:Subscription._reader",
                "self.text.push(self.answer.tokens[: self.offset])",
                "pass",
            ),
        ),
        profiles=("chats",),
    ),
    Mutant(
        name="channels_forget_what_was_opened",
        target="head.answer_pieces:Channels.from_map",
        find='opened=kept["opened"]',
        replace='opened=""',
        profiles=("chats",),
    ),
    Mutant(
        name="channels_forget_the_tools",
        target="head.answer_pieces:Channels.from_map",
        find='shared_tools(msgpack.packb(kept["tools"]))',
        replace="()",
        profiles=("chats",),
    ),
    Mutant(
        name="channels_forget_that_one_call_is_all",
        target="head.answer_pieces:Channels.from_map",
        find='parallel=kept["parallel"]',
        replace="parallel=True",
        profiles=("chats",),
    ),
    Mutant(
        name="calls_have_ids_of_their_readers",
        target="head.answer_pieces:AnswerPieces.__init__",
        find="call_id(name, index)",
        replace="call_id(str(id(self)), index)",
        profiles=("chats",),
    ),
    Mutant(
        name="calls_have_all_one_id",
        target="head.answer_pieces:AnswerPieces.__init__",
        find="call_id(name, index)",
        replace="call_id(name, 0)",
        profiles=("chats",),
    ),
    Mutant(
        name="calls_go_on_after_the_only_one",
        target="head.answer_pieces:AnswerPieces.until_stop",
        find="if self.over:",
        replace="if self.stop:",
        profiles=("chats",),
    ),
    Mutant(
        name="calls_are_no_end",
        target="head.answer_readers:model_ended",
        find='"tool_calls" if reader.calls and not reader.stop else "stop"',
        replace='"stop"',
        profiles=("chats",),
    ),
    Mutant(
        name="what_the_end_completes_is_lost",
        target="head.answers:Subscription._end",
        find="more = pieces.text, {**pieces_map(pieces),",
        replace="more = pieces.text, {",
        profiles=("chats",),
    ),
    Mutant(
        name="open_calls_of_cut_answers_are_shown",
        target="head.answers:Subscription._end",
        find="cut=self.answer.is_cut",
        replace="cut=False",
        profiles=("chats",),
    ),
)

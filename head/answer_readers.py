"""Who looks into answers at the head: its clients' readers, and the head for what ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bus.errors import Internal
from bus.ids import PackedIds, count_ids, unpack_ids
from bus.text.stops import AnswerText
from head.answer_pieces import AnswerPieces
from head.texts import TextDesk

if TYPE_CHECKING:
    from head.answers import Answer


def answer_reader(answer: Answer, texts: TextDesk) -> AnswerText | AnswerPieces:
    """What makes an answer's text, or its channels, by the tokenizer that its ids are of.

    Raises:
        TokenizerUnavailable: the head has it no more.
    """
    if answer.channels is None:
        return texts.new_answer_text(answer.model, answer.sampling, answer.tokenizer_digest)
    known = texts.description(answer.model, answer.tokenizer_digest)
    # Of a made session's turns each has calls of its own.
    name = f"{answer.session}/{answer.id}"
    return AnswerPieces(known, answer.channels, name, answer.sampling.min_tokens)


def until_stop(answer: Answer, ids: PackedIds, texts: TextDesk) -> tuple[int, bool]:
    """How many of an answer's next tokens belong to it, and whether they are its last.

    They are when they complete a stop string, or the only call that the answer may have.

    The node looks for stops too, to end in time; what the caller sees is what is found here. While
    the head does not know the model's tokenizer, or can not read the answer, all tokens belong to
    it.
    """
    if not answer.is_read or not texts.vocabulary_size(answer.model, answer.tokenizer_digest):
        return count_ids(ids), False
    try:
        reader = _caught_up(answer, texts)
        kept = 0 if reader.over else reader.until_stop(unpack_ids(ids))
    except Internal:
        return count_ids(ids), False
    answer.stop = reader.stop
    return kept, reader.over


def model_ended(answer: Answer, texts: TextDesk) -> str:
    """How an answer is said to end whose model ended it: `stop`, or `tool_calls`.

    What only the end completes may be a stop string, too, which is then the answer's.
    """
    if answer.channels is None or not answer.is_read:
        return "stop"
    if not texts.vocabulary_size(answer.model, answer.tokenizer_digest):
        return "stop"
    try:
        reader = _caught_up(answer, texts)
        if not isinstance(reader, AnswerPieces):
            return "stop"
        reader.finish(cut=False)
    except Internal:
        return "stop"
    answer.stop = reader.stop
    return "tool_calls" if reader.calls and not reader.stop else "stop"


def names_of_calls(answer: Answer, texts: TextDesk, tokens: int) -> dict[str, str]:
    """What is called in the first tokens of an answer, by the ids of the calls, in order.

    Nothing when that is not known.
    """
    if answer.channels is None or not answer.channels.tools:
        return {}
    if not texts.vocabulary_size(answer.model, answer.tokenizer_digest):
        return {}
    try:
        reader = answer_reader(answer, texts)
        if not isinstance(reader, AnswerPieces):
            return {}
        first = reader.push(answer.tokens[:tokens]).calls
        is_cut = answer.is_cut or tokens < len(answer.tokens)
        calls = (*first, *reader.finish(cut=is_cut).calls)
    except Internal:
        return {}
    return {call.id: call.name for call in calls}


def _caught_up(answer: Answer, texts: TextDesk) -> AnswerText | AnswerPieces:
    """The answer's own reader, which took all of its tokens."""
    if answer.reader is None:
        answer.reader = answer_reader(answer, texts)
    reader = answer.reader
    if reader.tokens < len(answer.tokens):
        reader.push(answer.tokens[reader.tokens :])
    return reader

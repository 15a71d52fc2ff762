"""What a submit must be before it becomes a sequence."""

from __future__ import annotations

from bus.errors import ContextLengthExceeded, Invalid
from bus.ids import count_ids, unpack_ids
from bus.messages.worker import Submit


def check_submit(submit: Submit, *, window: int, vocab: int) -> None:
    """See that a generation can run.

    Args:
        submit: as the agent sent it.
        window: most tokens of a context with what it generates.
        vocab: token ids are below.

    Raises:
        Invalid: an empty context, a token id outside the vocabulary, segments or a prompt that do
            not fit the context.
        ContextLengthExceeded: the context is longer than the window.
    """
    length = count_ids(submit.context)
    if not length:
        raise Invalid("the prompt is empty; give at least one token", param="prompt")
    if length > window:
        raise ContextLengthExceeded(
            f"the context has {length} tokens and this worker's window {window}; shorten it",
            param="prompt",
            details={"length": length, "max": window},
        )
    # The graph's gather does not check ids: it would read what lies behind the table.
    largest = max(unpack_ids(submit.context))
    if largest >= vocab:
        raise Invalid(
            f"token id {largest} is not below the vocabulary's {vocab}; use this model's tokenizer",
            param="prompt",
        )
    covered = sum(segment.tokens for segment in submit.segments)
    if submit.segments and covered != length:
        raise Invalid(
            f"the segments cover {covered} tokens and the context has {length}", param="segments"
        )
    if submit.prompt_tokens > length:
        raise Invalid(
            f"the prompt has {submit.prompt_tokens} tokens and the context {length}",
            param="prompt_tokens",
        )

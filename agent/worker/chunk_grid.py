"""Where chunks must end so that their lengths change no bit. Pure.

With heads of more than 128 numbers, the kernel of attention adds in another order when a block of
128 positions is at most half full. So a token's keys and values hang on where its chunk ends: up to
the middle of its block, or beyond (measured on Gemma 3, of 256; there it moves logits by 0.7, and
nothing else does). When no chunk goes across the middle of a block, each token has its side of it,
whatever the lengths and the prompt's end. The one exception: a prompt that ends a token behind a
middle has its last cut a token before it, since a chunk of one would round like a step.
"""

from __future__ import annotations

#: Positions in a block; its middle is where chunks end.
BLOCK = 128
_MIDDLE = BLOCK // 2
#: Heads of up to so many numbers are added in one go.
FREE_HEAD_DIM = 128


def last_end(past: int, stop: int) -> int:
    """The last place where a chunk may end.

    Args:
        past: tokens before it, where it begins.
        stop: where its stretch ends.

    Returns:
        `past + 2` to `stop`, or `past + 1` when that is `stop`.
    """
    end = next_end(past, stop)
    # A stretch that begins right before a middle goes across it, always.
    return next_end(end, stop) if end == past + 1 < stop else end


def next_end(past: int, stop: int) -> int:
    """The next place behind `past` where a chunk must end."""
    middle = past + ((_MIDDLE - past) % BLOCK or BLOCK)
    if is_odd_end(stop) and middle >= stop - 1:
        return stop - 2 if past < stop - 2 else stop
    return min(middle, stop)


def is_odd_end(stop: int) -> bool:
    """Whether a stretch ends so that its last token but one is on the other side of its middle."""
    return stop % BLOCK == _MIDDLE + 1

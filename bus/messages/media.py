"""Files inside a prompt: which of its tokens stand for which file.

A prompt with an image is its token ids, as always, where a run of placeholder ids stands for the
image; a `MediaRef` beside the ids says where that run is, how long it is, and which of the files of
the same request it is. Ids, files and references travel, are kept and are checked together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from bus.errors import Invalid
from bus.fields import Range
from bus.messages.parts import U32

#: Files, and so references, of one request.
MAX_MEDIA = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaRef:
    """Tokens `offset` to `offset + tokens` of the prompt stand for file number `blob`."""

    offset: U32
    #: Place in the `blobs` of the request, from 0.
    blob: Annotated[int, Range(0, MAX_MEDIA - 1)]
    tokens: Annotated[int, Range(1, 2**32 - 1)]


def check_media(media: Sequence[MediaRef], blobs: int, prompt_tokens: int) -> None:
    """See that references fit their prompt: in order, apart, inside it, of files that it has.

    Args:
        blobs: how many files the request names.
        prompt_tokens: length of its prompt.

    Raises:
        Invalid: one does not; `param` names it.
    """
    end = 0
    for place, ref in enumerate(media):
        where = f"media[{place}]"
        if ref.blob >= blobs:
            raise Invalid(
                f"{where}.blob is {ref.blob} and the request names {blobs} files; count from 0",
                param=f"{where}.blob",
            )
        if ref.offset < end:
            raise Invalid(
                f"{where}.offset is {ref.offset} and what is before it ends at {end}; give them in "
                "order, without an overlap",
                param=f"{where}.offset",
            )
        if ref.tokens < 1:
            raise Invalid(f"{where}.tokens is 0; give at least 1", param=f"{where}.tokens")
        end = ref.offset + ref.tokens
        if end > prompt_tokens:
            raise Invalid(
                f"{where} ends at token {end} of a prompt with {prompt_tokens}",
                param=f"{where}.tokens",
            )

"""What the head's text processes answer for a model whose tokens are bytes."""

from __future__ import annotations

from bus.ids import pack_ids, unpack_ids
from bus.messages import text
from bus.text.vocabulary import tokenizer_digest

#: The made-up worker marks its tokens in the bits above a byte; such ids add nothing to a text.
MARKED_IDS = 2**16
VOCABULARY = tuple(bytes([byte]) for byte in range(256)) + (b"",) * (MARKED_IDS - 256)
DIGEST = tokenizer_digest(VOCABULARY)


def text_reply(job: object) -> object:
    """The reply of a text process to a job."""
    match job:
        case text.Describe():
            return text.Described(
                job=job.job,
                vocabulary=VOCABULARY,
                special=(),
                bos=None,
                eos=(),
                digest=DIGEST,
                has_template=True,
            )
        case text.Encode():
            return text.Encoded(job=job.job, ids=pack_ids(job.text.encode()))
        case text.Decode():
            return text.Decoded(job=job.job, text=bytes(unpack_ids(job.ids)).decode("latin-1"))
    raise ValueError(f"no reply to {job}")

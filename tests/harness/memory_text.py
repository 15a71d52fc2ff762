"""What the head's text processes answer for a model whose tokens are bytes."""

from __future__ import annotations

from bus.ids import pack_ids, unpack_ids
from bus.messages import text
from bus.text.vocabulary import tokenizer_digest

#: The made-up worker marks its tokens in the bits above a byte; the text does not show that.
MARKED_IDS = 2**16
VOCABULARY = tuple(bytes([token & 0xFF]) for token in range(MARKED_IDS))
#: What a constraint has in it that can not be honoured.
REFUSED = "refuse me"
DIGEST = tokenizer_digest(VOCABULARY)

#: Of folders whose models are no decoders.
_KINDS = {"/encoder": "encoder", "/whisper": "transcriber"}


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
                kind=_KINDS.get(job.folder, "decoder"),
                longest=1,
            )
        case text.Encode():
            return text.Encoded(job=job.job, ids=pack_ids(job.text.encode()), digest=DIGEST)
        case text.RenderChat():
            return text.Encoded(job=job.job, ids=pack_ids(job.messages), digest=DIGEST)
        case text.EncodeTexts():
            ids = tuple(pack_ids(each.encode()) for each in job.texts)
            return text.TextsEncoded(job=job.job, ids=ids, digest=DIGEST)
        case text.CheckConstraint() if REFUSED in job.constraint.source:
            return text.TextFailed(
                job=job.job, code="constraint_invalid", message="no", param="constraint"
            )
        case text.CheckConstraint():
            return text.ConstraintChecked(job=job.job)
        case text.Decode():
            data = b"".join(VOCABULARY[token] for token in unpack_ids(job.ids))
            return text.Decoded(job=job.job, text=data.decode("latin-1"))
    raise ValueError(f"no reply to {job}")

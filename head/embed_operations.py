"""The operation `embed`: texts to ids in text processes, ids to vectors on a node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from bus.api_maps import from_map, to_map
from bus.errors import ContextLengthExceeded, Internal, Invalid, SuperfluidError
from bus.ids import ModelName, PackedIds, count_ids
from bus.messages.api import QOS_CLASSES
from bus.messages.embeddings import EmbeddingsEvent, EmbedRequest
from bus.messages.job_bodies import EMBED, EmbedBody, EmbedEnd, EmbedPart, pack_body, unpack_body
from bus.messages.text import Described, EncodeTexts, TextsEncoded
from head.job_requests import DONE, JobRequest, JobRequests
from head.jobs import JobDone, JobSpec
from head.model_kinds import ENCODER, makes_no_vectors
from head.operation import ApiRequest, Core

#: Bytes of texts that one job of a text process gets: some tenths of a second.
TEXTS_BYTES = 128 * 1024
#: Tokens of one request, which is what an encoder lets wait.
MAX_TOKENS = 1 << 20


class EmbedOperations:
    """Owned by the API; works on the head's core."""

    def __init__(self, core: Core, requests: JobRequests) -> None:
        self._core = core
        self._requests = requests

    def embed(self, request: ApiRequest, now: float) -> None:
        asked = from_map(EmbedRequest, request.body)
        texts = asked.texts()
        self._core.texts.check(asked.model)
        self._refuse_hopeless(asked.model, texts)
        opened = self._requests.open(request, asked.max_wall_ms, now)
        try:
            opened.keep(texts)
            # What waits there knows the request only, so that no text outlives it.
            asked = replace(asked, input=None)
            described = partial(self._described, opened, asked)
            self._core.texts.when_described(asked.model, described, now, client=request.client)
        except SuperfluidError as error:
            opened.fail(error)

    def _described(
        self, opened: JobRequest, asked: EmbedRequest, known: object, now: float
    ) -> None:
        if opened.is_over:
            return
        texts = opened.take()
        try:
            if isinstance(known, SuperfluidError):
                raise known
            if isinstance(known, Described) and known.kind != ENCODER:
                raise makes_no_vectors(asked.model, known.kind)
            _Embedding(self._core, opened, asked, len(texts)).encode(texts)
        except SuperfluidError as error:
            opened.stop_text()
            opened.fail(error)

    def _refuse_hopeless(self, model: ModelName, texts: Sequence[str]) -> None:
        """Refuse a text that no window can hold, before it costs a text process anything."""
        window = self._core.fleet.largest_window(model)
        for place, text in enumerate(texts):
            least = self._core.texts.least_tokens(model, len(text.encode("utf-8", "replace")))
            if window and least > window:
                raise _too_long(model, place, least, window, "at least ")


class _Embedding:
    """One request on its way: its texts' ids come in stretches, then all go to a node."""

    def __init__(self, core: Core, opened: JobRequest, asked: EmbedRequest, count: int) -> None:
        self._core = core
        self._opened = opened
        self._asked = asked
        self._ids: list[PackedIds] = [PackedIds(b"")] * count
        self._missing = count
        self._digest = 0
        #: Inputs whose vectors came, and how many numbers each has.
        self._given = 0
        self._dimension = 0
        #: The input that is the first of the job as it was begun last.
        self._first = 0
        #: Whether the client has the next vector: all had come of a job that was lost, but its end.
        self._is_known = False

    def encode(self, texts: list[str]) -> None:
        """Have all texts encoded.

        Raises:
            QueueFull: too much waits.
        """
        for first, some in _stretches(texts):
            self._encode_some(first, some)

    def _encode_some(self, first: int, some: tuple[str, ...]) -> None:
        def make_job(job: int, folder: str) -> EncodeTexts:
            return EncodeTexts(job=job, folder=folder, texts=some, first=first)

        def then(reply: object, now: float) -> None:
            self._opened.text_jobs.discard(number)
            self._encoded(first, reply, now)

        number = self._core.texts.submit(
            self._asked.model,
            make_job,
            then,
            client=self._opened.request.client,
            size_bytes=sum(map(len, some)),
            until_gone=True,
        )
        self._opened.text_jobs.add(number)

    def _encoded(self, first: int, reply: object, now: float) -> None:
        if self._opened.is_over:
            return
        try:
            if not isinstance(reply, TextsEncoded):
                raise reply if isinstance(reply, SuperfluidError) else Internal("no ids")
            if self._digest and reply.digest != self._digest:
                raise Invalid(
                    f"the tokenizer of {self._asked.model} changed meanwhile; ask again",
                    param="model",
                )
            self._digest = reply.digest
            self._ids[first : first + len(reply.ids)] = reply.ids
            self._missing -= len(reply.ids)
            if not self._missing:
                self._core.texts.used(self._asked.model, reply.digest)
                self._run(now)
        except SuperfluidError as error:
            self._opened.stop_text()
            self._opened.fail(error)

    def _body(self) -> bytes:
        inputs, asked = tuple(self._ids[self._first :]), self._asked
        return pack_body(EmbedBody(inputs=inputs, pooling=asked.pooling, normalize=asked.normalize))

    def _resume(self, body: bytes, parts: int) -> bytes:
        """Behind the last vectors that came; there is no job without any input."""
        if self._given == len(self._ids):
            self._given -= 1
            self._is_known = True
        self._first = self._given
        return self._body()

    def _run(self, now: float) -> None:
        self._check_lengths()
        asked = self._asked
        spec = JobSpec(
            model=asked.model,
            kind=EMBED,
            body=self._body(),
            client=self._opened.request.client,
            qos=QOS_CLASSES[asked.qos],
            tokenizer_digest=self._digest,
            resume=self._resume,
        )
        self._opened.run(spec, self._event, self._end, now)

    def _check_lengths(self) -> None:
        window = self._core.fleet.largest_window(self._asked.model)
        lengths = list(map(count_ids, self._ids))
        for place, length in enumerate(lengths):
            if window and length > window:
                raise _too_long(self._asked.model, place, length, window)
        if sum(lengths) > MAX_TOKENS:
            raise Invalid(
                f"input has {sum(lengths)} tokens and {MAX_TOKENS} are taken at once; send it in "
                "parts",
                param="input",
            )

    def _event(self, body: bytes) -> dict[str, Any] | None:
        part = unpack_body(EmbedPart, body)
        index, due = self._first + part.index, self._given
        if index != due:
            raise Internal(f"vectors from input {index} on where {due} was due")
        if not 1 <= part.count <= len(self._ids) - due:
            raise Internal(f"vectors of {part.count} of {len(self._ids) - due} inputs")
        if not part.dimension or self._dimension not in (0, part.dimension):
            raise Internal(f"vectors of {part.dimension} numbers after some of {self._dimension}")
        if len(part.vectors) != 4 * part.count * part.dimension:
            raise Internal(f"{part.count} vectors of {part.dimension} in {len(part.vectors)} bytes")
        self._given, self._dimension = due + part.count, part.dimension
        if self._is_known:
            self._is_known = False
            return None
        return to_map(
            EmbeddingsEvent(
                index=index,
                count=part.count,
                dimension=part.dimension,
                vectors=part.vectors,
            )
        )

    def _end(self, done: JobDone) -> dict[str, Any]:
        unpack_body(EmbedEnd, done.body)
        if self._given != len(self._ids):
            raise Internal(f"the end after vectors of {self._given} of {len(self._ids)} inputs")
        return {
            "finish": DONE,
            "count": len(self._ids),
            "usage": {"prompt": sum(map(count_ids, self._ids))},
            "node": done.node,
        }


def _stretches(texts: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The texts in stretches of about `TEXTS_BYTES`, each with the place of its first."""
    first, size = 0, 0
    for place, text in enumerate(texts):
        size += len(text)
        if size >= TEXTS_BYTES:
            yield first, tuple(texts[first : place + 1])
            first, size = place + 1, 0
    if first < len(texts):
        yield first, tuple(texts[first:])


def _too_long(
    model: ModelName, place: int, length: int, window: int, about: str = ""
) -> ContextLengthExceeded:
    param = f"input[{place}]"
    return ContextLengthExceeded(
        f"{param} has {about}{length} tokens and {model} takes {window} at most; cut the text into "
        "parts",
        param=param,
        details={"length": length, "max": window},
    )

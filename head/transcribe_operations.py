"""The operation `transcribe`: a file that was put, written down by a node, window after window."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from bus.api_maps import from_map, to_map
from bus.errors import (
    BlobMissing,
    Internal,
    NotFound,
    SuperfluidError,
    TokenizerUnavailable,
)
from bus.ids import ModelName
from bus.messages.api import QOS_CLASSES
from bus.messages.job_bodies import (
    TRANSCRIBE,
    TranscribeBody,
    TranscribeEnd,
    TranscribePart,
    pack_body,
    unpack_body,
)
from bus.messages.parts import BlobRef
from bus.messages.transcripts import SegmentsEvent, TranscribeRequest, TranscriptEnd
from head.job_requests import DONE, JobRequests
from head.jobs import JobDone, JobSpec
from head.model_kinds import TRANSCRIBER, hears_nothing
from head.operation import ApiRequest, Core
from head.uploads import check_hash


class TranscribeOperations:
    """Owned by the API; works on the head's core."""

    def __init__(self, core: Core, requests: JobRequests) -> None:
        self._core = core
        self._requests = requests

    def transcribe(self, request: ApiRequest, now: float) -> None:
        asked = from_map(TranscribeRequest, request.body)
        self._check_model(asked.model)
        windows = _Windows(TranscribeBody(language=asked.language, from_s=asked.from_s))
        spec = JobSpec(
            model=asked.model,
            kind=TRANSCRIBE,
            body=pack_body(windows.body),
            client=request.client,
            blobs=self._file(asked.sha256),
            qos=QOS_CLASSES[asked.qos],
            resume=windows.resume,
        )
        opened = self._requests.open(request, asked.max_wall_ms, now)

        def begin(known: object, at: float) -> None:
            if opened.is_over:
                return
            try:
                if isinstance(known, NotFound):
                    raise known
                opened.run(spec, windows.event, windows.end, at)
            except SuperfluidError as error:
                opened.fail(error)

        if any(asked.model in node.models for node in self._core.fleet.nodes):
            begin(None, now)
            return
        # While the head is new its nodes may not be there yet, and nobody knows of the model.
        try:
            self._core.texts.when_described(asked.model, begin, now, client=request.client)
        except SuperfluidError as error:
            begin(error, now)

    def _check_model(self, model: ModelName) -> None:
        """Refuse a model that is known to be none, or no transcriber."""
        # Of a tokenizer the head needs nothing here.
        with suppress(TokenizerUnavailable):
            self._core.texts.check(model)
        kind = self._core.texts.kind(model)
        if kind and kind != TRANSCRIBER:
            raise hears_nothing(model, kind)

    def _file(self, sha256: bytes) -> tuple[BlobRef, ...]:
        check_hash(sha256)
        try:
            return self._core.uploads.find((sha256,))
        except BlobMissing as error:
            error.param = "sha256"
            raise


#: Models tell times in steps of so much.
_TICK_S = 0.02


class _Windows:
    """How far one request is.

    Attributes:
        body: with which the job would begin now.
    """

    def __init__(self, body: TranscribeBody) -> None:
        self.body = body
        #: Where the last window ended that came.
        self._heard_s = 0.0

    def event(self, body: bytes) -> dict[str, Any]:
        """What the client gets of a part."""
        part = unpack_body(TranscribePart, body)
        self._check(part)
        self.body = TranscribeBody(language=self.body.language or part.language, from_s=part.next_s)
        self._heard_s = part.next_s
        return to_map(
            SegmentsEvent(segments=part.segments, next_s=part.next_s, language=part.language)
        )

    def end(self, done: JobDone) -> dict[str, Any]:
        """What the client gets at last."""
        end = unpack_body(TranscribeEnd, done.body)
        if end.duration_s + _TICK_S < self._heard_s:
            raise Internal(f"a file of {end.duration_s} s after a window to {self._heard_s} s")
        told = TranscriptEnd(language=end.language, duration_s=end.duration_s)
        return {"finish": DONE, **to_map(told), "node": done.node}

    def resume(self, body: bytes, parts: int) -> bytes:
        """Behind the last window that came."""
        return pack_body(self.body)

    def _check(self, part: TranscribePart) -> None:
        begin_s = self.body.from_s
        if part.next_s <= begin_s:
            raise Internal(f"a window to {part.next_s} s where one from {begin_s} s on was due")
        for segment in part.segments:
            if not begin_s - _TICK_S <= segment.start_s <= segment.end_s:
                raise Internal(
                    f"a segment from {segment.start_s} s to {segment.end_s} s in the window from "
                    f"{begin_s} s on"
                )
            begin_s = segment.start_s

"""The client's part for transcripts: a file goes to the head, segments come as they are written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bus.api_maps import from_map
from bus.client_events import Ended, OtherEvent
from bus.client_files import Files
from bus.client_jobs import Jobs
from bus.errors import BlobMissing, Invalid, NoHead, WireError
from bus.messages.transcripts import SEGMENTS, SegmentsEvent, TranscriptEnd
from bus.messages.worker import SpokenSegment

#: How long a transcript may take unless the call says otherwise: as long as the longest audio.
TRANSCRIPT_TIMEOUT_S = 4 * 3600.0
#: How often in a row a head that went away is asked again before anything new came.
_TRIES = 3

#: Asks for what is said from a place on, in the language that was heard so far (or empty).
Ask = Callable[[float, str], Iterator[OtherEvent | Ended]]


class Transcription(Iterator[SpokenSegment]):
    """The segments of one file, as they come; after the last one its facts are there.

    A head that went away is asked again for what has not come, in the language of what came.

    Attributes:
        language: empty until it is known.
        duration_s: of the audio; 0.0 until the last segment was taken.
        next_s: all that is said before it has come.
        node: that wrote the last of it.
    """

    def __init__(self, ask: Ask, from_s: float) -> None:
        self._ask = ask
        self._events = ask(from_s, "")
        self._ready: deque[SpokenSegment] = deque()
        self._done = False
        self._tries = 0
        self.language = ""
        self.duration_s = 0.0
        self.next_s = from_s
        self.node = ""

    def __next__(self) -> SpokenSegment:
        while not self._ready:
            if self._done:
                raise StopIteration
            try:
                self._take(next(self._events))
            except (NoHead, BlobMissing) as error:
                self._again(error)
        return self._ready.popleft()

    def text(self) -> str:
        """All that is left to come, as one text; waits for it."""
        return " ".join(segment.text for segment in self)

    def close(self) -> None:
        """Cancel what has not come. May be called again."""
        self._done = True
        close = getattr(self._events, "close", None)
        if close is not None:
            close()

    def _again(self, error: NoHead | BlobMissing) -> None:
        """Ask for what has not come; to ask may fail in the same way."""
        while True:
            self._tries += 1
            if self._tries > _TRIES:
                raise error
            try:
                self._events = self._ask(self.next_s, self.language)
                return
            except (NoHead, BlobMissing) as once_more:
                error = once_more

    def _take(self, event: OtherEvent | Ended) -> None:
        try:
            if isinstance(event, Ended):
                end = from_map(TranscriptEnd, event.body)
                self.language, self.duration_s = end.language or self.language, end.duration_s
                self.node = str(event.body.get("node", ""))
                self._done = True
            elif event.type == SEGMENTS:
                some = from_map(SegmentsEvent, event.body)
                self.language, self.next_s = some.language or self.language, some.next_s
                self._ready += some.segments
                self._tries = 0
        except Invalid as error:
            raise WireError(f"the head sent a wrong transcript: {error.message}") from None


class Transcripts(Files, Jobs):
    """What `Client` has for it; it gives the connection."""

    def transcribe(
        self,
        model: str,
        file: str | Path,
        *,
        language: str = "",
        from_s: float = 0.0,
        timeout_s: float | None = None,
        **options: Any,
    ) -> Transcription:
        """Write down what is said in an audio file: WAV, FLAC or MP3.

        Args:
            model: a transcriber's name in the fleet.
            file: its path; it is put at the head when it is not there. A head that lost it, when
                it is asked for the rest, needs the same file once more.
            language: a code such as `en`; empty is the model's own, or what it hears.
            from_s: where to begin; `next_s` of an earlier transcription of the file.
            timeout_s: how long it may take from now on; 4 hours by default.
            **options: `qos`, `max_wall_ms`.

        Raises:
            Invalid: the file can not be read. What is wrong with its content, or with the model or
                the language, the segments tell; and that it changed, where it is needed again.
            SuperfluidError: anything else of docs/api.md.
        """
        limit = TRANSCRIPT_TIMEOUT_S if timeout_s is None else timeout_s
        until = self.clock() + limit
        sha256 = b""

        def ask(place: float, heard: str) -> Iterator[OtherEvent | Ended]:
            nonlocal sha256
            if sha256:
                self.put_again(file, sha256)
            else:
                sha256 = self.put_file(file)
            body = {"model": model, "sha256": sha256, "from_s": place, **options}
            body["language"] = language or heard
            return self._job_events("transcribe", body, max(0.0, until - self.clock()))

        return Transcription(ask, from_s)

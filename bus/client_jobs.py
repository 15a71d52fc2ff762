"""The client's part for what nodes do beside text: embeddings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bus.api_maps import from_map
from bus.call import Pump
from bus.client_events import Ended, Failed, OtherEvent
from bus.errors import Invalid, SuperfluidError, WireError
from bus.fields import kind_of
from bus.ids import RequestId
from bus.messages.api import DEFAULT_CREDIT
from bus.messages.embeddings import EMBEDDINGS, EmbeddingsEvent

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Jobs(Pump):
    """What `Client` has for it; it gives the connection."""

    @abstractmethod
    def _ask(
        self, op: str, body: Mapping[str, Any], timeout_s: float | None, credit: int
    ) -> RequestId:
        """Send a request for an answer."""

    def embed(
        self,
        model: str,
        texts: str | Sequence[str],
        *,
        pooling: str = "",
        normalize: bool | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> npt.NDArray[np.float32]:
        """Vectors of texts, which an encoder makes.

        Args:
            model: its name in the fleet.
            texts: 1 to 1,024 of them; one alone is a list of one.
            pooling: `mean` or `cls`; empty is as the model was trained.
            normalize: whether vectors have length 1; None is as the model was trained.
            timeout_s: how long it may take from now on.
            **options: `qos`, `max_wall_ms`.

        Returns:
            A vector of each text: float32 of shape (texts, dimensions). Needs numpy here.

        Raises:
            Invalid: a text is empty, the model makes no vectors; `param` is such as `input[3]`.
            ContextLengthExceeded: a text is longer than the model's window.
            SuperfluidError: anything else of docs/api.md.
        """
        numpy = _numpy()
        if not isinstance(texts, str | Sequence):
            raise Invalid(f"texts should be a list of texts, not {kind_of(texts)}", param="input")
        given = [texts] if isinstance(texts, str) else list(texts)
        body: dict[str, Any] = {"model": model, "input": given, "pooling": pooling, **options}
        if normalize is not None:
            body["normalize"] = normalize
        made: npt.NDArray[np.float32] | None = None
        missing = set(range(len(given)))
        for event in self._job_events("embed", body, timeout_s):
            if isinstance(event, OtherEvent) and event.type == EMBEDDINGS:
                some = _vectors(event)
                if made is None:
                    made = numpy.empty((len(given), some.dimension), numpy.float32)
                # An index tells where they belong, so they may come again after a reconnection.
                _put(made, some, numpy.frombuffer(some.vectors, "<f4"))
                missing.difference_update(range(some.index, some.index + some.count))
        if made is None or missing:
            raise WireError("the head ended embed without all vectors; are versions equal?")
        return made

    def _job_events(
        self, op: str, body: Mapping[str, Any], timeout_s: float | None
    ) -> Iterator[OtherEvent | Ended]:
        """What comes for a request that a job answers, its end last.

        Raises:
            SuperfluidError: what the head answered, or TimedOut, or NoHead.
        """
        request = self._ask(op, body, timeout_s, DEFAULT_CREDIT)
        try:
            while True:
                for event in self.session.take(request):
                    if isinstance(event, Failed):
                        raise event.error
                    if isinstance(event, Ended):
                        yield event
                        return
                    if isinstance(event, OtherEvent):
                        yield event
                self.pump(None)
        finally:
            # Nothing, once it has ended; a cancel when its reader goes away before.
            self.session.abandon(request)
            self._send_cancel()

    def _send_cancel(self) -> None:
        try:
            self.flush()
        except SuperfluidError:
            pass  # the head ends it by itself when the connection goes


def _put(
    made: npt.NDArray[np.float32], some: EmbeddingsEvent, values: npt.NDArray[np.float32]
) -> None:
    if some.index + some.count > len(made) or some.dimension != made.shape[1]:
        raise WireError("the head sent vectors that fit no text; are versions equal?")
    made[some.index : some.index + some.count] = values.reshape(some.count, some.dimension)


def _vectors(event: OtherEvent) -> EmbeddingsEvent:
    try:
        some = from_map(EmbeddingsEvent, event.body)
    except Invalid as error:
        raise WireError(f"the head sent a wrong embeddings event: {error.message}") from None
    if not some.count or not some.dimension or len(some.vectors) != 4 * some.count * some.dimension:
        raise WireError("the head sent an embeddings event with vectors of another length")
    return some


def _numpy() -> Any:
    try:
        import numpy
    except ImportError:
        raise Invalid("embed gives numpy arrays: install numpy here (pip install numpy)") from None
    return numpy

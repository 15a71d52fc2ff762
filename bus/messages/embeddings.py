"""What clients and the head say to each other about embeddings (docs/api.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from bus.errors import Invalid
from bus.fields import MaxBytes, OneOf
from bus.ids import ModelName
from bus.messages.api import MAX_BODY_BYTES, Qos
from bus.messages.job_bodies import POOLINGS
from bus.messages.parts import U32
from bus.messages.worker import MAX_EMBED_INPUTS

#: The type of the events that carry vectors.
EMBEDDINGS = "embeddings"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """`input` is a text, or a list of them; the rest is as the model was trained unless given."""

    model: ModelName
    input: Any
    pooling: Annotated[str, OneOf(POOLINGS)] = ""
    normalize: bool | None = None
    max_wall_ms: U32 = 0
    qos: Qos = "interactive"

    def texts(self) -> list[str]:
        """The texts of the input.

        Raises:
            Invalid: it is none, or one of them is no text or an empty one; `param` names it.
        """
        if isinstance(self.input, str):
            return [_checked(self.input, "input")]
        if not isinstance(self.input, list) or not self.input:
            raise Invalid("input should be a text, or a list of at least one", param="input")
        if len(self.input) > MAX_EMBED_INPUTS:
            raise Invalid(
                f"input has {len(self.input)} texts; at most {MAX_EMBED_INPUTS} are taken at once, "
                "send the rest as further requests",
                param="input",
            )
        return [_checked(text, f"input[{place}]") for place, text in enumerate(self.input)]


def _checked(text: object, param: str) -> str:
    if not isinstance(text, str):
        raise Invalid(f"{param} is no text; give texts, not token ids", param=param)
    if not text:
        raise Invalid(f"{param} is empty; leave it out", param=param)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsEvent:
    """Vectors of `count` inputs from the `index`-th on: float32, little-endian, one by one."""

    index: U32
    count: U32
    dimension: U32
    vectors: Annotated[bytes, MaxBytes(MAX_BODY_BYTES)]
    type: str = EMBEDDINGS

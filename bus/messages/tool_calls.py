"""A tool call as clients get it, in token events and at the end of an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bus.fields import MaxBytes, MaxItems

#: Calls in one event: a list of calls may be given when all of it is whole, however long it is. A
#: body of the API has no more.
MAX_CALLS = 262_144


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that a model made, given when it is whole.

    Attributes:
        index: its place among the calls of the answer, from 0.
        id: names it in the tool message that answers it; the same again for each reader.
        name: of the tool.
        arguments: JSON text of an object, typed by the tool's schema; `{}` for none.
    """

    index: int
    id: Annotated[str, MaxBytes(256)]
    name: Annotated[str, MaxBytes(1024)]
    arguments: Annotated[str, MaxBytes(8 * 1024 * 1024)]


ToolCalls = Annotated[tuple[ToolCall, ...], MaxItems(MAX_CALLS)]

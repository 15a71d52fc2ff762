"""What a finished request gives to the one who asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bus.api_maps import from_map
from bus.errors import Invalid, WireError
from bus.messages.api import AnswerUsage, Timing, TokenLogprob


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request's whole output.

    Attributes:
        text: all of its text.
        tokens: its token ids, the truth that the text is made from.
        finish: `stop`, `length`, `cancelled` or `expired`.
        usage: tokens of the prompt, found in a cache, made, and made again.
        timing: milliseconds from the head's acceptance, and the rate.
        node: the identity of the node that served the end of it.
        session: names it for `attach`.
        stop: the stop string that its text was cut at; None for every other end.
        logprobs: one for each token, when they were asked for.
    """

    text: str
    tokens: tuple[int, ...]
    finish: str
    usage: AnswerUsage
    timing: Timing
    node: str
    session: str
    stop: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `sfctl -o json` prints it; log-probabilities when there are some."""
        made = dataclasses.asdict(self, dict_factory=_plain)
        if not self.logprobs:
            del made["logprobs"]
        return made


def _plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A map for JSON: a token's bytes as numbers, left out where its text tells them."""
    made = dict(pairs)
    raw = made.pop("raw", None)
    return made if raw is None else {**made, "raw": list(raw)}


def read_answer(
    end: Mapping[str, Any],
    text: str,
    tokens: Sequence[int],
    logprobs: Sequence[TokenLogprob] = (),
) -> Answer:
    """The answer that an `end` reply closes.

    Args:
        end: the reply's body.
        text: all text, with the tail that the end carries.
        tokens: all token ids that came.
        logprobs: all of them that came.

    Raises:
        WireError: the end lacks something, or counts other tokens than came.
    """
    try:
        usage = from_map(AnswerUsage, _part(end, "usage"))
        timing = from_map(Timing, _part(end, "timing"))
        finish, node, session = (_name(end, key) for key in ("finish", "node", "session"))
        stop = _name(end, "stop") if end.get("stop") is not None else None
    except Invalid as error:
        raise WireError(f"the head sent a wrong end: {error.message}") from None
    return Answer(
        text=text,
        tokens=tuple(tokens),
        finish=finish,
        usage=usage,
        timing=timing,
        node=node,
        session=session,
        stop=stop,
        logprobs=tuple(logprobs),
    )


def _part(end: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = end.get(key)
    if not isinstance(part, dict):
        raise Invalid(f"{key} is missing", param=key)
    return part


def _name(end: Mapping[str, Any], key: str) -> str:
    name = end.get(key)
    if not isinstance(name, str):
        raise Invalid(f"{key} is missing", param=key)
    return name

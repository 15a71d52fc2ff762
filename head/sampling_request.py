"""From a request's own keys to the sampling parameters that go to a node and into the store.

What needs no tokenizer is checked here at once; ids are held against the vocabulary when the
model's tokenizer is known, and a constraint is compiled once in a text process (both in
head/admission.py). Every error names the parameter, and the id where there is one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from bus.errors import Invalid, TooLarge
from bus.fields import kind_of
from bus.ids import U32_MAX, ModelName, pack_ids, unpack_ids
from bus.messages.api import GenerationOptions
from bus.messages.sampling import (
    CONSTRAINT_KINDS,
    MAX_BIAS,
    MAX_CONSTRAINT_BYTES,
    MAX_STOP_BYTES,
    MAX_STOPS,
    MAX_TOP_LOGPROBS,
    Constraint,
    SamplingParams,
)

#: Kinds whose source is JSON; a caller may also give what that JSON says.
_JSON_KINDS = frozenset({"json_schema", "structural"})
#: How much of a caller's own words an error repeats.
_SHOWN = 40


def sampling_of(request: GenerationOptions) -> SamplingParams:
    """The sampling part of a request; seed None stays for the core to draw.

    Raises:
        Invalid, TooLarge: a parameter is not what it should be; names it.
    """
    if request.min_tokens > request.max_new:
        raise Invalid(
            f"min_tokens is {request.min_tokens} and max_new {request.max_new}; raise max_new",
            param="min_tokens",
        )
    biases = _biases(request.logit_bias or {})
    return SamplingParams(
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        min_p=request.min_p,
        seed=request.seed or 0,
        ignore_eos=request.ignore_eos,
        repetition_penalty=request.repetition_penalty,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        bias_ids=pack_ids(biases),
        biases=tuple(biases.values()),
        min_tokens=request.min_tokens,
        stop_ids=pack_ids(sorted(set(request.stop_ids))),
        stop=_stops(request.stop),
        logprobs=_logprobs(request.logprobs),
        constraint=_constraint(request),
    )


def check_ids(sampling: SamplingParams, model: ModelName, size: int) -> None:
    """Hold the token ids of sampling parameters against a vocabulary of `size` tokens.

    Raises:
        Invalid: one is outside; names it.
    """
    for param, packed in (("logit_bias", sampling.bias_ids), ("stop_ids", sampling.stop_ids)):
        check_below(unpack_ids(packed), size, param, model)


def constraint_param(request: GenerationOptions) -> str:
    """What the caller called its constraint, for an error about it."""
    return "schema" if request.schema is not None else "constraint"


def check_below(ids: Iterable[int], size: int, param: str, model: ModelName) -> None:
    """Hold token ids against a vocabulary of `size` tokens.

    Raises:
        Invalid: one is outside; names it.
    """
    highest = max(ids, default=0)
    if highest >= size:
        raise Invalid(
            f"{param} has id {highest}; {model} has ids 0 to {size - 1}; use this model's ids",
            param=param,
        )


def _shown(value: object) -> str:
    words = repr(value)
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}..."


# --- stops, biases, log-probabilities -------------------------------------------------------------


def _stops(given: Any) -> tuple[str, ...]:
    """Each stop once."""
    stops = [given] if type(given) is str else given
    if stops is None:
        return ()
    if type(stops) is not list:
        raise Invalid(
            f"stop should be a text or a list of texts, not {kind_of(given)}", param="stop"
        )
    if len(stops) > MAX_STOPS:
        raise Invalid(f"stop has {len(stops)} texts; at most {MAX_STOPS} are taken", param="stop")
    for place, stop in enumerate(stops):
        param = "stop" if stops is not given else f"stop[{place}]"
        if type(stop) is not str:
            raise Invalid(f"{param} should be text, not {kind_of(stop)}", param=param)
        if not stop:
            raise Invalid(f"{param} is empty; leave it out", param=param)
        if len(stop.encode()) > MAX_STOP_BYTES:
            raise Invalid(f"{param} is longer than {MAX_STOP_BYTES} bytes", param=param)
    return tuple(dict.fromkeys(stops))


def _biases(given: Mapping[Any, Any]) -> dict[int, float]:
    """What is added, by token id, ascending."""
    found: dict[int, float] = {}
    for key, value in given.items():
        token = _token_id(key)
        if token in found:
            raise Invalid(f"logit_bias has id {token} twice; give it once", param="logit_bias")
        found[token] = _bias(token, value)
    return dict(sorted(found.items()))


def _token_id(key: Any) -> int:
    if type(key) is not str or not (key.isascii() and key.isdecimal()):
        raise Invalid(
            f"logit_bias has {_shown(key)} as a token id; ids are whole numbers from 0",
            param="logit_bias",
        )
    # Of a number that is too long to be read, the beginning tells which one it is.
    if len(key) > 20 or int(key) > U32_MAX:
        raise Invalid(
            f"logit_bias has id {key[:_SHOWN]}, which no vocabulary has", param="logit_bias"
        )
    return int(key)


def _bias(token: int, value: Any) -> float:
    if type(value) is not int and type(value) is not float:
        raise Invalid(
            f"the logit_bias of id {token} should be a number, not {kind_of(value)}",
            param="logit_bias",
        )
    if not (math.isfinite(value) and abs(value) <= MAX_BIAS):
        raise Invalid(
            f"the logit_bias of id {token} is {value}; it should be {-MAX_BIAS:g} to {MAX_BIAS:g}",
            param="logit_bias",
        )
    return float(value)


def _logprobs(given: Any) -> int:
    """0 for none, else 1 + the number of others."""
    if given is None or given is False:
        return 0
    if given is True:
        return 1
    if type(given) is not int:
        raise Invalid(
            f"logprobs should be a whole number or true, not {kind_of(given)}", param="logprobs"
        )
    if not 0 <= given <= MAX_TOP_LOGPROBS:
        raise Invalid(
            f"logprobs is {given}; it should be 0 to {MAX_TOP_LOGPROBS}", param="logprobs"
        )
    return 1 + given


# --- constraints ----------------------------------------------------------------------------------


def _constraint(request: GenerationOptions) -> Constraint | None:
    if request.schema is not None:
        if request.constraint is not None:
            raise Invalid("give one of schema and constraint", param="schema")
        return _of_kind("json_schema", request.schema, "schema")
    if request.constraint is None:
        return None
    kinds = ", ".join(sorted(CONSTRAINT_KINDS))
    if len(request.constraint) != 1:
        raise Invalid(
            f"constraint should have one key, which is one of {kinds}", param="constraint"
        )
    ((kind, source),) = request.constraint.items()
    if kind not in CONSTRAINT_KINDS:
        raise Invalid(
            f"there is no constraint {_shown(kind)}; there are {kinds}", param="constraint"
        )
    return _of_kind(kind, source, f"constraint.{kind}")


def _of_kind(kind: str, given: Any, param: str) -> Constraint:
    if kind in _JSON_KINDS:
        source = _json_source(given, param)
    elif type(given) is str:
        source = given
    else:
        raise Invalid(f"{param} should be text, not {kind_of(given)}", param=param)
    if not source:
        raise Invalid(f"{param} is empty; leave it out for free text", param=param)
    if (size := len(source.encode())) > MAX_CONSTRAINT_BYTES:
        raise TooLarge(
            f"{param} has {size} bytes; at most {MAX_CONSTRAINT_BYTES} are taken", param=param
        )
    return Constraint(kind=kind, source=source)


def _json_source(given: Any, param: str) -> str:
    """The JSON text of what should be a JSON object, given as a map or as that text."""
    value = given
    if type(given) is str:
        try:
            value = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise Invalid(f"{param} is no JSON: {_first_line(error)}", param=param) from None
    if type(value) is not dict:
        what = f"the JSON of {kind_of(value)}" if value is not given else kind_of(given)
        raise Invalid(f"{param} should be a map, or its JSON text, not {what}", param=param)
    if value is not given:
        return str(given)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Invalid(f"{param} is no JSON: {_first_line(error)}", param=param) from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__

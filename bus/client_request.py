"""From what a caller gives the client to a request as it travels, wrong usage named at once."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from bus.errors import Invalid, TooLarge
from bus.fields import kind_of
from bus.ids import U32_MAX
from bus.messages.api import MAX_BODY_BYTES, GenerationOptions, encode_body
from bus.wrong_places import half_character

_OPTIONS = frozenset(f.name for f in dataclasses.fields(GenerationOptions)) - {"model"}
#: What other programs call some of them.
_ELSEWHERE = {
    "max_tokens": "max_new",
    "max_completion_tokens": "max_new",
    "max_new_tokens": "max_new",
    "n_predict": "max_new",
    "num_predict": "max_new",
    "response_format": "schema",
    "json_schema": "schema",
    "stop_sequences": "stop",
    "repeat_penalty": "repetition_penalty",
}


def prompt_keys(prompt: Any, tokens: Any) -> dict[str, Any]:
    """What a request for a continuation says of its beginning.

    Args:
        prompt: text, or token ids; None when `tokens` is given.
        tokens: token ids.

    Raises:
        Invalid: not exactly one is given, or it is neither text nor a list.
    """
    if (prompt is None) == (tokens is None):
        raise Invalid("give one of prompt (text, or token ids) and tokens (ids)", param="prompt")
    if isinstance(prompt, str):
        return {"prompt": prompt}
    param, ids = ("prompt", prompt) if tokens is None else ("tokens", tokens)
    if isinstance(ids, str | bytes | Mapping):
        raise Invalid(f"{param} should be a list of token ids, not {kind_of(ids)}", param=param)
    try:
        return {"tokens": list(ids)}
    except TypeError:
        raise Invalid(
            f"{param} should be token ids{' or text' * (param == 'prompt')}, not {kind_of(ids)}",
            param=param,
        ) from None


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """The messages of a conversation, as maps.

    Raises:
        Invalid: they are no list of maps.
    """
    example = '[{"role": "user", "content": "Hello"}]'
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise Invalid(
            f"messages should be a list of maps, not {kind_of(messages)}; such as {example}",
            param="messages",
        )
    given = list(messages)
    for place, message in enumerate(given):
        if not isinstance(message, Mapping):
            raise Invalid(
                f"messages[{place}] should be a map, not {kind_of(message)}; such as {example}",
                param=f"messages[{place}]",
            )
    return [dict(message) for message in given]


def checked_template(given: Any) -> dict[str, Any] | None:
    """Further variables for a model's chat template; None when none are given.

    Raises:
        Invalid: it is no map.
    """
    if given is not None and not isinstance(given, Mapping):
        raise Invalid(f"template should be a map, not {kind_of(given)}", param="template")
    return None if given is None else dict(given)


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those that are None, nor `n`, which is 1.

    The head passes over keys it does not know, so a misspelt one must be found here.

    Raises:
        Invalid: there is no such option, or ids of logit_bias are none.
    """
    asked = {name: value for name, value in options.items() if name != "n"}
    if options.get("n") not in (None, 1):
        raise Invalid("n is served for 1 only; send the request n times", param="n")
    for name in asked:
        if name not in _OPTIONS:
            raise Invalid(f"there is no option {name}; {_near_option(name)}", param=name)
    _check_bias(asked.get("logit_bias"))
    return {name: value for name, value in asked.items() if value is not None}


def _near_option(name: str) -> str:
    """What may be meant by an option that there is not."""
    near = [_ELSEWHERE[name]] if name in _ELSEWHERE else difflib.get_close_matches(name, _OPTIONS)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(_OPTIONS))}"


def _check_bias(given: Any) -> None:
    """Keys that can not travel are named here; whether a model has an id the head knows."""
    if given is None:
        return
    if not isinstance(given, Mapping):
        raise Invalid(
            f"logit_bias should be a map from token id to number, not {kind_of(given)}",
            param="logit_bias",
        )
    for key in given:
        if type(key) is not int and type(key) is not str:
            raise Invalid(
                f"logit_bias has {key!r} as a token id; ids are whole numbers from 0",
                param="logit_bias",
            )
        if type(key) is int and 0 <= key <= U32_MAX and str(key) in given:
            raise Invalid(f"logit_bias has id {key} twice; give it once", param="logit_bias")


def pack_request(body: Mapping[str, Any]) -> bytes:
    """A request's body as it travels.

    Raises:
        Invalid: a value can not travel, such as text with half of a surrogate pair.
        TooLarge: the body is over the API's limit.
    """
    try:
        packed = encode_body(dict(body))
    except (TypeError, ValueError, OverflowError) as error:
        for name, value in body.items():
            _check_packs(name, value)
        raise Invalid(f"the request can not be packed ({error})") from None
    if len(packed) > MAX_BODY_BYTES:
        raise TooLarge(
            f"the request has {len(packed)} bytes; the head takes at most {MAX_BODY_BYTES}"
        )
    return packed


def _check_packs(name: str, value: Any) -> None:
    try:
        encode_body({name: value})
    except UnicodeEncodeError:
        place = half_character({name: value}) or name
        raise Invalid(
            f"{place} has text with half of a surrogate pair, which is no character; remove it",
            param=place,
        ) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise Invalid(f"{name} can not be packed ({error})", param=name) from None

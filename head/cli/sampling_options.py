"""The options of one answer that `run` and `chat` share."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from bus.answer import Answer
from bus.ids import U32_MAX, U64_MAX, ModelName
from bus.messages.api import QOS_CLASSES, GenerationOptions, TopToken
from bus.messages.sampling import MAX_CONSTRAINT_BYTES, MAX_TOP_LOGPROBS
from head.cli.prompts import text_argument

#: Small models ramble at the API's 1.0.
TEMPERATURE = 0.2
MAX_TEMPERATURE = 100.0
_API_DEFAULTS = GenerationOptions(model=ModelName("any"))
F = TypeVar("F", bound=Callable[..., Any])


def _bias(given: str) -> tuple[int, float]:
    """A token id and what is added to its logit."""
    token, equals, number = given.partition("=")
    try:
        bias = (int(token), float(number))
    except ValueError:
        bias = (-1, math.nan)
    if not equals or not 0 <= bias[0] <= U32_MAX or not math.isfinite(bias[1]):
        raise click.BadParameter(f"{given!r} is not ID=V, such as 50256=-100.")
    return bias


def _schema(given: str) -> str:
    """JSON text, given as it is or in a file. What it may say is the head's to judge."""
    if not given.strip() or _json_problem(given) is None:
        return given
    source = given if given.lstrip().startswith("{") else _text_file(given)
    if problem := _json_problem(source):
        raise click.BadParameter(f"{given!r} is no JSON: {problem}.")
    return source


def _json_problem(text: str) -> str | None:
    """Why a text is no JSON; None when it is."""
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        return str(error)
    return None


def _text_file(given: str) -> str:
    """The text in a file."""
    if Path(given).is_dir():
        raise click.BadParameter(f"{given!r} is a folder; name a file in it.")
    try:
        with Path(given).open("rb") as file:
            return file.read(MAX_CONSTRAINT_BYTES + 1).decode()
    except OSError as error:
        raise click.BadParameter(f"{given!r} can not be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise click.BadParameter(f"{given!r} holds no UTF-8 text; convert it first.") from None


_OPTIONS = (
    click.option(
        "--max-new",
        type=click.IntRange(1, U32_MAX),
        show_default=str(_API_DEFAULTS.max_new),
        help="Most tokens of the answer.",
    ),
    click.option(
        "--min-tokens",
        type=click.IntRange(0, U32_MAX),
        show_default="0",
        help="Fewest tokens: neither the model's end nor a stop before.",
    ),
    click.option(
        "--temperature",
        type=click.FloatRange(0, MAX_TEMPERATURE),
        default=TEMPERATURE,
        show_default=True,
        help="0 takes the likeliest; 1.0 is the model's own variety.",
    ),
    click.option(
        "--top-p",
        type=click.FloatRange(0, 1),
        show_default="1.0",
        help="Draw from this much mass.",
    ),
    click.option(
        "--top-k",
        type=click.IntRange(0, U32_MAX),
        show_default="0, which is off",
        help="Draw from the k likeliest.",
    ),
    click.option(
        "--repetition-penalty",
        type=click.FloatRange(0.01, 100),
        show_default="1.0, which is off",
        help="Above 1: make tokens of prompt and answer less likely again.",
    ),
    click.option(
        "--presence-penalty",
        type=click.FloatRange(-100, 100),
        show_default="0, which is off",
        help="Taken off the logit of each token that the answer has.",
    ),
    click.option(
        "--frequency-penalty",
        type=click.FloatRange(-100, 100),
        show_default="0, which is off",
        help="The same, for each time that the answer has it.",
    ),
    click.option(
        "--logit-bias",
        type=_bias,
        multiple=True,
        metavar="ID=V",
        help="Add V to the logit of token ID; may be given several times.",
    ),
    click.option(
        "--stop",
        type=text_argument,
        multiple=True,
        metavar="TEXT",
        help="End the answer before this text; may be given several times.",
    ),
    click.option(
        "--schema",
        type=_schema,
        metavar="FILE|JSON",
        help="Answer in JSON that this JSON Schema describes.",
    ),
    click.option(
        "--regex",
        type=text_argument,
        metavar="REGEX",
        help="Answer in text that this regular expression matches.",
    ),
    click.option(
        "--grammar",
        type=_text_file,
        metavar="FILE",
        help="Answer in text of the Lark grammar in this file.",
    ),
    click.option(
        "--logprobs",
        type=click.IntRange(0, MAX_TOP_LOGPROBS),
        metavar="N",
        help="Tell each token's log-probability, and the N likeliest beside it.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, U64_MAX),
        show_default="drawn",
        help="Makes the draws repeatable.",
    ),
    click.option(
        "--qos",
        type=click.Choice(list(QOS_CLASSES)),
        show_default="interactive",
        help="How urgent it is.",
    ),
)


def sampling_options(command: F) -> F:
    """Give a command the options; it gets them as the client takes them."""

    @functools.wraps(command)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        return command(*arguments, **_as_asked(options))

    made: Any = wrapped
    for option in reversed(_OPTIONS):
        made = option(made)
    return made  # type: ignore[no-any-return]


def _as_asked(options: dict[str, Any]) -> dict[str, Any]:
    """What was not given is None, and there is one constraint."""
    asked = dict(options)
    asked["stop"] = list(asked["stop"]) or None
    asked["logit_bias"] = dict(asked["logit_bias"]) or None
    regex, lark = asked.pop("regex"), asked.pop("grammar")
    if sum(given is not None for given in (asked["schema"], regex, lark)) > 1:
        raise click.UsageError("Give one of --schema, --regex and --grammar.")
    kinds = {"regex": regex, "lark": lark}
    asked["constraint"] = {k: source for k, source in kinds.items() if source is not None} or None
    return asked


def logprob_lines(answer: Answer) -> list[str]:
    """A line for each token: its log-probability, its text, and the likeliest at its place."""
    return [
        f"{one.logprob:9.4f}  {one.text!r:16}  {_listed(one.top)}".rstrip()
        for one in answer.logprobs
    ]


def _listed(top: Sequence[TopToken]) -> str:
    return "  ".join(f"{one.text!r} {one.logprob:.4f}" for one in top)

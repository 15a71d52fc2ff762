"""`explain`: where the head would place a request now, and why not on the other nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from bus.messages.api import MAX_PROMPT_TOKENS, QOS_CLASSES
from head.cli.context import CliContext, pass_context
from head.cli.nodes import EXIT_NOT_HEALTHY
from head.cli.output import format_option, human_age, note, print_json, print_rows

_COLUMNS = ("node", "verdict", "busy", "cached", "estimate", "reason")
#: Lengths that a request may have, in tokens.
_LENGTH = click.IntRange(1, MAX_PROMPT_TOKENS)
#: Milliseconds from which an estimate is shown in seconds.
_SECONDS_FROM_MS = 10_000


@click.command()
@click.argument("model", required=False)
@click.option("--tokens", type=_LENGTH, help="The prompt's length.  [default: 256]")
@click.option("--session", help="Go on from this session; no MODEL is needed then.")
@click.option(
    "--max-new",
    type=_LENGTH,
    default=256,
    show_default=True,
    help="The answer's length.",
)
@click.option("--qos", type=click.Choice(tuple(QOS_CLASSES)), help="The request's class.")
@format_option
@pass_context
def explain(
    context: CliContext,
    model: str | None,
    tokens: int | None,
    session: str | None,
    max_new: int,
    qos: str | None,
    form: str,
) -> None:
    """Say where a request for MODEL would go now, and why not elsewhere.

    Nothing is run. BUSY is generations on lanes, CACHED the tokens of the prompt that the node
    should hold already, ESTIMATE when it should be through.
    """
    if model is None and session is None:
        raise click.UsageError("Name a MODEL, or a session with --session.")
    if tokens is not None and session is not None:
        raise click.UsageError("Give one of --tokens and --session.")
    wanted = {"model": model, "prompt_tokens": tokens, "session": session, "qos": qos}
    asked: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    with context.client() as client:
        found = client.operation("explain", max_new=max_new, **asked)
    if form == "json":
        print_json(found)
    else:
        print_rows([_row(node, found) for node in found["nodes"]], _COLUMNS, form)
        for line in verdict(found):
            note(line)
    if found["error"] is not None:
        raise SystemExit(EXIT_NOT_HEALTHY)


def verdict(found: Mapping[str, Any]) -> list[str]:
    """What the head would do, and what waits before it, one sentence each.

    Args:
        found: what the operation `explain` answers.
    """
    what = f"{found['prompt_tokens']} tokens of prompt and {found['max_new']} of answer"
    if found["error"] is not None:
        lines = [f"it would be refused: {found['error']['message']}"]
    elif found["node"] is not None:
        lines = [f"{what} would go to {found['node']} ({found['policy']})"]
    elif found["waits_for"] is not None:
        lines = [
            f"{what} would wait for {found['waits_for']}, which holds the prompt's beginning, for "
            f"{found['wait_s']:.1f} s at most"
        ]
    else:
        lines = [f"{what} would wait: every node that could take it is full"]
    queue = found["queue"]
    if queue["waiting"]:
        lines.append(f"{queue['waiting']} wait for {found['model']}: {_classes(queue['classes'])}")
        lines.append(f"{queue['position']} of them would go before a new {queue['qos']} request")
    return lines


def _classes(classes: list[dict[str, Any]]) -> str:
    return ", ".join(
        f"{each['waiting']} {each['qos']} (the oldest for {human_age(each['oldest_s'])})"
        for each in classes
        if each["waiting"]
    )


def _row(node: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    busy = ""
    if node["lanes_total"] is not None:
        busy = f"{node['in_flight']}/{node['lanes_total']}"
    word = "waited for" if node["node"] == found["waits_for"] else "passed over"
    return {
        "node": node["node"],
        "verdict": "chosen" if node["chosen"] else word,
        "busy": busy,
        "cached": node["cached_tokens"] or None,
        "estimate": _human_ms(node["estimate_ms"]),
        "reason": node["reason"],
    }


def _human_ms(milliseconds: float | None) -> str:
    if milliseconds is None:
        return ""
    if milliseconds >= _SECONDS_FROM_MS:
        return f"{milliseconds / 1000:.1f} s"
    return f"{milliseconds:.0f} ms"

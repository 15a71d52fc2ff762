"""`run` and `chat`: ask a model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from bus.answer import Answer
from bus.call import Call, Placed, Queued, Token
from bus.errors import Invalid, SuperfluidError
from bus.messages.api import QOS_CLASSES
from head.cli.context import CliContext, pass_context
from head.cli.output import format_option, note, print_error, print_json

_PROMPT = "> "
F = TypeVar("F", bound=Callable[..., Any])


def sampling_options(command: F) -> F:
    """The options of one answer that `run` and `chat` share."""
    for option in (
        click.option("--qos", type=click.Choice(list(QOS_CLASSES)), help="How urgent it is."),
        click.option("--seed", type=int, help="Makes the draws repeatable."),
        click.option("--top-k", type=click.IntRange(min=0), help="Draw from the k likeliest."),
        click.option("--top-p", type=click.FloatRange(0, 1), help="Draw from this much mass."),
        click.option("--temperature", type=click.FloatRange(min=0), help="0 takes the likeliest."),
        click.option("--max-new", type=click.IntRange(min=1), help="Most tokens of the answer."),
    ):
        command = option(command)
    return command


def print_stream(call: Call) -> Answer:
    """Print an answer's text as it comes; gives the whole answer."""
    with call.stream() as stream:
        for event in stream:
            if isinstance(event, Token):
                click.echo(event.text, nl=False)
                sys.stdout.flush()
            elif isinstance(event, Queued) and sys.stderr.isatty():
                note(f"queued, position {event.position}")
            elif isinstance(event, Placed) and sys.stderr.isatty():
                note(f"placed on {event.node}")
        return stream.result()


def summary(answer: Answer) -> str:
    """One line: who served it, how much, how fast, and how it ended."""
    return (
        f"[{answer.node}: {answer.usage.completion} tokens, {answer.timing.tokens_per_s:.1f} "
        f"tokens/s, first after {answer.timing.first_token_ms:.0f} ms, {answer.finish}]"
    )


@click.command()
@click.argument("model")
@click.argument("prompt", required=False)
@click.option("--raw", is_flag=True, help="Continue the text as it is, without a chat template.")
@click.option("--system", help="A system message to begin with.")
@sampling_options
@format_option
@pass_context
def run(
    context: CliContext,
    /,
    model: str,
    prompt: str | None,
    raw: bool,
    system: str | None,
    form: str,
    **options: Any,
) -> None:
    """Ask MODEL once; the PROMPT may come from stdin."""
    if prompt is None or prompt == "-":
        prompt = sys.stdin.read()
    if not prompt.strip():
        raise Invalid("the prompt is empty; give it as an argument or on stdin", param="prompt")
    if raw and system:
        raise click.UsageError("--system needs the chat template, which --raw leaves out.")
    with context.client() as client:
        if raw:
            call = client.generate(model, prompt, **options)
        else:
            call = client.chat(model, _messages(system, prompt), **options)
        if form == "json":
            print_json(call.result().to_dict())
            return
        answer = print_stream(call)
        click.echo()
        note(summary(answer))


@click.command()
@click.argument("model")
@click.option("--system", help="A system message to begin with.")
@sampling_options
@pass_context
def chat(context: CliContext, /, model: str, system: str | None, **options: Any) -> None:
    """Talk with MODEL. Ctrl-C stops the answer; Ctrl-D ends the chat."""
    messages = _messages(system)
    with context.client() as client:
        while (line := _read_line()) is not None:
            if not line.strip():
                continue
            messages.append({"role": "user", "content": line})
            call = client.chat(model, messages, **options)
            try:
                answer = print_stream(call)
            except KeyboardInterrupt:
                click.echo()
                note("stopped")
                messages.append({"role": "assistant", "content": call.text})
                continue
            except SuperfluidError as error:
                if not sys.stdin.isatty():
                    raise
                print_error(error.message)
                messages.pop()
                continue
            click.echo()
            note(summary(answer))
            messages.append({"role": "assistant", "content": answer.text})


def _messages(system: str | None, prompt: str | None = None) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": system}] if system else []
    if prompt is not None:
        messages.append({"role": "user", "content": prompt})
    return messages


def _read_line() -> str | None:
    """The next line of the person, None at the end."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.rstrip("\n") if line else None
    try:
        import readline  # noqa: F401 - gives input() line editing and history
    except ImportError:
        pass
    try:
        return input(_PROMPT)
    except EOFError:
        click.echo()
        return None

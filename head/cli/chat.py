"""`run` and `chat`: ask a model."""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from bus.answer import Answer
from bus.call import Call, Placed, Queued, Token
from bus.client import Client
from bus.client_events import OtherEvent, StreamEvent
from bus.errors import Invalid, NotFound, SuperfluidError
from bus.tool_results import Message, ToolResult
from head.cli.channels import ChannelPrinter, tools_option
from head.cli.context import CliContext, pass_context
from head.cli.logs import EXIT_INTERRUPTED
from head.cli.output import format_option, note, print_error, print_json
from head.cli.prompts import Lines, text_argument, whole_prompt
from head.cli.sampling_options import logprob_lines, sampling_options
from head.model_kinds import NO_TEXT, makes_no_text

#: Lines that end a chat.
_GOODBYES = frozenset({"/exit", "/quit"})


def print_stream(call: Call) -> Answer:
    """Print an answer as it comes; gives the whole of it."""
    printer = ChannelPrinter()
    with call.stream() as stream:
        for event in stream:
            if isinstance(event, Token):
                printer.print(event)
            elif sys.stderr.isatty() and (text := event_note(event)):
                if call.text and not call.text.endswith("\n"):
                    click.echo(err=True)
                note(text)
        return stream.result()


def event_note(event: StreamEvent) -> str:
    """What a person is told of an event beside tokens; empty for nothing."""
    if isinstance(event, Queued):
        return f"queued, position {event.position}"
    if isinstance(event, Placed):
        return f"placed on {event.node}, session {event.session}"
    if isinstance(event, OtherEvent) and event.type == "moved":
        came, goes, why = (str(event.body.get(key) or "") for key in ("from", "to", "reason"))
        on = "goes on there again" if came == goes else f"goes on on {goes}"
        return f"moved: {came} was lost{why and f' ({why})'}; the answer {on}"
    return ""


def summary(answer: Answer) -> str:
    """One line: who served it, how much, how fast, how it ended, and what `attach` takes.

    What a head does not know any more, since it was restarted meanwhile, is left out.
    """
    told = [f"{answer.usage.completion} tokens"]
    if answer.timing.tokens_per_s:
        told.append(f"{answer.timing.tokens_per_s:.1f} tokens/s")
    if answer.timing.first_token_ms:
        told.append(f"first after {answer.timing.first_token_ms:.0f} ms")
    return f"[{answer.node}: {', '.join(told)}, {answer.finish}; session {answer.session}]"


@click.command()
@click.argument("model", type=text_argument)
@click.argument("prompt", type=text_argument, required=False)
@click.option("--raw", is_flag=True, help="Continue the text as it is, without a chat template.")
@click.option("--system", type=text_argument, help="A system message to begin with.")
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
    """Ask MODEL once.

    The PROMPT may come from stdin; what is piped in beside a PROMPT follows it.
    """
    if raw and system:
        raise click.UsageError("--system needs the chat template, which --raw leaves out.")
    if prompt in (None, "-") and sys.stdin.isatty():
        # Before somebody types a prompt for nothing.
        with context.client() as client:
            _check_model(client, model)
    prompt = whole_prompt(prompt)
    with context.client() as client:
        if raw:
            call = client.generate(model, prompt, **options)
        else:
            call = client.chat(model, _messages(system, prompt), **options)
        try:
            answer = call.result() if form == "json" else print_stream(call)
        except NotFound as error:
            if error.param == "model":
                _check_model(client, model)
            raise
        if form == "json":
            print_json(answer.to_dict())
            return
        _print_end(answer)


@click.command()
@click.argument("model", type=text_argument)
@click.option("--system", type=text_argument, help="A system message to begin with.")
@tools_option
@sampling_options
@pass_context
def chat(context: CliContext, /, model: str, system: str | None, **options: Any) -> None:
    """Talk with MODEL. Ctrl-C stops the answer; Ctrl-D, /exit or /quit ends the chat.

    With --tools, the line after a call is its result.
    """
    messages = _messages(system)
    with context.client() as client:
        _check_chats(client, model)
        lines = Lines()
        while (line := _next_line(lines)) is not None:
            if line.strip() in _GOODBYES:
                break
            if not line.strip():
                continue
            said = [{"role": "user", "content": line}]
            while said:
                said = _answer(client, model, messages, said, options, lines)


def _next_line(lines: Lines) -> str | None:
    try:
        return lines.next()
    except KeyboardInterrupt:
        # Asked for twice; there is nothing to complain of.
        click.get_current_context().exit(EXIT_INTERRUPTED)


def _answer(
    client: Client,
    model: str,
    messages: list[Message],
    said: list[Message],
    options: dict[str, Any],
    lines: Lines,
) -> list[Message]:
    """Print the answer to what was said and add both; gives the results of its calls.

    Without an answer, nothing is added.
    """
    call = client.chat(model, [*messages, *said], **options)
    try:
        answer = print_stream(call)
    except KeyboardInterrupt:
        click.echo()
        note("stopped")
        messages += [*said, {"role": "assistant", "content": call.text}]
        return []
    except SuperfluidError as error:
        if not sys.stdin.isatty():
            raise
        print_error(error.message)
        return []
    _print_end(answer)
    messages += [*said, answer.message()]
    return _results(answer, lines) if answer.finish == "tool_calls" else []


def _results(answer: Answer, lines: Lines) -> list[Message]:
    """What the person says that the calls of an answer gave."""
    results = []
    for made in answer.tool_calls:
        note(f"the result of {made.name}, in one line:")
        line = _next_line(lines)
        if line is None:
            return []
        results.append(ToolResult(call=made, content=line).message())
    return results


def _print_end(answer: Answer) -> None:
    """What follows an answer's text."""
    if not answer.tool_calls:
        click.echo()
    for line in logprob_lines(answer):
        click.echo(line)
    note(summary(answer))


def _check_model(client: Client, model: str) -> Mapping[str, Any]:
    """See that the fleet knows a model; gives what the head says of it.

    Raises:
        NotFound: it does not.
    """
    known = {str(each.get("name")): each for each in client.models()}
    if model not in known:
        raise NotFound(unknown_model(model, list(known)), param="model")
    return known[model]


def _check_chats(client: Client, model: str) -> None:
    """See that a model can be talked with, before somebody types.

    Raises:
        NotFound: the fleet does not know it.
        Invalid: it answers no text, or has no chat template.
    """
    found = _check_model(client, model)
    if (kind := str(found.get("kind"))) in NO_TEXT:
        raise makes_no_text(model, kind)
    # Of a model that the head has not described yet, the first answer tells.
    if found.get("kind") and not found.get("chat_template"):
        raise Invalid(
            f"model {model} has no chat template, as base models have none; complete a text with: "
            f"sfctl run --raw {shlex.quote(model)} TEXT",
            param="model",
        )


def unknown_model(model: str, known: Sequence[str]) -> str:
    """The sentence for a model that the fleet does not have.

    Args:
        known: names of those that it has.
    """
    fact = f"the fleet has no model {model!r} (it has: {', '.join(known) or 'none'})"
    if not known:
        return f"{fact}; get one with: sfctl model import smollm2"
    near = difflib.get_close_matches(model, known, n=1)
    if near:
        return f"{fact}; did you mean {near[0]}? Talk with it: sfctl chat {shlex.quote(near[0])}"
    return f"{fact}; name one of these"


def _messages(system: str | None, prompt: str | None = None) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    if prompt is not None:
        messages.append({"role": "user", "content": prompt})
    return messages

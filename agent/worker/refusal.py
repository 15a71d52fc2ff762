"""How a worker says that it does not do what it was asked for."""

from __future__ import annotations

from bus.errors import SuperfluidError
from bus.ids import GenerationId
from bus.messages.parts import Finish, Usage
from bus.messages.worker import EmbedFailed, OutputRun, Submit

#: Characters of a message; an agent reads 2,048 bytes at most, and a character has up to four.
_LONGEST = 500


def shown(text: str) -> str:
    """What fits a message, whatever is named in it."""
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def refused_run(submit: Submit, error: SuperfluidError) -> OutputRun:
    """The end of a generation that no node can serve with this model."""
    finish = Finish(
        reason="refused",
        error_code=error.code,
        message=shown(error.message),
        param=error.param or "",
        usage=Usage(prompt_tokens=submit.prompt_tokens),
    )
    return OutputRun(generation=submit.generation, first_index=0, finish=finish)


def embed_failed(job: GenerationId, error: SuperfluidError) -> EmbedFailed:
    """The answer to a job that gets no vectors."""
    return EmbedFailed(
        job=job,
        code=error.code,
        message=shown(error.message),
        param=error.param or "",
        length=error.details.get("length", 0),
        max=error.details.get("max", 0),
    )

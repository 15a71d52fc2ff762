"""How a worker says that it does not do what it was asked for."""

from __future__ import annotations

from typing import Any

from bus.errors import Invalid, SuperfluidError
from bus.ids import GenerationId
from bus.messages.parts import Finish, Usage
from bus.messages.worker import EmbedFailed, OutputRun, Rejected, Submit, TranscribeFailed

#: Characters of a message; an agent reads 2,048 bytes at most, and a character has up to four.
_LONGEST = 500

NON_FINITE_LOGITS = (
    "the model gave logits that are no numbers; if it does so again, check the model folder with "
    "`sfctl model ls` or import the model again"
)


def shown(text: str) -> str:
    """What fits a message, whatever is named in it."""
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def fault_finish(reason: str, error: SuperfluidError, usage: Usage) -> Finish:
    """The end of a generation by a fault; `reason` is `error` or `refused`."""
    return Finish(
        reason=reason,
        error_code=error.code,
        message=shown(error.message),
        param=error.param or "",
        usage=usage,
    )


def refused_run(submit: Submit, error: SuperfluidError) -> OutputRun:
    """The end of a generation that no node can serve with this model."""
    finish = fault_finish("refused", error, Usage(prompt_tokens=submit.prompt_tokens))
    return OutputRun(generation=submit.generation, first_index=0, finish=finish)


def _told(error: SuperfluidError) -> dict[str, Any]:
    """What every refusal says of its error."""
    return {
        "code": error.code,
        "message": shown(error.message),
        "param": error.param or "",
        "length": error.details.get("length", 0),
        "max": error.details.get("max", 0),
    }


def rejected(generation: GenerationId, error: SuperfluidError) -> Rejected:
    """The answer to a submit that another node may take."""
    return Rejected(
        generation=generation,
        **_told(error),
    )


def embed_failed(job: GenerationId, error: SuperfluidError) -> EmbedFailed:
    """The answer to a job that gets no vectors."""
    return EmbedFailed(
        job=job,
        **_told(error),
    )


def transcribe_failed(job: GenerationId, error: SuperfluidError) -> TranscribeFailed:
    """The answer to a job of which nothing more comes."""
    return TranscribeFailed(
        job=job,
        **_told(error),
    )


def hears_nothing(model: str) -> Invalid:
    """The error of audio for a model that is no transcriber."""
    return Invalid(
        f"model {model} hears no audio; choose a transcriber, such as whisper-tiny-en",
        param="model",
    )

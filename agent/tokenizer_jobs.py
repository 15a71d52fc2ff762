"""Gives the head the files that a model's texts go by; a thread reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agent.models.writer import check_name
from bus.agent_jobs import JobHandler, RunningJob
from bus.closing import Closing
from bus.errors import SuperfluidError, TokenizerUnavailable
from bus.file_thread import FileThread
from bus.messages.job_bodies import unpack_body
from bus.text.tokenizer_export import TokenizerBody, export_parts
from bus.text.tokenizer_files import read_tokenizer_files, text_digest


class TokenizerJobs(JobHandler, Closing):
    """The handler of jobs of kind `tokenizer`. Watch `fileno`, then call `settle`.

    Args:
        models: the folder of model folders.
    """

    def __init__(self, models: Path) -> None:
        self._models = models
        self._thread = FileThread("tokenizer-files")

    def fileno(self) -> int:
        """Becomes readable when `settle` has something to do."""
        return self._thread.fileno()

    def settle(self) -> None:
        """Give what was read."""
        self._thread.finish()

    def close(self) -> None:
        """End the thread. May be called again."""
        self._thread.close()

    def start(self, job: RunningJob, now: float) -> None:
        wanted = unpack_body(TokenizerBody, job.body).text_digest
        folder = self._models / check_name(job.model)
        files, problems = dict[str, bytes](), list[SuperfluidError]()

        def read() -> None:
            try:
                files.update(_read(folder, wanted))
            except SuperfluidError as problem:
                problems.append(problem)

        def done(error: OSError | None) -> None:
            if error is not None:
                problems.append(TokenizerUnavailable(f"{folder} can not be read ({error})"))
            if problems:
                job.fail(problems[0])
            else:
                job.parts_from(export_parts(files))

        self._thread.submit(read, done)


def _read(folder: Path, wanted: int) -> Mapping[str, bytes]:
    files = read_tokenizer_files(folder)
    if text_digest(files) != wanted:
        raise TokenizerUnavailable(
            f"the files of {folder.name} have changed since its worker loaded it; unload it and "
            "load it again"
        )
    return files

"""`backup`: a copy of the head's store, made beside its work."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated

from bus.api_maps import from_map
from bus.errors import Invalid
from bus.fields import MaxBytes, Range
from head.effects import BackUp
from head.operation import ApiRequest, Core

#: A path of Linux.
MAX_PATH_BYTES = 4096
MAX_KEPT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupRequest:
    """`file` is an absolute path on the head's machine; without one the store's own folder.

    `keep` is how many backups stay in that folder, 0 for all; older ones are removed.
    """

    file: Annotated[str, MaxBytes(MAX_PATH_BYTES)] | None = None
    keep: Annotated[int, Range(0, MAX_KEPT)] = 0


class StoreOperations:
    """The operations on the store, over the head's core. Owned by the API."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def backup(self, request: ApiRequest, now: float) -> None:
        """Have a copy made of all that is durable when this request's turn has come."""
        asked = from_map(BackupRequest, request.body)
        if asked.file is not None:
            if not PurePosixPath(asked.file).is_absolute() or "\0" in asked.file:
                raise Invalid(
                    "file is no absolute path; it is one on the head's machine", param="file"
                )
            if asked.keep:
                raise Invalid("keep counts what is in the store's own folder; leave file out")
        self._core.outbox.back_up(
            BackUp(
                client=request.client, request=request.id, file=asked.file or "", keep=asked.keep
            )
        )

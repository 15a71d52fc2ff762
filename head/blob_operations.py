"""The operations on files: put_blob, has_blob, media.probe."""

from __future__ import annotations

from bus.api_maps import from_map
from bus.messages.api import HasBlobRequest, PutBlobRequest
from head.operation import ApiRequest, Core
from head.uploads import check_hash


class BlobOperations:
    """Owned by the API; works on the head's core."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def put_blob(self, request: ApiRequest, now: float) -> None:
        asked = from_map(PutBlobRequest, request.body)
        self._core.uploads.put(request, asked, now)

    def has_blob(self, request: ApiRequest, now: float) -> None:
        asked = from_map(HasBlobRequest, request.body)
        length = self._core.uploads.length(asked.sha256)
        self._core.outbox.reply(request.end({"has": length is not None, "length": length or 0}))

    def probe(self, request: ApiRequest, now: float) -> None:
        asked = from_map(HasBlobRequest, request.body)
        check_hash(asked.sha256)
        self._core.outbox.reply(request.end(self._core.media.probe(asked.sha256)))

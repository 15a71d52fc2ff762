"""The client's part for files beside requests: each is put once, under its hash."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from bus.call import Pump
from bus.errors import Invalid
from bus.ids import RequestId
from bus.messages.api import MAX_BLOB_PART_BYTES

PUT_BLOB = "put_blob"
#: Parts that are on their way before the first of them is answered.
_AHEAD = 8


class Files(Pump):
    """What `Client` has for it; it gives the connection."""

    @abstractmethod
    def operation(self, op: str, /, timeout_s: float | None = None, **body: Any) -> dict[str, Any]:
        """An operation that is answered by one reply."""

    @abstractmethod
    def _put(self, body: Mapping[str, Any], part: bytes) -> RequestId:
        """Send a part of a file."""

    @abstractmethod
    def _reply(self, request: RequestId) -> dict[str, Any]:
        """Wait for the one reply of a request."""

    def put_file(self, path: str | Path) -> bytes:
        """Put a file at the head, for requests that name it; a file that is there is not sent.

        Args:
            path: of the file.

        Returns:
            Its SHA-256, by which requests name it.

        Raises:
            Invalid: it can not be read.
            SuperfluidError: the head does not take it, for example since it is too large.
        """
        try:
            with Path(path).open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").digest()
                if not self._is_there(sha256):
                    self._send_parts(file, sha256, file.tell())
        except OSError as error:
            raise _unreadable(path, error) from error
        return sha256

    def put_again(self, path: str | Path, sha256: bytes) -> None:
        """Put a file that was put before, at a head that may have lost it.

        Args:
            sha256: that it had.

        Raises:
            Invalid: the head has not got it, and the file can not be read or is another by now.
            SuperfluidError: the head does not take it.
        """
        if self._is_there(sha256):
            return
        try:
            with Path(path).open("rb") as file:
                if hashlib.file_digest(file, "sha256").digest() != sha256:
                    raise Invalid(
                        f"{path} changed since it was put at the head, which has lost it; begin "
                        "with the file as it is now anew",
                        param="file",
                    )
                self._send_parts(file, sha256, file.tell())
        except OSError as error:
            raise _unreadable(path, error) from error

    def _is_there(self, sha256: bytes) -> bool:
        return bool(self.operation("has_blob", sha256=sha256).get("has"))

    def _send_parts(self, file: BinaryIO, sha256: bytes, length: int) -> None:
        waiting: deque[RequestId] = deque()
        file.seek(0)
        try:
            for offset in range(0, max(length, 1), MAX_BLOB_PART_BYTES):
                part = file.read(MAX_BLOB_PART_BYTES)
                body = {"sha256": sha256, "length": length, "offset": offset}
                waiting.append(self._put(body, part))
                if len(waiting) > _AHEAD:
                    self._reply(waiting.popleft())
            while waiting:
                self._reply(waiting.popleft())
        finally:
            for request in waiting:
                self.session.abandon(request)


def _unreadable(path: str | Path, error: OSError) -> Invalid:
    return Invalid(f"{path} can not be read ({error.strerror})", param="file")

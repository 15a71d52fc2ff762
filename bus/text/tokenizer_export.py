"""A model's tokenizer on its way from a node to the head: the parts of a job of kind `tokenizer`.

The first part lists the files and their sizes; the others are their bytes, one after the other.
The head takes nothing on trust: names are of a fixed list, sizes within its limits, and what came
has to have the digest that the node's status named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from bus.errors import DecodeError, Invalid, SuperfluidError, TokenizerUnavailable
from bus.fields import MaxBytes, MaxItems
from bus.messages.job_bodies import pack_body, unpack_body
from bus.messages.link_jobs import MAX_PART_BYTES
from bus.messages.parts import U63
from bus.text.model_files import TOKENIZER
from bus.text.tokenizer_files import LIMITS, MIB, facts_of, text_digest

#: The kind of job.
TOKENIZER_JOB = "tokenizer"
#: All files together.
MAX_TOTAL_BYTES = 128 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerBody:
    """What is asked for: the files of the model that the node serves now, with these digests."""

    digest: int
    text_digest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSize:
    name: Annotated[str, MaxBytes(64)]
    size: U63


@dataclass(frozen=True, slots=True, kw_only=True)
class FileList:
    """The first part."""

    files: Annotated[tuple[FileSize, ...], MaxItems(len(LIMITS))]


def export_parts(files: Mapping[str, bytes]) -> Iterator[bytes]:
    """The parts for some files."""
    sizes = tuple(FileSize(name=name, size=len(data)) for name, data in files.items())
    yield pack_body(FileList(files=sizes))
    for data in files.values():
        for start in range(0, len(data), MAX_PART_BYTES):
            yield data[start : start + MAX_PART_BYTES]


class TokenizerIntake:
    """Takes the parts of one export.

    Args:
        expected: the text digest that the files have to have.
    """

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._sizes: tuple[FileSize, ...] | None = None
        self._data = bytearray()
        self._total = 0

    def take(self, part: bytes) -> None:
        """Take the next part.

        Raises:
            TokenizerUnavailable: it is not what it should be; nothing more of this export counts.
        """
        if self._sizes is None:
            self._sizes = _checked(part)
            self._total = sum(file.size for file in self._sizes)
            return
        if not part:
            raise _refused("a part of it is empty")
        if len(self._data) + len(part) > self._total:
            raise _refused(f"it goes on behind the {self._total} bytes that it listed")
        self._data += part

    def finish(self) -> dict[str, bytes]:
        """The files, once all parts came; some 0.1 s for the largest, so not in a loop.

        Raises:
            TokenizerUnavailable: some are missing, or they are others than the node's status names.
        """
        if self._sizes is None or len(self._data) != self._total:
            raise _refused(f"it ended after {len(self._data)} of {self._total} bytes")
        files, start = dict[str, bytes](), 0
        whole = memoryview(self._data)
        for file in self._sizes:
            data = bytes(whole[start : start + file.size])
            start += file.size
            try:
                files[file.name] = facts_of(file.name, data)
            except SuperfluidError as error:
                raise _refused(error.message) from None
        if text_digest(files) != self._expected:
            raise _refused("its digest is not the one that the node's status names")
        return files


def _checked(part: bytes) -> tuple[FileSize, ...]:
    try:
        listed = unpack_body(FileList, part).files
    except (DecodeError, Invalid) as error:
        raise _refused(f"its list of files can not be read ({error.message})") from None
    names = [file.name for file in listed]
    if len(set(names)) != len(names) or not LIMITS.keys() >= set(names):
        raise _refused("it lists files that are no part of a tokenizer")
    if TOKENIZER not in names:
        raise _refused(f"it has no {TOKENIZER}")
    for file in listed:
        if file.size > LIMITS[file.name]:
            raise _refused(
                f"{file.name} has {file.size} bytes; at most {LIMITS[file.name]} are taken"
            )
    if sum(file.size for file in listed) > MAX_TOTAL_BYTES:
        raise _refused(f"all files have more than {MAX_TOTAL_BYTES} bytes")
    return listed


def _refused(fact: str) -> TokenizerUnavailable:
    return TokenizerUnavailable(
        f"the tokenizer that a node gave is refused: {fact}; import the model on the head's machine"
    )

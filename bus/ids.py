"""Identifiers: what names what, and how the numbers are made.

Epochs, generation ids and command ids are u64 made of a boot number (high 32 bits), which the
head stores and raises at each start, and a counter (low 32 bits). So none repeats across restarts.
Token ids travel and are stored as packed u32 little-endian bytes (`PackedIds`); one row or message
then costs the same for one token as for a thousand.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import NewType

NodeIdentity = NewType("NodeIdentity", str)
"""One node, unique in the fleet (at most 128 bytes)."""
ModelName = NewType("ModelName", str)
SessionId = NewType("SessionId", str)
"""One conversation or job: the unit of placement (at most 64 bytes)."""
RequestId = NewType("RequestId", bytes)
"""Chosen by a client, unique among its open requests (1 to 64 bytes)."""
Epoch = NewType("Epoch", int)
GenerationId = NewType("GenerationId", int)
CommandId = NewType("CommandId", int)
WorkerIncarnation = NewType("WorkerIncarnation", int)
"""Rises each time an agent starts a worker; boot counter of the agent in the high bits."""
LinkId = NewType("LinkId", int)
"""Names one handshake; u64."""
NumericsId = NewType("NumericsId", str)
"""Hash of all that decides results bit by bit; equal means bit-equal results."""
PackedIds = NewType("PackedIds", bytes)
"""Token ids as u32 little-endian; the length is a multiple of 4."""

COUNTER_BITS = 32
U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1


def pack_ids(ids: Iterable[int]) -> PackedIds:
    """Token ids as packed bytes.

    Raises:
        OverflowError: an id is negative or above u32.
    """
    # `array` would take bytes for items that are packed already.
    packed = array("I", list(ids) if isinstance(ids, bytes | bytearray) else ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return PackedIds(packed.tobytes())


def unpack_ids(packed: bytes) -> array[int]:
    """The token ids in packed bytes, as an `array('I')`.

    Raises:
        ValueError: the length is no multiple of 4.
    """
    ids = array("I")
    ids.frombytes(packed)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def count_ids(packed: bytes) -> int:
    """How many token ids packed bytes hold."""
    return len(packed) // 4


def slice_ids(packed: bytes, start: int, stop: int | None = None) -> PackedIds:
    """Token ids `start` to `stop` of packed bytes."""
    return PackedIds(packed[4 * start : None if stop is None else 4 * stop])


def incarnation_name(incarnation: WorkerIncarnation) -> str:
    """A worker incarnation as files are named by it: boot number and counter, in hexadecimal."""
    return f"{incarnation >> COUNTER_BITS:x}.{incarnation & U32_MAX:x}"


class BootCounter:
    """Numbers that never repeat: boot number above, counter below.

    Args:
        boot: this start's number, 1 to 2**32 - 1, stored and raised by the owner before use.
    """

    def __init__(self, boot: int) -> None:
        if not 1 <= boot <= U32_MAX:
            raise ValueError(f"boot number {boot} is outside 1 to {U32_MAX}")
        self._boot = boot
        self._counter = 0

    @property
    def boot(self) -> int:
        return self._boot

    @property
    def last(self) -> int:
        """The last number given out, or the one below the first."""
        return (self._boot << COUNTER_BITS) | self._counter

    @property
    def given(self) -> int:
        """How many numbers were given out under the present boot number."""
        return self._counter

    def next(self) -> int:
        """The next number.

        Raises:
            OverflowError: 2**32 - 1 were given out under one boot number.
        """
        if self._counter == U32_MAX:
            raise OverflowError(f"boot number {self._boot} has no numbers left")
        self._counter += 1
        return self.last

    def raise_to(self, boot: int) -> None:
        """Go on under a higher boot number, which the owner has stored; a lower one is no change.

        Raises:
            ValueError: the boot number is outside 1 to 2**32 - 1.
        """
        if not 1 <= boot <= U32_MAX:
            raise ValueError(f"boot number {boot} is outside 1 to {U32_MAX}")
        if boot > self._boot:
            self._boot, self._counter = boot, 0


def boot_of(number: int) -> int:
    """The boot number inside an epoch, generation or command id."""
    return number >> COUNTER_BITS

"""A CTranslate2 `model.bin`: its variables, read from a file that may be anything.

    u32 version (6) | text specification | u32 revision | u32 number of variables
    of each variable: text name | u8 rank | u32 x rank shape | u8 type | u32 bytes | the values
    u32 number of aliases | of each: text name, text name of the variable it stands for

All little-endian; a text is its length (u16, the closing zero counted) and its bytes. Integer
weights have a variable `NAME_scale` beside them, one scale for all or one a row, and stand for
`integer / scale`. Every length is compared with the file and with a limit before memory is taken,
and the values themselves are read only when they are asked for.

Source: own reading of files, versions 4.x of the program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import numpy.typing as npt

from agent.models.blocks import FloatArray
from bus.errors import Invalid, NotFound

VERSION = 6
MAX_VARIABLES = 1 << 16
MAX_NAME_BYTES = 1 << 10
MAX_DIMENSIONS = 8
_SCALE = "_scale"
_BF16 = "bfloat16"


@dataclass(frozen=True, slots=True)
class _Type:
    name: str
    layout: str

    @property
    def size(self) -> int:
        return np.dtype(self.layout).itemsize


#: By the number that a file has for them.
_TYPES = {
    0: _Type("float32", "<f4"),
    1: _Type("int8", "<i1"),
    2: _Type("int16", "<i2"),
    3: _Type("int32", "<i4"),
    4: _Type("float16", "<f2"),
    5: _Type(_BF16, "<u2"),
}
_INTEGER_WEIGHTS = ("int8", "int16")


@dataclass(frozen=True, slots=True)
class Ct2Variable:
    """Where a variable lies and what it is; `offset` counts from the start of the file."""

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class Ct2File:
    """A file that was walked through and found whole.

    Attributes:
        specification: what kind of model it says that it is.
        revision: of that specification.
        variables: by name, in the file's order.
        aliases: further names to names of variables.

    Raises:
        NotFound: no such file.
        Invalid: no file of this kind, one that is cut short or damaged, or beyond the limits.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise NotFound(f"there is no file {path}; name a CTranslate2 model.bin", param="file")
        self.path = path
        self._size = path.stat().st_size
        with path.open("rb") as file:
            version = self._number(file, 4)
            if version != VERSION:
                self._refuse(
                    f"it is of version {version} and {VERSION} is read",
                    "name a CTranslate2 model.bin that a current converter made",
                )
            self.specification = self._text(file)
            self.revision = self._number(file, 4)
            self.variables: Mapping[str, Ct2Variable] = self._variables(file)
            self.aliases: Mapping[str, str] = self._aliases(file)
            if file.tell() != self._size:
                self._refuse(f"it has {self._size} bytes and ends at {file.tell()}")

    def resolve(self, name: str) -> str:
        """The name of the variable that a name or an alias stands for."""
        return self.aliases.get(name, name)

    def has(self, name: str) -> bool:
        """Whether there is such a variable."""
        return self.resolve(name) in self.variables

    def shape(self, name: str) -> tuple[int, ...]:
        """A variable's shape.

        Raises:
            Invalid: no such variable.
        """
        return self._variable(name).shape

    def floats(self, name: str) -> FloatArray:
        """A variable's values as float32; float16 and bfloat16 widen to it without loss.

        Raises:
            Invalid: no such variable, integers without a usable scale, or a file that has changed.
        """
        variable = self._variable(name)
        raw = self._values(variable)
        if variable.kind in _INTEGER_WEIGHTS:
            return self._scaled(variable, raw)
        if variable.kind == _BF16:
            return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return raw.astype(np.float32, copy=False)

    def integer(self, name: str) -> int:
        """A variable of one whole number.

        Raises:
            Invalid: no such variable, or it is no whole number.
        """
        variable = self._variable(name)
        if math.prod(variable.shape) != 1 or not variable.kind.startswith("int"):
            self._refuse(f"its variable {name} is no whole number")
        return int(self._values(variable).reshape(())[()])

    def _variable(self, name: str) -> Ct2Variable:
        found = self.variables.get(self.resolve(name))
        if found is None:
            self._refuse(f"it has no variable {name[:200]}", "use a whole model")
        return found

    def _values(self, variable: Ct2Variable) -> npt.NDArray[Any]:
        with self.path.open("rb") as file:
            file.seek(variable.offset)
            raw = file.read(variable.nbytes)
        if len(raw) != variable.nbytes:
            self._refuse("it became shorter while it was read")
        layouts = {kind.name: kind.layout for kind in _TYPES.values()}
        return np.frombuffer(raw, layouts[variable.kind]).reshape(variable.shape)

    def _scaled(self, variable: Ct2Variable, raw: npt.NDArray[Any]) -> FloatArray:
        scale = self.floats(variable.name + _SCALE)
        usable = bool(np.isfinite(scale).all() and (scale != 0).all())
        if (scale.size != 1 and scale.shape != variable.shape[:1]) or not usable:
            self._refuse(f"its variable {variable.name} has no usable scale")
        by_row = scale.reshape((-1,) + (1,) * (raw.ndim - 1)) if raw.ndim else scale.reshape(())
        return np.asarray(raw.astype(np.float32) / by_row, np.float32)

    def _variables(self, file: BinaryIO) -> dict[str, Ct2Variable]:
        count = self._number(file, 4)
        if count > MAX_VARIABLES:
            self._refuse(f"it has {count} variables and {MAX_VARIABLES} are the most")
        found: dict[str, Ct2Variable] = {}
        for _ in range(count):
            variable = self._next_variable(file)
            if variable.name in found:
                self._refuse(f"its variable {variable.name} stands there twice")
            found[variable.name] = variable
        return found

    def _next_variable(self, file: BinaryIO) -> Ct2Variable:
        name = self._text(file)
        rank = self._number(file, 1)
        if rank > MAX_DIMENSIONS:
            self._refuse(f"its variable {name} has {rank} dimensions")
        shape = tuple(self._number(file, 4) for _ in range(rank))
        number = self._number(file, 1)
        kind = _TYPES.get(number)
        if kind is None:
            self._refuse(f"its variable {name} is of type {number}", "use another model")
        nbytes = self._number(file, 4)
        if nbytes != math.prod(shape) * kind.size:
            self._refuse(
                f"its variable {name} takes {nbytes} bytes where its shape takes "
                f"{math.prod(shape) * kind.size}"
            )
        offset = file.tell()
        if offset + nbytes > self._size:
            self._refuse(f"it ends within its variable {name}")
        file.seek(nbytes, 1)
        return Ct2Variable(name, kind.name, shape, offset, nbytes)

    def _aliases(self, file: BinaryIO) -> dict[str, str]:
        count = self._number(file, 4)
        if count > MAX_VARIABLES:
            self._refuse(f"it has {count} aliases and {MAX_VARIABLES} are the most")
        found: dict[str, str] = {}
        for _ in range(count):
            name, target = self._text(file), self._text(file)
            if target not in self.variables or name in self.variables or name in found:
                self._refuse(f"its alias {name} stands for no variable, or for two")
            found[name] = target
        return found

    def _number(self, file: BinaryIO, size: int) -> int:
        return int.from_bytes(self._exactly(file, size), "little")

    def _text(self, file: BinaryIO) -> str:
        length = self._number(file, 2)
        if not 1 < length <= MAX_NAME_BYTES:
            self._refuse(f"a name in it is {length} bytes long")
        raw = self._exactly(file, length)
        body = raw[:-1]
        if raw[-1] or not body.isascii() or not body.decode("ascii").isprintable():
            self._refuse("a name in it is no text")
        return body.decode("ascii")

    def _exactly(self, file: BinaryIO, size: int) -> bytes:
        raw = file.read(size)
        if len(raw) != size:
            self._refuse("it is cut short, or is no CTranslate2 model")
        return raw

    def _refuse(self, fact: str, remedy: str = "download it again") -> NoReturn:
        raise Invalid(f"{self.path} can not be read: {fact}; {remedy}", param="file")

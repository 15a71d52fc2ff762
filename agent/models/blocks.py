"""GGUF block formats as the integers that MatMulNBits multiplies with, value for value.

A GGUF tensor of a quantised type is a sequence of blocks along its rows: a scale, perhaps a
minimum, and small integers. ONNX Runtime's MatMulNBits holds the same thing apart: `q` in one
tensor, `scale` in another, `w = scale * (q - 2**(bits - 1))`. Q4_0, Q5_0, Q8_0 and Q6_K are of that
form already (five and six bit integers are shifted into eight). Q4_1, Q5_1, Q4_K and Q5_K are
affine, `w = scale * q + minimum`. For those the product splits in two exact parts:

    x @ w.T = MatMulNBits(x, q + shift, scale) + blocksum(x) @ C.T
    C = minimum + scale * (2**(bits - 1) - shift),  blocksum(x) = the sum of x over each block

which keeps the fast kernels (a float zero point would lose them). Five-bit integers are shifted
into the middle of eight bits, so that the two parts stay small and lose nothing in float16.

Source: the struct definitions of the formats in ggml (`ggml-common.h`); `gguf.quants` decodes the
same bytes independently and is what the tests compare with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

ByteArray = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.int64]

_ONE, _TWO, _FOUR, _NIBBLE = (np.uint8(value) for value in (1, 2, 4, 15))
#: Puts integers of five bits into the middle of eight.
_SHIFT5 = 128 - 16


@dataclass(frozen=True, slots=True)
class BlockWeight:
    """A weight matrix in blocks of small integers along its rows.

    Attributes:
        q: integers as stored, uint8 `[rows, blocks, block_size]`, each below `2**bits`.
        scale: float32 `[rows, blocks]`.
        minimum: float32 `[rows, blocks]` of an affine format, else None.
        bits: 4 or 8, the width that MatMulNBits stores.
        shift: what was added to the integers of an affine format.
    """

    q: ByteArray
    scale: FloatArray
    minimum: FloatArray | None
    bits: int
    shift: int = 0

    @property
    def rows(self) -> int:
        """Output features."""
        return int(self.q.shape[0])

    @property
    def columns(self) -> int:
        """Input features."""
        return int(self.q.shape[1] * self.q.shape[2])

    @property
    def block_size(self) -> int:
        """Columns that share a scale."""
        return int(self.q.shape[2])

    @property
    def layout(self) -> tuple[int, int, bool, int]:
        """What must be equal for two matrices to be stacked in one operator."""
        return self.bits, self.block_size, self.minimum is not None, self.shift

    def packed(self) -> ByteArray:
        """The integers as stored: `[rows, blocks, block_size * bits / 8]`, low nibble first."""
        if self.bits == 8:
            return self.q
        return self.q[..., 0::2] | (self.q[..., 1::2] << _FOUR)

    def correction(self) -> FloatArray | None:
        """`C` `[rows, blocks]` of the split product, None for a symmetric format."""
        if self.minimum is None:
            return None
        return self.minimum + self.scale * np.float32((1 << (self.bits - 1)) - self.shift)

    def dequantize(self) -> FloatArray:
        """The weights, float32 `[rows, columns]`."""
        scale = self.scale[..., None]
        if self.minimum is None:
            zero = np.int16(1 << (self.bits - 1))
            values = scale * (self.q.astype(np.int16) - zero).astype(np.float32)
        else:
            q = (self.q - np.uint8(self.shift)).astype(np.float32)
            values = scale * q + self.minimum[..., None]
        return values.reshape(self.rows, -1)

    def take_rows(self, index: IndexArray) -> BlockWeight:
        """The rows at `index`, in that order."""
        minimum = None if self.minimum is None else self.minimum[index]
        return replace(self, q=self.q[index], scale=self.scale[index], minimum=minimum)


Matrix = BlockWeight | FloatArray


def stack_rows(parts: Sequence[Matrix]) -> Matrix | None:
    """Stack matrices of one layout over each other, so that one operator computes all.

    Returns:
        The stacked matrix, or None where layouts differ (mixed quantisations).
    """
    blocks = [part for part in parts if isinstance(part, BlockWeight)]
    if not blocks:
        return np.concatenate([part for part in parts if not isinstance(part, BlockWeight)])
    if len(blocks) != len(parts) or len({part.layout for part in blocks}) != 1:
        return None
    minima = [part.minimum for part in blocks if part.minimum is not None]
    return BlockWeight(
        q=np.concatenate([part.q for part in blocks]),
        scale=np.concatenate([part.scale for part in blocks]),
        minimum=np.concatenate(minima) if minima else None,
        bits=blocks[0].bits,
        shift=blocks[0].shift,
    )


def take_rows(matrix: Matrix, index: IndexArray) -> Matrix:
    """Reorder the rows of a matrix of either kind."""
    return matrix.take_rows(index) if isinstance(matrix, BlockWeight) else matrix[index]


def _half(raw: ByteArray) -> FloatArray:
    """Two little-endian bytes a value, `[..., 2]`, to float32 `[...]`."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)[..., 0]


def _nibbles(raw: ByteArray) -> ByteArray:
    """Low nibbles of all bytes, then their high nibbles."""
    return np.concatenate([raw & _NIBBLE, raw >> _FOUR], axis=-1)


def _fifth_bits(raw: ByteArray) -> ByteArray:
    """Four bytes `[..., 4]` to the fifth bit of 32 integers, in place 16."""
    return np.unpackbits(np.ascontiguousarray(raw), axis=-1, bitorder="little") << _FOUR


def _q4_0(raw: ByteArray) -> BlockWeight:
    return BlockWeight(_nibbles(raw[..., 2:]), _half(raw[..., :2]), None, 4)


def _q4_1(raw: ByteArray) -> BlockWeight:
    return BlockWeight(_nibbles(raw[..., 4:]), _half(raw[..., :2]), _half(raw[..., 2:4]), 4)


def _q5_0(raw: ByteArray) -> BlockWeight:
    q = _nibbles(raw[..., 6:]) | _fifth_bits(raw[..., 2:6])
    return BlockWeight(q + np.uint8(_SHIFT5), _half(raw[..., :2]), None, 8)


def _q5_1(raw: ByteArray) -> BlockWeight:
    q = _nibbles(raw[..., 8:]) | _fifth_bits(raw[..., 4:8])
    q = q + np.uint8(_SHIFT5)
    return BlockWeight(q, _half(raw[..., :2]), _half(raw[..., 2:4]), 8, _SHIFT5)


def _q8_0(raw: ByteArray) -> BlockWeight:
    return BlockWeight(raw[..., 2:] ^ np.uint8(0x80), _half(raw[..., :2]), None, 8)


def _k_scales(raw: ByteArray) -> tuple[FloatArray, FloatArray]:
    """The twelve bytes of eight 6-bit scales and eight 6-bit minima of a K block."""
    first, second, high = raw[..., 0:4], raw[..., 4:8], raw[..., 8:12]
    scales = np.concatenate([first & 63, (high & 15) | ((first >> 6) << 4)], axis=-1)
    minima = np.concatenate([second & 63, (high >> 4) | ((second >> 6) << 4)], axis=-1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _k_affine(raw: ByteArray, q: ByteArray, bits: int, shift: int = 0) -> BlockWeight:
    """A K block's eight sub-blocks `q` `[rows, blocks, 8, 32]` with their own scale and minimum."""
    rows = q.shape[0]
    scales, minima = _k_scales(raw[..., 4:16])
    scale = _half(raw[..., :2])[..., None] * scales
    minimum = -(_half(raw[..., 2:4])[..., None] * minima)
    return BlockWeight(
        q.reshape(rows, -1, 32), scale.reshape(rows, -1), minimum.reshape(rows, -1), bits, shift
    )


def _k_nibbles(raw: ByteArray) -> ByteArray:
    """128 bytes to `[..., 8, 32]`: each 32 bytes hold two sub-blocks, low and high nibble."""
    pairs = raw.reshape(*raw.shape[:-1], 4, 32)
    return np.stack([pairs & _NIBBLE, pairs >> _FOUR], axis=-2).reshape(*raw.shape[:-1], 8, 32)


def _q4_k(raw: ByteArray) -> BlockWeight:
    return _k_affine(raw, _k_nibbles(raw[..., 16:]), 4)


def _q5_k(raw: ByteArray) -> BlockWeight:
    bit = np.arange(8, dtype=np.uint8)[:, None]
    high = ((raw[..., None, 16:48] >> bit) & _ONE) << _FOUR
    q = (_k_nibbles(raw[..., 48:]) | high) + np.uint8(_SHIFT5)
    return _k_affine(raw, q, 8, _SHIFT5)


def _q6_k(raw: ByteArray) -> BlockWeight:
    rows, blocks = raw.shape[:2]
    low = raw[..., :128].reshape(rows, blocks, 2, 2, 32)
    low4 = np.concatenate([low & 15, low >> 4], axis=3)
    shift = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high2 = (raw[..., 128:192].reshape(rows, blocks, 2, 1, 32) >> shift) & 3
    q = (low4 | (high2 << 4)) + np.uint8(128 - 32)
    scales = np.ascontiguousarray(raw[..., 192:208]).view(np.int8).astype(np.float32)
    scale = _half(raw[..., 208:210])[..., None] * scales
    return BlockWeight(q.reshape(rows, -1, 16), scale.reshape(rows, -1), None, 8)


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A row of the format table: a block as GGUF has it, and what it becomes.

    Attributes:
        values: of a block in the file, which takes `block_bytes`.
        decode: takes blocks `[rows, blocks, block_bytes]` apart.
        bits: of an integer as stored.
        group: values that share a scale.
        affine: whether they have a minimum too.
    """

    values: int
    block_bytes: int
    decode: Callable[[ByteArray], BlockWeight]
    bits: int
    group: int
    affine: bool = False


#: GGUF type name to format. Those of `DENSE` have none.
FORMATS: dict[str, BlockFormat] = {
    "Q4_0": BlockFormat(32, 18, _q4_0, bits=4, group=32),
    "Q4_1": BlockFormat(32, 20, _q4_1, bits=4, group=32, affine=True),
    "Q5_0": BlockFormat(32, 22, _q5_0, bits=8, group=32),
    "Q5_1": BlockFormat(32, 24, _q5_1, bits=8, group=32, affine=True),
    "Q8_0": BlockFormat(32, 34, _q8_0, bits=8, group=32),
    "Q4_K": BlockFormat(256, 144, _q4_k, bits=4, group=32, affine=True),
    "Q5_K": BlockFormat(256, 176, _q5_k, bits=8, group=32, affine=True),
    "Q6_K": BlockFormat(256, 210, _q6_k, bits=8, group=16),
}


#: Types without blocks, as numpy reads them; bfloat16 is the upper half of a float32.
DENSE = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def decode_dense(type_name: str, raw: ByteArray | bytes) -> FloatArray:
    """A tensor without blocks as float32, without loss; float32 ones are not copied.

    Args:
        type_name: a key of `DENSE`.
        raw: the tensor's bytes.
    """
    values = np.frombuffer(raw, DENSE[type_name])
    if type_name == "BF16":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float32, copy=False)


def decode_blocks(type_name: str, raw: ByteArray, rows: int) -> BlockWeight:
    """Take a GGUF tensor's bytes apart.

    Args:
        type_name: a key of `FORMATS`.
        raw: the tensor's bytes, any shape.
        rows: output features (the tensor's second GGUF dimension).
    """
    block = FORMATS[type_name]
    return block.decode(raw.reshape(rows, -1, block.block_bytes))

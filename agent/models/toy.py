"""A toy model for tests: two layers, one token a byte, weights from a counter.

It goes through the graph builder, the folder and the self-test like any model, in under a second,
and is the same on every machine. Its text means nothing: greedy decoding gives printable bytes in
a varied order, and does not come to an end by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from agent.models.architecture import ARCHITECTURES, DecoderConfig
from agent.models.assemble import ModelSource, Progress, assemble, no_progress
from agent.models.blocks import BlockWeight, FloatArray
from agent.models.folder import ModelFolder
from agent.models.graph import INT8_ACTIVATIONS, Numerics
from agent.models.rotary import Rotary
from agent.models.vocabulary_source import CONTROL, NORMAL, VocabularySource

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
END_OF_TEXT, IM_START, IM_END, PAD = range(256, 260)

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

CONFIG = DecoderConfig(
    architecture=ARCHITECTURES["llama"],
    layers=2,
    hidden=128,
    heads=4,
    kv_heads=2,
    head_dim=32,
    feed_forward=256,
    vocab=256 + len(SPECIALS),
    max_positions=4096,
    epsilon=1e-5,
    rotary=Rotary(base=10000.0),
)

SEED = 7
_BLOCK = 32
#: Standard deviation of an integer drawn evenly from 0 to 15.
_SPREAD = 4.61
#: How strongly a layer's branches outweigh the embedding: at 1.5 and below, greedy decoding of a
#: tied model repeats its last token.
_GAIN = 2.0
#: Standard deviation of the embedding, which sets how wide the logits spread.
_EMBEDDING = 0.45
#: Embedding length of bytes that are no printable text, and of the special tokens: short rows have
#: logits near zero and are not chosen.
_QUIET = 0.1


def _mix(counter: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A counter to 64 well-mixed bits.

    Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014), the
    finaliser of SplitMix64.
    """
    z = (counter + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class ToyWeights:
    """Weights in blocks, made on demand: affine 4-bit layers, a tied 8-bit embedding."""

    def __init__(self, config: DecoderConfig = CONFIG, seed: int = SEED) -> None:
        self._config = config
        self._seed = seed
        width = config.heads * config.head_dim
        kv_width = config.kv_heads * config.head_dim
        shapes = {
            "attn_q": (width, config.hidden),
            "attn_k": (kv_width, config.hidden),
            "attn_v": (kv_width, config.hidden),
            "attn_output": (config.hidden, width),
            "ffn_gate": (config.feed_forward, config.hidden),
            "ffn_up": (config.feed_forward, config.hidden),
            "ffn_down": (config.hidden, config.feed_forward),
        }
        self._shapes = {
            f"blk.{layer}.{part}.weight": shape
            for layer in range(config.layers)
            for part, shape in shapes.items()
        }
        self._vectors = ["output_norm.weight"] + [
            f"blk.{layer}.{part}_norm.weight"
            for layer in range(config.layers)
            for part in ("attn", "ffn")
        ]
        ordered = ["token_embd.weight", *self._shapes, *self._vectors]
        self._streams = {name: index for index, name in enumerate(ordered)}

    def names(self) -> Iterable[str]:
        """All tensors."""
        return self._streams.keys()

    def shape(self, name: str) -> tuple[int, int]:
        """Rows and columns of a matrix."""
        if name == "token_embd.weight":
            return self._config.vocab, self._config.hidden
        return self._shapes[name]

    def matrix(self, name: str) -> BlockWeight:
        """A weight matrix in blocks of 32."""
        if name == "token_embd.weight":
            return self._embedding()
        rows, columns = self._shapes[name]
        blocks = columns // _BLOCK
        q = (self._bits(name, 0, rows * columns) >> np.uint64(60)).astype(np.uint8)
        scale = self._scale(name, rows, blocks, _GAIN / (_SPREAD * columns**0.5))
        tilt = self._uniform(name, 2, rows * blocks).reshape(rows, blocks) - np.float32(0.5)
        minimum = _half(scale * (tilt - np.float32(7.5)))
        return BlockWeight(q.reshape(rows, blocks, _BLOCK), scale, minimum, 4)

    def vector(self, name: str) -> FloatArray:
        """A norm's weights, 0.75 to 1.25."""
        return self._uniform(name, 0, self._config.hidden) * np.float32(0.5) + np.float32(0.75)

    def _embedding(self) -> BlockWeight:
        name, config = "token_embd.weight", self._config
        blocks = config.hidden // _BLOCK
        bits = self._bits(name, 0, config.vocab * config.hidden)
        q = (bits >> np.uint64(56)).astype(np.uint8)
        scale = self._scale(name, config.vocab, blocks, _EMBEDDING / 74)
        printable = np.zeros((config.vocab, 1), bool)
        printable[32:127] = True
        scale = _half(np.where(printable, scale, scale * np.float32(_QUIET)))
        return BlockWeight(q.reshape(config.vocab, blocks, _BLOCK), scale, None, 8)

    def _scale(self, name: str, rows: int, blocks: int, mean: float) -> FloatArray:
        """Scales within a quarter of `mean`, as float16 holds them."""
        spread = self._uniform(name, 1, rows * blocks).reshape(rows, blocks)
        return _half((spread * np.float32(0.5) + np.float32(0.75)) * np.float32(mean))

    def _bits(self, name: str, purpose: int, count: int) -> npt.NDArray[np.uint64]:
        start = (self._seed << 48) + (self._streams[name] << 32) + (purpose << 28)
        return _mix(np.arange(start, start + count, dtype=np.uint64))

    def _uniform(self, name: str, purpose: int, count: int) -> FloatArray:
        bits = self._bits(name, purpose, count) >> np.uint64(40)
        return bits.astype(np.float32) / np.float32(1 << 24)


def _half(values: FloatArray) -> FloatArray:
    """Round to what float16 holds, as the scales of a GGUF file are."""
    return values.astype(np.float16).astype(np.float32)


def byte_symbols() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies.

    Printable Latin-1 stands for itself; the rest are numbered from U+0100 on.
    """
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def vocabulary() -> VocabularySource:
    """One token a byte, its id the byte, and four special tokens."""
    return VocabularySource(
        kind="gpt2",
        pre="gpt-2",
        tokens=[*byte_symbols(), *SPECIALS],
        kinds=[NORMAL] * 256 + [CONTROL] * len(SPECIALS),
        merges=[],
        scores=[],
        bos_id=None,
        eos_id=IM_END,
        unknown_id=None,
        pad_id=PAD,
        add_bos=False,
        add_space=False,
        eos_ids=(END_OF_TEXT, IM_END),
        chat_template=CHAT_TEMPLATE,
    )


def write_toy(
    target: Path,
    *,
    numerics: Numerics = INT8_ACTIVATIONS,
    progress: Progress = no_progress,
) -> ModelFolder:
    """Make the toy model's folder."""
    source = ModelSource(
        config=CONFIG,
        weights=ToyWeights(),
        vocabulary=vocabulary(),
        origin={"kind": "toy", "seed": str(SEED)},
        quantization={"affine 4-bit": 7 * CONFIG.layers, "8-bit": 1, "F32": 2 * CONFIG.layers + 1},
    )
    return assemble(source, target, numerics=numerics, progress=progress)

"""A fuzz target that takes model files: what can be said of them, or a documented refusal."""

from __future__ import annotations

import random
import struct
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from agent.models.ct2_file import Ct2File
from agent.models.examine import examine_file
from agent.models.gguf_file import GgufFile
from agent.models.tokenizer import build_tokenizer
from agent.models.vocabulary_source import read_vocabulary
from agent.models.whisper_config import expected_shapes, read_whisper_config
from bus.errors import Invalid, SuperfluidError
from tests.fuzz.decoders import Case
from tests.fuzz.generate import change_bytes, random_bytes
from tests.harness.gguf_models import SmallModel, write_model
from tests.harness.small_whisper import model_bytes, small_variables

_KEYS = (
    *("general.architecture", "general.alignment", "general.name", "split.count", "split.no"),
    *("tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens"),
    *("tokenizer.ggml.token_type", "tokenizer.ggml.merges", "tokenizer.ggml.scores"),
    *("tokenizer.ggml.eos_token_id", "tokenizer.ggml.bos_token_id", "tokenizer.chat_template"),
    *("A.block_count", "A.context_length", "A.embedding_length", "A.feed_forward_length"),
    *("A.attention.head_count", "A.attention.head_count_kv", "A.attention.key_length"),
    *("A.attention.layer_norm_rms_epsilon", "A.attention.sliding_window", "A.rope.freq_base"),
    *("A.rope.scaling.type", "A.rope.scaling.factor", "A.rope.scaling.original_context_length"),
)
_FAMILIES = ("llama", "qwen2", "qwen3", "gemma3", "bert")
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q"}
_WORDS = ("", "llama", "gpt2", "gpt-2", "qwen2", "linear", "yarn", "a", "b", "ab", "a b", "\u2581")


def _text(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def _scalar(rng: random.Random, kind: int) -> bytes:
    letter = _SCALARS[kind]
    size = struct.calcsize(f"<{letter}")
    if letter == "f":
        return struct.pack("<f", rng.choice((0.0, 1e-6, 1.0, 1e4, -1.0, float("nan"), 1e30)))
    if rng.random() < 0.2:
        return rng.randbytes(size)
    return rng.choice((0, 1, 2, 3, 8, 64)).to_bytes(size, "little")


def _value(rng: random.Random) -> bytes:
    """A value of any type, with its type before it."""
    kind = rng.choice((*_SCALARS, 8, 8, 8, 9, 9))
    if kind == 8:
        return struct.pack("<I", 8) + _text(rng.choice(_WORDS).encode())
    if kind != 9:
        return struct.pack("<I", kind) + _scalar(rng, kind)
    inner, count = rng.choice((*_SCALARS, 8, 8)), rng.choice((0, 1, 3, 6))
    items = [
        _text(rng.choice(_WORDS).encode()) if inner == 8 else _scalar(rng, inner)
        for _ in range(count)
    ]
    claimed = count if rng.random() < 0.95 else rng.getrandbits(rng.choice((8, 24, 63)))
    return struct.pack("<IIQ", 9, inner, claimed) + b"".join(items)


def _tensor(rng: random.Random, name: str) -> bytes:
    shape = [rng.choice((1, 2, 32, 64, 256, rng.getrandbits(40))) for _ in range(rng.randint(1, 3))]
    kind = rng.choice((0, 1, 2, 8, 12, 14, 20, 30, 99))
    place = rng.choice((0, 32, 4096, rng.getrandbits(62)))
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return _text(name.encode()) + dimensions + struct.pack("<IQ", kind, place)


def gguf_bytes(rng: random.Random) -> bytes:
    """A header that is nearly one, and some bytes after it."""
    family = rng.choice(_FAMILIES)
    keys = rng.sample(_KEYS, rng.randint(0, len(_KEYS)))
    pairs = [_text(key.replace("A.", f"{family}.").encode()) + _value(rng) for key in keys]
    named = _text(b"general.architecture") + struct.pack("<I", 8) + _text(family.encode())
    if "general.architecture" not in keys:
        pairs.append(named)
    names = rng.sample(("token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight", "x"), 2)
    tensors = [_tensor(rng, name) for name in names]
    counts = (len(tensors), len(pairs))
    if rng.random() < 0.05:
        counts = (rng.getrandbits(63), rng.getrandbits(16))
    body = b"GGUF" + struct.pack("<IQQ", 3, *counts) + b"".join(pairs) + b"".join(tensors)
    return body + bytes(rng.choice((0, 100, 5000)))


@cache
def _whole_file() -> bytes:
    """A file that can be imported."""
    model = SmallModel(
        family="gemma3", layers=1, hidden=32, heads=1, kv_heads=1, head_dim=32, feed_forward=32
    )
    with tempfile.TemporaryDirectory() as folder:
        return write_model(Path(folder) / "m.gguf", model).read_bytes()


def _spoiled(rng: random.Random) -> bytes:
    """The whole file with a few bytes of its header changed."""
    raw = bytearray(_whole_file())
    end = raw.index(b"output_norm.weight") + 100
    for _ in range(rng.randint(0, 3)):
        raw[rng.randrange(end)] = rng.choice((0, 1, 2, 8, 255, rng.getrandbits(8)))
    return bytes(raw)


def gguf_case(rng: random.Random) -> None:
    """Whatever a file holds, looking at it gives findings, and opening it what they say."""
    raw = gguf_bytes(rng) if rng.random() < 0.6 else _spoiled(rng)
    choice = rng.random()
    if choice < 0.1:
        raw = b"GGUF" + random_bytes(rng)
    elif choice < 0.4:
        raw = change_bytes(rng, raw)
    elif choice < 0.5:
        raw = raw[: rng.randrange(len(raw))]
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(raw)
        file.flush()
        found = examine_file(Path(file.name))
        try:
            weights = GgufFile(Path(file.name))
            weights.matrix("token_embd.weight")
            if found["usable"]:
                build_tokenizer(read_vocabulary(weights.metadata))
        except SuperfluidError as error:
            if found["usable"]:
                raise AssertionError(f"said to be usable and is not: {found}") from error
    if found["usable"] != (not found["reasons"]):
        raise AssertionError(f"usable and reasons disagree: {found}")


_VOCAB = 64


@cache
def _whisper_variables() -> tuple[bytes, ...]:
    """The variables of a small Whisper; those of weights are most of their bytes."""
    return tuple(small_variables(_VOCAB).values())


def ct2_bytes(rng: random.Random) -> bytes:
    """A Whisper's file with some variables left out, changed where they say what they are."""
    variables = list(_whisper_variables())
    for _ in range(rng.randint(0, 3)):
        place = rng.randrange(len(variables))
        raw = bytearray(variables[place])
        raw[rng.randrange(min(len(raw), 80))] = rng.choice((0, 1, 2, 8, 255, rng.getrandbits(8)))
        variables[place] = bytes(raw)
    if rng.random() < 0.3:
        variables.pop(rng.randrange(len(variables)))
    aliases = {"decoder/projection/weight": "decoder/embeddings/weight"}
    whole = model_bytes({str(n): raw for n, raw in enumerate(variables)}, aliases)
    return whole[: rng.randrange(len(whole))] if rng.random() < 0.2 else whole


def ct2_case(rng: random.Random) -> None:
    """Whatever a file holds, it is read as a Whisper whose every weight is there, or refused."""
    raw = b"\6\0\0\0" + random_bytes(rng) if rng.random() < 0.1 else ct2_bytes(rng)
    if rng.random() < 0.2:
        raw = change_bytes(rng, raw)
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(raw)
        file.flush()
        try:
            weights = Ct2File(Path(file.name))
            config = read_whisper_config(weights)
            for name, shape in expected_shapes(config).items():
                if weights.floats(name).shape != shape:
                    raise AssertionError(f"{name} is not of the shape that was checked")
        except Invalid:
            pass


MODEL_FILES: Mapping[str, Case] = {"gguf": gguf_case, "ct2": ct2_case}

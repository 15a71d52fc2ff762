"""GGUF files written by gguf's own writer, imported, and compared with the reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from agent.models.graph import EXACT
from agent.models.importer import import_gguf
from agent.models.selftest import open_session, prompt_logits
from agent.models.toy import CHAT_TEMPLATE
from bus.errors import Invalid
from tests.harness.gguf_models import add_vocabulary, write_all
from tests.harness.models import toy_model_folder
from tests.harness.reference import ReferenceModel
from tests.harness.toy_variants import WIDE, VariedWeights

PROMPT = list(b"Rivers shape the cities on them.")
KINDS = {"attn_q": "Q4_1", "attn_k": "Q4_1", "attn_v": "Q6_K", "ffn": "Q4_K", "token_embd": "Q8_0"}


def kind_of(name: str) -> str | None:
    return next((kind for part, kind in KINDS.items() if part in name), None)


def write_gguf(path: Path, extra: dict[str, np.ndarray] | None = None) -> Path:
    """A llama model with blocks, float16 and float32 tensors, and the toy's vocabulary."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(WIDE.layers)
    writer.add_context_length(WIDE.max_positions)
    writer.add_embedding_length(WIDE.hidden)
    writer.add_feed_forward_length(WIDE.feed_forward)
    writer.add_head_count(WIDE.heads)
    writer.add_head_count_kv(WIDE.kv_heads)
    writer.add_layer_norm_rms_eps(WIDE.epsilon)
    writer.add_rope_freq_base(WIDE.rotary.base)
    add_vocabulary(writer)
    weights = VariedWeights(kind_of)
    for name in weights.names():
        kind = kind_of(name)
        if "norm" in name:
            writer.add_tensor(name, weights.vector(name))
        elif kind is None:
            writer.add_tensor(name, weights.dense(name).astype(np.float16))
        else:
            raw = weights.raw(name, kind)
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    for name, value in (extra or {}).items():
        writer.add_tensor(name, value)
    write_all(writer)
    return path


def test_an_imported_file_gives_the_reference_logits(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf")
    folder = import_gguf(file, tmp_path / "models" / "m", numerics=EXACT)
    got = prompt_logits(open_session(folder.graph), folder.signature, PROMPT)
    expected = ReferenceModel.from_gguf(file).logits(PROMPT)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-4)
    assert folder.quantization == {"F32": 5, "F16": 2, "Q4_1": 4, "Q4_K": 6, "Q6_K": 2, "Q8_0": 1}
    assert folder.eos_ids == toy_model_folder().eos_ids
    assert folder.chat_template is not None
    assert folder.chat_template.read_text("utf-8") == CHAT_TEMPLATE


def test_frequency_factors_of_two_equal_linear_scaling_by_two(tmp_path: Path) -> None:
    factors = np.full(WIDE.head_dim // 2, 2, np.float32)
    file = write_gguf(tmp_path / "m.gguf", {"rope_freqs.weight": factors})
    folder = import_gguf(file, tmp_path / "m", numerics=EXACT)
    got = prompt_logits(open_session(folder.graph), folder.signature, PROMPT)
    reference = ReferenceModel.from_gguf(file)
    plain = {name: value for name, value in reference.weights.items() if "freqs" not in name}
    halved = replace(reference, weights=plain)
    expected = halved.logits(PROMPT, positions=np.arange(len(PROMPT)) / 2)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-4)


def test_a_tensor_that_would_be_left_out_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", {"blk.0.attn_q.bias": np.zeros(256, np.float32)})
    with pytest.raises(Invalid, match=r"blk\.0\.attn_q\.bias"):
        import_gguf(file, tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf")
    file.write_bytes(file.read_bytes()[:-100_000])
    with pytest.raises(Invalid, match=r"no whole GGUF file: .*download it again"):
        import_gguf(file, tmp_path / "m")

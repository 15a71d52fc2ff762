"""A model in an ONNX Runtime session, run over the KV slab.

Two bindings, one for chunks and one for steps, so that going from one to the other binds nothing
again. All inputs and outputs stand in arrays made once, bound by address: a step of the width of
the last one only writes the arrays and runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.models import selftest
from agent.models.folder import ModelFolder
from agent.models.onnx_runtime import onnxruntime
from agent.worker.kv_cache import (
    DEFAULT_KV_BYTES,
    DEFAULT_LANES,
    HostSlab,
    KvSlab,
    LaneShape,
    lane_tokens,
)
from agent.worker.numerics import numerics_id
from agent.worker.provider import Target, check_provider, choose_target, preload_cuda
from agent.worker.turns import MAX_CHUNK_TOKENS
from bus.errors import Internal, ModelIncomplete

Logits = npt.NDArray[np.float32]


class ModelRunner:
    """Owns a session, its slab and its bindings. One thread drives it.

    Args:
        folder: an opened model folder.
        device: `auto`, `cuda` or `cpu`.
        lanes: rows of the slab.
        kv_bytes: budget of the slab.
        threads: of the session; 0 takes all processors that this process may use.

    Raises:
        StartError: no such device, or the graph can not be loaded (ModelIncomplete).
        ConfigInvalid: the KV budget is too small.
    """

    def __init__(
        self,
        folder: ModelFolder,
        *,
        device: str = "auto",
        lanes: int = DEFAULT_LANES,
        kv_bytes: int = DEFAULT_KV_BYTES,
        threads: int = 0,
    ) -> None:
        self.folder = folder
        self.target = choose_target(folder, device)
        float16 = self.target.gpu is not None
        figures = folder.signature
        tokens = lane_tokens(
            window=figures.max_positions,
            kv_bytes=kv_bytes,
            lanes=lanes,
            token_bytes=folder.kv_bytes_per_token(float16=float16),
        )
        lane = LaneShape(
            figures.kv_heads,
            tokens,
            figures.head_dim,
            np.dtype(np.float16 if float16 else np.float32),
        )
        self.session = _open_session(folder, self.target, threads or usable_processors())
        self.slab = _make_slab(self.target, 2 * figures.layers, lanes, lane)
        self.numerics = numerics_id(folder, self.target, lane)
        self._chunk = _Binding(self.session, self.slab, figures.vocab, 1, MAX_CHUNK_TOKENS)
        self._step = _Binding(self.session, self.slab, figures.vocab, lanes, 1)

    @property
    def run_s(self) -> float:
        """Seconds inside ONNX Runtime so far."""
        return self._chunk.run_s + self._step.run_s

    @property
    def window(self) -> int:
        """Tokens that a lane holds."""
        return self.slab.lane.max_len

    def self_test(self) -> None:
        """Run the folder's one-token test.

        Raises:
            ModelIncomplete: the graph no longer gives the token that it gave when it was made.
        """
        selftest.check(self.session, self.folder)

    def prefill_chunk(self, lane: int, ids: Sequence[int], past: int) -> Logits:
        """Feed a stretch of tokens to one lane.

        Args:
            lane: row of the slab.
            ids: 1 to `MAX_CHUNK_TOKENS` token ids.
            past: tokens that the lane holds.

        Returns:
            Logits after the last of them, float32 `[1, vocab]`, valid until the next chunk.

        Raises:
            Internal: ONNX Runtime failed.
        """
        count = len(ids)
        self._chunk.bind_rows(lane, 1, count)
        self._chunk.ids[0, :count] = ids
        self._chunk.rows[0] = count - 1
        return self._chunk.run([past + count])

    def decode(self, ids: Sequence[int], lengths: Sequence[int]) -> Logits:
        """Feed one token to each of lanes 0 to B-1.

        Args:
            ids: B token ids.
            lengths: tokens in each lane after this step.

        Returns:
            float32 `[B, vocab]`, valid until the next step.

        Raises:
            Internal: ONNX Runtime failed.
        """
        self._step.bind_rows(0, len(ids), 1)
        self._step.ids[: len(ids), 0] = ids
        return self._step.run(lengths)

    def copy_lane(self, src: int, dst: int, tokens: int) -> None:
        """Make the first `tokens` tokens of lane `dst` those of `src`."""
        self.slab.copy_lane(src, dst, tokens)


class _Binding:
    """Inputs and outputs of one kind of run, `[batch, length]` tokens at most."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        slab: KvSlab,
        vocab: int,
        batch: int,
        length: int,
    ) -> None:
        self._session = session
        self._slab = slab
        self._binding = session.io_binding()
        self._vocab = vocab
        self._bound: tuple[int, int, int] | None = None
        self._past = [i.name for i in session.get_inputs() if i.name.startswith("past.")]
        # Flat, since [batch, length] of fewer rows or tokens must be dense at its start.
        self._flat_ids = np.zeros(batch * length, np.int64)
        self.ids = self._flat_ids.reshape(batch, length)
        self.rows = np.arange(batch, dtype=np.int64)
        self._lengths = np.zeros(batch, np.int32)
        self._longest = np.zeros((), np.int32)
        self._logits = np.empty((batch, vocab), np.float32)
        self._inputs: list[tuple[str, npt.NDArray[Any]]] = []
        self.run_s = 0.0

    def bind_rows(self, lane: int, batch: int, length: int) -> None:
        """Bind lanes `lane` to `lane + batch - 1` and `length` tokens of each, if not bound yet."""
        shape = (lane, batch, length)
        if shape == self._bound:
            return
        if self._bound is None or self._bound[:2] != shape[:2]:
            self._bind_slab(lane, batch)
            self._binding.bind_output(
                "logits", "cpu", 0, np.float32, [batch, self._vocab], self._logits.ctypes.data
            )
        self._inputs = [
            ("input_ids", self._flat_ids[: batch * length].reshape(batch, length)),
            ("seqlens_k", self._lengths[:batch]),
            ("total_sequence_length", self._longest),
            ("logits_idx", self.rows[:batch]),
        ]
        self._bind_inputs()
        self._bound = shape

    def run(self, lengths: Sequence[int]) -> Logits:
        """Run what is bound; `lengths` are the rows' tokens after it."""
        batch = len(lengths)
        self._lengths[:batch] = lengths
        self._lengths[:batch] -= 1
        self._longest[...] = max(lengths)
        if self._slab.device != "cpu":
            # Binding is what copies to the device.
            self._bind_inputs()
        start = time.perf_counter()
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:  # its errors share no narrower base
            raise Internal(f"ONNX Runtime failed in a run: {error}") from error
        finally:
            self.run_s += time.perf_counter() - start
        return self._logits[:batch]

    def _bind_inputs(self) -> None:
        for name, array in self._inputs:
            self._binding.bind_input(
                name, "cpu", 0, array.dtype, list(array.shape), array.ctypes.data
            )

    def _bind_slab(self, lane: int, batch: int) -> None:
        slab, kv = self._slab, self._slab.lane
        shape = [batch, kv.kv_heads, kv.max_len, kv.head_dim]
        for part, past in enumerate(self._past):
            place = (slab.device, 0, kv.dtype.type, shape, slab.address(part, lane))
            self._binding.bind_input(past, *place)
            self._binding.bind_output(past.replace("past.", "present.", 1), *place)


def usable_processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def _open_session(
    folder: ModelFolder, target: Target, threads: int
) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # A thread that spins takes its processor from neighbours: with two of them, a third of the
    # speed and less was left.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if target.gpu:
        preload_cuda()
    try:
        session = onnxruntime.InferenceSession(
            str(target.graph), options, providers=list(target.providers)
        )
    except Exception as error:  # its errors share no narrower base
        raise ModelIncomplete(
            f"model {folder.name} can not be loaded: {error}; make it again with "
            f"`sfctl model import FILE.gguf --name {folder.name}`",
            param="model",
        ) from error
    check_provider(session, target)
    return session


def _make_slab(target: Target, layer_parts: int, lanes: int, lane: LaneShape) -> KvSlab:
    if target.gpu is None:
        return HostSlab(layer_parts, lanes, lane)
    from agent.worker.cuda_slab import CudaSlab

    return CudaSlab(layer_parts, lanes, lane)

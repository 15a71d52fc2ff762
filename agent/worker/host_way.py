"""Chunks and steps over a slab in host memory.

Two bindings, one for chunks and one for steps, so that going from one to the other binds nothing
again. All inputs and outputs stand in arrays made once, bound by address: a step of the width of
the last one only writes the arrays and runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.models.onnx_runtime import onnxruntime
from agent.worker.bindings import bind_lanes, past_inputs, run_bound
from agent.worker.kv_cache import KvSlab
from agent.worker.turns import LONE_CHUNK_TOKENS

Logits = npt.NDArray[np.float32]


class HostWay:
    """Runs a session over a slab. One thread drives it."""

    def __init__(self, session: onnxruntime.InferenceSession, slab: KvSlab, vocab: int) -> None:
        self.session = session
        self._chunk = _Binding(session, slab, vocab, 1, LONE_CHUNK_TOKENS)
        self._step = _Binding(session, slab, vocab, slab.lanes, 1)

    def run_chunk(self, lane: int, ids: Sequence[int], past: int) -> Logits:
        """Logits `[1, vocab]` after a lane's next `ids`."""
        count = len(ids)
        self._chunk.bind_rows(lane, 1, count)
        self._chunk.ids[0, :count] = ids
        self._chunk.rows[0] = count - 1
        return self._chunk.run([past + count])

    def run_step(self, ids: Sequence[int], lengths: Sequence[int]) -> Logits:
        """Logits `[B, vocab]` after one token for each of lanes 0 to B-1."""
        self._step.bind_rows(0, len(ids), 1)
        self._step.ids[: len(ids), 0] = ids
        return self._step.run(lengths)


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
        self._past = past_inputs(session)
        # Flat, since [batch, length] of fewer rows or tokens must be dense at its start.
        self._flat_ids = np.zeros(batch * length, np.int64)
        self.ids = self._flat_ids.reshape(batch, length)
        self.rows = np.arange(batch, dtype=np.int64)
        self._lengths = np.zeros(batch, np.int32)
        self._longest = np.zeros((), np.int32)
        self._logits = np.empty((batch, vocab), np.float32)
        self._inputs: list[tuple[str, npt.NDArray[Any]]] = []

    def bind_rows(self, lane: int, batch: int, length: int) -> None:
        """Bind lanes `lane` to `lane + batch - 1` and `length` tokens of each, if not bound yet."""
        shape = (lane, batch, length)
        if shape == self._bound:
            return
        if self._bound is None or self._bound[:2] != shape[:2]:
            bind_lanes(self._binding, self._past, self._slab, lane, batch)
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
        run_bound(self._session, self._binding)
        return self._logits[:batch]

    def _bind_inputs(self) -> None:
        for name, array in self._inputs:
            self._binding.bind_input(
                name, "cpu", 0, array.dtype, list(array.shape), array.ctypes.data
            )

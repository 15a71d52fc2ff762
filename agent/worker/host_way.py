"""Chunks and steps over a slab in host memory.

Two bindings, one for chunks and one for steps, so that going from one to the other binds nothing
again. All inputs and outputs stand in arrays made once, bound by address: a step of the width of
the last one only writes the arrays and runs.

A stage that is not the first is fed hidden states in place of ids, and one that is not the last
gives them in place of logits: a row of numbers for each token, in the order of the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.models.folder import Signature
from agent.models.onnx_runtime import onnxruntime
from agent.worker.bindings import bind_lanes, past_inputs, run_bound
from agent.worker.kv_cache import KvSlab
from agent.worker.turns import LONE_CHUNK_TOKENS

Logits = npt.NDArray[np.float32]
#: Of each token, float32 `[tokens, hidden]`.
Hidden = npt.NDArray[np.float32]
#: What goes into a run: ids, or what the stage before gave.
Fed = Sequence[int] | Hidden


class HostWay:
    """Runs a session over a slab. One thread drives it.

    Args:
        session: of the graph of a whole model or of a stage.
        slab: the lanes.
        figures: of the graph.
    """

    def __init__(
        self, session: onnxruntime.InferenceSession, slab: KvSlab, figures: Signature
    ) -> None:
        self.session = session
        self._chunk = _Binding(session, slab, figures, 1, LONE_CHUNK_TOKENS)
        self._step = _Binding(session, slab, figures, slab.lanes, 1)

    def run_chunk(self, lane: int, fed: Fed, past: int) -> Logits:
        """Logits `[1, vocab]` after a lane's next tokens, or `[tokens, hidden]`.

        Args:
            lane: row of the slab.
            fed: of 1 to `LONE_CHUNK_TOKENS` tokens.
            past: tokens that the lane holds.
        """
        count = len(fed)
        self._chunk.bind_rows(lane, 1, count)
        self._chunk.fed[:count] = fed
        self._chunk.rows[0] = count - 1
        return self._chunk.run([past + count])

    def run_step(self, fed: Fed, lengths: Sequence[int]) -> Logits:
        """Logits `[B, vocab]` after one token for each of lanes 0 to B-1, or `[B, hidden]`."""
        count = len(fed)
        self._step.bind_rows(0, count, 1)
        self._step.fed[:count] = fed
        return self._step.run(lengths)


class _Binding:
    """Inputs and outputs of one kind of run, `[batch, length]` tokens at most.

    Attributes:
        fed: `[tokens]` ids, or `[tokens, hidden]`; flat, since `[batch, length]` of fewer rows or
            tokens must be dense at its start.
        rows: of which tokens logits are wanted.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        slab: KvSlab,
        figures: Signature,
        batch: int,
        length: int,
    ) -> None:
        self._session = session
        self._slab = slab
        self._binding = session.io_binding()
        self._bound: tuple[int, int, int] | None = None
        self._past = past_inputs(session)
        tokens, names = batch * length, {value.name for value in session.get_inputs()}
        self._hidden = figures.hidden
        self._feeds = "input_ids" if "input_ids" in names else "hidden_in"
        self._gives = "logits" if "logits_idx" in names else "hidden_out"
        self.fed: npt.NDArray[Any] = (
            np.zeros(tokens, np.int64)
            if self._feeds == "input_ids"
            else np.zeros((tokens, self._hidden), np.float32)
        )
        self.rows = np.arange(batch, dtype=np.int64)
        self._lengths = np.zeros(batch, np.int32)
        self._longest = np.zeros((), np.int32)
        self._given = (
            np.empty((batch, figures.vocab), np.float32)
            if self._gives == "logits"
            else np.empty((tokens, self._hidden), np.float32)
        )
        #: Rows of `_given` that the run bound now writes.
        self._rows_given = 0
        self._inputs: list[tuple[str, npt.NDArray[Any]]] = []

    def bind_rows(self, lane: int, batch: int, length: int) -> None:
        """Bind lanes `lane` to `lane + batch - 1` and `length` tokens of each, if not bound yet."""
        shape = (lane, batch, length)
        if shape == self._bound:
            return
        new_lanes = self._bound is None or self._bound[:2] != shape[:2]
        if new_lanes:
            bind_lanes(self._binding, self._past, self._slab, lane, batch)
        if new_lanes or self._gives == "hidden_out":
            self._bind_output(batch, length)
        fed = self.fed[: batch * length]
        self._inputs = [
            (self._feeds, fed.reshape(batch, length, *fed.shape[1:])),
            ("seqlens_k", self._lengths[:batch]),
            ("total_sequence_length", self._longest),
        ]
        if self._gives == "logits":
            self._inputs.append(("logits_idx", self.rows[:batch]))
        self._bind_inputs()
        self._bound = shape

    def run(self, lengths: Sequence[int]) -> Logits:
        """Run what is bound; `lengths` are the rows' tokens after it."""
        batch = len(lengths)
        self._lengths[:batch] = lengths
        self._lengths[:batch] -= 1
        self._longest[...] = max(lengths)
        run_bound(self._session, self._binding)
        return self._given[: self._rows_given]

    def _bind_inputs(self) -> None:
        for name, array in self._inputs:
            self._binding.bind_input(
                name, "cpu", 0, array.dtype, list(array.shape), array.ctypes.data
            )

    def _bind_output(self, batch: int, length: int) -> None:
        logits = self._gives == "logits"
        shape = [batch, self._given.shape[1]] if logits else [batch, length, self._hidden]
        self._rows_given = batch if logits else batch * length
        self._binding.bind_output(self._gives, "cpu", 0, np.float32, shape, self._given.ctypes.data)

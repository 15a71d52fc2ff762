"""A model in an ONNX Runtime session, run over the KV slab.

Two bindings, one for chunks and one for steps, so that going from one to the other binds nothing
again. All inputs and outputs stand in arrays made once, bound by address: a step of the width of
the last one only writes the arrays and runs.

On CPU there are two sessions over one slab, whose threads spin between operators or sleep; their
bits are the same. ONNX Runtime fixes that when it makes a session, and which is the faster one
changes with what else runs on the machine (`spinning`).
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
from agent.worker.prepacked import open_prepacked
from agent.worker.provider import Target, check_provider, choose_target, preload_cuda
from agent.worker.sessions import SessionOptions, open_session
from agent.worker.spinning import SpinPolicy
from agent.worker.turns import MAX_CHUNK_TOKENS
from bus.errors import Internal, ModelIncomplete

Logits = npt.NDArray[np.float32]

#: A larger model is opened only once, without spinning: the weights that ONNX Runtime packs anew
#: are in memory once for each session.
TWO_SESSIONS_BYTES = 1 << 30


class ModelRunner:
    """Owns a session, its slab and its bindings. One thread drives it.

    Args:
        folder: an opened model folder.
        device: `auto`, `cuda` or `cpu`.
        lanes: rows of the slab.
        kv_bytes: budget of the slab.
        threads: of the session; 0 takes all processors that this process may use.
        spin: whether they stay awake between operators; None is as the machine's load allows.
        prepack: whether weights are mapped from a copy beside the model, which all processes share.

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
        spin: bool | None = None,
        prepack: bool = False,
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
        threads = threads or usable_processors()
        opener = _Opener(folder, self.target, threads, prepack=prepack)
        self.session = opener.open(spin=bool(spin))
        self.slab = _make_slab(self.target, 2 * figures.layers, lanes, lane)
        self.numerics = numerics_id(folder, self.target, lane)
        self._calm = _Way(self.session, self.slab, figures.vocab)
        self._awake: _Way | None = None
        self._policy = SpinPolicy(threads)
        small = folder.size_bytes <= TWO_SESSIONS_BYTES or opener.prepack
        if spin is None and small and threads > 1 and self.target.gpu is None:
            awake = opener.open(spin=True)
            self._awake = _Way(awake, self.slab, figures.vocab)
        #: Seconds inside ONNX Runtime so far.
        self.run_s = 0.0

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
        binding = self._way().chunk
        binding.bind_rows(lane, 1, count)
        binding.ids[0, :count] = ids
        binding.rows[0] = count - 1
        return self._run(binding, [past + count])

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
        binding = self._way().step
        binding.bind_rows(0, len(ids), 1)
        binding.ids[: len(ids), 0] = ids
        return self._run(binding, lengths)

    def copy_lane(self, src: int, dst: int, tokens: int) -> None:
        """Make the first `tokens` tokens of lane `dst` those of `src`."""
        self.slab.copy_lane(src, dst, tokens)

    def _way(self) -> _Way:
        """The session whose turn it is, with its bindings."""
        return self._awake if self._awake is not None and self._policy.spinning else self._calm

    def _run(self, binding: _Binding, lengths: Sequence[int]) -> Logits:
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            return binding.run(lengths)
        finally:
            wall_s = time.perf_counter() - wall
            self._policy.note(wall_s, time.process_time() - cpu)
            self.run_s += wall_s


class _Way:
    """A session, and its bindings for chunks and for steps over a slab."""

    def __init__(self, session: onnxruntime.InferenceSession, slab: KvSlab, vocab: int) -> None:
        self.chunk = _Binding(session, slab, vocab, 1, MAX_CHUNK_TOKENS)
        self.step = _Binding(session, slab, vocab, slab.lanes, 1)


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
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:  # its errors share no narrower base
            raise Internal(f"ONNX Runtime failed in a run: {error}") from error
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


class _Opener:
    """Opens a folder's sessions.

    Attributes:
        prepack: whether weights come from a copy that all processes share.
    """

    def __init__(self, folder: ModelFolder, target: Target, threads: int, *, prepack: bool) -> None:
        self._folder = folder
        self._target = target
        self._threads = threads
        # On a GPU weights are in its memory.
        self.prepack = prepack and target.gpu is None
        if target.gpu:
            preload_cuda()

    def open(self, *, spin: bool) -> onnxruntime.InferenceSession:
        """A session whose threads spin or not."""
        session = self._prepacked(spin) if self.prepack else None
        if session is None:
            self.prepack = False
            session = self._plain(spin)
        check_provider(session, self._target)
        return session

    def _prepacked(self, spin: bool) -> onnxruntime.InferenceSession | None:
        target = self._target
        options = SessionOptions(threads=self._threads, spin=spin, optimized=True)
        return open_prepacked(
            self._folder,
            target.graph,
            target.providers[0],
            lambda copy: open_session(copy, target.providers, options),
        )

    def _plain(self, spin: bool) -> onnxruntime.InferenceSession:
        options = SessionOptions(threads=self._threads, spin=spin)
        try:
            return open_session(self._target.graph, self._target.providers, options)
        except Exception as error:  # its errors share no narrower base
            name = self._folder.name
            raise ModelIncomplete(
                f"model {name} can not be loaded: {error}; make it again with "
                f"`sfctl model import FILE.gguf --name {name}`",
                param="model",
            ) from error


def _make_slab(target: Target, layer_parts: int, lanes: int, lane: LaneShape) -> KvSlab:
    if target.gpu is None:
        return HostSlab(layer_parts, lanes, lane)
    from agent.worker.cuda_slab import CudaSlab

    return CudaSlab(layer_parts, lanes, lane)

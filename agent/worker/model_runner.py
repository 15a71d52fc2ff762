"""A model in an ONNX Runtime session, run over the KV slab.

How inputs and outputs are bound is the way's: `host_way` on a CPU, `device_way` on a GPU. On CPU
there are two sessions over one slab, whose threads spin between operators or sleep; their bits are
the same. ONNX Runtime fixes that when it makes a session, and which is the faster one changes with
what else runs on the machine (`spinning`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from agent.models import selftest
from agent.models.folder import ModelFolder
from agent.worker.host_way import HostWay
from agent.worker.host_way import Logits as Logits
from agent.worker.kv_cache import (
    DEFAULT_KV_BYTES,
    DEFAULT_LANES,
    HostSlab,
    KvSlab,
    LaneShape,
    lane_tokens,
)
from agent.worker.numerics import numerics_id
from agent.worker.provider import choose_target
from agent.worker.session_opener import SessionOpener
from agent.worker.sessions import usable_processors
from agent.worker.spinning import SpinPolicy
from agent.worker.turns import LONE_CHUNK_TOKENS, MAX_CHUNK_TOKENS
from bus.errors import Internal, ModelIncomplete, StartError
from bus.log import EventLog

log = EventLog(__name__)

#: A larger model is opened only once, without spinning: the weights that ONNX Runtime packs anew
#: are in memory once for each session.
TWO_SESSIONS_BYTES = 1 << 30


class Way(Protocol):
    """How chunks and steps are run over a slab."""

    def run_chunk(self, lane: int, ids: Sequence[int], past: int) -> Logits: ...

    def run_step(self, ids: Sequence[int], lengths: Sequence[int]) -> Logits: ...


class ModelRunner:
    """Owns a model's sessions and slab. One thread drives it.

    Where `auto` found a GPU that can not be used after all, the CPU is taken and the log says why.

    Args:
        folder: an opened model folder.
        device: `auto`, `cuda` or `cpu`.
        lanes: rows of the slab.
        kv_bytes: budget of the slab.
        threads: of the session; 0 takes all processors that this process may use.
        spin: whether they stay awake between operators; None is as the machine's load allows.
        prepack: whether weights are mapped from a copy beside the model, which all processes share.
        graphs: whether steps on a GPU are captured as CUDA graphs, where they can be.

    Raises:
        StartError: no such device, or the graph can not be loaded (ModelIncomplete).
        ConfigInvalid: the KV budget is too small.

    Attributes:
        window: tokens that a lane may hold.
        longest_chunk: most tokens that a chunk may have.
        run_s: seconds inside ONNX Runtime so far.
        graphs: whether steps are captured.
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
        graphs: bool = True,
    ) -> None:
        self.folder = folder
        self.run_s = 0.0
        threads = threads or usable_processors()
        self._policy = SpinPolicy(threads)
        self.target = choose_target(folder, device)
        try:
            self._open(lanes, kv_bytes, threads, spin, prepack, graphs)
        except (Internal, StartError, ModelIncomplete) as error:
            if device != "auto" or self.target.gpu is None:
                raise
            log.warning(
                "cuda_not_used", model=folder.name, gpu=self.target.gpu.name, error=error.message
            )
            self.target = choose_target(folder, "cpu")
            self._open(lanes, kv_bytes, threads, spin, prepack, graphs)

    def _open(
        self,
        lanes: int,
        kv_bytes: int,
        threads: int,
        spin: bool | None,
        prepack: bool,
        graphs: bool,
    ) -> None:
        folder, figures = self.folder, self.folder.signature
        float16 = self.target.gpu is not None
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
        self.numerics = numerics_id(folder, self.target, lane)
        opener = SessionOpener(folder, self.target, threads, prepack=prepack)
        if float16:
            self._open_on_cuda(opener, lanes, lane, graphs)
        else:
            self._open_on_cpu(opener, lanes, lane, spin)

    def _open_on_cpu(
        self, opener: SessionOpener, lanes: int, lane: LaneShape, spin: bool | None
    ) -> None:
        figures = self.folder.signature
        session = opener.open(spin=bool(spin))
        self.slab: KvSlab = HostSlab(2 * figures.layers, lanes, lane)
        self.window = lane.max_len
        self.longest_chunk = LONE_CHUNK_TOKENS
        self.graphs = False
        self._calm: Way = HostWay(session, self.slab, figures)
        self._awake: Way | None = None
        self._tested: Any = session
        small = self.folder.size_bytes <= TWO_SESSIONS_BYTES or opener.prepack
        if spin is None and small and opener.threads > 1:
            self._awake = HostWay(opener.open(spin=True), self.slab, figures)

    def _open_on_cuda(
        self, opener: SessionOpener, lanes: int, lane: LaneShape, graphs: bool
    ) -> None:
        # Imported here: their libraries are a GPU's.
        from agent.worker.cuda_way import open_on_cuda
        from agent.worker.device_way import SPARE_POSITIONS

        figures = self.folder.signature
        self.slab, way = open_on_cuda(
            lambda options: opener.open(spin=False, provider_options=options),
            layer_parts=2 * figures.layers,
            lanes=lanes,
            lane=lane,
            vocab=figures.vocab,
            graphs=graphs,
        )
        self.window = lane.max_len - SPARE_POSITIONS
        self.longest_chunk = MAX_CHUNK_TOKENS
        self.graphs = way.graphs
        self._calm, self._awake, self._tested = way, None, way

    def self_test(self) -> None:
        """Run the folder's one-token test.

        Raises:
            ModelIncomplete: the graph no longer gives the token that it gave when it was made.
        """
        selftest.check(self._tested, self.folder)

    def prefill_chunk(self, lane: int, ids: Sequence[int], past: int) -> Logits:
        """Feed a stretch of tokens to one lane.

        Args:
            lane: row of the slab.
            ids: 1 to `longest_chunk` token ids.
            past: tokens that the lane holds.

        Returns:
            Logits after the last of them, float32 `[1, vocab]`, valid until the next chunk.

        Raises:
            Internal: ONNX Runtime failed.
        """
        way = self._way()
        return self._timed(lambda: way.run_chunk(lane, ids, past))

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
        way = self._way()
        return self._timed(lambda: way.run_step(ids, lengths))

    def _way(self) -> Way:
        """The session whose turn it is, with its bindings."""
        return self._awake if self._awake is not None and self._policy.spinning else self._calm

    def _timed(self, run: Callable[[], Logits]) -> Logits:
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            return run()
        finally:
            wall_s = time.perf_counter() - wall
            self._policy.note(wall_s, time.process_time() - cpu)
            self.run_s += wall_s

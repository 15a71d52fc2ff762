"""A stage of a model in ONNX Runtime sessions, run over as many slabs as its chains want.

The sessions are opened once and have no lanes of their own; what belongs to one group of one chain,
a slab and what binds it, is made when the chain is opened and goes with it. As for a whole model
there are two sessions, whose threads spin between operators or sleep (`spinning`).

Stages run on a CPU: there hidden states come and go in host memory.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from agent.models import selftest
from agent.models.folder import ModelFolder
from agent.worker.host_way import Fed, Hidden, HostWay, Logits
from agent.worker.kv_cache import HostSlab, KvSlab, LaneShape
from agent.worker.numerics import numerics_id
from agent.worker.provider import choose_target
from agent.worker.session_opener import SessionOpener
from agent.worker.sessions import usable_processors
from agent.worker.spinning import SpinPolicy
from agent.worker.turns import LONE_CHUNK_TOKENS
from bus.errors import StartError

#: A larger stage is opened only once; see `model_runner`.
TWO_SESSIONS_BYTES = 1 << 30


class StageLanes(Protocol):
    """A slab of one group, and how it is run."""

    @property
    def slab(self) -> KvSlab: ...

    def run_chunk(self, lane: int, fed: Fed, past: int) -> Logits | Hidden:
        """As `HostWay.run_chunk`; valid until the next chunk."""

    def run_step(self, fed: Fed, lengths: Sequence[int]) -> Logits | Hidden:
        """As `HostWay.run_step`; valid until the next step."""


class StageRunner:
    """Owns a stage's sessions. One thread drives it.

    Args:
        folder: an opened folder of a stage.
        device: `auto` or `cpu`.
        threads: of the session; 0 takes all processors that this process may use.
        spin: whether they stay awake between operators; None is as the machine's load allows.
        prepack: whether weights are mapped from a copy beside the model, which all processes share.

    Raises:
        StartError: another device was asked for, or the graph can not be loaded (ModelIncomplete).

    Attributes:
        longest_chunk: most tokens that a chunk may have.
        token_bytes: keys and values of one token in this stage's layers.
        run_s: seconds inside ONNX Runtime so far.
    """

    longest_chunk = LONE_CHUNK_TOKENS

    def __init__(
        self,
        folder: ModelFolder,
        *,
        device: str = "auto",
        threads: int = 0,
        spin: bool | None = None,
        prepack: bool = False,
    ) -> None:
        if device == "cuda":
            raise StartError(
                f"model {folder.name} is a stage, and stages run on CPU; set device to cpu or auto"
            )
        self.folder = folder
        self.run_s = 0.0
        self.token_bytes = folder.kv_bytes_per_token()
        self.target = choose_target(folder, "cpu")
        self.numerics = numerics_id(folder, self.target, self._lane(1))
        threads = threads or usable_processors()
        self.policy = SpinPolicy(threads)
        opener = SessionOpener(folder, self.target, threads, prepack=prepack)
        self._calm = opener.open(spin=bool(spin))
        small = folder.size_bytes <= TWO_SESSIONS_BYTES or opener.prepack
        two = spin is None and small and threads > 1
        self._awake = opener.open(spin=True) if two else None

    @property
    def takes_ids(self) -> bool:
        """Whether it is the first stage."""
        return "input_ids" in self.folder.signature.inputs

    @property
    def gives_logits(self) -> bool:
        """Whether it is the last stage."""
        return "logits_idx" in self.folder.signature.inputs

    def self_test(self) -> None:
        """Run the folder's test.

        Raises:
            ModelIncomplete: the graph no longer gives what it gave when it was made.
        """
        selftest.check(self._calm, self.folder)

    def make_lanes(self, lanes: int, window: int) -> StageLanes:
        """A slab of a group, with what binds it; it goes when nobody has it.

        Args:
            lanes: rows.
            window: tokens of each.
        """
        slab = HostSlab(2 * self.folder.signature.layers, lanes, self._lane(window))
        calm = HostWay(self._calm, slab, self.folder.signature)
        awake = self._awake and HostWay(self._awake, slab, self.folder.signature)
        return _Lanes(self, slab, calm, awake)

    def _lane(self, window: int) -> LaneShape:
        figures = self.folder.signature
        return LaneShape(figures.kv_heads, window, figures.head_dim, np.dtype(np.float32))


class _Lanes:
    """Runs a group's slab, in the session whose turn it is."""

    def __init__(
        self, runner: StageRunner, slab: KvSlab, calm: HostWay, awake: HostWay | None
    ) -> None:
        self.slab = slab
        self._runner = runner
        self._calm = calm
        self._awake = awake

    def run_chunk(self, lane: int, fed: Fed, past: int) -> Logits | Hidden:
        way = self._way()
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            return way.run_chunk(lane, fed, past)
        finally:
            self._note(wall, cpu)

    def run_step(self, fed: Fed, lengths: Sequence[int]) -> Logits | Hidden:
        way = self._way()
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            return way.run_step(fed, lengths)
        finally:
            self._note(wall, cpu)

    def _way(self) -> HostWay:
        spins = self._awake is not None and self._runner.policy.spinning
        return self._awake if spins and self._awake is not None else self._calm

    def _note(self, wall: float, cpu: float) -> None:
        wall_s = time.perf_counter() - wall
        self._runner.policy.note(wall_s, time.process_time() - cpu)
        self._runner.run_s += wall_s

"""Chunks and steps whose inputs, keys, values and logits all stand in a device's memory.

Everything is bound once, by addresses that never change: a step writes its ids and lengths into one
buffer, which goes over in one copy, runs, and brings its logits back in one. So a step of a given
width can be captured as a CUDA graph and replayed.

Widths are powers of two and the slab's. A step of fewer rows takes the next width; the rows beyond
its own are lanes too, and whatever these hold must stay. Each of them is fed one token behind what
its lane holds, which is written over when the lane goes on; for a full lane the slab has one
position more than the window.

How long the longest row is, which ONNX Runtime is told on the host, decides only into how many
parts attention is split, and a captured graph keeps it: steps always say the lane's length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agent.models.onnx_runtime import onnxruntime
from agent.worker.bindings import bind_lanes, past_inputs, run_bound
from agent.worker.device_memory import DeviceMemory
from agent.worker.filled_lanes import FilledLanes
from agent.worker.host_way import Logits
from agent.worker.turns import MAX_CHUNK_TOKENS
from bus.errors import Internal

#: Positions of a lane beyond the window.
SPARE_POSITIONS = 1

#: ONNX Runtime's run option: which graph a run captures or replays.
_GRAPH_ID = "gpu_graph_id"
_NO_GRAPH = "-1"


def step_widths(lanes: int) -> tuple[int, ...]:
    """Widths of steps: powers of two up to `lanes`, and `lanes`."""
    powers = [1 << bit for bit in range(lanes.bit_length())]
    return tuple(sorted({*(width for width in powers if width < lanes), lanes}))


class DeviceWay:
    """Runs a session over a slab of its device. One thread drives it.

    Args:
        session: of the graph.
        slab: has `SPARE_POSITIONS` more than the window.
        vocab: width of the logits.
        memory: the device's.
        graphs: whether steps are captured and replayed; the session was made for it.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        slab: FilledLanes,
        vocab: int,
        memory: DeviceMemory,
        *,
        graphs: bool,
    ) -> None:
        self.session = session
        self.graphs = graphs
        self._slab = slab
        self._eager = _run_options(_NO_GRAPH)
        self._chunk = _Rows(session, slab, vocab, memory, 1, MAX_CHUNK_TOKENS)
        self._step = _Rows(session, slab, vocab, memory, slab.lanes, slab.lanes)
        self._widths = step_widths(slab.lanes)
        self._bindings = {width: self._step.bind(0, width, 1) for width in self._widths}
        self._options = {
            width: _run_options(str(number)) if graphs else self._eager
            for number, width in enumerate(self._widths, start=1)
        }
        self._bound_chunk: tuple[int, int, Any] | None = None

    def run_chunk(self, lane: int, ids: Sequence[int], past: int) -> Logits:
        """Logits `[1, vocab]` after a lane's next `ids`."""
        count = len(ids)
        rows = self._chunk
        if self._bound_chunk is None or self._bound_chunk[:2] != (lane, count):
            self._bound_chunk = (lane, count, rows.bind(lane, 1, count))
        rows.ids[:count] = ids
        rows.places[0] = count - 1
        rows.lengths[0] = past + count - 1
        rows.longest[...] = past + count
        self._slab.wrote(lane, past + count)
        return rows.run(self._bound_chunk[2], self._eager, 1)

    def run_step(self, ids: Sequence[int], lengths: Sequence[int]) -> Logits:
        """Logits `[B, vocab]` after one token for each of lanes 0 to B-1."""
        count = len(ids)
        self._feed(ids, lengths)
        for lane, length in enumerate(lengths):
            self._slab.wrote(lane, length)
        width = self._width(count)
        return self._step.run(self._bindings[width], self._options[width], count)

    def warm_up(self) -> None:
        """Run steps of every width, and see that captured ones compute the same.

        Before the lanes are used: what is written is of no matter.

        Raises:
            Internal: a run failed, or a graph gives other logits.
        """
        for width in self._widths:
            self._feed([0] * width, [filled + 1 for filled in self._slab.filled[:width]])
            binding = self._bindings[width]
            expected = self._step.run(binding, self._eager, width).copy()
            # The first captures, the second replays.
            for _ in range(2 if self.graphs else 0):
                found = self._step.run(binding, self._options[width], width)
                if not np.array_equal(found, expected, equal_nan=True):
                    raise Internal(f"a captured step of {width} rows gives other logits")

    def run(self, outputs: Sequence[str], feeds: dict[str, Any]) -> list[Any]:
        """A run with inputs from the host, beside the lanes; never captured."""
        found: list[Any] = self.session.run(outputs, feeds, self._eager)
        return found

    def get_inputs(self) -> Any:
        """The session's."""
        return self.session.get_inputs()

    def _width(self, count: int) -> int:
        return next(width for width in self._widths if width >= count)

    def _feed(self, ids: Sequence[int], lengths: Sequence[int]) -> None:
        rows, count = self._step, len(ids)
        width = self._width(count)
        rows.ids[:count] = ids
        rows.ids[count:width] = 0
        rows.lengths[:count] = lengths
        rows.lengths[:count] -= 1
        # Seqlens are one less than the tokens after the run: exactly those before it.
        rows.lengths[count:width] = self._slab.filled[count:width]
        rows.longest[...] = self._slab.lane.max_len


class _Rows:
    """Inputs and logits of one kind of run, at fixed places.

    Attributes:
        ids: int64, `[tokens]`.
        places: int64, `[rows]`: of which tokens logits are wanted.
        lengths: int32, `[rows]`.
        longest: int32 scalar, in host memory: the operator reads it there.
    """

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        slab: FilledLanes,
        vocab: int,
        memory: DeviceMemory,
        rows: int,
        tokens: int,
    ) -> None:
        self._session = session
        self._slab = slab
        self._vocab = vocab
        self._device = memory.device
        self._past = past_inputs(session)
        self._places_at, self._lengths_at = 8 * tokens, 8 * (tokens + rows)
        self._inputs = memory.buffer(self._lengths_at + 4 * rows)
        host = self._inputs.host
        self.ids: npt.NDArray[np.int64] = host[: self._places_at].view(np.int64)
        self.places: npt.NDArray[np.int64] = host[self._places_at : self._lengths_at].view(np.int64)
        lengths = host[self._lengths_at : self._lengths_at + 4 * rows]
        self.lengths: npt.NDArray[np.int32] = lengths.view(np.int32)
        self.longest = np.zeros((), np.int32)
        self.places[:] = np.arange(rows)
        self._outputs = memory.buffer(4 * rows * vocab)
        flat = self._outputs.host[: 4 * rows * vocab].view(np.float32)
        self._logits: Logits = flat.reshape(rows, vocab)

    def bind(self, lane: int, rows: int, length: int) -> Any:
        """A binding of `rows` lanes from `lane` on, and `length` tokens of each."""
        binding = self._session.io_binding()
        base = self._inputs.address
        for name, kind, shape, address in (
            ("input_ids", np.int64, [rows, length], base),
            ("logits_idx", np.int64, [rows], base + self._places_at),
            ("seqlens_k", np.int32, [rows], base + self._lengths_at),
        ):
            binding.bind_input(name, self._device, 0, kind, shape, address)
        longest = self.longest
        binding.bind_input("total_sequence_length", "cpu", 0, np.int32, [], longest.ctypes.data)
        binding.bind_output(
            "logits", self._device, 0, np.float32, [rows, self._vocab], self._outputs.address
        )
        bind_lanes(binding, self._past, self._slab, lane, rows)
        return binding

    def run(self, binding: Any, options: Any, rows: int) -> Logits:
        """Run a binding; logits of its first `rows` rows, valid until the next run."""
        self._inputs.push()
        run_bound(self._session, binding, options)
        self._outputs.pull(4 * rows * self._vocab)
        return self._logits[:rows]


def _run_options(graph: str) -> Any:
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(_GRAPH_ID, graph)
    return options

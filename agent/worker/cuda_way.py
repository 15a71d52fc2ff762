"""A model on the first GPU: slab, session and bindings there, steps captured as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent.models.onnx_runtime import onnxruntime
from agent.worker.cuda_driver import CudaDriver
from agent.worker.cuda_memory import CudaMemory
from agent.worker.cuda_slab import CudaSlab
from agent.worker.device_way import DeviceWay
from agent.worker.filled_lanes import FilledLanes
from agent.worker.kv_cache import LaneShape
from bus.errors import Internal, ModelIncomplete
from bus.log import EventLog

log = EventLog(__name__)

#: Opens a session with options of the CUDA provider.
Open = Callable[[Mapping[str, str]], onnxruntime.InferenceSession]

_PLAIN: Mapping[str, str] = {"arena_extend_strategy": "kSameAsRequested"}
_GRAPHS: Mapping[str, str] = {**_PLAIN, "enable_cuda_graph": "1"}


def open_on_cuda(
    opened: Open,
    *,
    layer_parts: int,
    lanes: int,
    lane: LaneShape,
    vocab: int,
    graphs: bool = True,
) -> tuple[FilledLanes, DeviceWay]:
    """A slab in GPU memory and a way to run over it, warm.

    Args:
        opened: opens the model's session.
        layer_parts: arrays of the slab: keys and values of each layer.
        lanes: its rows.
        lane: of one; longer than the window by `SPARE_POSITIONS`.
        vocab: width of the logits.
        graphs: whether to try CUDA graphs.

    Raises:
        StartError: the GPU is not to be had, or has no room.
        ModelIncomplete: the graph can not be loaded.
        Internal: the driver failed, or a run did.
    """
    made: list[tuple[FilledLanes, CudaMemory]] = []

    def way(graphs: bool) -> DeviceWay:
        # The session goes first: it tells best what the GPU lacks.
        session = opened(_GRAPHS if graphs else _PLAIN)
        if not made:
            driver = CudaDriver()
            slab = FilledLanes(CudaSlab(layer_parts, lanes, lane, driver))
            made.append((slab, CudaMemory(driver)))
        slab, memory = made[0]
        return DeviceWay(session, slab, vocab, memory, graphs=graphs)

    warm = with_graphs(way) if graphs else _warm(way, graphs=False)
    return made[0][0], warm


def with_graphs(way: Callable[[bool], DeviceWay]) -> DeviceWay:
    """A warm way with captured steps, or without where capturing fails, which is logged.

    Args:
        way: makes one, with graphs or without.
    """
    try:
        return _warm(way, graphs=True)
    except (Internal, ModelIncomplete) as error:
        log.warning(
            "cuda_graphs_off",
            error=error,
            effect="each step launches its kernels one by one, which is slower with few lanes",
        )
    return _warm(way, graphs=False)


def _warm(way: Callable[[bool], DeviceWay], *, graphs: bool) -> DeviceWay:
    made = way(graphs)
    made.warm_up()
    return made

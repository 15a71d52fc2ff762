"""A session's inputs and outputs bound by address, and run: what all ways of running share."""

from __future__ import annotations

from typing import Any

from agent.models.onnx_runtime import onnxruntime
from agent.worker.kv_cache import KvSlab
from bus.errors import Internal

_PAST = "past."
_PRESENT = "present."


def past_inputs(session: onnxruntime.InferenceSession) -> list[str]:
    """Names of the inputs for keys and values, in the order of a slab's layer parts."""
    return [i.name for i in session.get_inputs() if i.name.startswith(_PAST)]


def bind_lanes(binding: Any, past: list[str], slab: KvSlab, lane: int, rows: int) -> None:
    """Bind `rows` lanes from `lane` on, as input and as output at once.

    Args:
        binding: of the session.
        past: its `past_inputs`.
        slab: of the lanes.
        lane: the first.
        rows: how many.
    """
    kv = slab.lane
    shape = [rows, kv.kv_heads, kv.max_len, kv.head_dim]
    for part, name in enumerate(past):
        place = (slab.device, 0, kv.dtype.type, shape, slab.address(part, lane))
        binding.bind_input(name, *place)
        binding.bind_output(name.replace(_PAST, _PRESENT, 1), *place)


def run_bound(session: onnxruntime.InferenceSession, binding: Any, options: Any = None) -> None:
    """Run what is bound.

    Raises:
        Internal: ONNX Runtime failed.
    """
    try:
        session.run_with_iobinding(binding, options)
    except Exception as error:  # its errors share no narrower base
        raise Internal(f"ONNX Runtime failed in a run: {error}") from error

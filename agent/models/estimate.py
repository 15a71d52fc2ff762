"""What a model takes in memory, from its header alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.models.architecture import DecoderConfig
from agent.models.blocks import FORMATS
from agent.models.gguf_header import TensorInfo

#: What a worker has when nobody chose (`agent.worker.kv_cache`): lanes, and bytes of their KV.
LANES = 8
KV_BYTES = 1 << 30
#: A worker without a model, and what ONNX Runtime keeps beside weights (measured: 60 to 80 MB).
PROCESS_BYTES = 80 << 20
_FLOAT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Memory of one worker on CPU, in bytes, and what its lanes hold.

    Attributes:
        weights: of the float32 graph.
        kv_per_token: keys and values of a token in all layers.
        lane_tokens: how many tokens a lane has room for.
        kv: of all lanes.
    """

    weights: int
    kv_per_token: int
    lane_tokens: int
    kv: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv + PROCESS_BYTES


def estimate(
    config: DecoderConfig,
    tensors: Mapping[str, TensorInfo],
    *,
    lanes: int = LANES,
    kv_bytes: int = KV_BYTES,
) -> Estimate:
    """What a worker of a model would take.

    Args:
        config: the model's figures.
        tensors: of its file, all of types that are imported.
        lanes: of the worker.
        kv_bytes: budget of the lanes together.
    """
    per_token = config.layers * 2 * config.kv_heads * config.head_dim * _FLOAT
    tokens = min(config.max_positions, kv_bytes // lanes // per_token)
    return Estimate(
        weights=_weights(config, tensors),
        kv_per_token=per_token,
        lane_tokens=tokens,
        kv=lanes * tokens * per_token,
    )


def _weights(config: DecoderConfig, tensors: Mapping[str, TensorInfo]) -> int:
    total = sum(sum(_matrix(tensor)) for tensor in tensors.values())
    if "output.weight" not in tensors and "token_embd.weight" in tensors:
        # a tied head shares the integers and has scales of its own, in another order
        table = tensors["token_embd.weight"]
        total += _matrix(table)[1]
    own = config.local_rotary is not None
    rotations = len({own and config.is_local(layer) for layer in range(config.layers)})
    return total + rotations * config.max_positions * config.head_dim * _FLOAT


def _matrix(tensor: TensorInfo) -> tuple[int, int]:
    """Bytes of a tensor's integers or dense values, and of its scales and minima."""
    form = FORMATS.get(tensor.type_name)
    if form is None:
        return tensor.values * _FLOAT, 0
    scales = tensor.values // form.group * _FLOAT
    return tensor.values * form.bits // 8, scales * (2 if form.affine else 1)

"""What a chain gets of a stage's memory: lanes of keys and values, and room to save some. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from agent.worker.kv_cache import MIN_LANE_TOKENS
from bus.errors import ConfigInvalid
from bus.messages.worker_stages import StageOpen


@dataclass(frozen=True, slots=True)
class ChainShape:
    """What a stage holds for a chain.

    Attributes:
        groups: each has a slab and host memory of its own.
        lanes: of each group.
        window: tokens of a lane.
        host_tokens: tokens that each group may save in host memory.
    """

    groups: int
    lanes: int
    window: int
    host_tokens: int

    @property
    def kv_tokens(self) -> int:
        """Tokens of all lanes."""
        return self.groups * self.lanes * self.window


@dataclass(frozen=True, slots=True)
class StageBudget:
    """What a stage may take for all of its chains.

    Attributes:
        kv_bytes: for lanes.
        host_kv_bytes: for saved lanes.
        token_bytes: keys and values of one token in the stage's layers.
        max_window: tokens that the model's tables allow.
    """

    kv_bytes: int
    host_kv_bytes: int
    token_bytes: int
    max_window: int

    def shape(self, order: StageOpen, *, kv_used: int = 0, host_used: int = 0) -> ChainShape:
        """What a chain gets.

        Args:
            order: what is asked for.
            kv_used: bytes of lanes that other chains have.
            host_used: bytes of host memory that they have.

        Raises:
            ConfigInvalid: it is not enough to serve anything; with both figures.
        """
        lanes = max(1, order.lanes // order.groups)
        wanted = min(order.window or self.max_window, self.max_window)
        all_lanes = order.groups * lanes
        window = min(wanted, (self.kv_bytes - kv_used) // (all_lanes * self.token_bytes))
        least = min(MIN_LANE_TOKENS, wanted)
        if window < least:
            raise ConfigInvalid(
                f"a chain of {all_lanes} lanes takes at least "
                f"{least * all_lanes * self.token_bytes} bytes of keys and values on this stage, "
                f"and {max(0, self.kv_bytes - kv_used)} of {self.kv_bytes} are free; give its "
                "worker a larger KV budget or the model fewer lanes",
                param="kv_bytes",
            )
        host = max(0, self.host_kv_bytes - host_used) // self.token_bytes
        if order.host_tokens is not None:
            host = min(host, order.host_tokens)
        return ChainShape(order.groups, lanes, window, host // order.groups)

"""Which nodes take which layers of a model that no single one can hold.

A plan has the fewest stages that fit, since each is a hop of every token; of those it is the one
whose slowest stage takes the least time, since that is how fast a full chain goes. A stage's time
is the bytes of weights that a step goes through, its layers and the last stage's head, by how many
bytes its node goes through in a second. It is a pure function: the same nodes in any order give the
same plan.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bus.errors import Invalid, NoMemory, NoNode
from head.stage_search import Costs, Node, fewest, search

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageModel:
    """A model that is to be divided, in bytes, and what its lanes are to hold.

    Attributes:
        layers: of each layer.
        embedding_bytes: what the first stage has beside its layers.
        head_bytes: what the last one has beside.
        shared_bytes: what a stage with both has only once.
        every_bytes: what each stage has.
        kv_bytes: keys and values of a token in one layer.
        overhead_bytes: what a worker takes beside weights and lanes.
        lanes: streams at once.
        window: tokens of each, prompt and answer.
        most_tokens: the longest window that the model has.
    """

    name: str
    layers: tuple[int, ...]
    embedding_bytes: int
    head_bytes: int
    shared_bytes: int
    every_bytes: int
    kv_bytes: int
    overhead_bytes: int
    lanes: int
    window: int
    most_tokens: int

    def weights(self, first: int, end: int) -> int:
        """Bytes of weights of the layers `first` up to, not including, `end`."""
        starts, ends = first == 0, end == len(self.layers)
        rim = self.embedding_bytes * starts + self.head_bytes * ends
        return (
            sum(self.layers[first:end])
            + rim
            - self.shared_bytes * (starts and ends)
            + (self.every_bytes)
        )

    def kv(self, first: int, end: int) -> int:
        """Bytes of the lanes in those layers."""
        return self.lanes * self.window * self.kv_bytes * (end - first)

    def memory(self, first: int, end: int) -> int:
        """Bytes that a stage of those layers takes of its node."""
        return self.weights(first, end) + self.kv(first, end) + self.overhead_bytes

    def work(self, first: int, end: int) -> int:
        """Bytes of weights that a step goes through in those layers."""
        return sum(self.layers[first:end]) + self.head_bytes * (end == len(self.layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNode:
    """A node that may take a stage.

    Attributes:
        memory_bytes: what a stage there may take.
        rate: bytes of weights that it goes through in a second of decoding; 0 is not known, and
            counts as the mean of those that are.
    """

    name: str
    memory_bytes: int
    rate: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """Layers `first` up to, not including, `end`, and their node.

    Attributes:
        memory_bytes: what it takes of the node's `free_bytes`, weights and lanes among it.
        step_s: time of a step; 0 where no rate is known.
    """

    node: str
    first: int
    end: int
    weights_bytes: int
    kv_bytes: int
    memory_bytes: int
    free_bytes: int
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """Stages in order; they cover all layers once."""

    model: StageModel
    stages: tuple[PlannedStage, ...]

    @property
    def ranges(self) -> str:
        """The layers as `sfctl model split --layers` takes them."""
        return ",".join(f"{stage.first}-{stage.end - 1}" for stage in self.stages)

    @property
    def tokens_per_s_alone(self) -> float:
        """What one stream can have at most; 0 where no rate is known."""
        total = sum(stage.step_s for stage in self.stages)
        return 1 / total if total else 0.0

    @property
    def tokens_per_s(self) -> float:
        """What all lanes together can have at most, in as many groups as there are stages."""
        longest = max(stage.step_s for stage in self.stages)
        return max(1, self.model.lanes // len(self.stages)) / longest if longest else 0.0


def plan(model: StageModel, nodes: Sequence[StageNode]) -> StagePlan:
    """Divide a model over nodes.

    Args:
        model: what is divided.
        nodes: that may take a stage, in any order; not all need get one.

    Raises:
        Invalid: a figure that is none, or a node that is named twice.
        NoNode: there are no nodes.
        NoMemory: it does not fit; says what it needs, what there is, and what would help.
    """
    _check(model, nodes)
    in_order = _with_rates(nodes)
    found = search(_costs(model), [Node(node.memory_bytes, node.rate) for node in in_order])
    if found is None:
        raise _no_room(model, in_order)
    measured = any(node.rate > 0 for node in nodes)
    return StagePlan(
        model=model,
        stages=tuple(
            PlannedStage(
                node=in_order[each.node].name,
                first=each.first,
                end=each.end,
                weights_bytes=model.weights(each.first, each.end),
                kv_bytes=model.kv(each.first, each.end),
                memory_bytes=model.memory(each.first, each.end),
                free_bytes=in_order[each.node].memory_bytes,
                step_s=model.work(each.first, each.end) / in_order[each.node].rate * measured,
            )
            for each in found
        ),
    )


def _check(model: StageModel, nodes: Sequence[StageNode]) -> None:
    if not model.layers:
        raise Invalid(f"{model.name} has no layers; name a decoder", param="model")
    if model.lanes < 1:
        raise Invalid(f"lanes is {model.lanes}; it is a number from 1", param="lanes")
    if not 1 <= model.window <= model.most_tokens:
        raise Invalid(
            f"window is {model.window} tokens; {model.name} takes 1 to {model.most_tokens}",
            param="window",
        )
    if not nodes:
        raise NoNode(
            f"there is no node to plan {model.name} for; start some, and see: sfctl node ls"
        )
    twice = [name for name, count in Counter(node.name for node in nodes).items() if count > 1]
    if twice:
        raise Invalid(f"node {min(twice)} is named twice; name each once", param="node")
    for node in nodes:
        if node.memory_bytes < 0 or not math.isfinite(node.rate) or node.rate < 0:
            raise Invalid(
                f"node {node.name} has {node.memory_bytes} bytes and a rate of {node.rate}; both "
                "are numbers from 0",
                param="node",
            )


def _with_rates(nodes: Sequence[StageNode]) -> list[StageNode]:
    """The nodes by name, those without a rate with the mean of the others, or all with one."""
    known = sorted(node.rate for node in nodes if node.rate > 0)
    mean = math.fsum(known) / len(known) if known else 1.0
    return [
        replace(node, rate=node.rate or mean) for node in sorted(nodes, key=lambda node: node.name)
    ]


def _costs(model: StageModel) -> Costs:
    lane_bytes = model.kv(0, 1)
    *others, last = model.layers
    return Costs(
        [layer + lane_bytes for layer in model.layers],
        first=model.embedding_bytes,
        last=model.head_bytes,
        both=model.shared_bytes,
        every=model.every_bytes + model.overhead_bytes,
        work=[*others, last + model.head_bytes],
    )


# --- what does not fit ------------------------------------------------------------------------


def _no_room(model: StageModel, nodes: Sequence[StageNode]) -> NoMemory:
    layers = len(model.layers)
    need, free = model.memory(0, layers), sum(node.memory_bytes for node in nodes)
    weights, kv = model.weights(0, layers), model.kv(0, layers)
    over = f"; {_in_pieces(model, nodes)}" if free >= need else ""
    return NoMemory(
        f"{model.name} needs {human_bytes(need)} (weights {human_bytes(weights)}, {model.lanes} "
        f"lanes of {model.window} tokens {human_bytes(kv)}, each worker "
        f"{human_bytes(model.overhead_bytes)} beside), and {_all_of(nodes)} "
        f"{human_bytes(free)} for it{over}; {_what_helps(model, nodes)}",
        details={"needed_bytes": need, "free_bytes": free},
    )


def _all_of(nodes: Sequence[StageNode]) -> str:
    return f"node {nodes[0].name} has" if len(nodes) == 1 else f"{len(nodes)} nodes have"


def _in_pieces(model: StageModel, nodes: Sequence[StageNode]) -> str:
    """Why the sum is of no use: the smallest stages that there can be, and the largest node."""
    layers = len(model.layers)
    smallest = max(model.memory(layer, layer + 1) for layer in range(layers))
    largest = max(node.memory_bytes for node in nodes)
    if smallest > largest:
        return (
            f"a stage of one layer takes up to {human_bytes(smallest)} and the largest node has "
            f"{human_bytes(largest)}"
        )
    return (
        "no way to divide it fits, as every stage takes "
        f"{human_bytes(model.every_bytes + model.overhead_bytes)} beside its layers, and "
        "a layer is not divided"
    )


def _what_helps(model: StageModel, nodes: Sequence[StageNode]) -> str:
    """More nodes always do; fewer lanes or a smaller window where they are enough."""
    offers = [Node(node.memory_bytes, node.rate) for node in nodes]

    def fits(lanes: int, window: int) -> bool:
        smaller = replace(model, lanes=lanes, window=window)
        return fewest(_costs(smaller), offers) is not None

    ways = []
    if lanes := _largest(model.lanes, lambda lanes: fits(lanes, model.window)):
        ways.append(f"--lanes {lanes}")
    if window := _largest(model.window, lambda window: fits(model.lanes, window)):
        ways.append(f"--window {window}")
    more = "add nodes, or free memory on these"
    if not ways:
        return f"{more}; fewer lanes or a smaller window alone do not make it fit"
    return f"{more}, or take fewer lanes or a smaller window: {' or '.join(ways)} fits"


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `most` that fits; 0 for none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def human_bytes(count: int) -> str:
    """Bytes in their largest unit, for people."""
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"

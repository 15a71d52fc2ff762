"""Which workers of stages fit together to a chain, and what is missing where none do. Pure.

A chain covers all layers of a model, each once: its stages have equal content and give each other
hidden states of one width and type. Which split they were cut by does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bus.ids import ModelName, NodeIdentity
from bus.messages.parts import ModelStatus, StageStatus

#: Of workers that have missing layers and are not to be had, so many are named.
_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A worker of a stage, as its node's status tells of it.

    Attributes:
        why_not: why it is not to be had now, behind the node's name; empty for one that is.
        may_come: it is not, but will be in a moment.
        chains: that it is in.
        free_bytes: of its node's memory.
    """

    node: NodeIdentity
    status: ModelStatus
    stage: StageStatus
    why_not: str = ""
    may_come: bool = False
    chains: int = 0
    free_bytes: int = 0

    @property
    def name(self) -> tuple[NodeIdentity, ModelName]:
        """Names it in the fleet."""
        return self.node, self.status.name


@dataclass(frozen=True, slots=True)
class Missing:
    """Why the last stage of a model has no chain.

    Attributes:
        words: for people, behind the name of its node.
        may_come: whether there should be one in a moment.
    """

    words: str
    may_come: bool


def fits(one: StageStatus, other: StageStatus) -> bool:
    """Whether two stages may be in one chain, wherever their layers are."""
    mine = (one.model, one.whole, one.layers, one.hidden, one.hidden_type)
    return mine == (other.model, other.whole, other.layers, other.hidden, other.hidden_type)


def find_path(last: StageStatus, offers: Iterable[Offer]) -> list[Offer] | None:
    """Executors for a driver: in order, from layer 0 up to its first; None when some are missing.

    Of those that begin at one layer, the one in the fewest chains is taken, then the one with the
    most free memory, if a way leads on from it.

    Args:
        last: the driver's stage.
        offers: of executors; those that are not to be had must not be among them.
    """
    able = sorted((each for each in offers if fits(last, each.stage)), key=_by_load)
    #: Of boundaries from which a way to the driver was found, the first step of it.
    found: dict[int, list[Offer]] = {last.first: []}
    for end in sorted({each.stage.first for each in able}, reverse=True):
        for each in able:
            rest = found.get(each.stage.end)
            if each.stage.first == end and rest is not None and end not in found:
                found[end] = [each, *rest]
    return found.get(0)


def missing_layers(last: StageStatus, offers: Sequence[Offer]) -> tuple[int, int]:
    """The first layers that keep a driver from a chain, `first` up to not including `end`."""
    able = [each.stage for each in offers if fits(last, each.stage)]
    reached, useful = {0}, {last.first}
    for stage in sorted(able, key=lambda stage: stage.first):
        if stage.first in reached and stage.end <= last.first:
            reached.add(stage.end)
    for stage in sorted(able, key=lambda stage: -stage.end):
        if stage.end in useful:
            useful.add(stage.first)
    first = max(reached)
    return first, min((end for end in useful if end > first), default=last.first)


def explain_missing(last: StageStatus, offers: Sequence[Offer]) -> Missing:
    """What a driver lacks that has no chain.

    Args:
        last: its stage.
        offers: of all stages of all models, also those that are not to be had.
    """
    to_be_had = [each for each in offers if not each.why_not]
    soon = [each for each in offers if not each.why_not or each.may_come]
    may_come = find_path(last, soon) is not None
    first, end = missing_layers(last, to_be_had)
    gap = layers_text(first, end)
    words = f"has layers {layers_text(last.first, last.end)} of {last.layers} of {last.model}"
    there = [each for each in offers if each.stage.first < end and each.stage.end > first]
    in_order = sorted(there, key=lambda each: each.name)
    notes = list(filter(None, (_useless(each, last, first, end) for each in in_order)))
    more = f" and {len(notes) - _NAMED} more" if len(notes) > _NAMED else ""
    said = f" ({'; '.join(notes[:_NAMED])}{more})" if notes else ""
    remedy = "" if may_come or notes else f"; have one serve them: {_load_command(last)}"
    return Missing(f"{words}, and no node has layers {gap} for it now{said}{remedy}", may_come)


def layers_text(first: int, end: int) -> str:
    """A range of layers as people write it: both ends are in it."""
    return f"{first}-{end - 1}"


def _by_load(offer: Offer) -> tuple[int, int, tuple[NodeIdentity, ModelName]]:
    return offer.chains, -offer.free_bytes, offer.name


def _useless(each: Offer, last: StageStatus, first: int, end: int) -> str:
    """Why a worker with some of the missing layers does not help; empty when it has other ones."""
    stage = each.stage
    if stage.model != last.model or stage.is_last:
        return ""
    has = f"{each.node} has layers {layers_text(stage.first, stage.end)}"
    if stage.whole != last.whole or stage.layers != last.layers:
        return f"{has} of another {stage.model}: stages are to be made of one file, in one way"
    if (stage.hidden, stage.hidden_type) != (last.hidden, last.hidden_type):
        return (
            f"{has} and gives hidden states of {stage.hidden} {stage.hidden_type}, not "
            f"{last.hidden} {last.hidden_type}"
        )
    if each.why_not:
        return f"{has} and {each.why_not}"
    return f"{has}, which do not join at {first} and {end}"


def _load_command(last: StageStatus) -> str:
    """What has a node serve what comes before the last stage."""
    stage = f"{last.model}.1of2" if last.stages == 2 else "STAGE"
    return f"sfctl model load {stage} NODE"

"""Stages: a model folder may hold a range of a model's layers, to be one link of a chain.

The last stage ends in logits and the first one embeds tokens; between them go hidden states. What
a folder's record says of it under `stage` is here, and which ranges a model may be cut into.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bus.errors import Invalid

#: A stage has at least one layer, and nobody chains more machines than this.
MOST_STAGES = 256
_RANGE = re.compile(r"\s*(\d{1,6})\s*-\s*(\d{1,6})\s*")
_PLACE = re.compile(r"\s*(\d{1,6})\s*(?:/|of)\s*(\d{1,6})\s*")
#: What a source is called or in how many files it came makes no other model of it.
_NO_CONTENT = ("file", "graph", "parts")


@dataclass(frozen=True, slots=True)
class LayerRange:
    """Layers `first` up to, not including, `end`."""

    first: int
    end: int

    def __str__(self) -> str:
        """As people write it: both ends are in it."""
        return f"{self.first}-{self.end - 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Which part of which model a folder holds.

    Attributes:
        model: the whole model's name.
        whole: names the whole model's content, equal for all stages of it whatever their ranges.
        index: place in the chain, from 0.
        stages: how many there are in the chain.
        first: the first layer.
        end: the layer behind the last one.
        layers: of the whole model.
    """

    model: str
    whole: str
    index: int
    stages: int
    first: int
    end: int
    layers: int

    @property
    def is_first(self) -> bool:
        """Whether it embeds tokens."""
        return self.first == 0

    @property
    def is_last(self) -> bool:
        """Whether it ends in logits."""
        return self.end == self.layers

    @property
    def range(self) -> LayerRange:
        """Its layers."""
        return LayerRange(self.first, self.end)

    def describe(self) -> str:
        """In words, such as `1/2 of smollm2, layers 0-14 of 30`."""
        place = f"{self.index + 1}/{self.stages} of {self.model}"
        return f"{place}, layers {self.range} of {self.layers}"


@dataclass(frozen=True, slots=True)
class StageChoice:
    """One stage of a split that is to be made.

    Attributes:
        index: place in the chain, from 0.
        stages: how many there are in the chain.
    """

    index: int
    stages: int
    layers: LayerRange

    def folder_name(self, model: str) -> str:
        """What its folder is called: `NAME.1of2`."""
        return stage_name(model, self.index, self.stages)


def stage_name(model: str, index: int, stages: int) -> str:
    """What the folder of a stage is called, which counts from 1: `NAME.1of2`."""
    return f"{model}.{index + 1}of{stages}"


def stage_from_record(fields: Mapping[str, Any] | None) -> Stage | None:
    """What a record says under `stage`; None of a whole model.

    Raises:
        KeyError, TypeError, ValueError: it is damaged.
    """
    if fields is None:
        return None
    numbers = {key: int(fields[key]) for key in ("index", "stages", "first", "end", "layers")}
    stage = Stage(model=str(fields["model"]), whole=str(fields["whole"]), **numbers)
    in_order = 0 <= stage.first < stage.end <= stage.layers and 0 <= stage.index < stage.stages
    if not in_order or not stage.model or not stage.whole:
        raise ValueError(f"a stage of layers {stage.range} of {stage.layers}")
    return stage


def whole_digest(source: Mapping[str, str], facts: Mapping[str, Any], content: str = "") -> str:
    """Names a whole model, in hex: equal for all stages that were made of one source.

    Args:
        source: a record's `source`.
        facts: what else decides what is computed: architecture, numerics, figures.
        content: digest of the whole model's folder, of sources that do not name their weights.
    """
    known = {key: value for key, value in source.items() if key not in _NO_CONTENT}
    lines = [f"{key} {value}" for key, value in sorted({**known, **facts}.items())]
    return hashlib.sha256("\n".join([*lines, content]).encode()).hexdigest()


# --- ranges -------------------------------------------------------------------------------------


def even_stages(layers: int, stages: int) -> list[StageChoice]:
    """Cut evenly: stage i ends before layer `(i + 1) * layers // stages`.

    Raises:
        Invalid: fewer than two stages, or more than layers.
    """
    _check_count(layers, stages)
    ends = [(place + 1) * layers // stages for place in range(stages)]
    return _numbered([LayerRange(*pair) for pair in zip([0, *ends], ends, strict=False)])


def listed_stages(layers: int, text: str) -> list[StageChoice]:
    """Read ranges such as `0-14,15-29`, both ends in them, which must cover a model's layers.

    Raises:
        Invalid: no ranges, or some that leave out layers, overlap or go past the last one.
    """
    ranges = [_read_range(part) for part in text.split(",")]
    _check_count(layers, len(ranges))
    expected = 0
    for part in ranges:
        if part.first > expected:
            missing = LayerRange(expected, part.first)
            raise _not_covering(layers, ranges, f"no stage has {_named(missing)}")
        if part.first < expected:
            raise _not_covering(layers, ranges, f"two stages have layer {part.first}")
        expected = part.end
    if expected < layers:
        missing = LayerRange(expected, layers)
        raise _not_covering(layers, ranges, f"no stage has {_named(missing)}")
    if expected > layers:
        raise _not_covering(layers, ranges, f"the model's last layer is {layers - 1}")
    return _numbered(ranges)


def one_stage(layers: int, place: str | None, text: str | None) -> StageChoice:
    """The stage that someone asks for alone.

    Args:
        layers: of the model.
        place: `1/2`, counted from 1; or None where `text` says all.
        text: ranges of all stages, or the one of this stage; None cuts evenly. One range alone
            is that of the only stage, or of the one between, of a cut in as few stages as can be.

    Raises:
        Invalid: no stage of a split that covers the layers.
    """
    if place is None:
        return _lone_range(layers, text or "")
    index, stages = _read_place(place)
    _check_count(layers, stages)
    if text is None:
        return even_stages(layers, stages)[index]
    if "," not in text:
        return _placed(layers, StageChoice(index, stages, _read_range(text)))
    chosen = listed_stages(layers, text)
    if len(chosen) != stages:
        raise Invalid(
            f"stage {place.strip()} is of {stages} stages and --layers {text} are "
            f"{len(chosen)} ranges; give a range for each stage",
            param="layers",
        )
    return chosen[index]


def _lone_range(layers: int, text: str) -> StageChoice:
    part = _read_range(text)
    before, behind = int(part.first > 0), int(part.end < layers)
    if not before and not behind:
        raise Invalid(
            f"layers {part} are all of the model's; import it without --layers", param="layers"
        )
    return _placed(layers, StageChoice(before, before + 1 + behind, part))


def _placed(layers: int, choice: StageChoice) -> StageChoice:
    """Check that a range can be that stage: those before and behind it have layers left."""
    part, behind = choice.layers, choice.stages - 1 - choice.index
    shown = f"layers {part} of {layers} can not be stage {choice.index + 1} of {choice.stages}"
    if part.end > layers:
        raise Invalid(f"{shown}: the last layer is {layers - 1}", param="layers")
    if (part.first < choice.index) or (choice.index == 0 and part.first > 0):
        raise Invalid(f"{shown}: {_too(part.first, choice.index, 'before')}", param="layers")
    if layers - part.end < behind or (behind == 0 and part.end < layers):
        raise Invalid(f"{shown}: {_too(layers - part.end, behind, 'behind')}", param="layers")
    return choice


def _too(layers: int, stages: int, where: str) -> str:
    """Why so many layers can not be in so many stages."""
    return f"there are {layers} layers {where} it and {stages} stages to have them"


def _numbered(ranges: Sequence[LayerRange]) -> list[StageChoice]:
    return [StageChoice(place, len(ranges), part) for place, part in enumerate(ranges)]


def _read_range(text: str) -> LayerRange:
    found = _RANGE.fullmatch(text)
    if found is None or int(found[2]) < int(found[1]):
        raise Invalid(
            f"{text.strip()!r} is no range of layers; write the first and the last one, counted "
            "from 0, such as 0-14",
            param="layers",
        )
    return LayerRange(int(found[1]), int(found[2]) + 1)


def _read_place(text: str) -> tuple[int, int]:
    found = _PLACE.fullmatch(text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise Invalid(
            f"{text.strip()!r} is no stage; write which of how many, counted from 1, such as 1/2",
            param="stage",
        )
    return int(found[1]) - 1, int(found[2])


def _check_count(layers: int, stages: int) -> None:
    if stages < 2:
        raise Invalid("a model in one stage is the whole model; give two or more", param="stages")
    if stages > min(layers, MOST_STAGES):
        least = "each needs one" if layers < stages else f"{MOST_STAGES} is the most"
        raise Invalid(
            f"{layers} layers can not be in {stages} stages: {least}; give fewer", param="stages"
        )


def _not_covering(layers: int, ranges: Sequence[LayerRange], fact: str) -> Invalid:
    shown = ",".join(map(str, ranges))
    return Invalid(
        f"layers {shown} are no split of a model of {layers} layers: {fact}; give ranges in order "
        f"from 0 to {layers - 1}, each beginning behind the one before",
        param="layers",
    )


def _named(part: LayerRange) -> str:
    return f"layer {part.first}" if part.end - part.first == 1 else f"layers {part}"

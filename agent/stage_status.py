"""Which part of a model a folder holds, as agents and workers tell the head."""

from __future__ import annotations

from agent.models.folder import ModelFolder
from bus.ids import ModelName
from bus.messages.parts import StageStatus


def stage_status(folder: ModelFolder) -> StageStatus | None:
    """What a folder's record says of its stage; None of a whole model."""
    stage = folder.stage
    if stage is None:
        return None
    return StageStatus(
        model=ModelName(stage.model),
        whole=stage.whole,
        index=stage.index,
        stages=stage.stages,
        first=stage.first,
        end=stage.end,
        layers=stage.layers,
        hidden=folder.signature.hidden,
    )

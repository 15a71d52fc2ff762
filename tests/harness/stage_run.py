"""A model's stages in ONNX Runtime sessions, one behind the other; a whole model is one stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agent.models.folder import ModelFolder
from agent.models.selftest import open_session
from tests.harness.reference import Floats


class StageRun:
    """Runs prompts in chunks and steps of several lanes through all stages.

    Args:
        folders: of the stages in order, or of the whole model.
        lanes: rows of the caches.
        room: positions of each.
        rows: of a chunk's logits, as many of the last ones; None gives all.
    """

    def __init__(
        self, folders: Sequence[ModelFolder], *, lanes: int, room: int, rows: int | None = None
    ) -> None:
        self._stages = [_Stage(folder, lanes, room, rows) for folder in folders]

    def prefill(self, lane: int, ids: Sequence[int], past: int) -> Floats:
        """Feed tokens to one lane that holds `past`; logits of the last rows."""
        return self._run(np.array([ids], np.int64), [past + len(ids)], slice(lane, lane + 1))

    def decode(self, ids: Sequence[int], lengths: Sequence[int]) -> Floats:
        """Feed a token to each of the first lanes; `lengths` are what they hold then."""
        return self._run(np.array(ids, np.int64)[:, None], lengths, slice(0, len(ids)))

    def _run(self, x: Any, lengths: Sequence[int], lanes: slice) -> Floats:
        for stage in self._stages:
            x = stage.run(x, lengths, lanes)
        return np.asarray(x)


class _Stage:
    """A session and its caches."""

    def __init__(self, folder: ModelFolder, lanes: int, room: int, rows: int | None) -> None:
        self._rows = rows
        figures = folder.signature
        self._session = open_session(folder.graph)
        self._inputs = figures.inputs
        shape = (lanes, figures.kv_heads, room, figures.head_dim)
        self._cache = {
            name: np.zeros(shape, np.float32) for name in figures.inputs if "past" in name
        }

    def run(self, x: Any, lengths: Sequence[int], lanes: slice) -> Any:
        feeds: dict[str, Any] = {
            self._inputs[0]: x,
            "seqlens_k": np.array(lengths, np.int32) - 1,
            "total_sequence_length": np.array(max(lengths), np.int32),
            **{name: cache[lanes] for name, cache in self._cache.items()},
        }
        if "logits_idx" in self._inputs:
            first = 0 if self._rows is None else max(0, x.shape[1] - self._rows)
            places = np.arange(x.shape[0] * x.shape[1]).reshape(x.shape[:2])
            feeds["logits_idx"] = places[:, first:].reshape(-1)
        outputs = [output.name for output in self._session.get_outputs()]
        first, *caches = self._session.run(outputs, feeds)
        for name, value in zip(outputs[1:], caches, strict=True):
            self._cache[name.replace("present", "past")][lanes] = value
        return first

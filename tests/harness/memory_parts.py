"""Names that tests of a fleet in memory share."""

from __future__ import annotations

from bus.ids import ModelName
from tests.harness.memory_disk import Disk
from tests.harness.memory_text import DIGEST, VOCABULARY, text_reply
from tests.harness.memory_worker import WINDOW, MadeUpWorker, expected_tokens

__all__ = [
    "DIGEST",
    "MODEL",
    "STEP_S",
    "TURN_S",
    "VOCABULARY",
    "WINDOW",
    "Disk",
    "MadeUpWorker",
    "expected_tokens",
    "text_reply",
]

MODEL = ModelName("toy")
#: Virtual seconds of a worker's step, and the least between two turns of a loop.
STEP_S = 0.02
TURN_S = 0.001

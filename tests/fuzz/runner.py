"""Runs fuzz cases for a time, each from its own seed, and says how to run a failed one again."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.fuzz.channels import CHANNELS
from tests.fuzz.chats import CHATS
from tests.fuzz.decoders import DECODERS, Case
from tests.fuzz.links import LINKS
from tests.fuzz.media import MEDIA
from tests.fuzz.model_files import MODEL_FILES
from tests.fuzz.prompts import PROMPTS
from tests.fuzz.protocols import PROTOCOLS
from tests.fuzz.stage_units import STAGE_UNITS
from tests.fuzz.tokenizers import TOKENIZERS
from tests.fuzz.vocabularies import VOCABULARIES

TARGETS: Mapping[str, Case] = {
    **DECODERS,
    **LINKS,
    **PROTOCOLS,
    **MODEL_FILES,
    **VOCABULARIES,
    **MEDIA,
    **CHANNELS,
    **CHATS,
    **PROMPTS,
    **TOKENIZERS,
    **STAGE_UNITS,
}
#: Targets take turns, so that a short run sees all of them.
TURN_S = 0.25
#: What is told in full; the others are only counted.
SHOWN = 10


@dataclass(slots=True)
class Tally:
    """What a run came to."""

    cases: int = 0
    failures: int = 0
    elapsed_s: float = 0.0

    def line(self) -> str:
        rate = self.cases / self.elapsed_s if self.elapsed_s else 0.0
        return f"fuzz: cases={self.cases} failures={self.failures} cases_per_s={rate:.0f}"


def run_case(target: str, seed: int, number: int) -> None:
    """One case; raises what is wrong."""
    TARGETS[target](random.Random(f"{seed}:{target}:{number}"))


def run(
    targets: list[str], seed: int, seconds: float, tell: Callable[[str], None] = print
) -> Tally:
    """Cases 0, 1, ... of each target, until the time is over and each had its turn.

    Args:
        tell: gets what a person should read of failures.
    """
    tally, start = Tally(), time.monotonic()
    next_number = dict.fromkeys(targets, 0)
    while tally.elapsed_s < seconds:
        for target in targets:
            until = time.monotonic() + min(TURN_S, seconds / len(targets))
            while time.monotonic() < until:
                _try(target, seed, next_number[target], tally, tell)
                next_number[target] += 1
        tally.elapsed_s = time.monotonic() - start
    return tally


def _try(target: str, seed: int, number: int, tally: Tally, tell: Callable[[str], None]) -> None:
    tally.cases += 1
    try:
        run_case(target, seed, number)
    except Exception:  # noqa: BLE001 - any kind of it is a finding
        tally.failures += 1
        if tally.failures <= SHOWN:
            tell(traceback.format_exc())
            tell(
                f"fuzz: {target} case {number} failed; again: "
                f"python -m tests.fuzz --seed {seed} --target {target} --case {number}"
            )

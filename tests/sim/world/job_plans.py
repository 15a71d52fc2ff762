"""Requests that jobs answer, as their callers mean them, and what was seen of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from bus.ids import ModelName, PackedIds, pack_ids
from bus.messages.job_bodies import EMBED, TRANSCRIBE
from tests.harness.blob_rig import blob_of
from tests.harness.memory_transcriber import Window, made_up_sound, windows_of
from tests.sim.world.profiles import Profile

#: Models that do jobs.
ENCODER = ModelName("encoder")
WHISPER = ModelName("whisper")
#: Seconds of a sound, whose windows take 10 to 28.
SECONDS = (5, 60, 300, 900)


@dataclass(slots=True, kw_only=True)
class JobPlan:
    """One request, and what comes of it when it is done.

    Attributes:
        texts: to make vectors of; none for a sound.
        wall_ms: its budget; 0 is none.
        credit: events that its reader takes at once.
    """

    name: str
    texts: tuple[str, ...] = ()
    sound: bytes = b""
    language: str = ""
    from_s: float = 0.0
    wall_ms: int = 0
    credit: int = 4096
    #: As it was asked for last; a head that died, or a reader that went, has it asked anew.
    ask: JobAsk | None = None

    @property
    def kind(self) -> str:
        return EMBED if self.texts else TRANSCRIBE

    @property
    def model(self) -> ModelName:
        return ENCODER if self.texts else WHISPER

    @property
    def sha256(self) -> bytes:
        return blob_of(self.sound).sha256

    @property
    def inputs(self) -> list[PackedIds]:
        """The texts as ids."""
        return [pack_ids(text.encode()) for text in self.texts]

    @property
    def windows(self) -> tuple[Window, ...]:
        """All that is heard."""
        return windows_of(self.sound, self.language, self.from_s)

    @property
    def body(self) -> dict[str, Any]:
        """Of the request."""
        body: dict[str, Any] = {"op": self.kind, "model": self.model, "credit": self.credit}
        if self.wall_ms:
            body["max_wall_ms"] = self.wall_ms
        if self.texts:
            return {**body, "input": list(self.texts)}
        heard = {"sha256": self.sha256, "language": self.language, "from_s": self.from_s}
        return {**body, **heard}


@dataclass(slots=True, kw_only=True)
class JobAsk:
    """One request that the head has, or had.

    Attributes:
        parts: bodies of parts that the head took of its jobs, in order.
        given: inputs whose vectors are in them.
        events: that the head has sent.
        starts: jobs that were begun for it, and of those the ones that were lost.
        gone: the head knows that its client is there no more.
        ended: it has had its end, or error.
    """

    plan: JobPlan
    asked_s: float
    parts: list[bytes] = field(default_factory=list)
    given: int = 0
    events: int = 0
    starts: int = 0
    losses: int = 0
    gone: bool = False
    ended: bool = False
    cancelled: bool = False


def draw_plan(rng: Random, name: str, profile: Profile) -> JobPlan:
    """A request that no other is like."""
    wall_ms = rng.randint(500, 8000) if rng.random() < profile.budgeted else 0
    credit = rng.choice((1, 2, 5)) if rng.random() < profile.small_credit else 4096
    if rng.random() < profile.embeds:
        texts = tuple(f"{name} text {place}" for place in range(rng.choice(profile.texts)))
        return JobPlan(name=name, texts=texts, wall_ms=wall_ms, credit=credit)
    sound = made_up_sound(rng.choice(SECONDS), rng.randbytes(rng.choice((50, 20_000))))
    language = rng.choice(("", "", "en", "fo"))
    plan = JobPlan(name=name, sound=sound, language=language, wall_ms=wall_ms, credit=credit)
    if rng.random() < 0.3:
        plan.from_s = rng.choice(plan.windows).next_s
    return plan

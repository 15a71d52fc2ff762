"""Eight ordinary seeded streams that run all the time, and must not notice who else is there."""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.ids import GenerationId, pack_ids, unpack_ids
from bus.messages.sampling import SamplingParams
from bus.messages.worker import OutputRun, Submit

COUNT = 8
#: Generations of neighbours; each round has its own.
_FIRST = 1 << 40


@dataclass
class Stream:
    """One neighbour: always the same request, under a new number each time."""

    place: int
    rounds: int = 0
    running: bool = False
    tokens: list[int] = field(default_factory=list)

    @property
    def generation(self) -> GenerationId:
        """The number of this round."""
        return GenerationId(_FIRST + COUNT * self.rounds + self.place)

    def next_round(self) -> Submit:
        """The request once more."""
        self.rounds += 1
        self.running = True
        self.tokens = []
        # Four short ones, and four that may share prefixes with their former selves.
        length = 30 + self.place if self.place < COUNT // 2 else 140 + self.place
        ids = [32 + (7 * self.place + position * position) % 95 for position in range(length)]
        return Submit(
            generation=self.generation,
            context=pack_ids(ids),
            sampling=SamplingParams(temperature=0.8, seed=self.place, ignore_eos=True),
            max_new_tokens=60 + self.place,
            prompt_tokens=length,
            qos=self.place % 4,
            exact=True,
        )


class Neighbours:
    """The streams, and what each should give.

    Attributes:
        faults: what was not as it should be.
        rounds: how many ended.
    """

    def __init__(self) -> None:
        self.streams = [Stream(place) for place in range(COUNT)]
        self.faults: list[str] = []
        self.rounds = 0
        self._wanted: list[list[int]] | None = None

    @property
    def running(self) -> bool:
        """Whether any round goes on."""
        return any(stream.running for stream in self.streams)

    def keep_as_wanted(self) -> None:
        """What the streams gave now is what they must give from here on."""
        self._wanted = [list(stream.tokens) for stream in self.streams]

    def of(self, generation: int) -> Stream | None:
        """The stream that has this number now."""
        stream = self.streams[(generation - _FIRST) % COUNT]
        return stream if stream.running and stream.generation == generation else None

    def take(self, stream: Stream, run: OutputRun) -> None:
        """Count a run."""
        if run.first_index != len(stream.tokens):
            self.faults.append(f"neighbour {stream.place} lost or repeated tokens: {run}")
        stream.tokens += unpack_ids(run.ids)
        if run.finish is None:
            return
        stream.running = False
        self.rounds += 1
        if run.finish.reason != "length":
            self.faults.append(f"neighbour {stream.place} ended with {run.finish}")
        elif self._wanted is not None and stream.tokens != self._wanted[stream.place]:
            self.faults.append(
                f"neighbour {stream.place} gave {stream.tokens} in round {stream.rounds}, and "
                f"undisturbed {self._wanted[stream.place]}"
            )

"""What came of odd requests."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Tally:
    """Counts of a run.

    Attributes:
        faults: what was not as it should be, beside deaths and neighbours.
        codes: errors by their type.
    """

    requests: int = 0
    answered: int = 0
    errors: int = 0
    worker_deaths: int = 0
    neighbours_equal: bool = True
    neighbour_rounds: int = 0
    faults: list[str] = field(default_factory=list)
    codes: dict[str, int] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether all is as it should be."""
        complete = self.answered + self.errors == self.requests
        return complete and self.neighbours_equal and not (self.worker_deaths or self.faults)

    def answer(self) -> None:
        """A request was done as any other."""
        self.answered += 1

    def error(self, code: str) -> None:
        """A request was told what is wrong."""
        self.errors += 1
        self.codes[code] = self.codes.get(code, 0) + 1

    def add(self, other: Tally) -> None:
        """Count another run's in."""
        self.requests += other.requests
        self.answered += other.answered
        self.errors += other.errors
        self.worker_deaths += other.worker_deaths
        self.neighbours_equal &= other.neighbours_equal
        self.neighbour_rounds += other.neighbour_rounds
        self.faults += other.faults
        for code, count in other.codes.items():
            self.codes[code] = self.codes.get(code, 0) + count

    def line(self) -> str:
        """What a run ends with."""
        return (
            f"odd: requests={self.requests} answered={self.answered} errors={self.errors} "
            f"worker_deaths={self.worker_deaths} "
            f"neighbours_equal={str(self.neighbours_equal).lower()}"
        )

"""Seeds that once found something: they run first, for ever."""

from __future__ import annotations

from pathlib import Path

FILE = Path(__file__).with_name("corpus.txt")


def read() -> list[tuple[int, str]]:
    """(seed, profile) of every line."""
    found = []
    for line in FILE.read_text().splitlines():
        words = line.partition("#")[0].split()
        if words:
            found.append((int(words[0]), words[1]))
    return found


def add(seed: int, profile: str, why: str) -> None:
    """Keep a seed that fails now; one that is there already stays as it is."""
    if (seed, profile) not in read():
        with FILE.open("a") as file:
            file.write(f"{seed} {profile}  # {why}\n")

"""Logging: an event name and key=value pairs on one line, JSON lines on request.

    2026-11-29T16:02:08.123Z INFO agent.node worker_ready model=smollm2 load_s=0.84

INFO is for changes of state, never per token; prompts and outputs are never logged, nor secrets.
What repeats (a peer that is down, one with a wrong token) is logged once per peer and minute, with
how often it was left out.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, TextIO

from bus.fields import OneOf
from bus.printable import printable
from bus.rate_limit import TokenBucket

LEVELS = ("debug", "info", "warning", "error")
#: A repeated event is logged once in this long.
REPEAT_S = 60.0
#: Different repeated events remembered at once; more forget the oldest.
MAX_REPEATS = 4096
#: Pairs of these names are never written.
SECRET_NAMES = frozenset({"token", "psk", "secret", "password", "private_key", "key"})
_HIDDEN = "(hidden)"
_PLAIN = re.compile(r"[^\s\"'=\\]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The section [log] of every process's file."""

    level: Annotated[str, OneOf(frozenset(LEVELS))] = "info"
    #: One JSON object a line instead of text.
    json: bool = False


def setup_logging(config: LogConfig, stream: TextIO | None = None) -> None:
    """Send the process's log to `stream` (stderr when None); replaces what was set up before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if config.json else TextFormatter())
    root = logging.getLogger()
    for former in list(root.handlers):
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(config.level.upper())


class EventLog:
    """Writes events with the pairs that all of them have (ids of a node, a worker, a link).

    Args:
        name: the logger's name, usually the module's.
        bound: pairs of every event.
    """

    def __init__(self, name: str, **bound: object) -> None:
        self._logger = logging.getLogger(name)
        self._bound = bound
        self._repeats = RepeatLimiter()
        #: Repeated events that their budget left out since the last line.
        self._beyond = 0

    def bind(self, **pairs: object) -> EventLog:
        """One with further pairs, and a limiter of its own."""
        return EventLog(self._logger.name, **{**self._bound, **pairs})

    def debug(self, event: str, **pairs: object) -> None:
        """Detail for who looks for a fault."""
        self._write(logging.DEBUG, event, pairs)

    def info(self, event: str, **pairs: object) -> None:
        """A change of state."""
        self._write(logging.INFO, event, pairs)

    def warning(self, event: str, **pairs: object) -> None:
        """Something is wrong and may pass."""
        self._write(logging.WARNING, event, pairs)

    def error(self, event: str, **pairs: object) -> None:
        """Something is wrong and needs a person."""
        self._write(logging.ERROR, event, pairs)

    def repeated(self, now: float, event: str, *, peer: str, **pairs: object) -> None:
        """A warning that may come often: once per event, peer and minute.

        Args:
            now: seconds, of any clock that only rises.
            peer: whom it is about.
        """
        left_out = self._repeats.count(f"{event} {peer}", now)
        if left_out is None:
            return
        extra = {"left_out": left_out} if left_out else {}
        if self._beyond:
            extra["of_others"], self._beyond = self._beyond, 0
        self._write(logging.WARNING, event, {"peer": peer, **pairs, **extra})

    def repeated_within(
        self, budget: TokenBucket, now: float, event: str, *, peer: str, **pairs: object
    ) -> None:
        """The same where peers choose what they are called, and so how many lines they get.

        Args:
            budget: of all such lines; those above it are counted in a later one.
            now: seconds, of any clock that only rises.
            peer: whom it is about.
        """
        if self._repeats.is_due(f"{event} {peer}", now) and not budget.take(now):
            self._beyond += 1
        else:
            self.repeated(now, event, peer=peer, **pairs)

    def _write(self, level: int, event: str, pairs: Mapping[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, event, extra={"pairs": {**self._bound, **pairs}})


class RepeatLimiter:
    """Lets each key through once in `every_s` and counts the others."""

    def __init__(self, every_s: float = REPEAT_S) -> None:
        self._every_s = every_s
        #: Key to when it was last let through and how many were left out since.
        self._seen: dict[str, tuple[float, int]] = {}

    def is_due(self, key: str, now: float) -> bool:
        """Whether a key would be let through."""
        return now - self._seen.get(key, (float("-inf"), 0))[0] >= self._every_s

    def count(self, key: str, now: float) -> int | None:
        """None to leave this one out; else how many were left out before it."""
        last, left_out = self._seen.get(key, (float("-inf"), 0))
        if now - last < self._every_s:
            self._seen[key] = (last, left_out + 1)
            return None
        self._seen.pop(key, None)
        self._seen[key] = (now, 0)
        if len(self._seen) > MAX_REPEATS:
            del self._seen[next(iter(self._seen))]
        return left_out


class TextFormatter(logging.Formatter):
    """Time, level, logger, event and pairs; values with spaces are quoted as JSON strings."""

    def format(self, record: logging.LogRecord) -> str:
        words = [_time(record), record.levelname, record.name, printable(record.getMessage())]
        words += [f"{name}={_shown(value)}" for name, value in _pairs(record).items()]
        line = " ".join(words)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """The same as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        body: dict[str, object] = {
            "ts": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        body |= {name: value for name, value in _pairs(record).items() if name not in body}
        if record.exc_info:
            body["exception"] = self.formatException(record.exc_info)
        return json.dumps(body, default=str)


def _time(record: logging.LogRecord) -> str:
    made = datetime.fromtimestamp(record.created, UTC)
    return made.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _pairs(record: logging.LogRecord) -> dict[str, Any]:
    pairs: Mapping[str, Any] = getattr(record, "pairs", {})
    return {name: _HIDDEN if name in SECRET_NAMES else value for name, value in pairs.items()}


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if text.isprintable() and _PLAIN.fullmatch(text) else json.dumps(text)

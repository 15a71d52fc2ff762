"""Stop strings in an answer's text: found wherever they are cut, and never shown.

The worker ends a generation by what this finds, and the head cuts the text that callers see by
it; both go through the answer's tokens from its start, so both find the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bus.text.detokenizer import Detokenizer


class StopMatcher:
    """Finds the first stop in a text that comes in pieces; what it gives does not depend on them.

    Of several stops the one that ends first wins, of those that end at one character the one that
    starts first. Text is held back only while it may still become a stop. Used by one thread.

    Args:
        stops: texts, none empty.
    """

    __slots__ = ("_held", "_longest", "_prefixes", "_stops", "stop")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        #: Every beginning of a stop that is not all of it.
        self._prefixes = frozenset(stop[:n] for stop in stops for n in range(1, len(stop)))
        self._longest = max((len(prefix) for prefix in self._prefixes), default=0)
        self._held = ""
        #: The stop that was found; empty while none was.
        self.stop = ""

    def push(self, text: str) -> tuple[str, str]:
        """Take the next piece; gives the text that may be shown now, and the stop that was found.

        The text ends before the stop's first character. After a stop there is no more text.
        """
        if self.stop:
            return "", self.stop
        whole = self._held + text
        found = self._first(whole)
        if found is not None:
            start, self.stop = found
            self._held = ""
            return whole[:start], self.stop
        kept = len(whole) - self._undecided(whole)
        self._held = whole[kept:]
        return whole[:kept], ""

    def finish(self) -> str:
        """The text ends here: what was held back is no stop."""
        held, self._held = self._held, ""
        return held

    def _first(self, text: str) -> tuple[int, str] | None:
        """Where the first stop starts, and which it is."""
        ends = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := text.find(stop)) >= 0
        ]
        if not ends:
            return None
        _, start, stop = min(ends)
        return start, stop

    def _undecided(self, text: str) -> int:
        """How many characters at the end of a text may be the beginning of a stop."""
        for count in range(min(self._longest, len(text)), 0, -1):
            if text[-count:] in self._prefixes:
                return count
        return 0


class AnswerText:
    """The text of one answer as its tokens come, cut at its first stop. Used by one thread.

    Args:
        vocabulary, special: as for `Detokenizer`.
        stops: texts, none empty.
        min_tokens: what the answer's first tokens add to the text is no part of a stop.
    """

    __slots__ = ("_detokenizer", "_matcher", "_min_tokens", "tokens")

    def __init__(
        self,
        vocabulary: Sequence[bytes],
        special: Iterable[int] = (),
        stops: Sequence[str] = (),
        min_tokens: int = 0,
    ) -> None:
        self._detokenizer = Detokenizer(vocabulary, special)
        self._matcher = StopMatcher(stops) if stops else None
        self._min_tokens = min_tokens
        #: How many tokens of the answer it took.
        self.tokens = 0

    @property
    def stop(self) -> str:
        """The stop that the text was cut at; empty while there is none."""
        return self._matcher.stop if self._matcher is not None else ""

    @property
    def over(self) -> bool:
        """Whether nothing more belongs to the answer."""
        return bool(self.stop)

    def push(self, ids: Sequence[int]) -> str:
        """Take the next tokens; gives the text that they complete and that may be shown."""
        free = max(self._min_tokens - self.tokens, 0)
        self.tokens += len(ids)
        if self._matcher is None:
            return self._detokenizer.push(ids)
        before = self._detokenizer.push(ids[:free]) if free else ""
        return before + self._matcher.push(self._detokenizer.push(ids[free:]))[0]

    def until_stop(self, ids: Sequence[int]) -> int:
        """Take the next tokens up to the one that completes a stop; gives how many those are."""
        for place, token in enumerate(ids):
            self.push((token,))
            if self.stop:
                return place + 1
        return len(ids)

    def finish(self) -> str:
        """The text that only the end completes. A character that is cut there is dropped."""
        tail = self._detokenizer.finish()
        return (
            tail if self._matcher is None else self._matcher.push(tail)[0] + self._matcher.finish()
        )

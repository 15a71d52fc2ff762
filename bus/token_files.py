"""The fleet token's file and that of the token before it, read anew when they change.

While a token is rotated two are valid: `fleet.token`, which is the current one, and beside it
`fleet.token.previous`. A dialing side tries the current one first. Whoever holds links looks at
the files every second, so that a rotation and its end take effect without a restart:

    rotate   keep the current token as the previous one, write a new current one
    retire   remove the previous one; links that were made with it end
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import overload

from bus.errors import NotFound, StartError, TokenRefused
from bus.keys import FleetToken, load_token
from bus.log import EventLog
from bus.secret_files import replace_private_file, sync_folder

TOKEN_FILE = "fleet.token"
#: What the previous token's file has after the name of the current one's.
PREVIOUS = ".previous"
#: A change is taken within this and a turn of the loop.
LOOK_EVERY_S = 1.0

#: What tells that a file was changed: inode, time of its last change in ns, size; None for no file.
_Mark = tuple[int, int, int] | None


def previous_file(file: Path) -> Path:
    """Where the token before the one in `file` is kept."""
    return file.with_name(file.name + PREVIOUS)


class FleetTokens(Sequence[FleetToken]):
    """The tokens that are valid now, the current one first; one or two.

    Args:
        file: of the current token.
        check: raises TokenRefused for a token that is not to be used here.

    Raises:
        TokenRefused: a file is damaged or open to others, or there is no current token.
    """

    def __init__(self, file: Path, check: Callable[[FleetToken], None] = lambda _: None) -> None:
        self.file = file
        self._check = check
        self._marks = self._look()
        self._tokens = self._read()

    @overload
    def __getitem__(self, index: int) -> FleetToken: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[FleetToken]: ...
    def __getitem__(self, index: int | slice) -> FleetToken | Sequence[FleetToken]:
        return self._tokens[index]

    def __len__(self) -> int:
        return len(self._tokens)

    def refresh(self) -> bool:
        """Read the files if they changed; True when the tokens did.

        Raises:
            TokenRefused: as at first; the tokens stay what they were, and the next call is quiet
                until the files change again.
        """
        marks = self._look()
        if marks == self._marks:
            return False
        # Noted before reading: what is written meanwhile is found by the next look.
        self._marks = marks
        tokens = self._read()
        changed = tokens != self._tokens
        self._tokens = tokens
        return changed

    def _read(self) -> tuple[FleetToken, ...]:
        tokens = self._read_files()
        for token in tokens:
            self._check(token)
        return tokens

    def _read_files(self) -> tuple[FleetToken, ...]:
        current = load_token(self.file)
        earlier = previous_file(self.file)
        if not os.path.lexists(earlier):
            return (current,)
        previous = load_token(earlier)
        # In the middle of a rotation both files are the same one.
        return (current,) if previous.token_id == current.token_id else (current, previous)

    def _look(self) -> tuple[_Mark, _Mark]:
        return _mark(self.file), _mark(previous_file(self.file))


def _mark(file: Path) -> _Mark:
    try:
        found = os.lstat(file)
    except OSError:
        return None
    # ctime, too, tells of a `chmod`, which mends a file that was refused.
    return found.st_ino, max(found.st_mtime_ns, found.st_ctime_ns), found.st_size


class TokenWatch:
    """Looks for changed tokens in a loop's time, and tells.

    Attach it with `loop.add_timer_source(watch.next_timeout, watch.handle_timeout)`.

    Args:
        tokens: that the links use.
        log: for changes and for files that can not be used.
        changed: called after a change, to end links whose token is no longer valid.
    """

    def __init__(
        self, tokens: FleetTokens, log: EventLog, changed: Callable[[], None] = lambda: None
    ) -> None:
        self._tokens = tokens
        self._log = log
        self._changed = changed
        self._look_at = 0.0

    def next_timeout(self) -> float:
        return self._look_at

    def handle_timeout(self, now: float) -> None:
        """Look once."""
        self._look_at = now + LOOK_EVERY_S
        try:
            changed = self._tokens.refresh()
        except TokenRefused as error:
            self._log.error("token_not_read", file=self._tokens.file, why=error.message)
            return
        if changed:
            ids = [token.shown_id for token in self._tokens]
            self._log.info("tokens_changed", current=ids[0], previous=ids[1] if ids[1:] else "none")
            self._changed()


# --- what an operator does ----------------------------------------------------------------------


def rotate_token(file: Path, new_token: str) -> None:
    """Keep the token in `file` as the previous one and put a new one in its place.

    Args:
        file: of the current token.
        new_token: the new one's text.

    Raises:
        TokenRefused: there is no token to rotate, or it can not be used.
        StartError: the token before is still valid; a third one would lock its nodes out.
    """
    current = load_token(file)
    earlier = previous_file(file)
    try:
        # A link keeps the file's age, and there is no moment without a current token.
        os.link(file, earlier, follow_symlinks=False)
    except FileExistsError:
        previous = load_token(earlier)
        if previous.token_id != current.token_id:
            raise StartError(
                f"the previous token (id {previous.shown_id}) is still valid, and a third would "
                "lock out the nodes that have it; end it first: sfctl token retire"
            ) from None
    sync_folder(file.absolute().parent)
    replace_private_file(file, new_token)


def retire_token(file: Path) -> None:
    """Remove the previous token.

    Raises:
        NotFound: there is none.
        TokenRefused: the current token can not be used, so the previous one is all there is.
    """
    load_token(file)
    earlier = previous_file(file)
    if not os.path.lexists(earlier):
        raise NotFound(f"there is no previous token at {earlier}; nothing is to be retired")
    earlier.unlink()
    sync_folder(file.absolute().parent)

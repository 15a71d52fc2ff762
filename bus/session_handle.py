"""One session as a client holds it: its context is at the head, turn after turn.

with superfluid.connect() as client:
    session = client.new_session("smollm2")
    session.append("Three rivers: ")
    print(session.generate(max_new=20).result().text)
    session.park()  # Its node is free for others; days later, maybe in another program:
    client.open_session(session.id).resume()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from bus.api_maps import from_map
from bus.call import Call
from bus.client_request import prompt_keys
from bus.errors import Invalid, WireError
from bus.ids import NodeIdentity, SessionId

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Where a session was placed again, and what need not be computed again there.

    Attributes:
        node: empty when the node was lost again at once; the next turn finds another.
        tokens: of the session's context.
        reused: leading ones that the node has.
        exact: of them, those that are bit for bit what the node would compute.
        problem: why not all are reused, as far as that is known.
    """

    node: NodeIdentity
    tokens: int
    reused: int
    exact: int
    problem: str = ""


class Operations(Protocol):
    """What a session needs of its client."""

    def operation(
        self, op: str, /, timeout_s: float | None = None, **body: Any
    ) -> dict[str, Any]: ...

    def session_generate(self, session: str, **options: Any) -> Call: ...


class Session:
    """Made by `Client.new_session`, or found by its name with `Client.open_session`.

    It stays at the head until it is finished, and the program that made it may end before.
    """

    def __init__(self, client: Operations, session: str) -> None:
        self._client = client
        self.id = SessionId(session)

    def __repr__(self) -> str:
        return f"Session({self.id!r})"

    def append(
        self, prompt: str | Sequence[int] | None = None, *, tokens: Sequence[int] | None = None
    ) -> int:
        """Add text, or token ids, to the context; gives its tokens now.

        Raises:
            SessionBusy: a turn runs.
            Parked: it is to be resumed first.
            ContextLengthExceeded: no session may be so long.
        """
        keys = prompt_keys(prompt, tokens)
        body = {"text" if name == "prompt" else name: value for name, value in keys.items()}
        return _value(self._ask("session.append", **body), "tokens", int)

    def generate(self, **options: Any) -> Call:
        """Ask for the next turn, as `Client.session_generate`.

        Raises:
            Invalid: an option that does not exist, or what is given is of a wrong kind.
        """
        return self._client.session_generate(self.id, **options)

    def park(self) -> None:
        """Free its node and keep the session; a turn that runs is cancelled. Fine when parked.

        Raises:
            NotFound: there is no such session.
            Invalid: it has ended.
        """
        self._ask("session.park")

    def resume(self) -> Resumed:
        """Place a parked session on a node again.

        Raises:
            NoNode: none can take it now; it stays parked.
            Invalid: it is not parked.
        """
        return from_map(Resumed, self._ask("session.resume"))

    def fork(self, offset: int | None = None) -> Session:
        """A new session with the same context, or its first `offset` tokens.

        Raises:
            SessionBusy: a turn runs.
            CursorAhead: the context is shorter.
        """
        body = {} if offset is None else {"offset": offset}
        return Session(self._client, _value(self._ask("session.fork", **body), "session", str))

    def finish(self) -> None:
        """End it; it stays readable for a while. Fine when it has ended, or is not known."""
        self._ask("session.finish")

    def info(self) -> dict[str, Any]:
        """What `session.get` tells: state, tokens, node and more."""
        return self._ask("session.get")

    def tokens(self, offset: int = 0, limit: int = 65_536) -> list[int]:
        """Ids of the context.

        Raises:
            Invalid: the limit is below 1 or above 65,536.
        """
        if limit < 1:
            raise Invalid(f"limit is {limit}; it should be 1 to 65536", param="limit")
        return list(_value(self._ask("session.get", offset=offset, limit=limit), "ids", list))

    def node_of(self) -> str | None:
        """The node that it is placed on; None when it is on none now."""
        return _value(self.info(), "node", str) or None

    def _ask(self, op: str, **body: Any) -> dict[str, Any]:
        return self._client.operation(op, session=self.id, **body)


def _value(body: Mapping[str, Any], key: str, kind: type[T]) -> T:
    found = body.get(key)
    if not isinstance(found, kind):
        raise WireError(f"the head answered without {key}; are versions equal?")
    return found

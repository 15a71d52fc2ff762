"""A client whose head is a script: what it sends is kept, and each request gets the next answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bus.call import Call
from bus.client_chat import Conversations
from bus.client_events import Ended, Failed
from bus.client_request import checked_options
from bus.client_session import ClientSession
from bus.ids import RequestId
from bus.messages.api import MARK, decode_body, encode_body

#: Operations that the script answers; all others get an empty end.
ANSWERED = frozenset({"chat", "session.chat"})


def answered(
    text: str = "", calls: Sequence[tuple[str, str]] = (), reasoning: str = "", finish: str = ""
) -> list[dict[str, Any]]:
    """The replies of one answer: one token event, with calls as (name, arguments), and its end."""
    made = [
        {"index": place, "id": f"call{place}", "name": name, "arguments": arguments}
        for place, (name, arguments) in enumerate(calls)
    ]
    event = {"type": "token", "offset": 0, "tokens": [1], "text": text, "tool_calls": made}
    end = {
        "finish": finish or ("tool_calls" if calls else "stop"),
        "usage": {"completion": 1},
        "timing": {},
        "node": "n",
        "session": "s",
        "offset": 1,
        "text": "",
    }
    return [
        {"kind": "event", **event, "reasoning": reasoning},
        {"kind": "end", **end},
    ]


class ScriptedClient(Conversations):
    """Gives its requests the answers of a script, in order."""

    def __init__(self, *script: list[dict[str, Any]]) -> None:
        count = iter(range(1, 1 << 20))
        self._session = ClientSession(lambda size: next(count).to_bytes(size, "big"))
        self._script = list(script)
        #: Bodies of what was asked.
        self.asked: list[dict[str, Any]] = []
        #: What other operations are answered.
        self.replies: dict[str, dict[str, Any]] = {"session.create": {"session": "s-1"}}

    @property
    def session(self) -> ClientSession:
        return self._session

    def clock(self) -> float:
        return 0.0

    def flush(self) -> None:
        for frames in self._session.frames_to_send():
            body = decode_body(frames)
            if body["op"] in ("more", "cancel"):
                continue
            self.asked.append(body)
            ends = [{"kind": "end", **self.replies.get(body["op"], {})}]
            replies = self._script.pop(0) if body["op"] in ANSWERED else ends
            for reply in replies:
                self._session.receive([MARK, encode_body({"id": body["id"], **reply})], 0.0)

    def settle(self) -> None:
        self.flush()

    def pump(self, until: float | None) -> None:
        raise AssertionError("the script has no more answers")

    def operation(self, op: str, /, timeout_s: float | None = None, **body: Any) -> dict[str, Any]:
        request = self._ask(op, body, timeout_s, 256)
        (last,) = self._session.take(request)
        if isinstance(last, Failed):
            raise last.error
        assert isinstance(last, Ended)
        return dict(last.body)

    def session_generate(self, session: str, **options: Any) -> Call:
        body = {"session": session, **checked_options(options)}
        return Call(self, self._ask("session.generate", body, None, 256))

    def _ask(self, op: str, body: Any, timeout_s: float | None, credit: int) -> RequestId:
        request = self._session.start(op, body, now=0.0, credit=credit)
        self.flush()
        return request

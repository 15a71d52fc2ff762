"""The blocking client: `ClientSession` over one socket, in the thread that calls.

with superfluid.connect() as client:
    print(client.generate("smollm2", "Once upon a time", max_new=40).result().text)
    with client.chat("smollm2", [{"role": "user", "content": "Hello"}]).stream() as stream:
        for event in stream:
            if event.type == "token":
                print(event.text, end="", flush=True)
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bus.call import Call
from bus.client_address import check_api_address
from bus.client_chat import Conversations
from bus.client_events import Ended, Failed
from bus.client_files import PUT_BLOB
from bus.client_questions import Questions
from bus.client_request import checked_options, prompt_keys
from bus.client_session import ClientSession
from bus.client_transcripts import Transcripts
from bus.closing import Closing
from bus.errors import Invalid, NoHead, SuperfluidError
from bus.ids import RequestId
from bus.messages.api import DEFAULT_CREDIT
from bus.transport.api_client import ApiSocket

#: How long an answer may take, and an operation that the head answers from memory.
ANSWER_TIMEOUT_S = 600.0
OPERATION_TIMEOUT_S = 30.0
#: How long a head that went away is waited for, by what is open and by what is asked meanwhile.
RECONNECT_S = 15.0
_RECONNECT_EVERY_S = 0.1
_SETTLE_S = 0.5


class Client(Closing, Questions, Conversations, Transcripts):
    """A connection to a head. Used by one thread; close it, or use it in `with`.

    Args:
        address: `ipc://...` or `tcp://...` of the head's client API.
        timeout_s: how long an answer may take unless its call says otherwise.
        operation_timeout_s: the same for what is answered by one reply.

    Raises:
        Invalid: it is no address.
        NotAllowed: the socket is another user's.
        NoHead: no head answers there.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float = ANSWER_TIMEOUT_S,
        operation_timeout_s: float = OPERATION_TIMEOUT_S,
    ) -> None:
        check_api_address(address)
        self.address = address
        self._timeout_s = timeout_s
        self._operation_timeout_s = operation_timeout_s
        self._session = ClientSession(os.urandom)
        self._closed = False
        self._socket: ApiSocket | None = ApiSocket(address)

    # --- answers ----------------------------------------------------------------------------

    def generate(
        self,
        model: str,
        prompt: str | Sequence[int] | None = None,
        *,
        tokens: Sequence[int] | None = None,
        timeout_s: float | None = None,
        credit: int = DEFAULT_CREDIT,
        **options: Any,
    ) -> Call:
        """Ask for a continuation of `prompt`.

        Args:
            model: its name in the fleet.
            prompt: text, or token ids.
            tokens: token ids, in place of `prompt`.
            timeout_s: how long the answer may take from now on.
            credit: events that may wait here unread, 1 to 4096.
            **options: what docs/api.md lists: max_new, min_tokens, temperature, top_k, top_p,
                min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias, stop,
                stop_ids, schema, constraint, logprobs, seed, ignore_eos, max_wall_ms, qos, key,
                exact, on_disconnect, blobs.

        Raises:
            Invalid: an option that does not exist, or what is given is of a wrong kind.
        """
        body = {"model": model, **prompt_keys(prompt, tokens), **checked_options(options)}
        return self._call("generate", body, timeout_s, credit)

    def attach(
        self,
        *,
        key: str | None = None,
        session: str | None = None,
        offset: int = 0,
        timeout_s: float | None = None,
        credit: int = DEFAULT_CREDIT,
    ) -> Call:
        """Continue an answer from token `offset`, by its idempotency key or its session.

        Raises:
            Invalid: not exactly one of key and session is given.
        """
        if (key is None) == (session is None):
            raise Invalid("give one of key and session", param="key")
        named = {"key": key} if key is not None else {"session": session}
        return self._call("attach", {**named, "offset": offset}, timeout_s, credit)

    # --- sessions ---------------------------------------------------------------------------

    def session_generate(
        self,
        session: str,
        *,
        keep_output: bool = True,
        timeout_s: float | None = None,
        credit: int = DEFAULT_CREDIT,
        **options: Any,
    ) -> Call:
        """Ask for the next turn of a session.

        Args:
            session: its name.
            keep_output: whether the answer joins the session's context.
            timeout_s: how long the answer may take from now on.
            credit: events that may wait here unread, 1 to 4096.
            **options: as for `generate`.

        Raises:
            Invalid: an option that does not exist, or what is given is of a wrong kind.
        """
        body = {"session": session, "keep_output": keep_output, **checked_options(options)}
        return self._call("session.generate", body, timeout_s, credit)

    # --- operations -------------------------------------------------------------------------

    def operation(self, op: str, /, timeout_s: float | None = None, **body: Any) -> dict[str, Any]:
        """Any operation of docs/api.md that is answered by one reply; gives its keys.

        Raises:
            SuperfluidError: what the head answered, or TimedOut, or NoHead.
        """
        limit = self._operation_timeout_s if timeout_s is None else timeout_s
        return self._reply(self._start(op, body, limit, DEFAULT_CREDIT))

    def _reply(self, request: RequestId) -> dict[str, Any]:
        while True:
            for event in self._session.take(request):
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, Ended):
                    return {k: v for k, v in event.body.items() if k not in ("id", "kind")}
            self.pump(None)

    # --- the connection ---------------------------------------------------------------------

    @property
    def session(self) -> ClientSession:
        """The protocol core; a call takes its events from it."""
        return self._session

    @staticmethod
    def clock() -> float:
        """Seconds; the client's own deadlines only, so that it runs on any system."""
        return time.monotonic()

    def flush(self) -> None:
        """Send what is to be sent. A connection that is gone is found by the next `pump`.

        Raises:
            TimedOut: the head takes nothing.
        """
        if self._socket is None:
            return
        for frames in self._session.frames_to_send():
            # When it is lost, what is open is sent or attached anew after `_reconnect`.
            self._socket.send(frames)

    def settle(self) -> None:
        """See that what was sent has arrived, so that a cancel is not lost by closing."""
        try:
            self.operation("ping", timeout_s=_SETTLE_S)
        except SuperfluidError:
            pass  # the head drops what its clients leave behind by itself, only later

    def pump(self, until: float | None) -> None:
        """Send, then wait for at least one message, a timeout, or `until`.

        Raises:
            NoHead: the client is closed.
        """
        if self._socket is None:
            raise NoHead("this client has no connection; connect again")
        self.flush()
        times = [t for t in (until, self._session.next_timeout()) if t is not None]
        wait_s = max(0.0, min(times) - self.clock()) if times else 0.0
        alive = self._receive(self._socket, wait_s)
        alive = self._session.handle_timeout(self.clock()) and alive
        self.flush()
        if not alive:
            try:
                self._reconnect(RECONNECT_S, only_for_open=True)
            except NoHead:
                pass  # each open request has it as its error

    def close(self) -> None:
        """Say goodbye and close the connection.

        Open requests are cancelled at once, but for those with `on_disconnect` `keep`, which go on
        at the head.
        """
        self._closed = True
        if self._socket is not None:
            if not self._session.idle:
                self._say_goodbye(self._socket)
            self._socket.close()
            self._socket = None
            self._session.fail_all(NoHead("this client was closed; connect again"))
            self._session.connection_lost()

    # --- inside -----------------------------------------------------------------------------

    def _say_goodbye(self, socket: ApiSocket) -> None:
        """Have the head know, if it hears it within a moment; it notices the end later anyway."""
        until = self.clock() + _SETTLE_S
        try:
            request = self._session.start("goodbye", {}, now=self.clock())
            for frames in self._session.frames_to_send():
                socket.send(frames, _SETTLE_S)
            while not self._session.take(request) and (wait_s := until - self.clock()) > 0:
                if not self._receive(socket, wait_s):
                    return
        except SuperfluidError:
            pass  # a head that stands still, or is of a version without goodbyes

    def _receive(self, socket: ApiSocket, wait_s: float) -> bool:
        """Take all that came, waiting for the first; False when the connection has ended."""
        frames = socket.recv(wait_s)
        while frames is not None:
            self._session.receive(frames, self.clock())
            frames = socket.recv(0)
        return not socket.lost

    def _call(self, op: str, body: Mapping[str, Any], timeout_s: float | None, credit: int) -> Call:
        return Call(self, self._ask(op, body, timeout_s, credit))

    def _ask(
        self, op: str, body: Mapping[str, Any], timeout_s: float | None, credit: int
    ) -> RequestId:
        limit = self._timeout_s if timeout_s is None else timeout_s
        return self._start(op, body, limit, credit)

    def _put(self, body: Mapping[str, Any], part: bytes) -> RequestId:
        return self._start(PUT_BLOB, body, self._operation_timeout_s, DEFAULT_CREDIT, (part,))

    def _start(
        self,
        op: str,
        body: Mapping[str, Any],
        timeout_s: float,
        credit: int,
        frames: Sequence[bytes] = (),
    ) -> RequestId:
        if self._closed:
            raise NoHead("this client is closed; connect again")
        if self._socket is None or self._socket.lost:
            self._reconnect(min(timeout_s, RECONNECT_S))
        now = self.clock()
        request = self._session.start(
            op, body, now=now, credit=credit, deadline=now + timeout_s, frames=frames
        )
        self.flush()
        return request

    def _reconnect(self, limit_s: float, *, only_for_open: bool = False) -> None:
        """Take a new connection and go on with what can be continued.

        Args:
            limit_s: how long a head is waited for.
            only_for_open: no longer than a request is open.

        Raises:
            NoHead: none can be had; every open request has failed with it.
        """
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._session.connection_lost()
        until = self.clock() + limit_s
        while self._socket is None:
            try:
                self._socket = ApiSocket(self.address)
            except NoHead as error:
                if self.clock() >= until or (only_for_open and self._session.idle):
                    self._session.fail_all(error)
                    raise
                # Nothing tells when a head begins to listen; this only spaces the attempts.
                time.sleep(_RECONNECT_EVERY_S)
                self._session.handle_timeout(self.clock())
        self._session.connected(self.clock())
        self.flush()

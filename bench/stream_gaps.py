"""Streams that run all the time, and how long each of their tokens was in coming."""

from __future__ import annotations

import os
import random
import threading
from dataclasses import dataclass

from bus.client_events import Ended, Failed
from bus.client_session import ClientSession
from bus.closing import Closing
from bus.ids import RequestId
from bus.messages.api import TokenEvent
from bus.transport import clock
from bus.transport.api_client import ApiSocket

PROMPT_TOKENS = 24
#: Tokens of one answer; then the stream asks for the next one.
ANSWER_TOKENS = 1800
SILENCE_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Came:
    """An event with tokens: of which answer, when (seconds of the process's clock), how many."""

    answer: int
    at_s: float
    tokens: int


class Streams(Closing):
    """So many answers at a time, read in a thread of their own until it is closed.

    Args:
        api: the head's address for clients.
        model: that makes them.
        count: how many at a time.
        vocab: of the model.
    """

    def __init__(self, api: str, model: str, count: int, vocab: int) -> None:
        self._api = api
        self._model = model
        self._count = count
        self._vocab = vocab
        self._rng = random.Random(7)
        self._answers = 0
        self._open: dict[RequestId, int] = {}
        self._came: list[Came] = []
        self._closing = threading.Event()
        self._failure: str = ""
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._run, name="streams")
        self._thread.start()

    def wait_running(self) -> None:
        """Wait until every stream has had a token.

        Raises:
            RuntimeError: none came in time, or one failed.
        """
        if not self._running.wait(SILENCE_LIMIT_S) or self._failure:
            raise RuntimeError(self._failure or "no tokens come")

    def gaps_ms(self, start_s: float, end_s: float) -> list[float]:
        """Milliseconds between two events of one answer, of those that ended in a time.

        Raises:
            RuntimeError: a stream failed.
        """
        if self._failure:
            raise RuntimeError(self._failure)
        last: dict[int, float] = {}
        found = []
        for each in list(self._came):
            if each.answer in last and start_s <= each.at_s < end_s:
                found.append((each.at_s - last[each.answer]) * 1000)
            last[each.answer] = each.at_s
        return found

    def tokens(self, start_s: float, end_s: float) -> int:
        """Tokens that came in a time."""
        return sum(each.tokens for each in list(self._came) if start_s <= each.at_s < end_s)

    def close(self) -> None:
        """End the streams and the thread."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        socket = ApiSocket(self._api)
        session = ClientSession(os.urandom)
        try:
            while not self._closing.is_set():
                while len(self._open) < self._count:
                    self._start(session)
                self._turn(session, socket)
        except (RuntimeError, TimeoutError) as error:
            self._failure = str(error)
            self._running.set()
        finally:
            socket.close()

    def _start(self, session: ClientSession) -> None:
        body = {
            "model": self._model,
            "tokens": [self._rng.randrange(100, self._vocab) for _ in range(PROMPT_TOKENS)],
            "max_new": ANSWER_TOKENS,
            "ignore_eos": True,
            "temperature": 0.0,
        }
        self._answers += 1
        self._open[session.start("generate", body, now=clock.now())] = self._answers

    def _turn(self, session: ClientSession, socket: ApiSocket) -> None:
        for frames in session.frames_to_send():
            socket.send(frames)
        frames_in = socket.recv(1.0)
        while frames_in is not None:
            session.receive(frames_in, clock.now())
            frames_in = socket.recv(0)
        for request, answer in list(self._open.items()):
            for event in session.take(request):
                if isinstance(event, TokenEvent):
                    self._came.append(Came(answer, clock.now(), len(event.tokens)))
                elif isinstance(event, Failed):
                    raise RuntimeError(f"a stream failed: {event.error}")
                elif isinstance(event, Ended):
                    del self._open[request]
        if len({each.answer for each in self._came[-64:]}) >= self._count:
            self._running.set()

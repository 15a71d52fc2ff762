"""Callers: they ask, lose their connection or the head, come back with their cursor, and cancel.

A caller checks what it gets: every token once, in order, as durable, and none after the end.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.harness.memory_parts import MODEL
from tests.harness.memory_worker import TOKEN_BITS, made_up_logprob
from tests.sim.world.record import Plan, Violation

if TYPE_CHECKING:
    from tests.sim.world.world import World

TOKEN_MASK = (1 << TOKEN_BITS) - 1
#: How long a caller waits before it looks for a head that is gone, or comes back by itself.
RETRY_S = (0.1, 0.8)
#: The end of a call that its caller can not find again.
LOST = {"kind": "lost"}
#: Slow readers wait so long before they take more.
STALLS_S = (0.0, 0.0, 0.0, 0.0, 0.5, 2.0, 5.0, 9.0)
GONE_S = (0.05, 1.0, 4.0, 9.0)


class Caller:
    """One call, over all the connections that it takes."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self._rng = world.rng
        self.plan = plan
        self.got: list[int] = []
        #: The text that came with what the present reader and those before it got.
        self._text = ""
        #: The text up to each cursor that was passed.
        self._shown: dict[int, str] = {0: ""}
        #: The next token that the present reader gets.
        self._cursor = 0
        self.session = ""
        self.end: dict[str, Any] | None = None
        self._client = b""
        self._request = b""
        self._cancel = b""
        self._asked = False
        self._credit = plan.credit
        self._heard = self._is_granting = False

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def is_asked(self) -> bool:
        is_over = self.closed and self.end != LOST
        return self._asked and not is_over

    @property
    def closed(self) -> bool:
        return self.end is not None

    # --- asking -------------------------------------------------------------------------------

    def start(self) -> None:
        """Ask, as soon as there is a head."""
        if self.closed:
            return
        if self._world.fleet.head is None:
            self._world.fleet.after(self._rng.uniform(*RETRY_S), self.start)
            return
        self._asked = True
        self.plan.asked_s = self.plan.asked_s or self._world.fleet.now
        self._world.say(f"{self.plan.name} asks")
        self._ask()

    def _ask(self) -> None:
        self._cursor, self._text = 0, ""
        self._send(self._body())

    def _body(self) -> dict[str, Any]:
        plan = self.plan
        body: dict[str, Any] = {
            **self._about(),
            "max_new": plan.max_new,
            "seed": plan.seed,
            "credit": plan.credit,
            "on_disconnect": "keep" if plan.keep else "cancel",
            "pause_when_slow": plan.is_slow,
            "exact": plan.exact,
        }
        if plan.key is not None:
            body["key"] = plan.key
        if plan.wall_ms:
            body["max_wall_ms"] = plan.wall_ms
        if plan.stops:
            body |= {"stop": list(plan.stops), "min_tokens": plan.min_tokens}
        if plan.others is not None:
            body["logprobs"] = plan.others
        return body

    def _about(self) -> dict[str, Any]:
        tokens = list(self.plan.prompt[::4])
        return {"op": "generate", "model": MODEL, "tokens": tokens}

    def _attach(self) -> None:
        named = {"key": self.plan.key} if self.plan.key else {"session": self.session}
        self._cursor = self._first_offset()
        body = {"op": "attach", "offset": self._cursor, "credit": self.plan.credit, **named}
        self._send(body)

    def _first_offset(self) -> int:
        """Where to go on reading."""
        self._text = self._shown[len(self.got)]
        return len(self.got)

    def _send(self, body: dict[str, Any]) -> None:
        callers = self._world.callers
        self._client, self._request = callers.connect(self), callers.request()
        self._credit = self.plan.credit
        self._heard = self._is_granting = False
        requests = self._world.oracle.store.requests
        requests[self._client, self._request] = self.plan
        self._world.fleet.to_head(self._client, {"id": self._request, **body})

    # --- losing and coming back -----------------------------------------------------------------

    def head_died(self) -> None:
        if self._asked and not self.closed:
            self._client = b""
            if self.plan.unread_since is None:
                self.plan.unread_since = self._world.fleet.now
            self._world.fleet.after(self._rng.uniform(*RETRY_S), self.come_back)

    def drop(self) -> None:
        """The caller's connection ends; it comes back after a while."""
        head = self._world.fleet.head
        if self.closed or not self._client or head is None:
            return
        self._world.say(f"{self.plan.name} drops its connection")
        client, self._client = self._client, b""
        self._world.callers.forget(client)
        head.client_gone(client)
        self.plan.unread_since = self._world.fleet.now
        back_s = self._rng.choice(GONE_S)
        self._world.fleet.after(back_s, self.come_back)

    def come_back(self) -> None:
        """Continue from the cursor, by key or session; without either the call is lost."""
        if self.closed or self._client:
            return
        if self._world.fleet.head is None:
            self._world.fleet.after(self._rng.uniform(*RETRY_S), self.come_back)
            return
        plan = self.plan
        self._world.say(f"{plan.name} comes back at {len(self.got)}")
        if plan.key is None and not self.session:
            self.end = LOST
            return
        if plan.unread_since is not None:
            plan.unread_s += self._world.fleet.now - plan.unread_since
            plan.unread_since = None
        if plan.key is not None and self._rng.random() < 0.5:
            self._ask()
        else:
            self._attach()

    @property
    def is_heard(self) -> bool:
        """Whether the head has said something on the present connection."""
        return bool(self._client) and self._heard

    def cancel(self) -> None:
        """Stop the call, and be at once ready for the next."""
        if self.closed or not self._client or not self._asked:
            return
        self.plan.cancelled_s = self._world.fleet.now
        self._world.say(f"{self.plan.name} cancels")
        self._cancel = self._world.callers.request()
        body = {"op": "cancel", "id": self._cancel, "about": self._request}
        self._world.fleet.to_head(self._client, body)

    # --- replies ------------------------------------------------------------------------------

    def replied(self, body: dict[str, Any]) -> None:
        if body.get("id") == self._cancel and body["kind"] == "end":
            self._cancelled()
        if body.get("id") != self._request:
            return  # Of a cancel or a more.
        if self.closed:
            raise Violation(f"{self.plan.name} got {body} after its end")
        if body["kind"] == "event":
            self._event(body)
        elif body["kind"] == "end":
            self._ended(body)
        else:
            self._failed(body)

    def _cancelled(self) -> None:
        """The head has said that it is cancelled: from now on nothing more comes of it."""
        answer = self.plan.answer
        if answer is not None and answer.finish is None:
            raise Violation(f"{self.plan.name} is cancelled and has no durable end")

    def _event(self, body: dict[str, Any]) -> None:
        self._heard = True
        self._credit -= 1
        if body["type"] == "token":
            self._tokens(body["offset"], list(body["tokens"]))
            self._check_logprobs(body)
            self._add_pieces(body)
        elif body["type"] == "placed":
            self.session = body["session"]
        elif body["type"] == "moved" and body["offset"] > self._durable():
            raise Violation(f"moved at {body['offset']}, above what is durable")
        if self._credit < 0:
            raise Violation(f"{self.plan.name} got events without credit")
        if self._credit <= self.plan.credit // 2 and not self._is_granting:
            self._is_granting = True
            if stall_s := self._stall_s():
                self._world.fleet.after(stall_s, partial(self._grant, self._request))
            else:
                self._grant(self._request)

    def _stall_s(self) -> float:
        """How long it waits before it takes more."""
        return STALLS_S[self.plan.seed % len(STALLS_S)] if self.plan.is_slow else 0.0

    def _grant(self, about: bytes) -> None:
        if about != self._request or not self._client or self.closed:
            return
        self._is_granting = False
        more = self.plan.credit - self._credit
        self._credit += more
        request = self._world.callers.request()
        asked = {"op": "more", "id": request, "about": self._request, "credit": more}
        self._world.fleet.to_head(self._client, asked)

    def _durable(self) -> int:
        answer = self.plan.answer
        return 0 if answer is None else len(answer.tokens)

    def _tokens(self, offset: int, tokens: list[int]) -> None:
        plan = self.plan
        if offset != self._cursor:
            raise Violation(f"{plan.name} got tokens at {offset}; {self._cursor} is next")
        if not tokens:
            raise Violation(f"{plan.name} got an empty token event")
        answer = plan.answer
        kept = [] if answer is None else answer.tokens[offset : offset + len(tokens)]
        if kept != tokens:
            raise Violation(f"{plan.name} got {tokens} at {offset}; durable is {kept}")
        if [token & TOKEN_MASK for token in tokens] != plan.expected[offset : offset + len(tokens)]:
            raise Violation(f"{plan.name} got wrong tokens at {offset}")
        self._cursor += len(tokens)
        self.got[offset : offset + len(tokens)] = tokens

    def _check_logprobs(self, body: dict[str, Any]) -> None:
        """Each token has its own, and is in its own list of the likeliest."""
        plan, found = self.plan, body.get("logprobs")
        if plan.others is None:
            if found is not None:
                raise Violation(f"{plan.name} got log-probabilities that it did not ask for")
            return
        tokens = body["tokens"]
        if found is None or len(found) != len(tokens):
            raise Violation(f"{plan.name} got {found} as log-probabilities of {tokens}")
        for place, (token, entry) in enumerate(zip(tokens, found, strict=True), body["offset"]):
            one = (entry["token"], entry["logprob"])
            if one != (token, made_up_logprob(token, place)):
                raise Violation(f"{plan.name} got {entry} for token {token} at {place}")
            top = [(other["token"], other["logprob"]) for other in entry["top"]]
            if len(top) not in (plan.others, plan.others + 1) or (top and one not in top):
                raise Violation(f"{plan.name} got {top} as the likeliest beside {one}")

    def _add_pieces(self, body: dict[str, Any]) -> None:
        self._text += body["text"]
        before = self._shown.setdefault(self._cursor, self._text)
        if before != self._text:
            raise Violation(f"{self.plan.name} was shown {self._text!r} after {before!r}")

    def _check_text(self, body: dict[str, Any]) -> None:
        """What was shown, over all connections, is the text up to the stop."""
        plan = self.plan
        whole = Plan.text_of(self.got)
        is_whole = len(self.got) == len(plan.expected)
        expected = plan.text if is_whole and plan.answer is not None else whole
        if self._text + body["text"] != expected:
            raise Violation(f"{plan.name} was shown {self._text + body['text']!r}: {expected!r}")
        if body.get("stop", "") != (plan.stop if body["finish"] == "stop" else ""):
            raise Violation(f"{plan.name} ended at {body.get('stop')!r}, not {plan.stop!r}")

    def _is_end(self, durable: str, told: str) -> bool:
        return durable == told

    def _ended(self, body: dict[str, Any]) -> None:
        plan, finish = self.plan, body["finish"]
        self.end = body
        self._world.say(f"{plan.name} ends {finish} at {len(self.got)}")
        if body["offset"] != self._cursor or len(self.got) != self._cursor:
            raise Violation(f"{plan.name} ended at {body['offset']} with {self._cursor} tokens")
        answer = plan.answer
        if answer is not None:
            if answer.finish is None or not self._is_end(answer.finish.finish, finish):
                raise Violation(f"{plan.name} ended {finish}; durable is {answer.finish}")
        elif finish != "cancelled":
            raise Violation(f"{plan.name} ended {finish} and was never stored")
        self._check_text(body)
        self._world.record.count(f"end {finish}")

    def _failed(self, body: dict[str, Any]) -> None:
        plan, error = self.plan, body["error"]
        self.end = body
        self._world.say(f"{plan.name} fails {error['code']} at {len(self.got)}: {error['message']}")
        now = self._world.fleet.now
        answer = plan.answer
        if error["code"] == "not_found" and plan.session is None:
            # Asked for by its key or session, after a head died that had not stored it.
            if answer is not None:
                raise Violation(f"{plan.name} is stored and was not found")
            self._world.record.count("error not_found")
            return
        if answer is None:
            why = self._world.oracle.verdicts.judge_error(None, plan, error, now)
            if why:
                raise Violation(f"{plan.name} failed {error}: {why}")
        elif answer.error is None or answer.error["code"] != error["code"]:
            raise Violation(f"{plan.name} failed {error}; durable is {answer.error}")
        elif len(self.got) != len(answer.tokens):
            raise Violation(f"{plan.name} failed with {len(self.got)} of {len(answer.tokens)}")

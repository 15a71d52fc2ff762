"""`explain`: where a request would go now, why not elsewhere, and who would go before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from bus.api_maps import from_map
from bus.errors import Invalid
from bus.fields import MaxBytes, Range
from bus.ids import ModelName, NodeIdentity, SessionId, pack_ids
from bus.messages.api import MAX_PROMPT_TOKENS, QOS_CLASSES, QOS_NAMES, Ids, Qos
from head.answer_operations import LOCAL_OWNER
from head.model_kinds import NO_TEXT, makes_no_text
from head.operation import ApiRequest, Core
from head.placement import Placement, estimate_ms
from head.queueing import Entry, RequestQueue
from head.snapshot import NodeView, PlacementRequest

#: What a request has when it does not say.
NOMINAL_TOKENS = 256

Tokens = Annotated[int, Range(1, MAX_PROMPT_TOKENS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainRequest:
    """A request that is not made. At most one of `prompt_tokens`, `tokens` and `session`.

    Attributes:
        prompt_tokens: the prompt's length.
        tokens: its token ids, so that what nodes hold of it counts.
        session: goes on from this session's context; its model and class count then.
    """

    model: Annotated[ModelName, MaxBytes(128)] | None = None
    prompt_tokens: Tokens | None = None
    tokens: Ids | None = None
    session: Annotated[SessionId, MaxBytes(64)] | None = None
    max_new: Tokens = NOMINAL_TOKENS
    qos: Qos | None = None


class ExplainOperations:
    """Owned by the API; works on the head's core and changes nothing."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def explain(self, request: ApiRequest, now: float) -> None:
        """Answer with the decision, every node with its reason, and the model's queue."""
        asked = from_map(ExplainRequest, request.body)
        if sum(each is not None for each in (asked.prompt_tokens, asked.tokens, asked.session)) > 1:
            raise Invalid("give one of prompt_tokens, tokens and session", param="tokens")
        wanted, qos, holder = self._wanted(asked)
        explained = self._core.runs.waiting.explain(wanted, QOS_CLASSES[qos], now, holder)
        placement = explained.placement
        body = {
            "model": wanted.model,
            "policy": explained.policy,
            "prompt_tokens": wanted.prompt_tokens,
            "max_new": wanted.expected_tokens,
            "node": placement.node,
            "waits_for": placement.waits_for,
            "wait_s": round(placement.wait_s, 3),
            "error": _error(placement),
            "nodes": _nodes(placement),
            "queue": _queue(explained.queue, qos, explained.position, now),
        }
        self._core.outbox.reply(request.end(body))

    def _wanted(self, asked: ExplainRequest) -> tuple[PlacementRequest, str, NodeIdentity | None]:
        """What placement is asked, the class, and the node that the session is on."""
        waiting = self._core.runs.waiting
        if asked.session is not None:
            session = self._core.runs.made.find(LOCAL_OWNER, asked.session)
            if asked.model not in (None, session.model):
                raise Invalid(
                    f"the session's model is {session.model}; leave model out", param="model"
                )
            wanted = waiting.wanted(session.model, session.context.slice(), asked.max_new)
            placed, holder = session.placed, None
            if placed is not None and placed.link is not None:
                holder = placed.node
                held = max(wanted.cached.get(placed.node, 0), placed.protocol.tokens)
                wanted = replace(wanted, cached={**wanted.cached, placed.node: held})
            return wanted, asked.qos or QOS_NAMES[session.qos], holder
        if asked.model is None:
            raise Invalid("name a model or a session", param="model")
        self._check_known(asked.model)
        if (kind := self._core.texts.kind(asked.model)) in NO_TEXT:
            raise makes_no_text(asked.model, kind)
        wanted = waiting.wanted(asked.model, pack_ids(asked.tokens or ()), asked.max_new)
        if asked.prompt_tokens is not None or not asked.tokens:
            wanted = replace(wanted, prompt_tokens=asked.prompt_tokens or NOMINAL_TOKENS)
        return wanted, asked.qos or "interactive", None

    def _check_known(self, model: ModelName) -> None:
        """As for a request, which waits for a node that may bring the model; this does not."""
        texts = self._core.texts
        texts.check(model)
        listed = any(model in node.models for node in self._core.fleet.nodes)
        if not listed and not texts.source.state(model):
            raise texts.no_folder(model)


def _error(placement: Placement) -> dict[str, Any] | None:
    error = placement.error
    return None if error is None else {"code": error.code, "message": error.message}


def _nodes(placement: Placement) -> list[dict[str, Any]]:
    """Each node, the chosen one first, then by identity."""
    reasons: Mapping[NodeIdentity, str] = dict(placement.reasons)
    nodes = sorted(
        placement.case.snapshot.nodes,
        key=lambda node: (node.identity != placement.node, node.identity),
    )
    return [_node(node, placement, reasons.get(node.identity, "")) for node in nodes]


def _node(node: NodeView, placement: Placement, reason: str) -> dict[str, Any]:
    model, request = node.serving, placement.case.request
    known = model is not None
    return {
        "node": node.identity,
        "chosen": node.identity == placement.node,
        "reason": reason,
        "estimate_ms": round(estimate_ms(node, placement.case), 1) if known else None,
        "cached_tokens": request.cached.get(node.identity, 0),
        "in_flight": model.in_flight if model is not None else None,
        "lanes_total": model.lanes_total if model is not None else None,
        "window_tokens": model.window_tokens if model is not None else None,
    }


def _queue(queue: RequestQueue | None, qos: str, position: int, now: float) -> dict[str, Any]:
    classes: list[list[Entry]] = queue.waiting_by_class() if queue is not None else [[]] * 4
    return {
        "waiting": len(queue) if queue is not None else 0,
        "qos": qos,
        "position": position,
        "classes": [
            {
                "qos": QOS_NAMES[number],
                "waiting": len(entries),
                "owners": len({entry.owner for entry in entries}),
                "oldest_s": round(now - entries[0].queued_s, 3) if entries else 0.0,
            }
            for number, entries in enumerate(classes)
        ],
    }

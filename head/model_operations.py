"""`model.load` and `model.unload`: which models the nodes serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bus.api_maps import from_map
from bus.errors import Invalid, SuperfluidError
from bus.fields import MaxBytes, Range
from bus.ids import ModelName, NodeIdentity
from head.model_desk import Then
from head.operation import ApiRequest, Core

Name = Annotated[str, MaxBytes(128)]
Model = Annotated[str, MaxBytes(256)]
#: What runs may go on for so long unless the request says otherwise, and at most.
GRACE_S = 30.0
MAX_GRACE_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoadRequest:
    """A node by its identity, and a model that lies there."""

    node: Name
    model: Model


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUnloadRequest:
    """`grace_s`: how long what runs may go on before it moves to other nodes."""

    node: Name
    model: Model
    grace_s: Annotated[float, Range(0.0, MAX_GRACE_S)] = GRACE_S


class ModelOperations:
    """The operations on models of nodes, over the head's core. Owned by the API."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def load(self, request: ApiRequest, now: float) -> None:
        """Ends when the node has begun; how it comes along is in `nodes` and `models`."""
        asked = from_map(ModelLoadRequest, request.body)
        _check_model(asked.model)
        node, model = NodeIdentity(asked.node), ModelName(asked.model)
        self._core.models.load(node, model, self._then(request, node, model), now)

    def unload(self, request: ApiRequest, now: float) -> None:
        """Ends when the node has begun; it is done when the node lists the model no more."""
        asked = from_map(ModelUnloadRequest, request.body)
        _check_model(asked.model)
        node, model = NodeIdentity(asked.node), ModelName(asked.model)
        then = self._then(request, node, model)
        self._core.models.unload(node, model, asked.grace_s, then, now)

    def _then(self, request: ApiRequest, identity: NodeIdentity, model: ModelName) -> Then:
        def then(error: SuperfluidError | None) -> None:
            if error is not None:
                self._core.fail_request(request.client, request.id, error)
                return
            node = self._core.fleet.get(identity)
            status = None if node is None else node.models.get(model)
            body = {
                "node": identity,
                "model": model,
                "phase": "unloaded" if status is None else status.phase,
                "generations": 0 if node is None else node.in_flight(model),
            }
            self._core.outbox.reply(request.end(body))

        return then


def _check_model(name: str) -> None:
    """See that a model is named.

    Raises:
        Invalid: it is not.
    """
    if not name:
        raise Invalid("model is empty; name one of: sfctl model ls", param="model")

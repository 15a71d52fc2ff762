"""What an operator decided about nodes beside their keys: which are drained, and their labels.

A mark is kept under the node's identity, so it outlives the node's link, its agent and the head.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bus.errors import StoreCorrupt
from bus.ids import NodeIdentity
from head.outbox import Outbox
from head.rows import PutSetting

#: Begins the names of the settings that keep marks; an identity follows.
PREFIX = "node "


@dataclass(frozen=True, slots=True)
class NodeMark:
    """Of one node. `drained`: it gets no work, and what it has moves off."""

    drained: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)


NO_MARK = NodeMark()


class NodeMarks:
    """All marks. Owned by the core; no I/O, no clock.

    Args:
        outbox: takes the rows to keep.
        settings: as stored; those of other kinds are passed over.

    Raises:
        StoreCorrupt: a stored mark can not be read.
    """

    def __init__(self, outbox: Outbox, settings: Iterable[PutSetting] = ()) -> None:
        self._outbox = outbox
        self._marks: dict[NodeIdentity, NodeMark] = {}
        for setting in settings:
            if setting.name.startswith(PREFIX) and setting.value:
                identity = NodeIdentity(setting.name.removeprefix(PREFIX))
                self._marks[identity] = _read(setting)

    def __contains__(self, identity: object) -> bool:
        """Whether a node has a mark."""
        return identity in self._marks

    def of(self, identity: NodeIdentity) -> NodeMark:
        """A node's mark."""
        return self._marks.get(identity, NO_MARK)

    def drain(self, identity: NodeIdentity, *, drained: bool) -> NodeMark:
        """Say whether a node is drained; gives its mark."""
        mark = self.of(identity)
        if mark.drained != drained:
            self._keep(identity, mark := NodeMark(drained, mark.labels))
        return mark

    def label(self, identity: NodeIdentity, changes: Mapping[str, str]) -> NodeMark:
        """Set labels of a node, and remove those whose new value is empty; gives its mark."""
        mark = self.of(identity)
        labels = {key: value for key, value in {**mark.labels, **changes}.items() if value}
        if labels != mark.labels:
            self._keep(identity, mark := NodeMark(mark.drained, labels))
        return mark

    def forget(self, identity: NodeIdentity) -> bool:
        """Forget a node's mark; False when it had none."""
        if self._marks.pop(identity, None) is None:
            return False
        self._outbox.persist(PutSetting(name=f"{PREFIX}{identity}", value=""))
        return True

    def _keep(self, identity: NodeIdentity, mark: NodeMark) -> None:
        if not mark.drained and not mark.labels:
            self.forget(identity)
            return
        self._marks[identity] = mark
        labels = dict(sorted(mark.labels.items()))
        value = json.dumps({"drained": mark.drained, "labels": labels})
        self._outbox.persist(PutSetting(name=f"{PREFIX}{identity}", value=value))


def _read(setting: PutSetting) -> NodeMark:
    try:
        stored = json.loads(setting.value)
        labels = {str(key): str(value) for key, value in stored["labels"].items()}
        return NodeMark(drained=bool(stored["drained"]), labels=labels)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise StoreCorrupt(
            f"the setting {setting.name!r} in the head's store can not be read; put a copy of the "
            "store in its place, or move it away to begin with an empty one"
        ) from None

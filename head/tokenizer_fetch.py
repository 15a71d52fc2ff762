"""One model's tokenizer on its way to the head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bus.text.tokenizer_export import TokenizerIntake
from head.fleet_node import Node
from head.kept_tokenizers import TokenizerKey


@dataclass(slots=True, eq=False)
class Fetch:
    """What is fetched, and from where.

    Attributes:
        node: who is asked; None for what is kept here.
        incarnation: of that node.
        job: at the node, once and while there is one.
        heard_s: when the node gave something last.
    """

    key: TokenizerKey
    intake: TokenizerIntake
    node: Node | None = None
    incarnation: int = 0
    job: int | None = None
    heard_s: float = 0.0
    stall_timer: int | None = None
    late_timer: int | None = None

    def goes_on(self, offers: Mapping[TokenizerKey, Sequence[Node]]) -> bool:
        """Whether it still brings what is wanted, where nodes offer this."""
        if self.node is None:
            # Of what is kept: unless nodes have something else by now.
            return not offers or self.key in offers
        return self.node in offers.get(self.key, ()) and self.node.incarnation == self.incarnation

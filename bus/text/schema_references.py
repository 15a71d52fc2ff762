"""What `$ref` leads to in a schema, by JSON pointer or anchor: every target once, under a name.

Source: RFC 6901 for pointers; JSON Schema 2020-12 core, section 8.2, for anchors.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from bus.text.schema_limits import MAX_DEFINITIONS, MAX_DEPTH, SchemaRefused

Json = Any

#: RFC 6901 has no leading zeros; a list of a schema is not longer than this.
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


class References:
    """The targets of one schema that were named so far, and those that nobody has looked at yet.

    Args:
        root: the whole schema.
        anchors: its dialect has `$anchor`.
    """

    def __init__(self, root: Json, *, anchors: bool) -> None:
        self._root = root
        self._has_anchors = anchors
        self._names: dict[str, str] = {}
        self._waiting: list[tuple[str, str, Json]] = []
        self._anchors: dict[str, tuple[str, Json]] | None = None

    def name(self, reference: str, where: str) -> str:
        """The name of the definition that a `$ref` leads to.

        Args:
            reference: its value.
            where: the place that it stands at, for the error.

        Raises:
            SchemaRefused: it leads nowhere, or to more definitions than are possible.
        """
        if not reference.startswith("#"):
            raise SchemaRefused(where, "it leads out of the schema; use #/$defs/NAME")
        place, target = self._target(unquote(reference[1:]), where)
        if place not in self._names:
            if len(self._names) == MAX_DEFINITIONS:
                raise SchemaRefused(where, f"more than {MAX_DEFINITIONS} definitions are used")
            self._names[place] = f"r{len(self._names)}"
            self._waiting.append((self._names[place], place, target))
        return self._names[place]

    def next_waiting(self) -> tuple[str, str, Json] | None:
        """Name, place and schema of a target that is not translated yet; each is given once."""
        return self._waiting.pop() if self._waiting else None

    def _target(self, pointer: str, where: str) -> tuple[str, Json]:
        if pointer and not pointer.startswith("/"):
            if not self._has_anchors:
                raise SchemaRefused(where, "drafts 6 and 7 have no $anchor; use #/definitions/NAME")
            found = self._all_anchors().get(pointer)
            if found is None:
                raise SchemaRefused(where, f"there is no $anchor {pointer[:60]!r}")
            return found
        node: Json = self._root
        parts = pointer.split("/")[1:]
        for part in parts:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, dict) and key in node:
                node = node[key]
            elif isinstance(node, list) and _INDEX.fullmatch(key) and int(key) < len(node):
                node = node[int(key)]
            else:
                raise SchemaRefused(where, f"it leads to nothing: there is no {part[:60]!r}")
            if isinstance(node, dict) and isinstance(node.get("$id"), str):
                raise SchemaRefused(where, "it leads into a schema with an $id of its own")
        return "#" + "".join(f"/{part}" for part in parts), node

    def _all_anchors(self) -> dict[str, tuple[str, Json]]:
        if self._anchors is None:
            self._anchors = {}
            self._collect_anchors(self._root, "#", 0)
        return self._anchors

    def _collect_anchors(self, node: Json, where: str, depth: int) -> None:
        """Anchors of the whole text; one that only looks like one is refused when it is twofold."""
        if depth > 2 * MAX_DEPTH:
            raise SchemaRefused(where, f"it is nested more than {MAX_DEPTH} deep")
        if isinstance(node, list):
            for place, item in enumerate(node):
                self._collect_anchors(item, f"{where}/{place}", depth + 1)
        if not isinstance(node, dict):
            return
        anchor = node.get("$anchor")
        if isinstance(anchor, str):
            if anchor in (self._anchors or {}):
                raise SchemaRefused(where, f"$anchor {anchor[:60]!r} is there twice")
            if self._anchors is not None:
                self._anchors[anchor] = (where, node)
        for key, value in node.items():
            if key not in ("const", "enum"):
                self._collect_anchors(value, f"{where}/{escaped(key)}", depth + 1)


def escaped(key: str) -> str:
    """A key as a part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")

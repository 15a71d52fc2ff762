"""The other end of bench/program.py: a process that measures what it is asked to.

Only the standard library is used here, since environments that are not ours import it too.

A line is `{"do": NAME, ...}`; the answer is what the handler NAME gives for the other fields. The
first line that is said, before anything is asked, is what the process says of itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

Handler = Callable[..., Mapping[str, Any]]


def serve(said_first: Mapping[str, Any], handlers: Mapping[str, Handler]) -> None:
    """Answer lines until there are no more."""
    print(json.dumps(said_first), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = handlers[asked.pop("do")](**asked)
        print(json.dumps(answer), flush=True)

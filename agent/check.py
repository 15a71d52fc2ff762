"""`python -P -m agent.check`: what agents would be started with, for `sfctl up` and `doctor`.

Nothing is started or made. Every line on stdout is a JSON object, one an agent and one at the end:

    {"event": "agent", "name": ..., "configured": true, "identity": ..., "head": ..., "token": ...,
     "models": [...], "not_served": [reasons], "problems": [{"about", "code", "message"}, ...]}
    {"event": "done", "path": <state folder>}

`head` is empty for the head of the same state folder; `token` is empty when none is asked for.
`about` is configuration, token or models. Without `configured` only name and problems are there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from agent.config import AgentConfig, default_identity, load_agent_config, models_root
from agent.head_link import fleet_tokens, token_file
from agent.models.registry import Unusable
from agent.served_folders import read_changes, served_folders
from bus.errors import ModelIncomplete, SuperfluidError
from bus.state import StateFolder

T = TypeVar("T")


def check_agent(state: StateFolder, name: str) -> dict[str, Any]:
    """One agent's line: what it would do, and what keeps it from that."""
    problems: list[Mapping[str, str]] = []
    found: dict[str, Any] = {"name": name, "configured": False, "problems": problems}
    config = _try("configuration", problems, lambda: load_agent_config(state.path, name))
    if config is None:
        return found
    node = config.node
    found |= {
        "configured": True,
        "identity": node.identity or default_identity(state.nodes / name),
        "head": ", ".join(node.join) or node.listen,
        "token": "" if node.insecure_no_auth else str(token_file(config, state)),
    }
    _try("token", problems, lambda: fleet_tokens(config, state))
    models = _try("models", problems, lambda: _models(state, name, config))
    found["models"], found["not_served"] = models or ([], [])
    return found


def _models(state: StateFolder, name: str, config: AgentConfig) -> tuple[list[str], list[str]]:
    """Names of the models that can be served, and why others can not.

    Raises:
        SuperfluidError: a named one can not be served, or none can.
    """
    changes = read_changes(state.nodes / name)
    folder = models_root(config, state)
    models = served_folders(folder, config.models.names, changes)
    reasons = [model.reason for model in models.values() if isinstance(model, Unusable)]
    names = [str(each) for each, model in models.items() if not isinstance(model, Unusable)]
    if not models and not changes.unloaded:
        raise ModelIncomplete(
            f"there is no model in {folder}; make one with: sfctl model import smollm2"
        )
    if reasons and not names:
        raise ModelIncomplete(reasons[0])
    return names, reasons


def _try(about: str, problems: list[Mapping[str, str]], check: Callable[[], T]) -> T | None:
    try:
        return check()
    except SuperfluidError as error:
        problems.append({"about": about, "code": error.code, "message": error.message})
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the agents that are named; 0 whatever is found."""
    parser = argparse.ArgumentParser(prog="python -P -m agent.check", description=__doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("names", nargs="+", metavar="NAME")
    options = parser.parse_args(arguments)
    state = StateFolder.find(options.state)
    for name in options.names:
        print(json.dumps({"event": "agent", **check_agent(state, name)}))
    print(json.dumps({"event": "done", "path": str(state.path)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`sf-agent`: a node agent. Under supervisord it runs as `python -P -m agent`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from agent.config import load_agent_config, models_root
from agent.node import Node
from agent.node_folder import check_name
from agent.served_folders import forget_removed, read_changes, served_folders
from bus.log import setup_logging
from bus.packages import check_packages
from bus.service import run_service
from bus.state import StateFolder
from bus.transport.limits import keep_freed_memory, raise_open_files
from bus.version import __version__

#: How many agents supervisord keeps here; they share the machine's cores.
AGENTS_VARIABLE = "SUPERFLUID_NODES"

#: From option to the key that it sets.
_KEYS = {
    "identity": "node.identity",
    "join": "node.join",
    "listen": "node.listen",
    "token_file": "node.token_file",
    "insecure_no_auth": "node.insecure_no_auth",
    "models_folder": "models.folder",
    "model": "models.names",
    "device": "worker.device",
    "lanes": "worker.lanes",
    "kv_bytes": "worker.kv_bytes",
    "threads": "worker.threads",
    "log_level": "log.level",
    "log_json": "log.json",
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="TOML file; by default <state>/nodes/<name>/agent.toml or <state>/agent.toml.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="State folder; by default $SUPERFLUID_STATE, else ~/.local/state/superfluid.",
)
@click.option("--name", default="node-1", show_default=True, help="This agent's folder in it.")
@click.option("--identity", help="Name in the fleet; by default host name and a suffix.")
@click.option("--join", multiple=True, metavar="ADDRESS", help="Head to join; may be repeated.")
@click.option("--listen", metavar="ADDRESS", help="Wait here for a head instead.")
@click.option("--token-file", metavar="FILE", help="The fleet token.")
@click.option("--insecure-no-auth", is_flag=True, default=None, help="Run without a fleet token.")
@click.option("--models-folder", metavar="DIR", help="Folder of the model folders.")
@click.option("--model", multiple=True, metavar="NAME", help="Model to serve; may be repeated.")
@click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]))
@click.option("--lanes", type=int, help="Generations that a worker runs at once.")
@click.option("--kv-bytes", type=int, help="Memory for keys and values of a worker, bytes.")
@click.option("--threads", type=int, help="Threads of a worker; 0 shares the cores.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.option("--log-json", is_flag=True, default=None, help="One JSON object a line.")
@click.version_option(__version__, prog_name="sf-agent")
def agent(config_file: Path | None, state: Path | None, name: str, **options: Any) -> None:
    """Run a node: serve this machine's models to a head, until SIGTERM."""
    check_packages()
    folder = StateFolder.resolve(state)
    check_name(name)
    overrides = {key: _given(options[option]) for option, key in _KEYS.items()}
    config = load_agent_config(folder.path, name, file=config_file, overrides=overrides)
    setup_logging(config.log)
    raise_open_files()
    keep_freed_memory()
    changes = read_changes(folder.nodes / name)
    root = models_root(config, folder)
    changes = forget_removed(folder.nodes / name, changes, root, config.models.names)
    models = served_folders(root, config.models.names, changes)
    node = Node(
        config,
        state=folder,
        name=name,
        models=models,
        changes=changes,
        agents_here=_agents_here(),
    )
    node.run()


def _given(value: Any) -> Any:
    """None for an option that was not given."""
    return None if value == () else value


def _agents_here() -> int:
    text = os.environ.get(AGENTS_VARIABLE, "1")
    return max(1, int(text)) if text.isdecimal() else 1


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    run_service(agent, "sf-agent", arguments)


if __name__ == "__main__":
    main()

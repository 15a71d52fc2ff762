"""`sf-head`: the head. Under supervisord it runs as `python -P -m head`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from bus.config import load_config
from bus.log import setup_logging
from bus.packages import check_packages
from bus.service import run_service
from bus.state import StateFolder
from bus.transport.limits import keep_freed_memory, raise_open_files
from bus.version import __version__
from head.config import HeadConfig
from head.server import HeadServer

CONFIG_FILE = "head.toml"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="TOML file; by default <state>/head.toml when it is there.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="State folder; by default $SUPERFLUID_STATE, else ~/.local/state/superfluid.",
)
@click.option("--bind", metavar="ADDRESS", help="Where agents join; port 0 takes a free one.")
@click.option("--insecure-no-auth", is_flag=True, default=None, help="Run without a fleet token.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.version_option(__version__, prog_name="sf-head")
def head(
    config_file: Path | None,
    state: Path | None,
    bind: str | None,
    insecure_no_auth: bool | None,
    log_level: str | None,
) -> None:
    """Run the head of a fleet, until SIGTERM."""
    check_packages()
    folder = StateFolder.resolve(state)
    default = folder.path / CONFIG_FILE
    overrides = {
        "fleet.bind": bind,
        "fleet.insecure_no_auth": insecure_no_auth,
        "log.level": log_level,
    }
    path = config_file or (default if default.is_file() else None)
    config = load_config(HeadConfig, path, os.environ, overrides)
    setup_logging(config.log)
    raise_open_files()
    keep_freed_memory()
    HeadServer(config, folder).run()


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script."""
    run_service(head, "sf-head", arguments)


if __name__ == "__main__":
    main()

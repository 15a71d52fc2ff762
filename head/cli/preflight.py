"""What would fail obscurely later, checked before anything starts."""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import Mapping
from pathlib import Path

from bus.config import load_config
from bus.errors import ConfigInvalid, ModelIncomplete, PortInUse, StartError, TokenRefused
from bus.keys import load_token
from bus.state import StateFolder
from head.cli.keys import FLEET_TOKEN
from head.cli.models import local_models
from head.cli.output import note
from head.config import HeadConfig

#: As `minfds` of supervisord.conf.
MIN_OPEN_FILES = 4096
HEAD_TOML = "head.toml"


def head_config(state: StateFolder, environment: Mapping[str, str]) -> HeadConfig:
    """The head's configuration as the head itself will read it.

    Raises:
        ConfigInvalid: a key or value is wrong.
    """
    file = state.path / HEAD_TOML
    return load_config(HeadConfig, file if file.exists() else None, environment, {})


def check_paths(state: StateFolder) -> None:
    """Paths that supervisord can take.

    Raises:
        ConfigInvalid: one has a `%` or a quote.
    """
    for path in (state.path, state.run):
        text = str(path)
        if "%" in text or '"' in text or "\n" in text:
            raise ConfigInvalid(
                f"the path {text} has a % or quote in it, which supervisord takes for an "
                "expansion; choose another state folder: --state DIR"
            )


def check_open_files() -> None:
    """The limit on open files.

    Raises:
        StartError: the hard limit is below what supervisord asks for.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < MIN_OPEN_FILES:
        raise StartError(
            f"this user may open {hard} files and {MIN_OPEN_FILES} are needed; raise the hard "
            "limit: ulimit -Hn, or LimitNOFILE of a systemd unit"
        )


def check_token(state: StateFolder, config: HeadConfig | None, hint: str) -> None:
    """The fleet token, when it is needed.

    Args:
        config: the head's; None where no head runs.
        hint: the command that makes a token.

    Raises:
        TokenRefused: missing, damaged or open to others.
    """
    if config is not None and config.fleet.insecure_no_auth:
        return
    named = config.fleet.token_file if config is not None else ""
    file = Path(named) if named else state.keys / FLEET_TOKEN
    if not file.exists():
        how = f"make one with: {hint}" if config else "copy the head's token file there"
        raise TokenRefused(f"there is no fleet token at {file}; {how}")
    load_token(file)


def check_port(bind: str) -> None:
    """That a tcp address can be bound.

    Raises:
        PortInUse: another process has it.
        ConfigInvalid: it is no address of this machine.
    """
    if not bind.startswith("tcp://"):
        return
    host, _, port = bind.removeprefix("tcp://").rpartition(":")
    if not port.isdecimal() or int(port) == 0:
        return
    host = "" if host == "*" else host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(
                    f"another process has {bind}; end it, or give the head another address: "
                    "bind in [fleet] of head.toml, or SUPERFLUID_FLEET_BIND"
                ) from None
            raise ConfigInvalid(
                f"can not listen on {bind}: {error.strerror}; correct bind in [fleet] of "
                "head.toml, or SUPERFLUID_FLEET_BIND"
            ) from None


def check_models(state: StateFolder, hint: str) -> list[str]:
    """The names of the models here; tells of those that can not be served.

    Args:
        hint: the command that makes one.

    Raises:
        ModelIncomplete: there is none that can be served.
    """
    rows = local_models(state.models)
    names = [str(row["name"]) for row in rows if row["usable"]]
    reasons = [str(row["reason"]) for row in rows if not row["usable"]]
    if not rows:
        raise ModelIncomplete(f"there is no model in {state.models}; make one with: {hint}")
    if not names:
        raise ModelIncomplete(reasons[0])
    for reason in reasons:
        note(f"not served: {reason}")
    return names

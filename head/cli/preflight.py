"""What would fail obscurely later, checked before anything starts."""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import Iterable, Mapping

from bus.address import split_address
from bus.config import load_config
from bus.errors import ConfigInvalid, ModelIncomplete, PortInUse, StartError, TokenRefused
from bus.state import StateFolder
from bus.token_files import FleetTokens
from head.cli.agents import AgentPlan
from head.cli.model_store import local_models
from head.config import HeadConfig
from head.link_identity import token_file

#: As `minfds` of supervisord.conf.
MIN_OPEN_FILES = 4096
HEAD_TOML = "head.toml"
BIND_SETTING = "bind in [fleet] of head.toml, or SUPERFLUID_FLEET_BIND"


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


def check_token(state: StateFolder, config: HeadConfig, hint: str) -> None:
    """The head's fleet tokens, when it needs them.

    Args:
        hint: the command that makes a token.

    Raises:
        TokenRefused: missing, or one is damaged or open to others.
    """
    if config.fleet.insecure_no_auth:
        return
    file = token_file(config.fleet, state)
    if not file.exists():
        raise TokenRefused(f"there is no fleet token at {file}; make one with: {hint}")
    FleetTokens(file)


def check_port(bind: str) -> None:
    """That the head can listen at an address; an empty one is none.

    Raises:
        PortInUse: another process has it.
        ConfigInvalid: it is no address, or none of this machine.
    """
    if not bind:
        return
    host, port = split_address(bind, BIND_SETTING)
    if not port:
        return
    host = "" if host == "*" else host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(
                    f"another process has {bind}; end it, or give the head another address: "
                    f"{BIND_SETTING}"
                ) from None
            raise ConfigInvalid(
                f"can not listen on {bind}: {error.strerror}; correct {BIND_SETTING}"
            ) from None


def check_joinable(config: HeadConfig, plans: Iterable[AgentPlan]) -> None:
    """That agents of this machine can join its head.

    Raises:
        ConfigInvalid: the head takes no joins and an agent would wait for it for ever.
    """
    for plan in plans:
        if not config.fleet.bind and not plan.head:
            raise ConfigInvalid(
                f"the head takes no joins, so {plan.name} could not reach it; set {BIND_SETTING} "
                'to an address such as "tcp://127.0.0.1:8454", or run it with --head-only'
            )


def check_models(state: StateFolder, hint: str) -> tuple[list[str], list[str]]:
    """The names of the models here that can be served, and why others can not.

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
    return names, reasons

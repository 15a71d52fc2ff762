"""Whether the port that `up` wants can be had."""

from __future__ import annotations

import socket

import pytest

from bus.errors import ConfigInvalid, PortInUse
from head.cli import preflight


def test_a_port_that_another_has() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        bind = f"tcp://127.0.0.1:{holder.getsockname()[1]}"
        with pytest.raises(PortInUse, match="SUPERFLUID_FLEET_BIND"):
            preflight.check_port(bind)
    preflight.check_port(bind)


@pytest.mark.parametrize("bind", ["", "tcp://127.0.0.1:0", "ipc:///x"])
def test_what_takes_no_fixed_port(bind: str) -> None:
    preflight.check_port(bind)


def test_an_address_of_no_card_here() -> None:
    with pytest.raises(ConfigInvalid, match=r"can not listen on tcp://192\.0\.2\.1:8454"):
        preflight.check_port("tcp://192.0.2.1:8454")

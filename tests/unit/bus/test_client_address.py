"""The address of a head that a person gives."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from bus.client import Client
from bus.client_address import check_api_address
from bus.errors import Invalid, NotAllowed


@pytest.mark.parametrize("address", ["foo", "", "tcp://h", "host:8454", "ipc://"])
def test_no_address_is_invalid_and_names_what_the_documents_have(address: str) -> None:
    with pytest.raises(Invalid, match=r"looks like ipc:///path/api\.sock$"):
        Client(address)


def test_one_that_is_not_there_is_left_to_connecting(tmp_path: Path) -> None:
    check_api_address(f"ipc://{tmp_path}/nothing.sock")
    check_api_address("tcp://127.0.0.1:1")


@pytest.mark.parametrize("modes", [(0o755, 0o600), (0o700, 0o666)])
def test_a_socket_of_another_user_is_not_allowed(modes: tuple[int, int]) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs a second user")
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "api.sock"
        socket.touch()
        socket.chmod(modes[1])
        Path(folder).chmod(modes[0])
        os.seteuid(65534)
        try:
            with pytest.raises(NotAllowed, match="the user that runs the head"):
                check_api_address(f"ipc://{socket}")
        finally:
            os.seteuid(0)

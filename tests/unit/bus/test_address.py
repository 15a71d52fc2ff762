"""What is an address, and what a person is told of one that is none."""

from __future__ import annotations

import pytest

from bus.address import split_address
from bus.errors import ConfigInvalid


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("tcp://127.0.0.1:8454", ("127.0.0.1", 8454)),
        ("tcp://[::1]:0", ("::1", 0)),
        ("tcp://*:*", ("*", 0)),
        ("tcp://head.lan:65535", ("head.lan", 65535)),
        ("ipc:///run/x.sock", ("", 0)),
    ],
)
def test_host_and_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address",
    [
        "head:8454",
        "tcp://head",
        "tcp://h:65536",
        "tcp://h:99999",
        "ipc://",
        "",
        "tcp://h:-1",
        "foo",
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigInvalid, match="write it as tcp://HOST:PORT"):
        split_address(address)


def test_the_setting_and_the_likely_meaning_are_named() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        split_address("127.0.0.1:8555", "bind in [fleet] of head.toml")
    assert caught.value.message == (
        "'127.0.0.1:8555' is no address (bind in [fleet] of head.toml); "
        "write it as tcp://HOST:PORT, as in tcp://127.0.0.1:8555"
    )
    with pytest.raises(ConfigInvalid, match="up to 65535"):
        split_address("tcp://127.0.0.1:80000")

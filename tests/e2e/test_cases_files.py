"""Files that clients put wrongly or leave half put, or that have no room, by real processes."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import Cluster
from bus.messages.api import MAX_BLOB_PART_BYTES
from tests.harness.blob_rig import blob_of, some_bytes
from tests.harness.file_client import FileClient

BUDGET_BYTES = 2_000_000
LIMIT_S = 30.0
DATA = some_bytes(700_000)
_VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "images.json").read_text())
JPEG = next(base64.b64decode(v["data"]) for v in _VECTORS["images"] if v["name"] == "jpeg")


@pytest.fixture(scope="module")
def small(toy: Path) -> Iterator[Cluster]:
    """A head that keeps few files; its state is that of whichever test ran before."""
    settings = {"SUPERFLUID_BLOBS_BUDGET_BYTES": str(BUDGET_BYTES)}
    with Cluster(toy, threads=1, settings=settings) as made:
        yield made


@pytest.fixture
def client(small: Cluster) -> Iterator[FileClient]:
    with FileClient(address(small)) as made:
        yield made


def address(cluster: Cluster) -> str:
    return f"ipc://{cluster.state}/run/api.sock"


def part(client: FileClient, data: bytes, offset: int, end: int, **keys: Any) -> dict[str, Any]:
    """The reply to one part of a file."""
    blob = blob_of(data)
    asked = {"sha256": blob.sha256, "length": blob.length, "offset": offset, **keys}
    return client.ask_with("put_blob", asked, data[offset:end])


def wait_for_no_parts(cluster: Cluster) -> None:
    """Wait until the head keeps nothing half."""
    until = time.monotonic() + LIMIT_S
    while list((cluster.state / "blobs").glob("*.part")):
        assert time.monotonic() < until, cluster.log("head")
        time.sleep(0.02)


def test_wrong_parts_are_named_and_the_upload_goes_on(client: FileClient) -> None:
    data = some_bytes(600_000, 1)
    error = part(client, data, 262_144, 524_288)["error"]
    assert (error["param"], error["details"]) == ("offset", {"offset": 0})
    assert part(client, data, 0, 262_144)["offset"] == 262_144
    for offset in (0, 262_145, 524_288):
        error = part(client, data, offset, offset + 1000)["error"]
        assert (error["code"], error["details"]) == ("invalid", {"offset": 262_144})
    assert part(client, data, 262_144, 300_000, length=600_001)["error"]["param"] == "length"
    too_long = client.ask_with(
        "put_blob",
        {"sha256": blob_of(data).sha256, "length": 600_000, "offset": 262_144},
        bytes(MAX_BLOB_PART_BYTES + 1),
    )
    assert too_long["error"]["code"] == "too_large"
    assert part(client, data, 262_144, 524_288)["done"] is False
    beyond = client.ask_with(
        "put_blob",
        {"sha256": blob_of(data).sha256, "length": 600_000, "offset": 524_288},
        bytes(100_000),
    )
    assert beyond["error"]["param"] == "offset"
    assert part(client, data, 524_288, 600_000)["done"] is True


def test_a_wrong_hash_leaves_nothing(small: Cluster, client: FileClient) -> None:
    wanted = hashlib.sha256(b"the one").digest()
    reply = client.ask_with("put_blob", {"sha256": wanted, "length": 7, "offset": 0}, b"another")
    assert (reply["error"]["code"], reply["error"]["param"]) == ("invalid", "sha256")
    assert client.ask("has_blob", sha256=wanted)["has"] is False
    wait_for_no_parts(small)
    assert not (small.state / "blobs" / wanted.hex()).exists()
    assert client.put(b"the one")["done"] is True


def test_a_client_that_goes_in_the_middle_leaves_nothing(small: Cluster) -> None:
    with FileClient(address(small)) as gone:
        assert part(gone, DATA, 0, 262_144)["done"] is False
        assert list((small.state / "blobs").glob("*.part"))
    wait_for_no_parts(small)
    with FileClient(address(small)) as again:
        assert part(again, DATA, 262_144, 524_288)["error"]["details"] == {"offset": 0}
        assert again.put(DATA)["done"] is True


def test_two_clients_put_the_same_file(small: Cluster, client: FileClient) -> None:
    data = some_bytes(500_000, 2)
    with FileClient(address(small)) as other:
        assert part(client, data, 0, 262_144)["done"] is False
        assert part(other, data, 0, 262_144)["done"] is False
        assert part(other, data, 262_144, 500_000)["done"] is True
        late = part(client, data, 262_144, 400_000)
        assert (late["done"], late["offset"]) == (True, 500_000)
    wait_for_no_parts(small)
    whole = small.state / "blobs" / blob_of(data).sha256.hex()
    assert whole.read_bytes() == data


def test_a_budget_that_is_full_is_told_and_the_oldest_make_room(client: FileClient) -> None:
    old, new = some_bytes(900_000, 3), some_bytes(1_200_000, 4)
    assert client.put(old)["done"] is True
    assert client.put(new)["done"] is True
    assert client.ask("has_blob", sha256=blob_of(old).sha256)["has"] is False
    assert client.ask("has_blob", sha256=blob_of(new).sha256)["has"] is True
    error = part(client, some_bytes(BUDGET_BYTES + 1, 5), 0, 262_144)["error"]
    assert error["code"] == "too_large"
    halves = [some_bytes(1_100_000, n) for n in (6, 7)]
    assert part(client, halves[0], 0, 262_144)["done"] is False
    # What is being put has its room already, so there is none for the second.
    assert part(client, halves[1], 0, 262_144)["error"]["code"] == "storage_full"


def test_images_are_read_by_their_headers_and_refused_in_chats(client: FileClient) -> None:
    assert client.put(JPEG)["done"] is True
    sha256 = blob_of(JPEG).sha256
    found = client.ask("media.probe", sha256=sha256)
    shown = {name: found[name] for name in ("media", "format", "width", "height", "animated")}
    expected = {"media": "image", "format": "jpeg", "width": 17, "height": 9, "animated": False}
    assert shown == expected
    content = [{"type": "text", "text": "What?"}, {"type": "image", "sha256": sha256}]
    messages = [{"role": "user", "content": content}]
    error = client.ask("chat", model="toy", messages=messages)["error"]
    assert (error["code"], error["param"]) == ("invalid", "messages[0].content[1]")
    assert "model toy takes text only" in error["message"]

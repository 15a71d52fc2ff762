"""Files with requests, by real processes: put, sent to the node, given to its worker."""

from __future__ import annotations

import hashlib
import stat

from bench.cluster import Cluster
from tests.harness.blob_rig import blob_of, some_bytes
from tests.harness.file_client import FileClient

SIZE = 20 * 1024 * 1024


def test_a_file_reaches_the_worker_while_a_stream_goes_on(cluster: Cluster) -> None:
    data = some_bytes(SIZE)
    sha256 = blob_of(data).sha256
    beside = cluster.client.generate(
        cluster.model, [1, 2, 3], max_new=600, temperature=0.0, ignore_eos=True
    )
    stream = iter(beside.stream())
    next(stream)
    with FileClient(f"ipc://{cluster.state}/run/api.sock") as client:
        assert client.ask("has_blob", sha256=sha256)["has"] is False
        end = client.put(data)
        assert (end["kind"], end["offset"], end["done"]) == ("end", SIZE, True)
        assert client.ask("has_blob", sha256=sha256)["length"] == SIZE
        keys = {"model": cluster.model, "tokens": [1, 2, 3], "blobs": [sha256]}
        for _ in range(2):
            error = client.ask("generate", **keys)["error"]
            # The toy model takes no files, so this is what its worker says, with the file at hand.
            assert (error["code"], error["param"]) == ("invalid", "blobs")
            assert "takes no files" in error["message"]
    for folder in (cluster.state / "nodes" / "node-1" / "blobs", cluster.state / "blobs"):
        (file,) = folder.iterdir()
        assert file.name == sha256.hex()
        assert hashlib.sha256(file.read_bytes()).digest() == sha256
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    answer = beside.result(60.0)
    assert answer.usage.completion == 600
    plain = cluster.client.generate(
        cluster.model, [1, 2, 3], max_new=600, temperature=0.0, ignore_eos=True
    )
    assert plain.result(60.0).tokens == answer.tokens


def test_files_stay_over_a_restart_of_head_and_node(cluster: Cluster) -> None:
    data = some_bytes(300_000)
    sha256 = blob_of(data).sha256
    keys = {"model": cluster.model, "tokens": [1, 2, 3], "blobs": [sha256]}
    address = f"ipc://{cluster.state}/run/api.sock"
    with FileClient(address) as client:
        client.put(data)
        client.ask("generate", **keys)
    file = cluster.state / "nodes" / "node-1" / "blobs" / sha256.hex()
    (file.parent / f"{sha256.hex()}.7.part").write_bytes(b"left by a crash")
    written_ns = file.stat().st_mtime_ns
    cluster.kill("node-1")
    cluster.kill("head")
    cluster.start_head()
    cluster.client.close()
    cluster.client = cluster.connect()
    cluster.start_node("node-1")
    cluster.wait_ready()
    with FileClient(address) as client:
        assert client.ask("has_blob", sha256=sha256)["has"] is True
        assert client.ask("generate", **keys)["error"]["param"] == "blobs"
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    assert file.stat().st_mtime_ns == written_ns

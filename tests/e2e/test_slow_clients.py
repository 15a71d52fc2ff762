"""A client that does not read for a long while loses nothing of what it asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zmq

from bench.cluster import Cluster
from bus.messages.api import MARK, decode_body, encode_body

STREAMS, MAX_NEW = 16, 1000
#: Far more than a node gives at one go: such an event was made of what waited.
MANY = 100


@contextmanager
def unread(state: Path) -> Iterator[zmq.Socket[bytes]]:
    """A connection whose receiving end takes next to nothing by itself."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.RCVHWM, 1)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"ipc://{state}/run/api.sock")
        yield socket


def test_streams_wait_whole_for_a_client_that_does_not_read(toy: Path) -> None:
    with Cluster(toy, threads=1, lanes=STREAMS) as cluster, unread(cluster.state) as socket:
        body: dict[str, Any] = {"op": "generate", "model": cluster.model, "tokens": [70, 71, 72]}
        body |= {"max_new": MAX_NEW, "ignore_eos": True, "logprobs": 5, "credit": 4096}
        for number in range(STREAMS):
            asked = {**body, "id": b"%d" % number, "seed": number}
            socket.send_multipart([MARK, encode_body(asked)])
        answers = cluster.client.status()["answers"]
        while answers["running"] or answers["queued"] or answers["kept"] < STREAMS:
            answers = cluster.client.status()["answers"]
        came: dict[bytes, int] = {}
        largest, ended = 0, 0
        while ended < STREAMS:
            assert socket.poll(30_000), "nothing comes any more"
            found = decode_body(socket.recv_multipart())
            if found["kind"] == "event" and found["type"] == "token":
                assert found["offset"] == came.get(found["id"], 0)
                came[found["id"]] = found["offset"] + len(found["tokens"])
                largest = max(largest, len(found["tokens"]))
            elif found["kind"] != "event":
                assert (found["kind"], found.get("finish")) == ("end", "length")
                ended += 1
        assert set(came.values()) == {MAX_NEW}
        assert len(came) == STREAMS
        assert largest > MANY
        assert "client_too_slow" not in cluster.log("head")

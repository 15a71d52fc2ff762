"""Case L9 through real processes: somebody sets the system's clock by an hour, either way."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from bench.cluster import Cluster
from tests.harness.cluster_checks import wait_for
from tests.harness.models import toy_model_folder

#: Has the `sitecustomize` that makes the wall clock one that a test sets.
CLOCKS = str(Path(__file__).parents[1] / "harness" / "process_clocks")
HOUR_S = 3600
OPTIONS: dict[str, Any] = {"max_new": 3000, "temperature": 0.0, "ignore_eos": True}


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_l9_clocks_that_jump_by_an_hour_change_no_lease_timer_or_rate(
    jump_s: int, tmp_path: Path
) -> None:
    wall = tmp_path / "offset"
    wall.write_text("0")
    settings = {
        "PYTHONPATH": os.pathsep.join(filter(None, (CLOCKS, os.environ.get("PYTHONPATH")))),
        "WALL_OFFSET_FILE": str(wall),
        "SUPERFLUID_LOG_JSON": "true",
        # Short, so that each would be over in the run if it were measured by that clock.
        "SUPERFLUID_SESSIONS_LEASE_S": "2.0",
        "SUPERFLUID_FLEET_SILENCE_S": "5.0",
        "SUPERFLUID_NODE_SILENCE_S": "5.0",
        "SUPERFLUID_WORKER_STALL_LIMIT_S": "5.0",
        "SUPERFLUID_WORKER_PING_INTERVAL_S": "0.5",
        "SUPERFLUID_NODE_STATUS_INTERVAL_S": "0.2",
    }
    with Cluster(toy_model_folder().path, threads=1, settings=settings) as made:
        client, (worker,) = made.client, made.workers("node-1")
        alone = client.generate(made.model, "clock", **OPTIONS).result()
        usual = rate(made)
        call = client.generate(made.model, "clock", max_wall_ms=60_000, **OPTIONS)
        kinds = set()
        # Set again and again, as a clock that two services fight for.
        jumps = {100: jump_s, 600: 0, 1100: jump_s}
        while (event := call.next_event(None)) is not None:
            kinds.add(event.type)
            for at in [at for at in jumps if at <= len(call.tokens)]:
                wall.write_text(str(jumps.pop(at)))
        assert not jumps
        assert kinds == {"placed", "token"}, "it never moved"
        answer = call.result()
        assert answer.tokens == alone.tokens
        assert answer.timing.total_ms < 60_000
        assert answer.timing.first_token_ms >= 0
        # Timers fire in time, before and after: leases of 2 s are renewed or the stream would move.
        assert client.generate(made.model, "clock", max_wall_ms=50, **OPTIONS).result().finish == (
            "expired"
        )
        wait_for(lambda: usual / 4 < rate(made) < usual * 4, "rates are as they were")
        assert made.workers("node-1") == [worker]
        assert client.generate(made.model, "clock", **OPTIONS).result().tokens == alone.tokens
        told = [json.loads(line) for line in made.log("node-1").splitlines() if line[0] == "{"]
        assert not {"link_down", "worker_hung", "worker_exited"} & {line["event"] for line in told}
        assert "link_down" not in made.log("head")
        check_logs_jumped(made, jump_s)


def rate(made: Cluster) -> float:
    """Tokens a second that the node reports for a lane."""
    return float(made.client.nodes()[0]["models"][0]["decode_rate"])


def check_logs_jumped(made: Cluster, jump_s: int) -> None:
    """The clock really was another: a line that the head writes now has the time of it."""
    made.stop("node-1")
    line = json.loads(made.log("head").splitlines()[-1])
    assert line["event"] == "link_down"
    written = datetime.fromisoformat(line["ts"]).timestamp()
    assert abs(written - (time.time() + jump_s)) < 60

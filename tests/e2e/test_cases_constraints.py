"""Constraints over a whole fleet: streams that move go on within theirs, neighbours go on, too."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any

import pytest

from bench.cluster import Cluster
from bus.errors import ConstraintInvalid
from tests.e2e.test_cases_workers import only_worker
from tests.harness.cluster_checks import wait_for
from tests.harness.models import toy_model_folder

PROMPT = list(b"The quick brown fox")
#: The toy model has a token a byte, so this is some 480 tokens.
NUMBERS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 100, "maximum": 999},
    "minItems": 120,
    "maxItems": 120,
}
OPTIONS: dict[str, Any] = {"max_new": 700, "temperature": 1.0, "seed": 3, "exact": True}
ENDLESS = {"allOf": [{"type": "integer", "multipleOf": n} for n in (3, 5, 7, 11, 13, 17, 19, 23)]}


def test_a_constrained_stream_goes_on_within_its_constraint_when_its_worker_is_killed() -> None:
    with Cluster(toy_model_folder().path, threads=1, nodes=1) as made:
        asked = {**OPTIONS, "constraint": {"json_schema": json.dumps(NUMBERS)}}
        alone = made.client.generate(made.model, PROMPT, **asked).result()
        call = made.client.generate(made.model, PROMPT, **asked)
        while len(call.tokens) < 40:
            call.next_event(None)
        worker = only_worker(made, "node-1")
        os.kill(worker, signal.SIGKILL)
        moved = call.result()
        assert moved.text == alone.text
        assert moved.finish == "stop"
        numbers = json.loads(moved.text)
        assert len(numbers) == 120
        assert all(type(number) is int and 100 <= number <= 999 for number in numbers)
        wait_for(lambda: made.workers("node-1") not in ([], [worker]), "another worker is there")


def test_s2_a_constraint_that_explodes_is_refused_while_others_stream() -> None:
    with Cluster(toy_model_folder().path, threads=1, nodes=1) as made:
        options: dict[str, Any] = {"max_new": 700, "temperature": 0.0, "ignore_eos": True}
        alone = made.client.generate(made.model, PROMPT, **options).result().tokens
        neighbour = made.client.generate(made.model, PROMPT, **options)
        while len(neighbour.tokens) < 5:
            neighbour.next_event(None)
        worker = only_worker(made, "node-1")
        for schema in (ENDLESS, {"type": "string", "pattern": "(" * 10_000}, {"$ref": "#"}):
            bad = made.client.generate(
                made.model, PROMPT, max_new=8, constraint={"json_schema": json.dumps(schema)}
            )
            with pytest.raises(ConstraintInvalid):
                bad.result()
        heavy = {"regex": "[ab]*a[ab]{13}"}
        text = made.client.generate(
            made.model, PROMPT, max_new=60, temperature=1.0, seed=1, constraint=heavy
        ).result()
        # It may end by its budget, in the middle; what is there can be gone on with.
        assert re.fullmatch("[ab]+", text.text)
        assert neighbour.result().tokens == alone
        assert only_worker(made, "node-1") == worker, "no worker ended"

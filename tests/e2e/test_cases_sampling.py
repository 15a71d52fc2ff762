"""Cases from the field on stops, biases, constraints and log-probabilities, by their numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from bench.cluster import Cluster
from bus.answer import Answer
from bus.call import Call
from bus.client import Client
from bus.errors import ConstraintInvalid, Invalid
from bus.messages.api import TokenEvent
from tests.e2e.test_recovery import holder
from tests.harness.cluster_checks import check_idle
from tests.harness.models import smollm2_folder, toy_model_folder

TEXT = "The quick brown fox"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "people": {"type": "integer"}},
    "required": ["name", "people"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def toy() -> Iterator[Cluster]:
    with Cluster(toy_model_folder().path, threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Cluster]:
    with Cluster(smollm2_folder().path, threads=2, lanes=4) as made:
        yield made


def greedy(cluster: Cluster, **options: Any) -> Call:
    asked = {"max_new": 60, "temperature": 0.0, "ignore_eos": True} | options
    return cluster.client.generate(cluster.model, TEXT, **asked)


# --- T1, T2 -----------------------------------------------------------------------------------


def first_stop(text: str, stops: list[str]) -> tuple[int, str]:
    """By its definition: the one that ends first, of these the one that starts first."""
    ends = [(text.index(s) + len(s), text.index(s), s) for s in stops if s in text]
    _, start, stop = min(ends)
    return start, stop


def check_cut(call: Call, whole: Answer, stops: list[str]) -> Answer:
    """The call's answer is `whole` up to its first stop; what came meanwhile fits it."""
    parts = [call.text]
    with call.stream() as stream:
        parts += [event.text for event in stream if isinstance(event, TokenEvent)]
    answer = call.result()
    start, stop = first_stop(whole.text, stops)
    assert (answer.finish, answer.stop) == ("stop", stop)
    assert "".join(parts) == answer.text == whole.text[:start]
    assert answer.tokens == whole.tokens[: len(answer.tokens)]
    assert answer.usage.completion == len(answer.tokens)
    return answer


@pytest.mark.model
def test_t2_stops_cut_exactly_wherever_they_are(smollm2: Cluster) -> None:
    whole = greedy(smollm2).result()
    text = whole.text
    middle = len(text) // 2
    for stops in (
        [text[middle : middle + 7]],
        [text[middle : middle + 20]],
        [text[middle : middle + 9], text[middle : middle + 4]],
        [" ".join(text.split()[5:7])],
        [text[middle] + "\N{SNOWMAN}", text[middle : middle + 3]],
    ):
        check_cut(greedy(smollm2, stop=stops), whole, stops)


def test_t2_a_worker_ends_at_a_stop_and_its_lane_is_free(toy: Cluster) -> None:
    whole = greedy(toy, max_new=400).result()
    stops = [whole.text[200:206]]
    check_cut(greedy(toy, max_new=3000, stop=stops), whole, stops)
    check_idle(toy)


def texts_from_cursors(client: Client, answer: Answer) -> list[str]:
    """What `attach` gives from some cursors, after checking all else of it."""
    texts = []
    for offset in range(0, len(answer.tokens) + 1, 5):
        again = client.attach(key="t2", offset=offset).result()
        assert (again.finish, again.stop) == (answer.finish, answer.stop)
        assert again.tokens == answer.tokens[offset:]
        assert again.logprobs == answer.logprobs[offset:]
        assert answer.text.endswith(again.text)
        texts.append(again.text)
    return texts


def test_t2_from_any_cursor_and_after_a_restart_of_the_head() -> None:
    with Cluster(toy_model_folder().path, threads=1) as cluster:
        whole = greedy(cluster, max_new=50).result()
        stop = whole.text[20:26]
        answer = greedy(cluster, stop=[stop], logprobs=2, key="t2").result()
        before = texts_from_cursors(cluster.client, answer)
        assert before[0] == answer.text == whole.text[:20]
        cluster.kill("head")
        cluster.start_head()
        with cluster.connect() as client:
            assert texts_from_cursors(client, answer) == before


def test_t2_s3_a_stream_that_moves_goes_on_with_its_stop_and_log_probabilities() -> None:
    with Cluster(toy_model_folder().path, threads=1, nodes=2) as cluster:
        whole = greedy(cluster, max_new=400, logprobs=3).result()
        stop = whole.text[390:396]
        call = greedy(cluster, max_new=800, stop=stop, logprobs=3, key="moves", exact=True)
        while len(call.tokens) < 5:
            call.next_event(None)
        cluster.kill(holder(cluster))
        answer = check_cut(call, whole, [stop])
        assert [one.token for one in answer.logprobs] == list(answer.tokens)
        assert answer.logprobs == whole.logprobs[: len(answer.tokens)]


@pytest.mark.parametrize("stop", [None, "글", "\N{SNOWMAN}"])
def test_t1_no_replacement_character_wherever_the_budget_ends(
    stop: str | None, toy: Cluster
) -> None:
    """A token of the toy model is a byte, so a budget ends inside of characters."""
    data = "é\U0001f600한글!".encode()
    cut = data if stop != "글" else data[:-1]
    for count in range(1, len(data) + 1):
        call = greedy(toy, max_new=count, constraint={"regex": data.decode()}, stop=stop)
        with call.stream() as stream:
            parts = [event.text for event in stream if isinstance(event, TokenEvent)]
        answer = call.result()
        assert bytes(answer.tokens) == cut[:count]
        text = cut[:count].decode(errors="ignore").removesuffix(stop or "\n")
        assert "".join(parts) == answer.text == text
        assert answer.stop == (stop if stop == "글" and count >= len(cut) else None)


# --- what parameters do -----------------------------------------------------------------------


def test_a_bias_forces_and_forbids(toy: Cluster) -> None:
    forced = greedy(toy, max_new=20, logit_bias={"97": 10_000}).result()
    assert forced.text == "a" * 20
    free = greedy(toy, max_new=20).result()
    forbidden = greedy(toy, max_new=20, logit_bias={free.tokens[0]: -10_000}).result()
    assert free.tokens[0] not in forbidden.tokens


def test_a_penalty_makes_tokens_rare(toy: Cluster) -> None:
    answer = greedy(toy, max_new=100, frequency_penalty=100.0).result()
    assert len(set(answer.tokens)) == 100
    assert len(set(greedy(toy, max_new=100).result().tokens)) < 100


def test_stop_ids_and_min_tokens(toy: Cluster) -> None:
    free = greedy(toy, max_new=30).result()
    stop = free.tokens[9]
    first = free.tokens.index(stop)
    answer = greedy(toy, max_new=30, stop_ids=[stop]).result()
    assert (answer.finish, answer.stop, answer.tokens) == ("stop", None, free.tokens[: first + 1])
    later = greedy(toy, max_new=30, stop_ids=[stop], min_tokens=20).result()
    assert stop not in later.tokens[:20]
    assert len(later.tokens) > 20


# --- S1, S3, G10 ------------------------------------------------------------------------------


def check_logprobs(answer: Answer, others: int) -> None:
    """Finite JSON numbers, one entry a token, each in its own list of the likeliest."""
    assert [one.token for one in answer.logprobs] == list(answer.tokens)
    for entry in json.loads(json.dumps(answer.to_dict()))["logprobs"]:
        numbers = [entry["logprob"], *(one["logprob"] for one in entry["top"])]
        assert all(math.isfinite(number) and number <= 0.0 for number in numbers)
        assert numbers[1:] == sorted(numbers[1:], reverse=True)
        assert others <= len(entry["top"]) <= others + 1
        assert entry["token"] in [one["token"] for one in entry["top"]]


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 1, "temperature": 1.0},
        {"temperature": 5.0, "seed": 3},
        {"constraint": {"regex": "[a-c]{12}"}},
        {"logit_bias": {"97": 10_000, "98": -10_000}, "frequency_penalty": 3.0},
    ],
)
def test_s3_log_probabilities_are_finite_and_have_their_token(
    options: dict[str, Any], toy: Cluster
) -> None:
    check_logprobs(greedy(toy, max_new=30, logprobs=5, **options).result(), 5)


@pytest.mark.model
def test_s3_of_a_constrained_answer(smollm2: Cluster) -> None:
    answer = greedy(smollm2, schema=SCHEMA, logprobs=20).result()
    check_logprobs(answer, 20)


@pytest.mark.model
def test_a_constrained_answer_is_what_its_schema_says(smollm2: Cluster) -> None:
    calls = [
        greedy(smollm2, schema=SCHEMA),
        greedy(smollm2, constraint={"json_schema": json.dumps(SCHEMA)}, temperature=1.0, seed=1),
        greedy(smollm2, constraint={"regex": "(yes|no)"}),
        greedy(smollm2, constraint={"lark": 'start: "one" | "two"'}),
    ]
    described, again, regex, lark = (call.result() for call in calls)
    for answer in (described, again):
        value = json.loads(answer.text)
        assert value.keys() == {"name", "people"}
        assert type(value["people"]) is int
        assert answer.finish == "stop"
    assert regex.text in ("yes", "no")
    assert lark.text in ("one", "two")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"schema": "a string"}, "schema"),
        ({"schema": []}, "schema"),
        ({"constraint": {"json_schema": None}}, "constraint.json_schema"),
        ({"constraint": {}}, "constraint"),
        ({"schema": {"not": {}}}, "schema"),
        ({"schema": {"type": "unknown"}}, "schema"),
        ({"constraint": {"regex": "("}}, "constraint"),
        ({"constraint": {"lark": "nonsense"}}, "constraint"),
    ],
)
def test_s1_what_can_not_be_honoured_is_refused_by_name(
    options: dict[str, Any], param: str, toy: Cluster
) -> None:
    with pytest.raises((Invalid, ConstraintInvalid)) as refused:
        greedy(toy, **options).result()
    assert refused.value.param == param


def test_s1_a_format_is_refused_or_honoured(toy: Cluster) -> None:
    schema = {"type": "string", "format": "date"}
    try:
        answer = greedy(toy, schema=schema).result()
    except ConstraintInvalid as refused:
        assert refused.param == "schema"  # noqa: PT017 - either way is fine
    else:
        year, month, day = json.loads(answer.text).split("-")
        assert (len(year), len(month), len(day)) == (4, 2, 2)


@pytest.mark.parametrize(
    ("options", "id_named"),
    [
        ({"logit_bias": {"999999": 1}}, "999999"),
        ({"logit_bias": {"eleven": 1}}, "eleven"),
        ({"logit_bias": {"7": math.inf}}, "7"),
        ({"logit_bias": {"7": math.nan}}, "7"),
        ({"stop_ids": [999_999]}, "999999"),
    ],
)
def test_g10_errors_name_the_id(options: dict[str, Any], id_named: str, toy: Cluster) -> None:
    (worker,) = toy.workers("node-1")
    with pytest.raises(Invalid) as refused:
        greedy(toy, **options).result()
    assert refused.value.param in options
    assert id_named in refused.value.message
    assert greedy(toy, max_new=3, logit_bias={}).result().usage.completion == 3
    assert toy.workers("node-1") == [worker]

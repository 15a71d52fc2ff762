"""A head and agents as real processes: streams, faults, and what is left after them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.models.folder import ModelFolder
from agent.worker.engine import Engine
from agent.worker.model_runner import ModelRunner
from bench.bare_engine import run
from bench.cluster import Cluster
from bus.errors import Invalid, NotFound
from tests.harness.cluster_checks import alive, wait_for
from tests.harness.models import smollm2_folder

PROMPT = list(b"The quick brown fox")


def bare_tokens(folder: Path, prompts: list[list[int]], max_new: int) -> list[list[int]]:
    engine = Engine(ModelRunner(ModelFolder.open(folder), device="cpu", threads=1))
    found: list[list[int]] = run(engine, prompts, max_new)["tokens"]
    return found


def test_toy_answers_equal_the_bare_engine_and_text_equals_tokens(
    cluster: Cluster, toy: Path
) -> None:
    call = cluster.client.generate(cluster.model, PROMPT, max_new=40, temperature=0.0)
    answer = call.result()
    assert [list(answer.tokens)] == bare_tokens(toy, [PROMPT], 40)
    assert cluster.client.detokenize(cluster.model, answer.tokens) == answer.text
    assert answer.usage.prompt == len(PROMPT)
    assert answer.usage.completion == 40


def test_seeded_draws_repeat(cluster: Cluster) -> None:
    def draw(seed: int) -> tuple[int, ...]:
        call = cluster.client.generate(cluster.model, PROMPT, max_new=20, seed=seed)
        return call.result().tokens

    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


def test_killed_agent_leaves_no_worker_and_serves_again_when_started(cluster: Cluster) -> None:
    workers = cluster.workers("node-1")
    assert workers
    cluster.kill("node-1")
    wait_for(lambda: not any(alive(pid) for pid in workers), "no orphan worker")
    wait_for(lambda: cluster.client.nodes()[0]["state"] == "down", "the head sees the node down")
    cluster.start_node("node-1")
    cluster.wait_ready()
    assert cluster.client.generate(cluster.model, PROMPT, max_new=5).result().finish == "length"


def test_killed_head_keeps_answers_and_leaves_no_text_process(cluster: Cluster) -> None:
    first = cluster.client.generate(
        cluster.model, PROMPT, max_new=10, temperature=0.0, key="kept"
    ).result()
    texts = cluster.workers("head")
    assert texts
    cluster.kill("head")
    wait_for(lambda: not any(alive(pid) for pid in texts), "no orphan text process")
    cluster.start_head()
    with cluster.connect() as client:
        again = client.attach(key="kept").result()
        assert again.tokens == first.tokens
        assert again.text == first.text
        cluster.wait_ready()
        fresh = client.generate(cluster.model, PROMPT, max_new=10, temperature=0.0).result()
        assert fresh.tokens == first.tokens


def test_stopped_processes_exit_clean(cluster: Cluster) -> None:
    workers = cluster.workers("node-1")
    assert cluster.stop("node-1") == 0
    assert not any(alive(pid) for pid in workers)
    wait_for(lambda: cluster.client.nodes()[0]["state"] == "left", "goodbye was heard")
    assert cluster.stop("head") == 0
    assert not (cluster.state / "run" / "api.sock").exists()


def test_cancel_ends_the_stream_and_frees_the_lane(cluster: Cluster) -> None:
    call = cluster.client.generate(cluster.model, PROMPT, max_new=400, ignore_eos=True)
    with call.stream() as stream:
        for event in stream:
            if event.type == "token":
                call.cancel()
                break
        answer = call.result()
    assert answer.finish == "cancelled"

    def lanes_used() -> int:
        return int(cluster.client.nodes()[0]["models"][0]["lanes_used"])

    wait_for(lambda: lanes_used() == 0, "the lane is free")


def test_bad_requests_are_named_and_the_next_one_works(cluster: Cluster) -> None:
    client = cluster.client
    with pytest.raises(Invalid) as empty:
        client.generate(cluster.model, "").result()
    assert empty.value.param == "prompt"
    with pytest.raises(NotFound) as missing:
        client.generate("nope", "x").result()
    assert "nope" in missing.value.message
    with pytest.raises(Invalid) as vocabulary:
        client.generate(cluster.model, [10**6]).result()
    assert vocabulary.value.param == "tokens"
    assert client.generate(cluster.model, "x", max_new=1).result().usage.completion == 1
    assert client.generate(cluster.model, "x", max_new=0).result().usage.completion == 0


def test_round_robin_gives_both_nodes_work(toy: Path) -> None:
    settings = {"SUPERFLUID_PLACEMENT_POLICY": "round-robin"}
    with Cluster(toy, threads=1, nodes=2, settings=settings) as cluster:
        served = {
            cluster.client.generate(cluster.model, PROMPT, max_new=3).result().node
            for _ in range(4)
        }
        identities = {node["identity"] for node in cluster.client.nodes()}
        assert served == identities
        assert len(identities) == 2


def test_secrets_are_in_no_argument_environment_or_log(cluster: Cluster) -> None:
    cluster.client.generate(cluster.model, PROMPT, max_new=3).result()
    token = (cluster.state / "keys" / "fleet.token").read_text().strip()
    secret = token.split(".")[2]
    for name in ("head", "node-1"):
        for pid in [cluster.pid(name), *cluster.workers(name)]:
            shown = Path(f"/proc/{pid}/cmdline").read_bytes()
            shown += Path(f"/proc/{pid}/environ").read_bytes()
            assert secret.encode() not in shown
        assert secret not in cluster.log(name)
    for log in (cluster.state / "log").glob("*"):
        assert secret not in log.read_text(errors="replace")
    for path in (cluster.state / "keys").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.model
def test_real_answer_of_60_tokens_equals_the_bare_engine() -> None:
    folder = smollm2_folder().path
    with Cluster(folder, threads=1) as cluster:
        client = cluster.client
        prompt = client.tokenize(cluster.model, "The capital of France is")
        answer = client.generate(
            cluster.model, prompt, max_new=60, temperature=0.0, ignore_eos=True
        ).result()
        assert [list(answer.tokens)] == bare_tokens(folder, [prompt], 60)
        chat = client.chat(
            cluster.model,
            [{"role": "user", "content": "Why is the sky blue?"}],
            max_new=40,
            temperature=0.0,
        ).result()
        assert "Rayleigh scattering" in chat.text


@pytest.mark.model
def test_four_prompts_stream_at_once_and_each_gets_its_own_answer() -> None:
    folder = smollm2_folder().path
    with Cluster(folder, threads=2) as cluster:
        client = cluster.client
        prompts = [
            client.tokenize(cluster.model, f"{word} {word} {word} {word}")
            for word in ("one", "two", "three", "four")
        ]
        options: dict[str, Any] = {"max_new": 24, "temperature": 0.0, "ignore_eos": True}
        alone = [client.generate(cluster.model, p, **options).result().tokens for p in prompts]
        calls = [client.generate(cluster.model, p, **options) for p in prompts]
        answers = [call.result() for call in calls]
        assert [answer.tokens for answer in answers] == alone
        starts = [answer.timing.first_token_ms for answer in answers]
        ends = [answer.timing.total_ms for answer in answers]
        assert max(starts) < min(ends)

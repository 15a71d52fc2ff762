"""Log lines: their shape, what they hide, and what is left out when it repeats."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from bus.log import EventLog, LogConfig, RepeatLimiter, setup_logging
from bus.rate_limit import TokenBucket


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream = io.StringIO()
    setup_logging(LogConfig(), stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


def after_time(line: str) -> str:
    time, _, rest = line.partition(" ")
    assert time.endswith("Z")
    assert len(time) == len("2026-11-29T16:02:08.123Z")
    return rest


def test_a_line_is_an_event_with_pairs(out: io.StringIO) -> None:
    log = EventLog("agent.node", node="n1").bind(model="toy")
    log.info("worker_ready", load_s=0.5, device="cpu", path="/a b", why="")
    log.debug("not_shown")
    (line,) = out.getvalue().splitlines()
    assert after_time(line) == (
        'INFO agent.node worker_ready node=n1 model=toy load_s=0.5 device=cpu path="/a b" why=""'
    )


def test_what_a_peer_said_can_not_forge_a_line(out: io.StringIO) -> None:
    EventLog("x").warning("refused", reason="no\n2026 INFO x fine")
    logging.getLogger("y").warning("event\nreason=%s", "a\x1b[0m")
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].endswith('refused reason="no\\n2026 INFO x fine"')
    assert lines[1].endswith("event\\nreason=a\\u001b[0m")


def test_secrets_are_hidden(out: io.StringIO) -> None:
    EventLog("x").info("loaded", token="sft1.abc", token_file="/keys/fleet.token")
    assert out.getvalue().rstrip().endswith("loaded token=(hidden) token_file=/keys/fleet.token")


def test_json_lines_hold_the_same(out: io.StringIO) -> None:
    setup_logging(LogConfig(level="debug", json=True), out)
    EventLog("agent.node", node="n1").debug("beat", steps=7, secret="s")
    body = json.loads(out.getvalue())
    body.pop("ts")
    assert body == {
        "level": "debug",
        "logger": "agent.node",
        "event": "beat",
        "node": "n1",
        "steps": 7,
        "secret": "(hidden)",
    }


def test_an_exception_comes_along(out: io.StringIO) -> None:
    setup_logging(LogConfig(json=True), out)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("x").exception("crashed")
    assert "ValueError: broken" in json.loads(out.getvalue())["exception"]


def test_a_repeated_event_is_logged_once_a_minute_with_a_count(out: io.StringIO) -> None:
    log = EventLog("x")
    for second in range(0, 61, 10):
        log.repeated(float(second), "unreachable", peer="head-1")
    log.repeated(1.0, "unreachable", peer="head-2")
    assert [after_time(line) for line in out.getvalue().splitlines()] == [
        "WARNING x unreachable peer=head-1",
        "WARNING x unreachable peer=head-1 left_out=5",
        "WARNING x unreachable peer=head-2",
    ]


def test_the_limiter_forgets_the_oldest_when_there_are_too_many() -> None:
    limiter = RepeatLimiter(60.0)
    for number in range(4097):
        assert limiter.count(f"k{number}", 0.0) == 0
    assert limiter.count("k0", 1.0) == 0
    assert limiter.count("k4096", 1.0) is None


def test_peers_that_choose_their_names_share_a_budget_of_lines(out: io.StringIO) -> None:
    log, budget = EventLog("x"), TokenBucket(1.0, 3.0)
    for number in range(100):
        log.repeated_within(budget, 10.0, "refused", peer=f"n{number}")
        log.repeated_within(budget, 10.0, "refused", peer="n0")
    log.repeated_within(budget, 11.0, "refused", peer="late")
    lines = out.getvalue().splitlines()
    assert [line.split("peer=")[1] for line in lines] == ["n0", "n1", "n2", "late of_others=97"]


def test_no_character_of_a_peer_s_moves_the_cursor(out: io.StringIO) -> None:
    EventLog("x").warning("refused", peer="\x9b2J", name="gpu\u202e2", host="caf\u00e9")
    assert out.getvalue().rstrip().endswith('peer="\\u009b2J" name="gpu\\u202e2" host=caf\u00e9')
    assert out.getvalue().rstrip("\n").isprintable()

"""What files and long prompts cost the streams and heartbeats beside them, by real processes.

One head, one node whose engine has one thread, and streams that run all the time. Quiet stretches
and loaded ones alternate on the same processes, so that each loaded one has a quiet one beside it:

    files     100 MB are put by a client and sent on to the node, both at a set pace
    prompts   a text of 400 KB is tokenized, or sent as a chat, or 400 KB of ids are sent, which are
              read and then refused as too long; or a text is appended to a session, which keeps it

Heartbeats are seen on the wire, between node and head, in both directions; the lateness of one is
what its distance from the one before has above what it should be. A gap is the time between two
events of a stream. Figures end in one JSON line; `load` is the machine's own, before and after.

    python -m bench.uploads --pairs 3
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.cluster import Cluster
from bench.models import add_model_option, open_model
from bench.program import Program
from bench.stream_gaps import Streams
from bus.transport import clock

STREAMS = 4
#: Between two heartbeats while streams run, by their sender.
HEARTBEAT_S = {"node": 1.0, "head": 5.0}
#: A heartbeat that is later than this counts as late.
LATE_MS = 50.0
MB = 1_000_000
FILES = 10
PROMPT_BYTES = 400_000
#: Quiet stretch beside each long prompt, at least.
PROMPT_S = 3.0
PROMPTS = ("tokenize", "chat", "ids", "append")
_WORDS = "the river falls over stones below seven bridges while people walk home in light rain"


class RelayedCluster(Cluster):
    """A cluster whose one node joins over a relay that sees the heartbeats."""

    def __init__(self, model_folder: Path, stack: ExitStack, link_bytes_per_s: int | None) -> None:
        settings = {
            # Nothing but heartbeats goes on the first channel while it measures.
            "SUPERFLUID_SESSIONS_LEASE_S": "86400",
            "SUPERFLUID_PLACEMENT_RETURN_S": "0",
        }
        super().__init__(model_folder, threads=1, lanes=STREAMS + 2, settings=settings)
        if link_bytes_per_s is not None:
            # In its file: agents have a section of that name, too, without the key.
            text = f"[blobs]\nlink_bytes_per_s = {link_bytes_per_s}\n"
            (self.state / "head.toml").write_text(text)
        self._stack = stack
        self.relay: Program

    def start_node(self, name: str) -> None:
        head = json.loads((self.state / "run" / "head.json").read_text())["fleet"]
        self.relay = self._stack.enter_context(Program("bench.link_relay", "--head", head))
        self._env["SUPERFLUID_NODE_JOIN"] = self.relay.answer()["address"]
        super().start_node(name)

    @property
    def api(self) -> str:
        """Where clients connect."""
        return f"ipc://{self.state}/run/api.sock"

    def beats(self) -> dict[str, list[float]]:
        """When heartbeats passed since this was last asked, by their sender."""
        self.relay.ask(json.dumps({"do": "beats"}))
        found: dict[str, list[float]] = self.relay.answer()
        return found


@dataclass
class Stretch:
    """What was seen in a stretch of time."""

    seconds: float
    gaps_ms: list[float]
    late_ms: list[float]
    tokens_per_s: float

    @property
    def longest_ms(self) -> float:
        return max(self.gaps_ms, default=0.0)

    @property
    def p99_ms(self) -> float:
        return quantile(self.gaps_ms, 0.99)


@dataclass
class Side:
    """Stretches of one kind, together."""

    stretches: list[Stretch] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        late = [each for stretch in self.stretches for each in stretch.late_ms]
        return {
            "inter_token_p50_ms": rounded(median(quantile(s.gaps_ms, 0.5) for s in self.stretches)),
            "inter_token_p99_ms": rounded(median(s.p99_ms for s in self.stretches)),
            "longest_gap_ms": rounded(max(s.longest_ms for s in self.stretches)),
            "tokens_per_s": rounded(median(s.tokens_per_s for s in self.stretches)),
            "heartbeats": len(late),
            "heartbeat_late_p99_ms": rounded(quantile(late, 0.99)),
            "heartbeat_late_max_ms": rounded(max(late, default=0.0)),
            "heartbeats_late": sum(each > LATE_MS for each in late),
        }


class UploadBench:
    """The processes, and what is measured on them."""

    def __init__(
        self, cluster: RelayedCluster, streams: Streams, peer: Program, vocab: int
    ) -> None:
        self._cluster = cluster
        self._vocab = vocab
        self._streams = streams
        self._peer = peer
        #: The last heartbeat of each direction, which the next one is counted from.
        self._last: dict[str, float] = {}
        self._seed = 0

    def files(self, total: int, bytes_per_s: float) -> dict[str, float]:
        """Put files and send them to the node; gives what the client says of it."""
        self._seed += FILES
        asked = {"file_bytes": total // FILES, "files": FILES, "bytes_per_s": bytes_per_s}
        return self._ask(do="upload", seed=self._seed, **asked)

    def prompt(self, op: str) -> dict[str, Any]:
        """Have a long text read; no two are alike."""
        self._seed += 1
        text = long_text(PROMPT_BYTES, self._seed)
        match op:
            case "tokenize":
                return self._ask(do="ask", op=op, text=text)
            case "chat":
                messages = [{"role": "user", "content": text}]
                return self._ask(do="ask", op=op, messages=messages, max_new=1)
            case "append":
                session = self._ask(do="ask", op="session.create")["session"]
                return self._ask(do="ask", op="session.append", session=session, text=text)
            case _:
                rng = random.Random(self._seed)
                ids = [rng.randrange(256, self._vocab) for _ in range(PROMPT_BYTES // 4)]
                return self._ask(do="ask", op="generate", tokens=ids, max_new=1)

    def begin(self) -> float:
        """A stretch of time begins."""
        self._late_ms()
        return clock.now()

    def end(self, start_s: float) -> Stretch:
        """It ends."""
        end_s = clock.now()
        return Stretch(
            seconds=end_s - start_s,
            gaps_ms=self._streams.gaps_ms(start_s, end_s),
            late_ms=self._late_ms(),
            tokens_per_s=self._streams.tokens(start_s, end_s) / (end_s - start_s),
        )

    def quiet(self, seconds: float) -> Stretch:
        """A stretch with nothing beside the streams."""
        start_s = self.begin()
        time.sleep(seconds)
        return self.end(start_s)

    def _late_ms(self) -> list[float]:
        found = []
        for sender, times in self._cluster.beats().items():
            for at in times:
                if sender in self._last:
                    late_s = at - self._last[sender] - HEARTBEAT_S[sender]
                    found.append(max(late_s, 0.0) * 1000)
                self._last[sender] = at
        return found

    def _ask(self, **asked: Any) -> dict[str, Any]:
        self._peer.ask(json.dumps(asked))
        return self._peer.answer()


def measure_files(bench: UploadBench, pairs: int, total: int, bytes_per_s: float) -> dict[str, Any]:
    """Stretches with and without files, in turn."""
    quiet, loaded, ratios, runs = Side(), Side(), [], []
    seconds = total / (bytes_per_s or 50 * MB) + 2.0
    for number in range(pairs):
        for with_files in (False, True) if number % 2 else (True, False):
            if with_files:
                start_s = bench.begin()
                runs.append(bench.files(total, bytes_per_s))
                loaded.stretches.append(bench.end(start_s))
            else:
                quiet.stretches.append(bench.quiet(seconds))
        ratios.append(loaded.stretches[-1].p99_ms / max(quiet.stretches[-1].p99_ms, 1e-3))
    return {
        "bytes": total,
        "seconds": rounded(median(run["seconds"] for run in runs)),
        "put_seconds": rounded(median(run["put_s"] for run in runs)),
        "p99_ratio": rounded(median(ratios)),
        "p99_ratios": [rounded(ratio) for ratio in ratios],
        "with_files": loaded.figures(),
        "without": quiet.figures(),
    }


def measure_prompts(bench: UploadBench, rounds: int) -> dict[str, Any]:
    """Long texts beside the streams, each after a quiet stretch that is as long."""
    found: dict[str, Any] = {}
    for op in PROMPTS:
        extra, seconds, late, ends = [], [], [], set()
        for _ in range(rounds):
            start_s = bench.begin()
            answer = bench.prompt(op)
            # What it leaves behind comes a moment later.
            time.sleep(0.5)
            loaded = bench.end(start_s)
            quiet = bench.quiet(max(loaded.seconds, PROMPT_S))
            seconds.append(answer["seconds"])
            ends.add(answer["code"] or answer["kind"])
            extra.append(loaded.longest_ms - quiet.longest_ms)
            late += loaded.late_ms
        found[op] = {
            "seconds": rounded(median(seconds)),
            "ends": sorted(ends),
            "extra_gap_ms": rounded(median(extra)),
            "extra_gap_max_ms": rounded(max(extra)),
            "heartbeat_late_max_ms": rounded(max(late, default=0.0)),
        }
    return found


def long_text(size: int, seed: int) -> str:
    """Words in an order of their own, so many bytes."""
    rng, words = random.Random(seed), _WORDS.split()
    text = " ".join(rng.choice(words) for _ in range(size // 4))
    return text[:size]


def quantile(values: Sequence[float], share: float) -> float:
    """A quantile; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def rounded(value: float) -> float:
    return round(value, 3)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Everything, as the JSON line has it."""
    folder = open_model(options.model_folder)
    before = os.getloadavg()[0]
    with ExitStack() as stack:
        link_bytes_per_s = None if options.link_mb_per_s < 0 else round(options.link_mb_per_s * MB)
        made = RelayedCluster(folder.path, stack, link_bytes_per_s)
        cluster = stack.enter_context(made)
        arguments = ("--api", cluster.api, "--model", cluster.model)
        peer = stack.enter_context(Program("bench.upload_peer", *arguments))
        peer.answer()
        vocab = folder.signature.vocab
        streams = Streams(cluster.api, cluster.model, STREAMS, vocab)
        stack.enter_context(streams)
        streams.wait_running()
        bench = UploadBench(cluster, streams, peer, vocab)
        bench.quiet(2.0)
        found: dict[str, Any] = {}
        if options.pairs:
            total, pace = options.megabytes * MB, options.mb_per_s * MB
            found["files"] = measure_files(bench, options.pairs, total, pace)
        if options.prompts:
            found["prompts"] = measure_prompts(bench, options.prompts)
    return found | {
        "streams": STREAMS,
        "processors": len(os.sched_getaffinity(0)),
        "load": [rounded(before), rounded(os.getloadavg()[0])],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="files and long prompts beside streams")
    parser.add_argument("--pairs", type=int, default=3, help="with and without files [default: 3]")
    parser.add_argument("--megabytes", type=int, default=100, help="of all files [default: 100]")
    parser.add_argument(
        "--mb-per-s", type=float, default=8.0, help="the client's pace, 0 for none [default: 8]"
    )
    parser.add_argument(
        "--link-mb-per-s",
        type=float,
        default=8.0,
        help="the head's pace to the node, 0 for none, -1 as configured [default: 8]",
    )
    parser.add_argument("--prompts", type=int, default=5, help="of each kind [default: 5]")
    add_model_option(parser)
    found = measure(parser.parse_args())
    print_table(found)
    print(json.dumps(found))


def print_table(found: dict[str, Any]) -> None:
    """The figures that are wanted, for people."""
    if files := found.get("files"):
        beside, late = files["with_files"], files["with_files"]["heartbeat_late_max_ms"]
        print(f"{files['bytes'] / MB:.0f} MB to head and node in {files['seconds']:.1f} s")
        print(
            f"  gap p99: {beside['inter_token_p99_ms']} ms, {files['p99_ratio']} of that without "
            f"(wanted: at most 1.5); pairs: {files['p99_ratios']}"
        )
        print(
            f"  heartbeats: {beside['heartbeats']}, the latest by {late} ms, "
            f"{beside['heartbeats_late']} by more than {LATE_MS:.0f} ms (wanted: none)"
        )
    for op, each in found.get("prompts", {}).items():
        print(
            f"{PROMPT_BYTES // 1000} KB, {op}: {each['seconds']} s; longest gap "
            f"{each['extra_gap_ms']:+} ms, at most {each['extra_gap_max_ms']:+} ms (wanted: 50); "
            f"heartbeats at most {each['heartbeat_late_max_ms']} ms late (wanted: 50)"
        )
    print(f"load of the machine before and after: {found['load']}")


if __name__ == "__main__":
    main()

"""The head's text process over its real pipe: replies, failures, limits, its parent's end."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from bus.ids import unpack_ids
from bus.messages.text import TEXT, Decode, Describe, Encode, RenderChat, TextFailed, TextReady
from bus.transport.orphan import EXIT_ORPHANED
from bus.transport.pipes import ParentPipe
from tests.harness.models import toy_model_folder

#: A parent that starts a text process, says its pid and waits.
PARENT = """
import os, subprocess, sys
from bus.transport.pipes import ParentPipe
pipe = ParentPipe(sys.argv[1])
read_end, write_end = os.pipe()
child = subprocess.Popen([sys.executable, "-P", "-m", "head.text", "--pipe", sys.argv[1],
    "--incarnation", "1", "--parent-pid", str(os.getpid()), "--death-fd", str(read_end)],
    pass_fds=(read_end,))
assert pipe.readable.poll(20_000)
print(child.pid, flush=True)
sys.stdin.read()
"""
TOY = str(toy_model_folder().path)


class TextProcess:
    """A text process and the parent's side of its pipe."""

    def __init__(self, prefix: str, *arguments: str) -> None:
        self.pipe = ParentPipe(prefix)
        command = [sys.executable, "-P", "-m", "head.text", "--pipe", prefix, "--incarnation", "1"]
        command += ["--parent-pid", str(os.getpid()), *arguments]
        self.process = subprocess.Popen(command)
        assert isinstance(self.reply(), TextReady)

    def reply(self) -> Any:
        assert self.pipe.readable.poll(30_000), "the text process sent nothing"
        data = self.pipe.recv()
        assert data is not None
        return TEXT.decode(data)

    def ask(self, job: object) -> Any:
        assert self.pipe.send(TEXT.encode(job))
        return self.reply()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.pipe.close()


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return str(tmp_path / "run" / "text-1")


@pytest.fixture
def text(prefix: str) -> Iterator[TextProcess]:
    process = TextProcess(prefix)
    yield process
    process.close()


def chat(*messages: Any) -> RenderChat:
    return RenderChat(job=9, folder=TOY, messages=msgpack.packb(list(messages)))


def test_jobs_one_after_the_other(text: TextProcess) -> None:
    described = text.ask(Describe(job=1, folder=TOY)).unpacked()
    assert (described.job, len(described.vocabulary)) == (1, 260)
    encoded = text.ask(Encode(job=2, folder=TOY, text="Hi \u00e9"))
    assert (encoded.job, list(unpack_ids(encoded.ids))) == (2, list("Hi \u00e9".encode()))
    assert text.ask(Decode(job=3, folder=TOY, ids=encoded.ids)).text == "Hi \u00e9"
    rendered = text.ask(chat({"role": "user", "content": "Hi"}))
    assert rendered.text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_a_job_that_fails_is_its_own_error_only(text: TextProcess) -> None:
    failed = text.ask(Encode(job=5, folder=TOY + "-none", text="x"))
    assert isinstance(failed, TextFailed)
    assert (failed.job, failed.code, failed.param) == (5, "not_found", "model")
    refused = text.ask(chat({"role": "nobody", "content": "Hi"}))
    assert (refused.code, refused.param) == ("invalid", "messages[0].role")
    assert text.ask(Encode(job=6, folder=TOY, text="x")).job == 6


def test_ctrl_c_leaves_it_to_the_parent(text: TextProcess) -> None:
    text.process.send_signal(signal.SIGINT)
    assert text.ask(Encode(job=1, folder=TOY, text="x")).job == 1


def test_a_job_over_its_cpu_limit_ends_the_process_and_nothing_else(
    prefix: str, tmp_path: Path
) -> None:
    folder = tmp_path / "slow"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).symlink_to(Path(TOY) / name)
    loops = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
    (folder / "chat_template.jinja").write_text(loops)
    text = TextProcess(prefix, "--cpu-s", "1")
    assert text.ask(Encode(job=3, folder=TOY, text="x")).job == 3
    messages = msgpack.packb([{"role": "user", "content": "x"}])
    assert text.pipe.send(TEXT.encode(RenderChat(job=4, folder=str(folder), messages=messages)))
    assert text.process.wait(30) == -signal.SIGXCPU
    assert text.pipe.recv() is None
    text.close()


def test_each_job_has_its_own_cpu_seconds() -> None:
    code = (
        "import time\nfrom bus.text.process import grant_cpu_time\n"
        "for _ in range(3):\n    grant_cpu_time(1)\n    end = time.process_time() + 0.7\n"
        "    while time.process_time() < end: pass\n"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_a_job_over_the_memory_limit_ends_in_an_error_of_its_own(
    prefix: str, tmp_path: Path
) -> None:
    folder = tmp_path / "greedy"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).symlink_to(Path(TOY) / name)
    (folder / "chat_template.jinja").write_text("{{ 'x' * 2000000000 }}")
    text = TextProcess(prefix, "--memory-bytes", str(1024**3))
    messages = msgpack.packb([{"role": "user", "content": "x"}])
    failed = text.ask(RenderChat(job=4, folder=str(folder), messages=messages))
    assert (failed.job, failed.code) == (4, "too_large")
    assert text.ask(Encode(job=5, folder=TOY, text="x")).job == 5
    text.close()


def test_it_ends_with_its_parent(prefix: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, prefix],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    child = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    parent.stdin.close()
    assert _ended(child)


def test_started_by_no_parent_it_ends_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "head.text", "--pipe", str(tmp_path / "x")]
    command += ["--incarnation", "1", "--parent-pid", str(os.getpid() + 1)]
    assert subprocess.run(command, check=False).returncode == EXIT_ORPHANED


def _ended(pid_fd: int) -> bool:
    try:
        return bool(select.select([pid_fd], [], [], 20)[0])
    finally:
        os.close(pid_fd)


NATIVE = """
import hashlib
from bus.text.process import narrow_limits
with narrow_limits(60, 0.2, 1 << 30):
    pass
hashlib.pbkdf2_hmac("sha256", b"a", b"b", 1_000_000)
print("limits end with their block", flush=True)
with narrow_limits(60, 0.2, 1 << 30):
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", 200_000_000)
"""


def test_a_job_over_its_time_by_the_clock_ends_in_native_code() -> None:
    start = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", NATIVE], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.stdout == "limits end with their block\n"
    assert ended.returncode == -signal.SIGALRM
    assert time.monotonic() - start < 30

"""A conversation that grows: its turns are encoded once each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from bus.messages.text import TEXT, Encode, Encoded, RenderChat
from head.text.jobs import TextJobs
from tests.harness.models import smollm2_folder, toy_model_folder

TURNS = 50


def _render(jobs: TextJobs, folder: Path, messages: list[dict[str, Any]]) -> Encoded:
    return jobs.render_chat(RenderChat(job=1, folder=str(folder), messages=msgpack.packb(messages)))


def _check(folder: Path) -> None:
    jobs, messages, fresh = TextJobs(), list[dict[str, Any]](), 0
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"Question {turn}: what is {turn} squared?"})
        reply = _render(jobs, folder, messages)
        fresh += reply.fresh_bytes
        if turn % 24 == 0:
            assert reply.ids == _render(TextJobs(), folder, messages).ids
        messages.append({"role": "assistant", "content": f"It is {turn * turn}. <|im_end|>"})
    # Each text between two control tokens once, and the beginning of each answer once for all.
    once = {f"{one['role']}\n{one['content']}" for one in messages[:-1]}
    others = fresh - sum(len(text.encode()) for text in once)
    assert 0 <= others < 200


def test_fifty_turns_are_encoded_once_each() -> None:
    _check(toy_model_folder().path)


@pytest.mark.model
def test_fifty_turns_of_smollm2_are_encoded_once_each() -> None:
    _check(smollm2_folder().path)


def test_a_text_that_was_encoded_before_is_not_fresh() -> None:
    jobs, folder = TextJobs(), str(toy_model_folder().path)
    first = jobs.encode(Encode(job=1, folder=folder, text="h\u00e9"))
    again = jobs.encode(Encode(job=2, folder=folder, text="h\u00e9"))
    assert (first.fresh_bytes, again.fresh_bytes) == (3, 0)
    assert first.ids == again.ids
    assert TEXT.decode(TEXT.encode(first)) == first

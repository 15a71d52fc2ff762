"""Answers of a real model under constraints, through the engine as a worker drives it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agent.models.folder import ModelFolder
from agent.worker.engine import Engine
from agent.worker.grammar import GrammarBuilder
from agent.worker.model_runner import ModelRunner
from bus.ids import GenerationId, pack_ids
from bus.messages.parts import Finish
from bus.messages.sampling import Constraint, SamplingParams
from bus.messages.worker import Submit
from bus.text.tokenizer import TextModel
from tests.constraints.judge import Verdict, faults, validator
from tests.constraints.suite import DRAFTS, Case

MOST_TOKENS = 120
LANES = 4

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "born": {"type": "string", "format": "date"},
        "email": {"type": "string", "format": "email"},
    },
    "required": ["name", "age", "born", "email"],
    "additionalProperties": False,
}
LIST = {
    "type": "array",
    "items": {"enum": ["red", "green", "blue"]},
    "minItems": 2,
    "maxItems": 4,
}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "label": {"type": "string", "maxLength": 8},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            },
            "required": ["label"],
            "additionalProperties": False,
        }
    },
}
SHAPE = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": kind}, field: {"type": "number", "minimum": 0.5}},
            "required": ["kind", field],
            "additionalProperties": False,
        }
        for kind, field in (("circle", "radius"), ("square", "side"))
    ]
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A prompt, its constraint, and what is wrong with an answer."""

    prompt: str
    constraint: Constraint
    faults: Callable[[bytes], Sequence[str]]


def wanted() -> list[Wanted]:
    """What people ask for: forms, lists, trees, alternatives, a regex, a grammar, a tool call."""
    found = [
        _of_schema("Describe a person as JSON:\n", PERSON),
        _of_schema("Three colours as a JSON list:\n", LIST),
        _of_schema("A tree as JSON:\n", TREE),
        _of_schema("A shape as JSON:\n", SHAPE),
    ]
    date = r"[0-9]{4}-(0[1-9]|1[0-2])-[0-3][0-9]"
    found.append(_of_regex("The date of the moon landing is ", "regex", date, date))
    sums = 'start: N ("+" N){1,3} "=" N\nN: /[0-9]{1,3}/'
    pattern = r"[0-9]{1,3}(\+[0-9]{1,3}){1,3}=[0-9]{1,3}"
    found.append(_of_regex("A sum: ", "lark", sums, pattern))
    tags = {
        "tags": [{"begin": "<add>", "end": "</add>", "regex": "[0-9]{1,3} [0-9]{1,3}"}],
        "at_least_one": True,
        "stop_after_first": True,
    }
    call = r"(?s:.*)<add>[0-9]{1,3} [0-9]{1,3}</add>"
    source = json.dumps(tags)
    found.append(_of_regex("Write <add>1 2</add> to add:\n<add>", "structural", source, call))
    return found


def _of_schema(prompt: str, schema: dict[str, Any]) -> Wanted:
    source = json.dumps({"$schema": DRAFTS["draft2020-12"], **schema})
    case = Case(prompt, "draft2020-12", source, (), True)
    return Wanted(
        prompt,
        Constraint(kind="json_schema", source=source),
        lambda text: list(faults(validator(case), text)),
    )


def _of_regex(prompt: str, kind: str, source: str, pattern: str) -> Wanted:
    def wrong(text: bytes) -> list[str]:
        fits = re.fullmatch(pattern, text.decode())
        return [] if fits else [f"{text!r} does not match {pattern}"]

    return Wanted(prompt, Constraint(kind=kind, source=source), wrong)


def judge_model(folder: ModelFolder, temperatures: Sequence[float] = (0.0, 0.7, 1.5)) -> Verdict:
    """Let a model answer each, all in one batch, and hold the answers against their constraints."""
    runner = ModelRunner(folder, device="cpu", lanes=LANES, kv_bytes=256 << 20, threads=2)
    text = TextModel.open(folder.path)
    builder = GrammarBuilder(lambda: text, folder.signature.vocab)
    try:
        engine = Engine(runner, text=text, grammars=builder)
        asked = [(each, heat) for each in wanted() for heat in temperatures]
        for number, (each, heat) in enumerate(asked):
            engine.submit(_submit(number, each, heat, text), 0.0)
        tokens, ends = _run(engine)
    finally:
        builder.close()
    verdict = Verdict(accepted=len(wanted()))
    for number, (each, _) in enumerate(asked):
        finish = ends[number]
        answer = b"".join(text.vocabulary[token] for token in tokens.get(number, []))
        if finish.reason == "length":
            verdict.unfinished += 1
        elif finish.reason in ("stop", "eos"):
            verdict.answers += 1
            verdict.wrong += [f"{each.prompt!r}: {fault}" for fault in each.faults(answer)]
        else:
            verdict.crashes.append(f"{each.prompt!r}: {finish.reason} {finish.message}")
    return verdict


def _submit(number: int, each: Wanted, heat: float, text: TextModel) -> Submit:
    ids = text.encode(each.prompt, add_special=False)
    return Submit(
        generation=GenerationId(number),
        context=pack_ids(ids),
        sampling=SamplingParams(temperature=heat, seed=number, constraint=each.constraint),
        max_new_tokens=MOST_TOKENS,
        prompt_tokens=len(ids),
    )


def _run(engine: Engine) -> tuple[dict[int, list[int]], dict[int, Finish]]:
    tokens: dict[int, list[int]] = {}
    ends: dict[int, Finish] = {}
    nothing = threading.Event()
    while engine.building or not engine.idle:
        for emission in engine.turn(0.0):
            number = int(emission.generation)
            if emission.token is not None:
                tokens.setdefault(number, []).append(emission.token)
            if emission.finish is not None:
                ends[number] = emission.finish
        if engine.idle:
            nothing.wait(0.005)  # A grammar is being built.
    return tokens, ends

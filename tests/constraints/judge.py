"""Holds the suite's schemas against what constraints make of them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

import jsonschema

from bus.errors import ConstraintInvalid
from bus.messages.sampling import Constraint
from bus.text.constraints import check_constraint
from bus.text.tokenizer import TextModel
from tests.constraints.driver import Driver
from tests.constraints.mutations import VALUES, near, spelled
from tests.constraints.suite import Case

#: Tried of each accepted schema.
NEIGHBOURS = 12

_VALIDATORS = {
    "draft2020-12": jsonschema.Draft202012Validator,
    "draft2019-09": jsonschema.Draft201909Validator,
    "draft7": jsonschema.Draft7Validator,
    "draft6": jsonschema.Draft6Validator,
}


@dataclass(slots=True)
class Verdict:
    """Counts over some cases.

    Attributes:
        narrower: accepted schemas of which some valid instance is not accepted as text.
        unfinished: answers that did not end within the limit.
        answers: that were validated.
        neighbours: values near them that were tried; each that is taken has to be valid.
        wrong: what was let through and is not valid.
        crashes: anything raised but a refusal.
        reasons: refused schemas by reason.
    """

    accepted: int = 0
    refused: int = 0
    narrower: int = 0
    answers: int = 0
    unfinished: int = 0
    instances: int = 0
    neighbours: int = 0
    wrong: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=dict)

    def line(self) -> str:
        """The summary."""
        return (
            f"constraints: schemas={self.accepted + self.refused + len(self.crashes)} "
            f"accepted={self.accepted} refused={self.refused} wrong={len(self.wrong)} "
            f"crashes={len(self.crashes)} narrower={self.narrower} answers={self.answers} "
            f"unfinished={self.unfinished} instances={self.instances} "
            f"neighbours={self.neighbours}"
        )


def judge(cases: Iterable[Case], model: TextModel, driver: Driver, seeds: int) -> Verdict:
    """Check every case: refusal, or answers and instances held against the validator."""
    verdict = Verdict()
    for case in cases:
        try:
            _judge_one(case, model, driver, seeds, verdict)
        except Exception as error:  # noqa: BLE001 - a crash is what is looked for
            verdict.crashes.append(f"{case.name}: {error!r}")
    return verdict


def _judge_one(case: Case, model: TextModel, driver: Driver, seeds: int, verdict: Verdict) -> None:
    constraint = Constraint(kind="json_schema", source=case.source)
    try:
        check_constraint(model, constraint, driver.tokenizer)
    except ConstraintInvalid as error:
        verdict.refused += 1
        reason = re.sub(r"#[^:]*/", "#.../", error.message.split("used: ", 1)[1])[:70]
        verdict.reasons[reason] = verdict.reasons.get(reason, 0) + 1
        return
    verdict.accepted += 1
    judge = validator(case)
    texts: list[bytes] = []
    for seed in range(seeds):
        answer = driver.draw(constraint, seed, ending=0.1 if seed % 2 else 0.6)
        if answer.error:
            verdict.wrong.append(f"{case.name}: dead end after {answer.text!r}: {answer.error}")
        elif not answer.finished:
            verdict.unfinished += 1
        else:
            verdict.answers += 1
            texts.append(answer.text)
            verdict.wrong += [f"{case.name}: {fault}" for fault in faults(judge, answer.text)]
    _judge_neighbours(case, constraint, driver, texts, verdict)
    _judge_instances(case, constraint, driver, verdict)


def _judge_neighbours(
    case: Case, constraint: Constraint, driver: Driver, texts: list[bytes], verdict: Verdict
) -> None:
    """Values near the answers, and some that are near none: those that are taken are valid."""
    judge, choice = validator(case), random.Random(case.name)
    values: list[Any] = []
    for text in texts:
        try:
            values.append(json.loads(text.decode(), parse_float=Decimal))
        except (ValueError, InvalidOperation):
            continue
    for _ in range(NEIGHBOURS):
        value = near(choice.choice(values), choice) if values else choice.choice(VALUES)
        value = near(value, choice) if choice.random() < 0.3 else value
        spelling = spelled(value, choice)
        verdict.neighbours += 1
        if driver.accepts(constraint, spelling):
            found = faults(judge, spelling.encode())
            verdict.wrong += [f"{case.name}: accepts {fault}" for fault in found]


def validator(case: Case) -> Any:
    """The `jsonschema` package's validator of a case, formats asserted."""
    kind = _VALIDATORS[case.draft]
    schema = json.loads(case.source, parse_float=Decimal)
    return kind(schema, format_checker=kind.FORMAT_CHECKER)


def faults(judge: Any, text: bytes) -> Iterator[str]:
    """What is wrong with an answer; nothing when it parses and is valid."""
    try:
        value = json.loads(text.decode(), parse_float=Decimal)
    except ValueError as error:
        yield f"{text!r} is no JSON: {error}"
        return
    try:
        errors = [error.message for error in judge.iter_errors(value)]
    except (re.error, InvalidOperation, RecursionError):
        # The validator gives up: a pattern that `re` does not have, a remainder of numbers with
        # thousands of digits, a schema that is its own alternative.
        return
    for message in errors:
        yield f"{text!r}: {message}"


def _judge_instances(case: Case, constraint: Constraint, driver: Driver, verdict: Verdict) -> None:
    narrower = False
    for value, valid in case.instances:
        verdict.instances += 1
        taken = [text for text in spellings(value) if driver.accepts(constraint, text)]
        if valid:
            narrower |= not taken
        elif taken:
            verdict.wrong.append(f"{case.name}: accepts the invalid {taken[0]}")
    verdict.narrower += narrower


def spellings(value: Any) -> list[str]:
    """Some JSON texts of a value."""
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return list(dict.fromkeys([compact, json.dumps(value), json.dumps(value, indent=2)]))

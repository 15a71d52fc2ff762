"""Every fifth schema of the JSON-Schema test suite; `make constraints` takes all of them."""

from __future__ import annotations

import os

import pytest

from bus.text.constraints import make_tokenizer
from bus.text.tokenizer import TextModel
from tests.constraints.driver import Driver
from tests.constraints.judge import judge
from tests.constraints.suite import SuiteMissing, cases
from tests.harness.models import toy_model_folder


def test_the_public_suite_is_held_or_refused_and_never_wrong() -> None:
    try:
        found = cases()[::5]
    except SuiteMissing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    model = TextModel.open(toy_model_folder().path)
    verdict = judge(found, model, Driver(model, make_tokenizer(model)), seeds=3)
    print(verdict.line())
    assert verdict.crashes == []
    assert verdict.wrong == []
    assert verdict.accepted > 60
    assert verdict.answers > 150

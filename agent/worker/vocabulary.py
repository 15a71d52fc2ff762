"""The tokenizer digest: equal when two nodes mean the same text by the same ids."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

from tokenizers import Tokenizer


def tokenizer_digest(tokenizer: Path) -> int:
    """Digest of a vocabulary, u64, at least 1.

    SHA-256 over the number of ids, then for each id the length and bytes of its entry (u32
    little-endian, UTF-8; nothing for an id without one); its first 8 bytes, little-endian.

    Args:
        tokenizer: path of a `tokenizer.json`.
    """
    entries = Tokenizer.from_file(str(tokenizer)).get_vocab(with_added_tokens=True)
    by_id = {token_id: text.encode() for text, token_id in entries.items()}
    size = max(by_id, default=-1) + 1
    digest = hashlib.sha256(struct.pack("<I", size))
    for token_id in range(size):
        entry = by_id.get(token_id, b"")
        digest.update(struct.pack("<I", len(entry)))
        digest.update(entry)
    return max(1, int.from_bytes(digest.digest()[:8], "little"))

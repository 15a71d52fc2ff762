"""Ids of a second implementation: llama.cpp's own, for texts that its test vectors do not have.

Writes tests/vectors/tokenizer_ids.json with the runtime that `make bench-peers` builds:

    build/peers/llamacpp/bin/python -m tests.harness.second_tokenizer FOLDER tests/vectors

FOLDER holds the `ggml-vocab-NAME.gguf` of tests/harness/vocabularies.py. Cuts of text that none of
them has are tried with another's vocabulary.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib
import json
import struct
import tempfile
from pathlib import Path
from typing import Any

FILE = "tokenizer_ids.json"
NAMES = (
    *("baichuan", "bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4"),
    *("gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder"),
)
TEXTS = (
    "The quick brown fox; it's 3.14159 o'clock, I'LL say, DON'T you?",
    "  leading, trailing and\t\ttabs  \n \n\n  indented\r\nlines\r\n",
    "spaces: \u00a0\u2003\u3000\u202f\u1680\u2028\u2029\u0085\u200b\ufeff|\x0b|\x0c|\x1f|",
    "1 12 123 1234 12345 1234567890 \uff11\uff12\uff13 \u0663\u0664\u0665 \u00bd \u2167 \u00b2",
    "def f(x):\n    return [i**2 for i in range(10) if i % 3 == 0]  # \u2264 n\n",
    "composed: \u00e9 \u00c5 \u1ec7 \ufb01 \u1e9e \u0130; apart: e\u0301 A\u030a e\u0323\u0302",
    "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab \uc11c\uc6b8\uc758 \ub0a0\uc528",
    "\u6771\u4eac\u306e\u5929\u6c17 \uff7b\uff70\uff8a\uff9e\u3001\u4e2d\u6587\uff0c\u3002",
    "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u0939\u093f\u0928\u094d\u0926\u0940"
    " \u0645\u064e\u0631\u0652\u062d\u064e\u0628\u064b\u0627 \u05e2\u05d1\u05e8\u05d9\u05ea",
    "\U0001f642\U0001f468\u200d\U0001f469\u200d\U0001f467\U0001f1e9\U0001f1ea\u2764\ufe0f"
    "\U0001f44d\U0001f3fd\U0001f999",
    "\U00020000\U0001d54f\U00010400\U00010330\ue000\uffff\U0010ffff\u0378",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u0395\u03bb\u03bb\u03ac\u03b4\u03b1,"
    " \u10e5\u10d0\u10e0\u10d7\u10e3\u10da\u10d8, \u01c5 \u02b0 \u0294 \u13a0\uab70",
    "\u2581\u2581_\u2581 \u0120\u010a <0x0A><0xE2><unk><s></s><pad>[UNK][CLS][MASK][unused0]",
    "\u2018q\u2019 \u201cq\u201d \u00ab\u00bb\u2026\u2014\u2013 $\u20ac\u00a5"
    " +=<=^~`|\\ \u00a7\u00d7",
    *("=" * 70, " " * 70 + "x", "\n" * 33, "a" * 99, "\t" * 20 + "b", "\u3000" * 9, "ab" * 30),
    *("", " ", "\n", "\x00", "'S's'ſ"),
)
#: One name of each cut that is tried with a vocabulary of another.
LENDER = "llama-bpe"
BORROWING = (
    *("gpt-2", "smollm", "qwen2", "qwen35", "llama-bpe", "smaug-bpe", "glm4", "minicpm5"),
    *("seed-coder", "tekken", "gpt-4o", "deepseek-v3", "bloom", "viking", "falcon"),
    *("deepseek-llm", "deepseek-coder"),
)
CUT_TEXTS = (
    "'s 'S it's IT'S we'LL they'Re foo's'S'T'm 'don't'",
    "HelloWorld helloWORLD ABCdef abCD iPhone15Pro"
    " \u00c0\u00c9\u00e9 \u00e9\u00c0 \u0141\u00f3d\u017a",
    "a/b/c //\n/ ...//\n\n!!\r\n x ?!/\n\r\n\r\n a\r\n!!!\n\n\nabc",
    "1234567 12 345 a1b22c333d4444 1,234.5 \u00bd\u0663\u0664\u0665\u0661 0x1F 12:30",
    "  x   y\n\n  z \t\n a  \n\tb\t\tc \u00a0 d",
    "a.b,c!d?e\u2026f\u3002g\uff0ch\u3001i\u0964j\u06d4k\u060cl(m|n)s <|x|>",
    "#include <a.h>\n\t@param -x --foo $bar %baz __init__ (a) [b] {c} *d* ~e~",
    "\u65e5\u672c\u8a9e\u30c6\u30ad\u30b9\u30c8\u6df7\u5728"
    "English\u6f22\u5b57123 \ud55c\uad6d \u0e20\u0e32\u0e29\u0e32",
    "def f(x):\n    return x**2  # \u2264\n\nclass A(B):\n\tpass\n",
)
#: Attributes of a token; llama.cpp takes some ordinary ones for control tokens by their text.
NORMAL, CONTROL = 4, 8
#: Around a control token.
_AROUND = ("{0}", "a{0}b", " {0} {0}\n", "{0}\n\nhello {0} hello")


def main() -> None:
    """Ask for every vocabulary's ids and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    lib: Any = importlib.import_module("llama_cpp")
    found = {
        "about": f"Ids of llama-cpp-python {lib.__version__}: plain, and marked with both ends.",
        "texts": TEXTS,
        "vocabularies": {
            name: _ask(lib, arguments.folder / f"ggml-vocab-{name}.gguf") for name in NAMES
        },
        "cut_texts": CUT_TEXTS,
        "cuts": {
            name: _ask_cut(lib, arguments.folder / f"ggml-vocab-{LENDER}.gguf", name)
            for name in BORROWING
        },
    }
    text = json.dumps(found, ensure_ascii=True, separators=(",", ":"))
    (arguments.target / FILE).write_text(text.replace("]],", "]],\n") + "\n")


class _Vocabulary:
    """Open in llama.cpp, to be closed by hand."""

    def __init__(self, lib: Any, file: Path) -> None:
        options = lib.llama_model_default_params()
        options.vocab_only = True
        self._lib = lib
        self._model = lib.llama_model_load_from_file(str(file).encode(), options)
        self._vocabulary = lib.llama_model_get_vocab(self._model)

    def control(self) -> list[str]:
        """Texts of the control tokens, by id."""
        lib, found = self._lib, []
        for token in range(lib.llama_vocab_n_tokens(self._vocabulary)):
            kind = lib.llama_vocab_get_attr(self._vocabulary, token)
            if kind & (CONTROL | NORMAL) == CONTROL:
                found.append(lib.llama_vocab_get_text(self._vocabulary, token).decode())
        return found

    def ids(self, text: str, *, whole: bool) -> list[int]:
        """Ids of plain text; `whole`: with both ends, and control tokens in the text."""
        raw = text.encode()
        room = (ctypes.c_int32 * (4 * len(raw) + 8))()
        count = self._lib.llama_tokenize(
            self._vocabulary, raw, len(raw), room, len(room), whole, whole
        )
        return list(room[:count])

    def digest(self) -> str:
        """The tokenizer digest (bus/text/vocabulary.py) of what each token adds to a text."""
        size = self._lib.llama_vocab_n_tokens(self._vocabulary)
        room = ctypes.create_string_buffer(4096)
        digest = hashlib.sha256(struct.pack("<I", size))
        for token in range(size):
            count = self._lib.llama_token_to_piece(
                self._vocabulary, token, room, len(room), 0, False
            )
            digest.update(struct.pack("<I", count) + room.raw[:count])
        return digest.digest()[:8][::-1].hex()

    def close(self) -> None:
        self._lib.llama_model_free(self._model)


def _ask(lib: Any, file: Path) -> dict[str, Any]:
    opened = _Vocabulary(lib, file)
    marked = [form.format(text) for text in opened.control()[:3] for form in _AROUND]
    found = {
        "digest": opened.digest(),
        "plain": [opened.ids(text, whole=False) for text in TEXTS],
        "marked": [
            [text, opened.ids(text, whole=False), opened.ids(text, whole=True)] for text in marked
        ],
    }
    opened.close()
    return found


def _ask_cut(lib: Any, file: Path, cut: str) -> list[list[int]]:
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / "changed.gguf"
        changed.write_bytes(_with_cut(file.read_bytes(), cut.encode()))
        opened = _Vocabulary(lib, changed)
        found = [opened.ids(text, whole=False) for text in CUT_TEXTS]
        opened.close()
    return found


def _with_cut(gguf: bytes, cut: bytes) -> bytes:
    """The file with another `tokenizer.ggml.pre`; it has no tensors whose places would change."""
    key = b"tokenizer.ggml.pre"
    named = struct.pack("<Q", len(key)) + key + struct.pack("<I", 8)
    begin = gguf.index(named) + len(named)
    (length,) = struct.unpack_from("<Q", gguf, begin)
    return gguf[:begin] + struct.pack("<Q", len(cut)) + cut + gguf[begin + 8 + length :]


if __name__ == "__main__":
    main()

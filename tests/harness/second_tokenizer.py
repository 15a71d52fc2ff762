"""Ids of a second implementation: llama.cpp's own, for texts that its test vectors do not have.

Writes tests/vectors/tokenizer_ids.json with the runtime that `make bench-peers` builds:

    build/peers/llamacpp/bin/python -m tests.harness.second_tokenizer FOLDER tests/vectors

FOLDER holds the `ggml-vocab-NAME.gguf` of tests/harness/vocabularies.py.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
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
    }
    text = json.dumps(found, ensure_ascii=True, separators=(",", ":"))
    (arguments.target / FILE).write_text(text.replace("]],", "]],\n") + "\n")


def _ask(lib: Any, file: Path) -> dict[str, Any]:
    options = lib.llama_model_default_params()
    options.vocab_only = True
    model = lib.llama_model_load_from_file(str(file).encode(), options)
    vocabulary = lib.llama_model_get_vocab(model)
    size = lib.llama_vocab_n_tokens(vocabulary)
    control = [
        lib.llama_vocab_get_text(vocabulary, token).decode()
        for token in range(size)
        if lib.llama_vocab_get_attr(vocabulary, token) & (CONTROL | NORMAL) == CONTROL
    ]
    marked = [form.format(text) for text in control[:3] for form in _AROUND]

    def ids(text: str, whole: bool) -> list[int]:
        raw = text.encode()
        room = (ctypes.c_int32 * (4 * len(raw) + 8))()
        count = lib.llama_tokenize(vocabulary, raw, len(raw), room, len(room), whole, whole)
        return list(room[:count])

    found = {
        "plain": [ids(text, False) for text in TEXTS],
        "marked": [[text, ids(text, False), ids(text, True)] for text in marked],
    }
    lib.llama_model_free(model)
    return found


if __name__ == "__main__":
    main()

"""Small tokenizers of the kinds that models have, in model folders of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

CONTROL = ("<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
SPACE = "\u2581"


def sentence_piece(*, metaspace: bool = False) -> Any:
    """SentencePiece BPE with byte pieces: ids 0 to 4 control, 5 to 260 the bytes, then pieces."""
    letters = [chr(code) for code in range(0x20, 0x7F)]
    pieces = [*CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), SPACE, *letters[1:]]
    merges = [("h", "i"), (SPACE, "hi"), ("<", "/"), ("</", "s"), ("i", "m"), (SPACE, "t")]
    pieces += [left + right for left, right in merges]
    made: Any = Tokenizer(
        models.BPE(
            vocab={piece: place for place, piece in enumerate(pieces)},
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    if metaspace:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        made.decoder = decoders.Sequence(
            [
                decoders.Replace(SPACE, " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    else:
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
        )
        made.decoder = decoders.Sequence(
            [
                decoders.Replace(SPACE, " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
    made.add_special_tokens([AddedToken(text, normalized=False) for text in CONTROL])
    return made


def text_folder(
    folder: Path,
    tokenizer: Any,
    *,
    config: dict[str, Any] | None = None,
    template: str | None = None,
    record: dict[str, Any] | None = None,
) -> Path:
    """A model folder with text files only."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>"} if config is None else config
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    if record is not None:
        (folder / "superfluid.json").write_text(json.dumps(record))
    return folder

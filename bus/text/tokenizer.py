"""A model's tokenizer: text to ids and back. Used in text processes only, never in a loop."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from bus.errors import Invalid, ModelIncomplete
from bus.messages.text import MAX_ENDS
from bus.text.control_pieces import without_control_pieces
from bus.text.detokenizer import Detokenizer
from bus.text.encodings import Encodings
from bus.text.escaping import Escaper
from bus.text.library import LibraryTokenizer
from bus.text.model_files import ModelFiles, read_model_files
from bus.text.token_bound import longest_token
from bus.text.token_texts import token_pattern
from bus.text.vocabulary import strips_first_space, tokenizer_digest, vocabulary_bytes


class TextModel:
    """An opened tokenizer and what its folder says about special ids.

    Attributes:
        files: what was read.
        special: ids of control tokens.
        bos: begin-of-sequence id, if the model has one.
        eos: every id that ends a sequence.

    Args:
        files: what was read.
        encodings: ids of earlier texts, where they are kept.

    Raises:
        ModelIncomplete: the tokenizer can not be read, or has more ends than a head takes.
    """

    def __init__(self, files: ModelFiles, encodings: Encodings | None = None) -> None:
        self.files = files
        self._encodings = encodings
        try:
            self._tokenizer = LibraryTokenizer(files.tokenizer, files.name)
            self._layout: dict[str, Any] = json.loads(files.tokenizer)
        except ModelIncomplete:
            raise
        except Exception as error:
            raise ModelIncomplete(
                f"the tokenizer of model {files.name} can not be read ({error}); "
                "import the model again"
            ) from error
        self._added = {
            token: (added.content, bool(added.special))
            for token, added in self._tokenizer.added_tokens().items()
        }
        self.special = tuple(sorted(t for t, (_, special) in self._added.items() if special))
        self.bos = self._named_id("bos_token") if files.bos_id is None else files.bos_id
        named = self._named_id("eos_token")
        self.eos = tuple(sorted({*files.eos_ids, *([] if named is None else [named])}))
        if len(self.eos) > MAX_ENDS:
            raise ModelIncomplete(
                f"the files of model {files.name} name {len(self.eos)} ids that end a text, and "
                f"{MAX_ENDS} is the most; use another model"
            )

    @classmethod
    def open(cls, folder: Path, encodings: Encodings | None = None) -> Self:
        """Read a model folder's tokenizer; about a second for the largest.

        Raises:
            NotFound: there is no such folder.
            ModelIncomplete: a file is missing or is none.
        """
        return cls(read_model_files(folder), encodings)

    @cached_property
    def vocabulary(self) -> tuple[bytes, ...]:
        """What each id adds to the text."""
        return vocabulary_bytes(
            self._tokenizer.vocabulary(), self._added, self._layout.get("decoder")
        )

    @cached_property
    def longest(self) -> int:
        """Most bytes of a text that one token can stand for; 0 when there is no such number."""
        return longest_token(self._layout)

    @cached_property
    def digest(self) -> int:
        """The tokenizer digest."""
        return tokenizer_digest(self.vocabulary)

    @cached_property
    def wants_bos(self) -> bool:
        """Whether a text begins with BOS: as the folder says, else as the tokenizer does."""
        if self.bos is None:
            return False
        if self.files.add_bos is not None:
            return self.files.add_bos
        made = self._tokenizer.encode("a", parse_special=True, add_special_tokens=True).ids
        return bool(made) and made[0] == self.bos

    @cached_property
    def special_texts(self) -> tuple[str, ...]:
        """Texts of the control tokens."""
        return tuple(text for text, special in self._added.values() if special)

    def encode(self, text: str, *, add_special: bool, parse_special: bool = False) -> list[int]:
        """The ids of a text.

        Args:
            add_special: begin with BOS when the model wants one, once.
            parse_special: whether control tokens written in the text are control tokens.

        Raises:
            Invalid: the text is no Unicode text.
        """
        ids = self._ids(text, parse_special)
        return self._with_bos(ids) if add_special else ids

    def encode_whole(self, text: str) -> list[int]:
        """The ids of a text for a model that makes a vector of it.

        With what the tokenizer itself puts around a text (`[CLS]` and `[SEP]`), and neither cut
        nor padded; control tokens written in the text are text.

        Raises:
            Invalid: the text is no Unicode text.
        """
        _check_unicode(text)
        ids: list[int] = self._plain.encode(text, parse_special=False, add_special_tokens=True).ids
        return ids

    def encode_rendered(
        self, text: str, escaper: Escaper, *, add_special: bool, continues: bool = False
    ) -> list[int]:
        """The ids of a rendered template whose users' texts were escaped.

        The control tokens in `text` are the template's. They cut it into stretches, as the
        tokenizer itself would; each stretch is encoded with its escapes turned back and no
        control token taken from it.

        Args:
            add_special: begin with BOS when the model wants one, once.
            continues: the text follows another, so its first word begins no text.

        Raises:
            Invalid: the text is no Unicode text.
        """
        if not continues and not escaper.used and (self._encodings is None or self._cuts is None):
            return self.encode(text, add_special=add_special, parse_special=True)
        ids: list[int] = []
        begin = 0
        for token, (start, end) in self._special_places(text):
            ids += self._stretch(escaper.restore(text[begin:start]), begin + continues)
            ids.append(token)
            begin = end
        ids += self._stretch(escaper.restore(text[begin:]), begin + continues)
        return self._with_bos(ids) if add_special else ids

    def decode(self, ids: Iterable[int], *, skip_special: bool) -> str:
        """The text of a whole sequence of ids; a character cut at the end is dropped."""
        if skip_special:
            vocabulary: tuple[bytes, ...] = self.vocabulary
        else:
            vocabulary = self._vocabulary_with_special
        maker = Detokenizer(vocabulary)
        text = maker.push(ids) + maker.finish()
        if text.startswith(" ") and strips_first_space(self._layout.get("decoder")):
            return text[1:]
        return text

    @cached_property
    def _vocabulary_with_special(self) -> tuple[bytes, ...]:
        found = list(self.vocabulary)
        for token in self.special:
            found[token] = self._added[token][0].encode()
        return tuple(found)

    def _named_id(self, name: str) -> int | None:
        text = self.files.named_tokens.get(name)
        return None if text is None else self._tokenizer.token_id(text)

    def _with_bos(self, ids: list[int]) -> list[int]:
        if not self.wants_bos or self.bos is None or (ids and ids[0] == self.bos):
            return ids
        return [self.bos, *ids]

    def _ids(self, text: str, parse_special: bool) -> list[int]:
        _check_unicode(text)

        tokenizer = self._tokenizer if parse_special else self._plain

        def encode(text: str) -> list[int]:
            ids: list[int] = tokenizer.encode(text, parse_special=parse_special).ids
            return ids

        return self._kept("special" if parse_special else "plain", text, encode)

    def _kept(self, way: str, text: str, encode: Callable[[str], list[int]]) -> list[int]:
        """The ids of a text as `encode` makes them, from earlier texts where they are kept."""
        if self._encodings is None:
            return encode(text)
        return list(self._encodings.encode(self._content + way.encode(), text, encode))

    @cached_property
    def _plain_text(self) -> str | None:
        """The tokenizer.json of `_plain`, where it is another one."""
        return without_control_pieces(self._layout, self._writable)

    @property
    def _writable(self) -> set[str]:
        """Texts of control tokens that become those tokens even where they are taken for text."""
        text = "\n".join(f"{one} a{one}a" for one in self.special_texts)
        encoding = self._tokenizer.encode(text, parse_special=False)
        special = set(self.special)
        made = {
            (self._added[token][0], text[start:end])
            for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
            if token in special
        }
        # What no piece covers may become the id of a special "unknown", too.
        return {control for control, letters in made if control in letters}

    @cached_property
    def _plain(self) -> LibraryTokenizer:
        """A tokenizer for texts that no control token is in."""
        plain = self._plain_text
        return self._tokenizer if plain is None else LibraryTokenizer(plain, self.files.name)

    @cached_property
    def _content(self) -> bytes:
        """Names the tokenizer: equal digests may still cut words in other ways."""
        return hashlib.sha256(self.files.tokenizer.encode("utf-8", "surrogatepass")).digest()

    def _special_places(self, text: str) -> list[tuple[int, tuple[int, int]]]:
        """Control tokens in a text, and from where to where they reach."""
        _check_unicode(text)
        special = set(self.special)
        if self._cuts is not None:
            pattern, tokens = self._cuts
            found = ((tokens[match[0]], match.span()) for match in pattern.finditer(text))
            return [(token, place) for token, place in found if token in special]
        encoding = self._tokenizer.encode(text, parse_special=True)
        return [
            (token, (start, end))
            for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
            # A character that no piece covers may become the id of a special "unknown", too.
            if token in special and self._added[token][0] in text[start:end]
        ]

    @cached_property
    def _cuts(self) -> tuple[re.Pattern[str], dict[str, int]] | None:
        """What finds the tokens at which the tokenizer cuts a text first, and their ids.

        None where only the tokenizer itself can tell: a token takes white space along, stands for
        whole words only, or is looked for in the normalised text.
        """
        added = self._tokenizer.added_tokens()
        first = {token: found for token, found in added.items() if not found.normalized}
        odd = any(one.single_word or one.lstrip or one.rstrip for one in first.values())
        if odd or not first.keys() >= set(self.special):
            return None
        tokens = {found.content: token for token, found in first.items() if found.content}
        return token_pattern(tokens), tokens

    def _stretch(self, text: str, offset: int) -> Sequence[int]:
        if not text:
            return []
        continuing = self._continuing
        if offset == 0 or continuing is None:
            return self._ids(text, parse_special=False)
        _check_unicode(text)

        def encode(text: str) -> list[int]:
            ids: list[int] = continuing.encode(text, parse_special=False).ids
            return ids

        return self._kept("stretch", text, encode)

    @cached_property
    def _continuing(self) -> LibraryTokenizer | None:
        """A tokenizer for stretches that begin no text, where the model's own would add a space."""
        layout = json.loads(self._plain_text or self.files.tokenizer)
        changed = [
            step for step in _pre_tokenizers(layout) if step.get("prepend_scheme") == "first"
        ]
        for step in changed:
            step["prepend_scheme"] = "never"
        if not changed:
            return None
        return LibraryTokenizer(json.dumps(layout), self.files.name)


def _pre_tokenizers(layout: dict[str, Any]) -> list[dict[str, Any]]:
    found = layout.get("pre_tokenizer") or {}
    steps: list[dict[str, Any]] = found.get("pretokenizers", [found])
    return steps


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Invalid(
            f"the text has a lone surrogate at character {error.start} (half of a UTF-16 pair); "
            "send whole characters",
            param="prompt",
        ) from None

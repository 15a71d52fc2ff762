"""The jobs of the head's text process: tokenize, render chats, check constraints."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from llguidance import LLTokenizer

from bus.errors import Invalid, TooLarge
from bus.ids import pack_ids, unpack_ids
from bus.messages.text import (
    MAX_TEXT_BYTES,
    CheckConstraint,
    ConstraintChecked,
    Decode,
    Decoded,
    Describe,
    Described,
    Encode,
    Encoded,
    EncodeTexts,
    RenderChat,
    TextsEncoded,
)
from bus.text.constraints import check_constraint, make_tokenizer
from bus.text.encodings import Encodings
from bus.text.escaping import Escaper
from bus.text.model_files import CHAT_TEMPLATE, TEMPLATE_FOLDERS, TOKENIZER, TOKENIZER_CONFIG
from bus.text.process import Handler, narrow_limits
from bus.text.tokenizer import TextModel
from bus.unpacking import unpack
from head.json_values import MAX_DEPTH
from head.model_kinds import NO_TEXT, folder_kind, makes_no_text
from head.text.channel_formats import choose_format
from head.text.prompts import ChatPrompt, Prompt
from head.text.templates import ChatTemplate
from head.tool_definitions import read_tools

#: How many tokenizers stay open; a large one takes half a GB.
OPEN_MODELS = 4
#: What one constraint may take, beside its model's tokenizer. CPU limits are rounded by up to one
#: second; on a busy machine the clock's limit is the first.
CONSTRAINT_CPU_S = 4
CONSTRAINT_WALL_S = 5.0
CONSTRAINT_MEMORY_BYTES = 256 * 1024 * 1024


class _Opened:
    """A model and its template, compiled when it is first needed."""

    def __init__(self, folder: Path, encodings: Encodings) -> None:
        self.model = TextModel.open(folder, encodings)

    @cached_property
    def template(self) -> ChatTemplate:
        files = self.model.files
        if not files.has_template and (kind := folder_kind(files.folder)) in NO_TEXT:
            raise makes_no_text(files.name, kind)
        return ChatTemplate(
            files.name, files.template, files.named_tokens, named=files.named_templates
        )

    @cached_property
    def constraint_tokenizer(self) -> LLTokenizer:
        return make_tokenizer(self.model)


class TextJobs:
    """Owns the opened models of one text process."""

    def __init__(self) -> None:
        self._models: OrderedDict[tuple[object, ...], _Opened] = OrderedDict()
        self._encodings = Encodings()

    def handlers(self) -> Mapping[type, Handler]:
        """Handler of each job message."""
        return {
            Describe: lambda job: self.describe(job).packed(),
            Encode: self.encode,
            EncodeTexts: self.encode_texts,
            RenderChat: self.render_chat,
            Decode: self.decode,
            CheckConstraint: self.check_constraint,
        }

    def describe(self, job: Describe) -> Described:
        """All about a tokenizer that the head's loop needs."""
        model = self._model(job.folder)
        return Described(
            job=job.job,
            vocabulary=model.vocabulary,
            special=model.special,
            special_texts=tuple(
                model.decode((token,), skip_special=False) for token in model.special
            ),
            bos=model.bos,
            eos=model.eos,
            digest=model.digest,
            has_template=model.files.has_template,
            kind=folder_kind(Path(job.folder)),
            longest=model.longest,
        )

    def encode(self, job: Encode) -> Encoded:
        """Text to ids."""
        model = self._model(job.folder)
        ids = model.encode(job.text, add_special=job.add_special, parse_special=job.parse_special)
        return Encoded(
            job=job.job,
            ids=pack_ids(ids),
            digest=model.digest,
            fresh_bytes=self._encodings.take_fresh(),
        )

    def encode_texts(self, job: EncodeTexts) -> TextsEncoded:
        """Texts to ids, for vectors."""
        model = self._model(job.folder)
        ids = []
        for place, text in enumerate(job.texts, job.first):
            try:
                ids.append(pack_ids(model.encode_whole(text)))
            except Invalid as error:
                param = f"input[{place}]"
                raise Invalid(f"{param}: {error.message}", param=param) from None
        return TextsEncoded(job=job.job, ids=tuple(ids), digest=model.digest)

    def decode(self, job: Decode) -> Decoded:
        """Ids to text."""
        model = self._model(job.folder)
        text = model.decode(unpack_ids(job.ids), skip_special=job.skip_special)
        return Decoded(job=job.job, text=_fitting(text))

    def render_chat(self, job: RenderChat) -> Encoded:
        """Messages through the template, then to ids."""
        opened = self._open(job.folder)
        escaper = Escaper(opened.model.special_texts)
        chat = ChatPrompt(
            opened.template,
            escaper,
            _unpacked(job.messages),
            read_tools(_unpacked(job.tools)),
            _options(job.options),
        )
        prompt = _prompt(chat, job, opened.model)
        ids = opened.model.encode_rendered(
            prompt.text, escaper, add_special=prompt.begins, continues=not prompt.begins
        )
        return Encoded(
            job=job.job,
            ids=pack_ids(_once(ids, opened.model.bos)),
            text=_fitting(escaper.restore(prompt.text)),
            tail=prompt.tail,
            digest=opened.model.digest,
            channels=choose_format(chat.format_source, opened.model.special_texts).name,
            fresh_bytes=self._encodings.take_fresh(),
        )

    def check_constraint(self, job: CheckConstraint) -> ConstraintChecked:
        """Whether a constraint can be honoured, in less time and memory than other jobs have."""
        opened = self._open(job.folder)
        tokenizer = opened.constraint_tokenizer
        with narrow_limits(CONSTRAINT_CPU_S, CONSTRAINT_WALL_S, CONSTRAINT_MEMORY_BYTES):
            check_constraint(opened.model, job.constraint, tokenizer)
        return ConstraintChecked(job=job.job)

    def _model(self, folder: str) -> TextModel:
        return self._open(folder).model

    def _open(self, folder: str) -> _Opened:
        """The opened model, opened again when a file of its folder has changed."""
        key = (folder, *_stamps(Path(folder)))
        if key not in self._models:
            self._models[key] = _Opened(Path(folder), self._encodings)
            while len(self._models) > OPEN_MODELS:
                self._models.popitem(last=False)
        self._models.move_to_end(key)
        return self._models[key]


def _stamps(folder: Path) -> list[int]:
    found = []
    for name in (TOKENIZER, TOKENIZER_CONFIG, CHAT_TEMPLATE, *TEMPLATE_FOLDERS):
        try:
            found.append((folder / name).stat().st_mtime_ns)
        except OSError:
            found.append(0)
    return found


def _prompt(chat: ChatPrompt, job: RenderChat, model: TextModel) -> Prompt:
    if job.after_answer:
        ends = [model.decode((token,), skip_special=False) for token in model.eos]
        return chat.after_answer(model.special_texts, ends)
    if job.continue_final:
        return chat.open_ended()
    return chat.whole(add_generation_prompt=job.add_generation_prompt)


def _once(ids: list[int], bos: int | None) -> list[int]:
    """Ids that begin with BOS at most once, however often a template writes it."""
    first = 0
    while bos is not None and ids[first : first + 2] == [bos, bos]:
        first += 1
    return ids[first:]


def _unpacked(data: bytes) -> Any:
    return unpack(data, max_bytes=MAX_TEXT_BYTES, max_depth=MAX_DEPTH)


def _options(data: bytes) -> dict[str, Any]:
    options = _unpacked(data)
    if not isinstance(options, dict) or not all(isinstance(key, str) for key in options):
        raise Invalid("template should be a map with text keys", param="template")
    return options


def _fitting(text: str) -> str:
    if len(text) * 4 > MAX_TEXT_BYTES and len(text.encode()) > MAX_TEXT_BYTES:
        raise TooLarge(
            f"the text has more than {MAX_TEXT_BYTES} bytes; send fewer tokens or messages"
        )
    return text

"""Constraints on an answer's text: checked here and made into matchers of token ids.

A text process checks a constraint before its request may wait; a worker makes the matcher. Both go
through the same code and the same limits, so what was accepted can be served. A constraint is
served in full or refused: what the engine (llguidance) would ignore never reaches it.

Kinds:
- `json_schema`: the source is a JSON Schema; see bus/text/json_schema.py for what is honoured.
  Between the parts of the JSON there is at most one space, or a line's end and a few of them: small
  models like to write white space without end.
- `regex`: the whole text matches a regular expression of Rust's syntax; no lookaround,
  backreferences or word boundaries. White space counts.
- `lark`: a context-free grammar in llguidance's Lark syntax with a rule `start`.
- `structural`: see bus/text/structural.py.
"""

from __future__ import annotations

import json
import random
import re
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, regex_to_lark

from bus.errors import ConstraintInvalid, ModelIncomplete, SuperfluidError
from bus.messages.sampling import MAX_CONSTRAINT_BYTES, Constraint
from bus.text.constraint_errors import refused
from bus.text.engine_tokenizer import without_added_texts
from bus.text.json_schema import translate_schema
from bus.text.lark_text import translate_lark
from bus.text.panics import panics_as
from bus.text.schema_ends import has_value
from bus.text.schema_limits import SchemaRefused
from bus.text.schema_source import parse_json
from bus.text.structural import in_tag, structural_grammar, tags_alone, texts_alone
from bus.text.tag_ends import check_tag_ends
from bus.text.tokenizer import TextModel

#: One space, or a line's end and indentation: enough for compact and for indented JSON.
WHITE_SPACE = r"\x20|\n\x20{0,16}"
#: How the engine reads a schema. Without \\uXXXX each text has one spelling, so a property's name
#: can not be written a second way and slip by its schema.
SCHEMA_OPTIONS = {"whitespace_pattern": WHITE_SPACE, "json_allowed_escapes": 'nrbtf\\"'}
#: CPU time that one mask may take; it is neighbours' time, too.
SLOW_MASK_S = 0.1
_PROBE_TOKENS = 32
_TAG = "structural.tags["
#: How long it is looked for which tag is wrong.
_SEARCH_S = 1.0
_PROBE_SEED = 1
#: Parts of the engine's errors that say little to a person, and what they mean.
_PLAIN_ERRORS = {
    "oneOf constraints are not supported": (
        "of a oneOf it can not be told that at most one side matches; give the sides different "
        "types or different const values of a required property, or use anyOf"
    ),
    "patternProperty regexes": "patterns of patternProperties may match one name; make them differ",
    "NoExtension": "nothing can match it",
    "Unsatisfiable schema": "nothing can match it: its parts exclude each other",
    "too many states": "it is too large; use smaller repetitions in it",
    "too many expressions": "it is too large; use smaller repetitions in it",
    "Too many items": "it can be read in too many ways at once; make it less ambiguous",
}
#: Brackets open at once in a regular expression or a grammar: more than a person would write.
_MAX_NESTING = 100
#: Bounds of a repetition that are refused; the engine unrolls it, and masks become slow.
_MANY_REPEATS = re.compile(r"\{(?:\d*,)?\d{6,}(?:,\d*)?\}")


def limits() -> LLParserLimits:
    """Limits of one matcher: of its grammar, and of each of its masks.

    Work is counted, not timed, so the same constraint passes or fails on every machine. Lexer
    states take 1 to 2 KB: at most some 60 MB a matcher. A mask takes at most some 15 ms.
    """
    return LLParserLimits(
        max_items_in_row=2000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=32_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def make_tokenizer(model: TextModel, vocab: int = 0) -> LLTokenizer:
    """The engine's own table of a model's tokens; seconds for the largest vocabularies.

    Args:
        model: an opened tokenizer.
        vocab: size of the model's logits, when it is more than the tokenizer's ids; what is beyond
            them is never allowed.

    Raises:
        ConstraintInvalid: the engine reads this tokenizer in another way than we do.
        ModelIncomplete: the engine can not read it.
    """
    known = len(model.vocabulary)
    if not model.eos:
        raise refused("model", f"model {model.files.name} has no token that ends a text")
    # Random, so that no constraint has it.
    prefix = f"\U0010fffd{secrets.token_hex(8)}"
    unusable = f"the tokenizer of model {model.files.name} can not be used for constraints"
    try:
        with panics_as(lambda: ModelIncomplete(f"{unusable}: the engine panics at it")):
            made = LLTokenizer(
                without_added_texts(model.files.tokenizer, model.eos, prefix),
                n_vocab=max(vocab, known),
                eos_token=list(model.eos),
                slices=LLTokenizer.json_slices(),
            )
    except SuperfluidError:
        raise
    except Exception as error:
        # The engine's kinds of errors are not told apart; any of them means the same here.
        raise ModelIncomplete(f"{unusable} ({error})") from error
    _check_tokens(model, made, prefix.encode())
    return made


def _check_tokens(model: TextModel, made: LLTokenizer, hidden: bytes) -> None:
    """See that each token is to the engine what it is to us.

    Args:
        hidden: what texts that the engine is not to write begin with.
    """
    ends = frozenset(model.eos)
    for token, text in enumerate(model.vocabulary):
        theirs = made.decode_bytes([token])
        # Without text there, or with a hidden one, it is never allowed.
        if theirs.startswith(hidden):
            continue
        if theirs and (theirs != text or token in ends):
            raise refused(
                "model",
                f"the engine takes token {token} of model {model.files.name} for {theirs!r}, and "
                f"it {'ends a text' if token in ends else f'adds {text!r} to the text'}; use "
                "another model",
            )


def check_constraint(
    model: TextModel, constraint: Constraint, tokenizer: LLTokenizer | None = None
) -> None:
    """Make sure that a constraint can be honoured in full; at most some seconds.

    Args:
        model: whose tokens the answer is made of.
        constraint: as the caller gave it.
        tokenizer: of `make_tokenizer`, when it was made before.

    Raises:
        ConstraintInvalid: with the parameter, the place in it, and why.
    """
    tokenizer = tokenizer or make_tokenizer(model)
    with panics_as(lambda: refused(constraint.kind, "the engine panics at it; make it simpler")):
        _check(tokenizer, constraint, frozenset(model.eos))


def _check(tokenizer: LLTokenizer, constraint: Constraint, ends: frozenset[int]) -> None:
    try:
        probe(make_matcher(tokenizer, constraint), ends, constraint.kind)
        if constraint.kind == "structural":
            check_tag_ends(parse_json(constraint.source), _structural_matcher)
    except ConstraintInvalid as error:
        if constraint.kind != "structural" or _TAG in error.message:
            raise
        _refuse_around(tokenizer, constraint, ends)
        _refuse_first_tag(tokenizer, constraint, ends)
        raise


def _structural_matcher(tokenizer: LLTokenizer, source: str) -> LLMatcher:
    return make_matcher(tokenizer, Constraint(kind="structural", source=source))


def _refuse_around(tokenizer: LLTokenizer, constraint: Constraint, ends: frozenset[int]) -> None:
    """Refuse what is around the tags, where that is what can not be honoured.

    Raises:
        ConstraintInvalid: with the key of the text, if it is one that has the fault by itself.
    """
    for key, source in texts_alone(constraint.source):
        try:
            probe(_structural_matcher(tokenizer, source), ends, constraint.kind)
        except ConstraintInvalid as error:
            message = error.message.replace("structural:", f"structural.{key}:", 1)
            raise ConstraintInvalid(message, param=error.param) from None


def _refuse_first_tag(tokenizer: LLTokenizer, constraint: Constraint, ends: frozenset[int]) -> None:
    """Refuse the first tag that can not be honoured by itself; the engine does not name it.

    Raises:
        ConstraintInvalid: with the tag.
    """
    start = time.thread_time()
    for number, source in tags_alone(constraint.source):
        alone = Constraint(kind=constraint.kind, source=source)
        try:
            probe(make_matcher(tokenizer, alone), ends, constraint.kind)
        except ConstraintInvalid as error:
            message = error.message.replace("structural:", f"{_TAG}{number}]:", 1)
            raise ConstraintInvalid(message, param=error.param) from None
        if time.thread_time() - start > _SEARCH_S:
            return


def make_matcher(tokenizer: LLTokenizer, constraint: Constraint) -> LLMatcher:
    """A matcher at the start of an answer.

    Raises:
        ConstraintInvalid: the constraint can not be honoured.
    """
    matcher = LLMatcher(tokenizer, grammar(constraint), log_level=0, limits=limits())
    check_matcher(matcher, constraint.kind)
    warnings = matcher.get_grammar_warnings()
    if warnings:
        raise refused(constraint.kind, f"it would not be held in full: {warnings[0]}")
    return matcher


def check_matcher(matcher: LLMatcher, where: str = "constraint") -> None:
    """Raise what the engine found wrong.

    Raises:
        ConstraintInvalid: the matcher can not go on.
    """
    if not matcher.is_error():
        return
    error = matcher.get_error()
    for part, plain in _PLAIN_ERRORS.items():
        if part in error:
            raise refused(where, plain)
    lines = [line.strip() for line in error.strip().splitlines() if "<non-verbose" not in line]
    raise refused(where, " ".join(lines[:4]) or "the engine refuses it")


def probe(matcher: LLMatcher, ends: frozenset[int], where: str) -> None:
    """Follow a constraint for some tokens, and refuse one that is too slow or leads nowhere.

    Building a matcher costs little, since the engine puts work off until a mask needs it.

    Args:
        matcher: at its start; it is advanced.
        ends: ids that end an answer.
        where: for messages.

    Raises:
        ConstraintInvalid: no token may follow, or a mask holds everybody up.
    """
    choice = random.Random(_PROBE_SEED)
    for _ in range(_PROBE_TOKENS):
        start = time.thread_time()
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        check_matcher(matcher, where)
        if time.thread_time() - start > SLOW_MASK_S:
            raise refused(
                where, "finding its next tokens takes too long; use smaller repetitions in it"
            )
        if not mask:
            raise refused(where, "nothing can match it")
        token = _some_bit(mask, choice, ends)
        if token in ends:
            return
        if not matcher.consume_token(token):
            check_matcher(matcher, where)
        if matcher.is_stopped():
            return


def _some_bit(mask: int, choice: random.Random, last: frozenset[int]) -> int:
    """A set bit, one of `last` only when there is no other."""
    others = mask
    for token in last:
        others &= ~(1 << token)
    others = others or mask
    above = others >> choice.randrange(others.bit_length())
    # From a random place on the next set bit: not evenly drawn, and cheap.
    skipped = others.bit_length() - above.bit_length()
    return skipped + (above & -above).bit_length() - 1


def grammar(constraint: Constraint) -> str:
    """The engine's grammar of a constraint.

    Raises:
        ConstraintInvalid: the constraint can not be honoured.
    """
    source = constraint.source
    if not source.strip():
        raise refused(constraint.kind, "it is empty")
    if len(source.encode("utf-8", "surrogatepass")) > MAX_CONSTRAINT_BYTES:
        raise refused(constraint.kind, f"it has more than {MAX_CONSTRAINT_BYTES} bytes")
    maker = _KINDS.get(constraint.kind)
    if maker is None:
        raise refused("kind", f"{constraint.kind[:40]!r} is none of {', '.join(sorted(_KINDS))}")
    try:
        source.encode("utf-8")
        return maker(source)
    except SchemaRefused as error:
        raise refused(f"{constraint.kind}{error.where or ''}", error.why) from None
    except UnicodeEncodeError:
        raise refused(constraint.kind, "it has half a character (a lone surrogate)") from None
    except ValueError as error:
        raise refused(constraint.kind, str(error)) from None


def _json_schema(source: str) -> str:
    return json.dumps({"grammars": [{"json_schema": _schema(parse_json(source))}]})


def _schema(node: Any) -> dict[str, Any]:
    made = translate_schema(node)
    if not has_value(made):
        raise SchemaRefused("", "no finite value can match it: it is false, or needs itself")
    return {"x-guidance": SCHEMA_OPTIONS, **made}


def _regex(source: str) -> str:
    _check_regex(source)
    return LLMatcher.grammar_from_regex(source)


def _check_regex(source: str) -> None:
    """Refuse a regular expression that is too large to hold, or that the engine would change."""
    _check_nesting(source)
    if (len(source) - len(source.rstrip("\\"))) % 2:
        # It would be left out.
        raise refused("regex", "it ends in the middle of an escape; write \\\\ for a backslash")
    found = _MANY_REPEATS.search(source)
    if found:
        raise refused("regex", f"the repetition {found[0][:40]} is too large; use less than 100000")


def _check_nesting(source: str) -> None:
    """Refuse what would exhaust a recursive parser's stack, before one sees it."""
    depth = deepest = 0
    for character in source:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if deepest > _MAX_NESTING:
        raise refused("nesting", f"brackets are open more than {_MAX_NESTING} deep")


def _lark(source: str) -> str:
    return LLMatcher.grammar_from_lark(_lark_text(source))


def _lark_text(source: str) -> str:
    made = translate_lark(source, lambda text: _schema(parse_json(text)))
    _check_nesting(source)
    return made


def _structural(source: str) -> str:
    spec = parse_json(source)
    made = structural_grammar(spec, _schema, _lark_regex)
    for part in made[1:]:
        with in_tag(int(part["name"].rpartition("_")[2]), places=False):
            part["lark_grammar"] = _lark_text(part["lark_grammar"])
    return json.dumps({"grammars": made})


def _lark_regex(source: str) -> str:
    _check_regex(source)
    if "\n" in source:
        raise refused("regex", "it has a line's end; write it as \\n")
    return f"/{regex_to_lark(source, '')}/"


_KINDS: Mapping[str, Callable[[str], str]] = {
    "json_schema": _json_schema,
    "regex": _regex,
    "lark": _lark,
    "structural": _structural,
}

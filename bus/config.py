"""Configuration: the defaults of frozen dataclasses < a TOML file < the environment < options.

A schema is a frozen dataclass. A field that is itself a dataclass is a section, in the file a
table; every other field is a key with a default. Units are part of the names.

    [worker]                     SUPERFLUID_WORKER_LANES=4       overrides {"worker.lanes": 4}
    lanes = 4

Types: bool, int, float, str, Path, `tuple[str, ...]` (in the environment separated by commas), and
`Annotated[T, Range(..) | OneOf(..)]`. Whatever is wrong is a `ConfigInvalid` that names where it
stands, the key, and what it should be; nothing is guessed.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from bus.errors import ConfigInvalid
from bus.fields import OneOf, Range, choices

ENV_PREFIX = "SUPERFLUID_"

C = TypeVar("C")
#: From dotted key to value.
Flat = dict[str, Any]


def load_config(
    cls: type[C], path: Path | None, env: Mapping[str, str], overrides: Mapping[str, Any]
) -> C:
    """The configuration of a process.

    Args:
        cls: the schema, with a default for every key.
        path: a TOML file; None when there is none.
        env: the environment. Variables of sections that the schema lacks are another process's
            and are passed over; a wrong key of a section it has is an error.
        overrides: options by dotted key ("worker.lanes"); None means not given.

    Raises:
        ConfigInvalid: the file can not be read, or a key or value is wrong.
    """
    schema = _Schema(cls)
    values: Flat = {}
    if path is not None:
        where = str(path)
        for key, value in _flatten(_read(path), schema, where):
            values[key] = schema.from_toml(key, value, where)
    for variable, text in sorted(env.items()):
        found = schema.key_of_variable(variable)
        if found is not None:
            values[found] = schema.from_text(found, text, variable)
    for key, value in overrides.items():
        if value is not None:
            schema.check_known(key, "option")
            values[key] = schema.from_toml(key, value, "option")
    made: C = schema.build(values)
    return made


class _Schema:
    """The keys of a schema with their types."""

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self.types: dict[str, Any] = dict(_walk(cls, ""))

    @property
    def sections(self) -> set[str]:
        return {
            ".".join(parts[:depth])
            for parts in (key.split(".") for key in self.types)
            for depth in range(1, len(parts))
        }

    def check_known(self, key: str, where: str) -> None:
        if key in self.types:
            return
        near = difflib.get_close_matches(key, [*self.types, *self.sections], n=1, cutoff=0.0)
        raise ConfigInvalid(f"{where}: there is no key {key}; the nearest is {near[0]}", param=key)

    def key_of_variable(self, variable: str) -> str | None:
        """The key that an environment variable sets; None when it is none of ours."""
        names = {_variable(key): key for key in self.types}
        if variable in names:
            return names[variable]
        for section in self.sections:
            if variable.startswith(f"{_variable(section)}_"):
                near = difflib.get_close_matches(variable, names, n=1, cutoff=0.0)
                raise ConfigInvalid(
                    f"there is no environment variable {variable}; the nearest is {near[0]}",
                    param=variable,
                )
        return None

    def from_toml(self, key: str, value: Any, where: str) -> Any:
        return self._checked(key, value, where, _from_toml)

    def from_text(self, key: str, text: str, where: str) -> Any:
        return self._checked(key, text, where, _from_text)

    def _checked(self, key: str, value: Any, where: str, convert: Callable[[Any, Any], Any]) -> Any:
        kind, rules = _split(self.types[key])
        try:
            made = convert(kind, value)
            _check_rules(made, rules)
        except ValueError as error:
            raise ConfigInvalid(f"{where}: {key} {error}", param=key) from None
        return made

    def build(self, values: Flat) -> Any:
        return _build(self._cls, values, "")


def _walk(cls: type, prefix: str) -> Iterable[tuple[str, Any]]:
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        annotation = hints[field.name]
        if dataclasses.is_dataclass(annotation):
            yield from _walk(typing.cast(type, annotation), f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}", annotation


def _build(cls: type, values: Flat, prefix: str) -> Any:
    hints = typing.get_type_hints(cls)
    given = {}
    for field in dataclasses.fields(cls):
        key = f"{prefix}{field.name}"
        if dataclasses.is_dataclass(hints[field.name]):
            given[field.name] = _build(hints[field.name], values, f"{key}.")
        elif key in values:
            given[field.name] = values[key]
    return cls(**given)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigInvalid(f"there is no configuration file {path}; name one that is") from None
    except OSError as error:
        raise ConfigInvalid(f"can not read {path}: {error.strerror}; check its mode") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"{path} is no TOML: {error}; correct that line") from None


def _flatten(
    table: Mapping[str, Any], schema: _Schema, where: str, prefix: str = ""
) -> Iterable[tuple[str, Any]]:
    for name, value in table.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key in schema.sections:
            yield from _flatten(value, schema, where, f"{key}.")
        elif key in schema.sections:
            raise ConfigInvalid(f"{where}: {key} is a section; write [{key}]", param=key)
        else:
            schema.check_known(key, where)
            yield key, value


def _variable(key: str) -> str:
    return ENV_PREFIX + key.replace(".", "_").upper()


# --- values -----------------------------------------------------------------------------------


def _split(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    if typing.get_origin(annotation) is typing.Annotated:
        kind, *rules = typing.get_args(annotation)
        return kind, tuple(rules)
    return annotation, ()


def _from_toml(kind: Any, value: Any) -> Any:
    """A value of a file or option as its type, or ValueError: what it should be."""
    if kind is Path and isinstance(value, str | Path):
        return Path(value)
    if kind is float and type(value) in (int, float):
        return float(value)
    if typing.get_origin(kind) is tuple:
        if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            return tuple(value)
    elif type(value) is kind:
        return value
    raise ValueError(f"is {value!r}; it should be {_named(kind)}")


def _from_text(kind: Any, text: str) -> Any:
    """A value of the environment as its type, or ValueError: what it should be."""
    if kind in (str, Path):
        return kind(text)
    if typing.get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is bool:
        truth = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if text.lower() in truth:
            return truth[text.lower()]
    else:
        try:
            return kind(text)
        except ValueError:
            pass
    raise ValueError(f"is {text!r}; it should be {_named(kind)}")


def _named(kind: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    if kind is Path:
        return "a path"
    return names.get(kind, "a list of texts")


def _check_rules(value: Any, rules: tuple[Any, ...]) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"is {value}; it should be a number")
    for rule in rules:
        if isinstance(rule, Range) and not rule.low <= value <= rule.high:
            raise ValueError(f"is {value}; it should be {rule.low:g} to {rule.high:.15g}")
        if isinstance(rule, OneOf) and value not in rule.values:
            raise ValueError(f"is {value!r}; it should be one of {choices(rule.values)}")

"""Values near an answer: what a constraint takes of them has to be valid, too."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

_NAMES = ("a", "b", "ab", "bd", "ac", "c d", "\u00e9", "\u2028", "-", "1", 'q"', "")
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 5, 10, 12, 0.5, -0.5, 0.25, 0.75, 1.5, 10.5, 1e-3),
    *("", "a", "b", "ab", "bb", "aa", "ba", "xa", "xb", "1", "\u00e9", "\n", "2001-02-03"),
    *([], [1], [None], ["a"], [1, "a"], {}, {"a": 1}, {"\u00e9": 1}, {"ab": None}, {"b": "b"}),
)


def near(value: Any, choice: random.Random) -> Any:
    """A value with one thing in it changed."""
    if isinstance(value, bool) or choice.random() < 0.1:
        return choice.choice(VALUES)
    if isinstance(value, dict):
        return _near_object(value, choice)
    if isinstance(value, list):
        return _near_list(value, choice)
    if isinstance(value, str):
        place = choice.randrange(len(value) + 1)
        text = choice.choice(("a", "b", "x", "1", "\n", "", ""))
        return value[:place] + text + value[place + choice.randrange(2) :]
    number = _number(value)
    if number is not None:
        step = Decimal(choice.choice(("1", "-1", "0.5", "-0.25", "0.001", "-1e-9")))
        return choice.choice((number + step, number + step, -number, number * 2))
    return choice.choice(VALUES)


def spelled(value: Any, choice: random.Random) -> str:
    """A JSON text of a value; its numbers in one of several spellings."""
    if isinstance(value, dict):
        inner = (
            f"{json.dumps(k, ensure_ascii=False)}: {spelled(v, choice)}" for k, v in value.items()
        )
        return "{" + ", ".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(spelled(item, choice) for item in value) + "]"
    exact = _number(value)
    if exact is not None:
        plain = format(exact, "f")
        more = "" if len(plain) > 40 else choice.choice(("", "", "0", "00", "e0"))
        return plain + (more if "." in plain else "." + more if more in ("0", "00") else more)
    return str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)


def _number(value: Any) -> Decimal | None:
    """A number that can be worked with."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    number = Decimal(str(value))
    return number if not number or -15 < number.adjusted() < 15 else None


def _near_object(value: dict[str, Any], choice: random.Random) -> dict[str, Any]:
    made = dict(value)
    how = choice.random()
    if made and how < 0.3:
        del made[choice.choice(list(made))]
    elif made and how < 0.7:
        name = choice.choice(list(made))
        made[name] = near(made[name], choice)
    else:
        made[choice.choice(_NAMES)] = choice.choice(VALUES)
    return made


def _near_list(value: list[Any], choice: random.Random) -> list[Any]:
    made = list(value)
    how = choice.random()
    if made and how < 0.3:
        del made[choice.randrange(len(made))]
    elif made and how < 0.7:
        place = choice.randrange(len(made))
        made[place] = near(made[place], choice)
    else:
        made.insert(choice.randrange(len(made) + 1), choice.choice(VALUES))
    return made

"""Checks of what a caller passes.

A bad value is an InvalidArgument that names the field and its limit, in the daemon's own words; a wrong Python type is
a TypeError that names the argument.  Without them both would be errors of whatever library stumbles over it first.
"""

from __future__ import annotations

import operator
from typing import Any

from .errors import InvalidArgument, invalid
from .wire import Code

MOST_32 = (1 << 32) - 1
MOST_64 = (1 << 64) - 1


def out_of_range(field: str, detail: str) -> InvalidArgument:
    """The error for a number outside its limits."""
    return InvalidArgument(detail, code=Code.OUT_OF_RANGE, field=field)


def whole(field: str, value: Any, least: int = 0, most: int = MOST_32) -> int:
    """The value as an int, of Python's or NumPy's integers, within its limits."""
    try:
        if isinstance(value, bool):  # an int to Python, and never what was meant
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{field} must be a whole number, not {value!r}") from None
    if not least <= number <= most:
        raise out_of_range(field, f"must be {least} to {most}, is {number}")
    return number


def word(field: str, value: Any, words: tuple[str, ...]) -> None:
    """The value must be one of these words."""
    if not isinstance(value, str):
        raise TypeError(f"{field} must be a str, not {value!r}")
    if value not in words:
        raise invalid(field, f"{value!r} is none of {', '.join(words)}")


def of_type(name: str, value: Any, *kinds: type) -> None:
    """TypeError unless the value is of one of these types."""
    if not isinstance(value, kinds):
        raise TypeError(f"{name} must be a {' or '.join(kind.__name__ for kind in kinds)}, "
                        f"not {type(value).__name__}")

"""A few small checks that a table composes into the strict schema of a JSON document."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

Check = Callable[[Any, str], None]
"""Takes a value and the name of its field; raises Mismatch where the value does not fit."""

MAX_INTEGER = 2**63 - 1
MAX_DEPTH = 8


class Mismatch(Exception):
    """One field that does not fit: its name, and what was expected."""


def _refuse(field: str, expected: str, value: Any) -> None:
    raise Mismatch(f"{field} must be {expected}, not {ascii(value)[:60]}")


def text(pattern: str = ".{0,4096}", expected: str = "printable text") -> Check:
    """Accept printable text that matches `pattern` whole."""
    compiled = re.compile(pattern, re.ASCII)

    def check(value: Any, field: str) -> None:
        if type(value) is not str or not value.isprintable() or not compiled.fullmatch(value):
            _refuse(field, expected, value)

    return check


def integer(low: int = 0, high: int = MAX_INTEGER) -> Check:
    """Accept a whole number from `low` to `high`; a bool is none."""

    def check(value: Any, field: str) -> None:
        if type(value) is not int or not low <= value <= high:
            _refuse(field, f"a whole number from {low} to {high}", value)

    return check


def number(low: float = 0.0, high: float = 1e18) -> Check:
    """Accept a finite number from `low` to `high`."""

    def check(value: Any, field: str) -> None:
        if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
            _refuse(field, f"a number from {low:g} to {high:g}", value)

    return check


def boolean(value: Any, field: str) -> None:
    """Accept true and false."""
    if type(value) is not bool:
        _refuse(field, "true or false", value)


def scalar(value: Any, field: str) -> None:
    """Accept printable text, a finite number or a bool."""
    if type(value) is str:
        TEXT(value, field)
    elif type(value) is not bool:
        number(low=-1e18)(value, field)


def plain(value: Any, field: str, depth: int = 0) -> None:
    """Accept any JSON value that is finite, printable and not nested too deep."""
    if depth > MAX_DEPTH:
        _refuse(field, f"nested at most {MAX_DEPTH} deep", "...")
    if type(value) is dict:
        for name, item in value.items():
            TEXT(name, f"a name in {field}")
            plain(item, f"{field}.{name}", depth + 1)
    elif type(value) is list:
        for item in value:
            plain(item, f"{field}[]", depth + 1)
    elif value is not None:
        scalar(value, field)


def list_of(item: Check, length: int | None = None) -> Check:
    """Accept a list of `length` items, or of any number of them, each accepted by `item`."""

    def check(value: Any, field: str) -> None:
        if type(value) is not list or length not in (None, len(value)):
            _refuse(field, "a list" if length is None else f"a list of {length}", value)
        for position, entry in enumerate(value):
            item(entry, f"{field}[{position}]")

    return check


def map_of(name: Check, item: Check) -> Check:
    """Accept an object whose names are accepted by `name` and whose values are accepted by `item`."""

    def check(value: Any, field: str) -> None:
        if type(value) is not dict:
            _refuse(field, "an object", value)
        for key, entry in value.items():
            name(key, f"a name in {field}")
            item(entry, f"{field}.{key}")

    return check


def fields(required: dict[str, Check], others: Check | None = None, optional: dict[str, Check] | None = None) -> Check:
    """Accept an object that has every required field, and may have the optional ones.

    Other fields need `others`, and are refused without it.
    """
    known = {**required, **(optional or {})}

    def check(value: Any, field: str) -> None:
        if type(value) is not dict:
            _refuse(field or "the document", "an object", value)
        prefix = f"{field}." if field else ""
        for key in required:
            if key not in value:
                raise Mismatch(f"{prefix}{key} is missing")
        for key, entry in value.items():
            NAME(key, f"a name in {field or 'the document'}")
            rule = known.get(key, others)
            if rule is None:
                raise Mismatch(f"{prefix}{key} is not a field of this schema")
            rule(entry, f"{prefix}{key}")

    return check


def either(*choices: Check) -> Check:
    """Accept what any of `choices` accepts; tell the last one's reason otherwise."""

    def check(value: Any, field: str) -> None:
        for choice in choices[:-1]:
            try:
                return choice(value, field)
            except Mismatch:
                continue
        return choices[-1](value, field)

    return check


TEXT = text()
NAME = text(r"[a-z][a-z0-9_]{0,63}", "a lower-case name")

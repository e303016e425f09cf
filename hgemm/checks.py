"""Checks of values that were read from JSON. A document's schema is a table of checks, and each check knows its JSON schema."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Test = Callable[[Any, str], None]
"""Takes a value and its field name. Raises Mismatch if the value is invalid."""
JsonSchema = dict[str, Any]

MAX_INTEGER = 2**63 - 1
MAX_DEPTH = 8


class Mismatch(Exception):
    """An invalid field: its name and what was expected."""


@dataclass(frozen=True)
class Check:
    """A test of values, and the JSON schema of the values that pass.

    The schema accepts more than the test in three cases: text that is not printable, 1.0 as an integer, and the inner values of
    `plain`.
    """

    test: Test
    schema: JsonSchema

    def __call__(self, value: Any, field: str) -> None:
        self.test(value, field)

    def about(self, description: str, unit: str = "", **annotations: Any) -> Check:
        """Return the same check with a description of its field, the unit of the values, and further annotations."""
        units = {"x-unit": unit} if unit else {}
        return Check(self.test, {**self.schema, "description": description, **units, **annotations})


def check(schema: JsonSchema) -> Callable[[Test], Check]:
    """Decorate a test with the JSON schema of the values that pass."""
    return lambda test: Check(test, schema)


def reject(field: str, expected: str, value: Any) -> None:
    """Raise Mismatch for a value of a field."""
    raise Mismatch(f"{field} must be {expected}, not {ascii(value)[:60]}")


# ==== Scalars ====


_MAX_REMEMBERED, _MAX_WORD = 4096, 32
"""Limits of the accepted values that a check remembers: their number, and the length of a text."""


def text(pattern: str = ".{0,4096}", expected: str = "printable text") -> Check:
    """Accept printable text that fully matches `pattern`. Short ones are remembered: records have most words in common."""
    compiled = re.compile(pattern, re.ASCII)
    accepted: set[str] = set()

    @check({"type": "string", "pattern": f"^(?:{pattern})$"})
    def test(value: Any, field: str) -> None:
        if type(value) is not str:
            reject(field, expected, value)
        if value in accepted:
            return
        if not value.isprintable() or not compiled.fullmatch(value):
            reject(field, expected, value)
        if len(value) <= _MAX_WORD and len(accepted) < _MAX_REMEMBERED:
            accepted.add(value)

    return test


def integer(low: int = 0, high: int = MAX_INTEGER) -> Check:
    """Accept an integer from `low` to `high`, but no bool."""

    @check({"type": "integer", "minimum": low, "maximum": high} if low < high else {"const": low})
    def test(value: Any, field: str) -> None:
        if type(value) is not int or not low <= value <= high:
            reject(field, f"a whole number from {low} to {high}", value)

    return test


def multiple_of(factor: int, low: int, high: int) -> Check:
    """Accept an integer from `low` to `high` that is a multiple of `factor`, but no bool."""

    @check({"type": "integer", "minimum": low, "maximum": high, "multipleOf": factor})
    def test(value: Any, field: str) -> None:
        if type(value) is not int or not low <= value <= high or value % factor:
            reject(field, f"a multiple of {factor} from {low} to {high}", value)

    return test


def one_of(*values: int | str) -> Check:
    """Accept one of these values."""

    @check({"type": "string" if isinstance(values[0], str) else "integer", "enum": [*values]})
    def test(value: Any, field: str) -> None:
        if type(value) not in (int, str) or value not in values:
            reject(field, f"one of {', '.join(map(str, values))}", value)

    return test


def number(low: float = 0.0, high: float = 1e18) -> Check:
    """Accept a finite number from `low` to `high`."""

    @check({"type": "number", "minimum": low, "maximum": high})
    def test(value: Any, field: str) -> None:
        if type(value) not in (int, float) or not math.isfinite(value) or not low <= value <= high:
            reject(field, f"a number from {low:g} to {high:g}", value)

    return test


TEXT = text()
NAME = text(r"[a-z][a-z0-9_]{0,63}", "a lower-case name")
_ANY_NUMBER = number(low=-1e18)


@check({"type": "null"})
def null(value: Any, field: str) -> None:
    if value is not None:
        reject(field, "null", value)


@check({"type": "boolean"})
def boolean(value: Any, field: str) -> None:
    if type(value) is not bool:
        reject(field, "true or false", value)


_SCALAR_TYPES = frozenset((str, int, float, bool))


@check({"anyOf": [TEXT.schema, _ANY_NUMBER.schema, boolean.schema]})
def scalar(value: Any, field: str) -> None:
    if type(value) is str:
        TEXT.test(value, field)
    elif type(value) is not bool:
        _ANY_NUMBER.test(value, field)


# ==== Containers ====


@check({"anyOf": [scalar.schema, null.schema, {"type": ["array", "object"]}]})
def plain(value: Any, field: str) -> None:
    """Accept any JSON value that is finite, printable and nested at most MAX_DEPTH deep."""
    _check_plain(value, field, 0)


def _check_plain(value: Any, field: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        reject(field, f"nested at most {MAX_DEPTH} deep", "...")
    if type(value) is dict:
        for name, item in value.items():
            TEXT.test(name, f"a name in {field}")
            _check_plain(item, f"{field}.{name}", depth + 1)
    elif type(value) is list:
        for item in value:
            _check_plain(item, f"{field}[]", depth + 1)
    elif value is not None:
        scalar.test(value, field)


def list_of(item: Check, length: int | None = None) -> Check:
    """Accept a list whose items `item` accepts, of `length` items if given."""
    lengths = {} if length is None else {"minItems": length, "maxItems": length}

    @check({"type": "array", "items": item.schema, **lengths})
    def test(value: Any, field: str) -> None:
        if type(value) is not list or length not in (None, len(value)):
            reject(field, "a list" if length is None else f"a list of {length}", value)
        for position, entry in enumerate(value):
            item.test(entry, f"{field}[{position}]")

    return test


def map_of(name: Check, item: Check) -> Check:
    """Accept an object whose names `name` accepts and whose values `item` accepts.

    Accepted pairs of texts or scalars are remembered, because the kernels of a library have most of them in common.
    """
    accepted: set[tuple[str, type, Any]] = set()  # with the type, because 1 == True
    remembers = item is scalar or item.schema.get("type") == "string"

    @check({"type": "object", "propertyNames": name.schema, "additionalProperties": item.schema})
    def test(value: Any, field: str) -> None:
        if type(value) is not dict:
            reject(field, "an object", value)
        entries = value.values()
        if remembers and _SCALAR_TYPES.issuperset(map(type, entries)):
            if accepted.issuperset(zip(value, map(type, entries), entries)):
                return
        for key, entry in value.items():
            name.test(key, f"a name in {field}")
            item.test(entry, f"{field}.{key}")
        if remembers and len(value) <= _MAX_REMEMBERED:
            if len(accepted) + len(value) > _MAX_REMEMBERED:
                accepted.clear()
            accepted.update(zip(value, map(type, entries), entries))

    return test


def fields(
    required: Mapping[str, Check],
    others: Check | None = None,
    optional: Mapping[str, Check] | None = None,
    names: Check = NAME,
) -> Check:
    """Accept an object with all required fields, and any of the optional ones.

    `others` checks further fields, whose names `names` accepts. Without `others` they are rejected.
    """
    known = {**required, **(optional or {})}
    tests = {name: rule.test for name, rule in known.items()}
    other_test = others.test if others else None
    paths = {"": {name: name for name in known}}

    @check(_object_schema(known, required, others, names))
    def test(value: Any, field: str) -> None:
        if type(value) is not dict:
            reject(field or "the document", "an object", value)
        prefix = f"{field}." if field else ""
        for key in required:
            if key not in value:
                raise Mismatch(f"{prefix}{key} is missing")
        named = paths.get(field)
        if named is None:  # the paths of fields are the same in most documents
            named = {name: f"{prefix}{name}" for name in known}
            if len(paths) < _MAX_REMEMBERED:
                paths[field] = named
        for key, entry in value.items():
            rule = tests.get(key)
            if rule is not None:
                rule(entry, named[key])
                continue
            names.test(key, f"a name in {field or 'the document'}")
            if other_test is None:
                raise Mismatch(f"{prefix}{key} is not a field of this schema")
            other_test(entry, f"{prefix}{key}")

    return test


def _object_schema(
    known: Mapping[str, Check], required: Iterable[str], others: Check | None, names: Check
) -> JsonSchema:
    further = {"propertyNames": names.schema, "additionalProperties": others.schema} if others else {}
    return {
        "type": "object",
        "properties": {name: rule.schema for name, rule in known.items()},
        "required": [*required],
        **(further or {"additionalProperties": False}),
    }


def either(*choices: Check) -> Check:
    """Accept what any of `choices` accepts. Otherwise report the error of the last one."""

    @check({"anyOf": [choice.schema for choice in choices]})
    def test(value: Any, field: str) -> None:
        for choice in choices[:-1]:
            try:
                return choice.test(value, field)
            except Mismatch:
                continue
        return choices[-1].test(value, field)

    return test

"""Conditions on a flat record: a tree that becomes SQL with bound parameters only, or is asked in Python.

Both give the same answer. A field that a record lacks is equal to nothing and orders with nothing; numbers and texts
order among themselves only; a field alone says that it is a number other than zero.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hgemm.record import Scalar

_OPERATORS = {"<": operator.lt, "<=": operator.le, "=": operator.eq, ">=": operator.ge, ">": operator.gt}
_FACT = "EXISTS (SELECT 1 FROM facts WHERE facts.variant = variants.id AND facts.name = ? AND "


@dataclass(frozen=True)
class Literal:
    """A value as it was written and, where it reads as one, as a number."""

    text: str
    number: int | float | None = None


@dataclass(frozen=True)
class Compare:
    """`field op literal`, with `op` one of < <= = >= >."""

    field: str
    op: str
    value: Literal


@dataclass(frozen=True)
class Like:
    """`field like 'a*b'`: the text matches whole, * stands for any characters and ? for one."""

    field: str
    pattern: str


@dataclass(frozen=True)
class Truth:
    """A field alone: a number other than zero, or true."""

    field: str


@dataclass(frozen=True)
class Not:
    item: Node


@dataclass(frozen=True)
class Every:
    """All of `items`; of none, true."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Some:
    """Any of `items`; of none, false."""

    items: tuple[Node, ...]


Node = Compare | Like | Truth | Not | Every | Some
EVERYTHING = Every(())
"""The condition that every record meets."""

Sql = tuple[str, tuple[Scalar, ...]]


def any_like(fields: tuple[str, ...], patterns: tuple[str, ...]) -> Node:
    """Return the condition that one of the fields is like one of the patterns."""
    return Some(tuple(Like(field, pattern) for field in fields for pattern in patterns))


def matches(node: Node, flat: Mapping[str, Scalar]) -> bool:
    """Tell whether a flat record meets a condition."""
    if isinstance(node, Every):
        return all(matches(item, flat) for item in node.items)
    if isinstance(node, Some):
        return any(matches(item, flat) for item in node.items)
    if isinstance(node, Not):
        return not matches(node.item, flat)
    value = flat.get(node.field)
    if value is None:
        return False
    if isinstance(node, Truth):
        return not isinstance(value, str) and value != 0
    if isinstance(node, Like):
        return isinstance(value, str) and fnmatch.fnmatchcase(value, _glob(node.pattern))
    return _compares(value, node.op, node.value)


def _compares(value: Scalar, op: str, literal: Literal) -> bool:
    if not isinstance(value, str):
        return literal.number is not None and _OPERATORS[op](value, literal.number)
    if op != "=" and literal.number is not None:
        return False
    return _OPERATORS[op](value, literal.text)


def to_sql(node: Node) -> Sql:
    """Return the condition as an SQL expression over `variants`, and its parameters."""
    if isinstance(node, (Every, Some)):
        parts = [to_sql(item) for item in node.items]
        joined = (" AND " if isinstance(node, Every) else " OR ").join(f"({sql})" for sql, _ in parts)
        empty = "1" if isinstance(node, Every) else "0"
        return joined or empty, tuple(value for _, values in parts for value in values)
    if isinstance(node, Not):
        sql, values = to_sql(node.item)
        return f"NOT ({sql})", values
    if isinstance(node, Truth):
        return _FACT + "typeof(value) <> 'text' AND value <> 0)", (node.field,)
    if isinstance(node, Like):
        return _FACT + "typeof(value) = 'text' AND value GLOB ?)", (node.field, _glob(node.pattern))
    return _compare_to_sql(node)


def _compare_to_sql(node: Compare) -> Sql:
    text, number = node.value.text, node.value.number
    if node.op == "=":
        if number is None:
            return _FACT + "value = ?)", (node.field, text)
        return _FACT + "value IN (?, ?))", (node.field, text, number)
    if node.op not in _OPERATORS:
        raise ValueError(f"no such operator: {node.op}")
    kind = "=" if number is None else "<>"
    return _FACT + f"typeof(value) {kind} 'text' AND value {node.op} ?)", (
        node.field,
        text if number is None else number,
    )


def _glob(pattern: str) -> str:
    """Write a pattern of * and ? for GLOB and fnmatch, to both of which [ is special too."""
    return re.sub(r"\*+", "*", pattern).replace("[", "[[]")

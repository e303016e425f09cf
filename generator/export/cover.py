"""What a library serves on a device and what it does not, and the least set of variants that closes the holes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from generator.arch import ARCHS
from generator.layouts import PIECE_BYTES
from hgemm.dispatch_table import Table
from hgemm.dtypes import DTYPES, in_memory
from hgemm.errors import RequestError
from hgemm.problem import Kind, word_of
from hgemm.selection import Selector
from hgemm.selection_query import SelectionQuery, Target

SORTS = {
    "whole tiles": {"m": 4096, "n": 4096, "k": 4096},
    "ragged": {"m": 4099, "n": 4101, "k": 4103},
    "one row": {"m": 1, "n": 4101, "k": 4103},
    "one column": {"m": 4099, "n": 1, "k": 4103},
    "k of 1": {"m": 4099, "n": 4101, "k": 1},
    "k of 0": {"m": 4099, "n": 4101, "k": 0},
    "batch": {"m": 65, "n": 67, "k": 69, "batch": 3},
}
"""A problem of each sort that variants may be limited to."""
FALLBACK = {"tile": "64x64x32", "schedule": "one_tile"}
"""What a variant that closes a hole has beside the fields that the hole decides: a tile that wastes little of small problems."""


@dataclass(frozen=True)
class Hole:
    """Problems of one kind on one device that no variant serves, without a workspace.

    Fields: `sorts` are those of SORTS, by alignment of all operands in elements; `beta` is whether C is added.
    """

    arch: str
    kind: Kind
    beta: bool
    sorts: dict[int, tuple[str, ...]]

    def request(self) -> dict[str, str]:
        """Return what to generate: one variant that serves all of them, since less alignment serves more."""
        kind, align = self.kind, min(self.sorts)
        sizes = {"a": DTYPES[kind.dtype_a].bytes, "b": DTYPES[kind.dtype_b].bytes, "d": DTYPES[kind.dtype_d].bytes}
        return {
            "arch": self.arch,
            "layout": kind.layout,
            "dtype_a": kind.dtype_a,
            "dtype_b": kind.dtype_b,
            "out": kind.dtype_d,
            "acc": kind.acc,
            "bias": kind.bias,
            "activation": kind.activation,
            "beta": "on" if self.beta else "off",
            "align": str(align),
            **{f"align_{name}": str(PIECE_BYTES // size) for name, size in sizes.items() if align * size > PIECE_BYTES},
            **FALLBACK,
        }

    def to_dict(self) -> dict[str, object]:
        """Return the hole as JSON says it."""
        sorts = {str(align): list(sorts) for align, sorts in self.sorts.items()}
        return {"arch": self.arch, "kind": str(self.kind), "beta": self.beta, "sorts": sorts, "request": self.request()}


def kinds_of(
    types: Sequence[str], layouts: Sequence[str], biases: Sequence[str], activations: Sequence[str]
) -> list[Kind]:
    """Return every kind of some types, each written f16 (of A, B and D), tf32 (D is f32) or f16:f32 (of A and B, then of D).

    Raises: RequestError for a word that is unknown.
    """
    found = []
    for text, layout, bias, activation in product(types, layouts, biases, activations):
        dtype, _, dtype_d = text.partition(":")
        if dtype == "f32":
            raise RequestError(f"no kernel multiplies f32 as it is: use {text.replace('f32', 'tf32', 1)}")
        found.append(Kind(layout, dtype, dtype, dtype_d or in_memory(dtype), "f32", bias, activation))
    return found


def promised_types(table: Table) -> list[str]:
    """Return the types that a library is asked for where nobody says: f16 and bf16, and tf32 where it has any of it."""
    there = {word_of(group.kind, "dtype_a") for group in table.groups}
    return ["f16", "bf16", *(["tf32"] if "tf32" in there else [])]


def holes(
    table: Table, archs: Iterable[str], kinds: Sequence[Kind], aligns: Sequence[int], beta: bool
) -> Iterator[Hole]:
    """Yield what a library does not serve on a common GPU of each architecture, of what that can compute.

    Raises: RequestError for an architecture that is unknown.
    """
    for arch in archs:
        selector = Selector(table, Target.typical(arch))
        for kind in filter(partial(computes, arch), kinds):
            missing = {align: tuple(_unserved(selector, kind, align, beta)) for align in aligns}
            missing = {align: sorts for align, sorts in missing.items() if sorts}
            if missing:
                yield Hole(selector.target.name, kind, beta, missing)


def computes(arch: str, kind: Kind) -> bool:
    """Tell whether an architecture has tensor instructions for a kind's inputs."""
    return kind.dtype_a == "f16" or ARCHS[arch].has_bf16


def _unserved(selector: Selector, kind: Kind, align: int, beta: bool) -> Iterator[str]:
    for sort, extents in SORTS.items():
        wanted = SelectionQuery(kind, **extents, beta=beta, align_a=align, align_b=align, align_d=align)
        if selector.find(wanted) is None:
            yield sort

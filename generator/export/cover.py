"""Coverage: the problems that no kernel of a library supports, and the kernels to generate for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import product

from generator.arch import ARCHS
from generator.build.pipeline import Settings, make
from generator.errors import LibraryError
from generator.layouts import VECTOR_BYTES
from generator.sweep import sweep
from hgemm.dispatch_table import DispatchTable
from hgemm.dtypes import DTYPES, stored_dtype
from hgemm.errors import RequestError
from hgemm.problem import Kind, kind_word
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
"""One problem of each sort. Kernels may support some sorts only."""
FALLBACK = {"tile": "64x64x32", "schedule": "one_tile"}
"""Further fields of a kernel that closes a hole. The small tile wastes little on small problems."""


@dataclass(frozen=True)
class Hole:
    """Problems of one kind on one architecture that no kernel supports without a workspace.

    Fields: `sorts` holds the missing names of SORTS, by the alignment of all operands in elements; `beta` tells whether C is
        added.
    """

    arch: str
    kind: Kind
    beta: bool
    sorts: dict[int, tuple[str, ...]]

    def request(self) -> dict[str, str]:
        """Return the fields of a kernel that supports all of these problems: its alignment is the smallest of the hole."""
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
            **{
                f"align_{name}": str(VECTOR_BYTES // size)
                for name, size in sizes.items()
                if align * size > VECTOR_BYTES
            },
            **FALLBACK,
        }

    def to_dict(self) -> dict[str, object]:
        """Return the hole as JSON."""
        sorts = {str(align): list(sorts) for align, sorts in self.sorts.items()}
        return {"arch": self.arch, "kind": str(self.kind), "beta": self.beta, "sorts": sorts, "request": self.request()}


def kinds_of(
    types: Sequence[str], layouts: Sequence[str], biases: Sequence[str], activations: Sequence[str]
) -> list[Kind]:
    """Return all combinations of types, layouts, biases and activations.

    A type is `f16` (A, B and D), `tf32` (A and B; D is f32) or `f16:f32` (A and B; D).

    Raises: RequestError for an unknown word.
    """
    found = []
    for text, layout, bias, activation in product(types, layouts, biases, activations):
        dtype, _, dtype_d = text.partition(":")
        if dtype == "f32":
            raise RequestError(f"kernels multiply f32 as tf32 only: use {text.replace('f32', 'tf32', 1)}")
        found.append(Kind(layout, dtype, dtype, dtype_d or stored_dtype(dtype), "f32", bias, activation))
    return found


def promised_types(table: DispatchTable) -> list[str]:
    """Return the default types: f16 and bf16, and tf32 if the library has a kernel for it."""
    there = {kind_word(group.kind, "dtype_a") for group in table.groups}
    return ["f16", "bf16", *(["tf32"] if "tf32" in there else [])]


def holes(
    table: DispatchTable, archs: Iterable[str], kinds: Sequence[Kind], aligns: Sequence[int], beta: bool
) -> Iterator[Hole]:
    """Yield the holes of a library on a typical GPU of each architecture. Types that an architecture lacks are skipped.

    Raises: RequestError for an unknown architecture.
    """
    for arch in archs:
        selector = Selector(table, Target.typical(arch))
        for kind in filter(partial(computes, arch), kinds):
            missing = {align: tuple(_unsupported(selector, kind, align, beta)) for align in aligns}
            missing = {align: sorts for align, sorts in missing.items() if sorts}
            if missing:
                yield Hole(selector.target.name, kind, beta, missing)


def close_holes(missing: Iterable[Hole], settings: Settings, processes: int) -> Iterator[str]:
    """Build one kernel for each hole, and yield its symbol.

    Raises: LibraryError if a kernel cannot be built.
    """
    plans = sweep([hole.request() for hole in missing]).plans
    with closing(make(plans, settings, min(len(plans), processes))) as made:
        for _, outcome in made:
            if outcome.error:
                raise LibraryError(f"cannot build a kernel that closes a hole: {outcome.error}")
            yield outcome.symbol


def computes(arch: str, kind: Kind) -> bool:
    """Tell whether an architecture has tensor instructions for the input types of a kind."""
    return kind.dtype_a == "f16" or ARCHS[arch].has_bf16


def _unsupported(selector: Selector, kind: Kind, align: int, beta: bool) -> Iterator[str]:
    for sort, extents in SORTS.items():
        query = SelectionQuery(kind, **extents, beta=beta, align_a=align, align_b=align, align_d=align)
        if selector.find(query) is None:
            yield sort

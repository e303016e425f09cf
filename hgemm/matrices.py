"""Where the operands of a problem lie, and whether any is in another's way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hgemm.dtypes import DTYPES
from hgemm.facts import Facts
from hgemm.problem import Problem

MAX_BYTES = 2**62


@dataclass(frozen=True)
class Matrix:
    """Where one operand lies: `rows` of `columns` contiguous elements, a leading dimension apart."""

    name: str
    pointer: int
    rows: int
    columns: int
    leading: int
    batch: int
    batch_stride: int
    element_bytes: int
    align: int

    @property
    def end(self) -> int:
        """The address after the last element."""
        last = (self.batch - 1) * self.batch_stride + (self.rows - 1) * self.leading + self.columns
        return self.pointer + last * self.element_bytes

    def complaints(self) -> Iterator[str]:
        name, align_bytes = self.name, self.align * self.element_bytes
        if not self.pointer:
            yield f"{name} has no pointer"
        elif self.pointer % align_bytes:
            yield f"{name} begins at an address that is not a multiple of {align_bytes} B, which the variant needs"
        if self.leading < self.columns:
            yield f"{name}'s leading dimension {self.leading} is less than its {self.columns} contiguous elements"
        elif self.leading % self.align:
            near = -(-self.leading // self.align) * self.align
            yield (
                f"{name}'s leading dimension {self.leading} is not a multiple of {self.align}: "
                f"use {near}, or a variant of less alignment"
            )
        if self.batch > 1 and (self.batch_stride < 0 or self.batch_stride % self.align):
            yield f"{name}'s batch stride {self.batch_stride} is not a multiple of {self.align} from 0 on"
        if self.end - self.pointer > MAX_BYTES:
            yield f"{name} spans {self.end - self.pointer} B, more than there are addresses"


def matrices(problem: Problem, facts: Facts) -> dict[str, Matrix]:
    """Return A, B, D, and C and bias where they are read, as the variant's layout stores them."""
    p = problem
    a_shape = (p.m, p.k) if facts.a_k_major else (p.k, p.m)
    b_shape = (p.n, p.k) if facts.b_k_major else (p.k, p.n)
    bytes_a, bytes_b, bytes_d = (DTYPES[name].bytes for name in (facts.dtype_a, facts.dtype_b, facts.dtype_d))

    def matrix(
        name: str, pointer: int, shape: tuple[int, int], leading: int, stride: int, item: int, align: int
    ) -> Matrix:
        if shape[0] == 1:  # there is no next row: nothing reads the leading dimension
            leading = -(-shape[1] // align) * align
        return Matrix(name, pointer, *shape, leading, p.batch, stride, item, align)

    found = [
        matrix("A", p.a, a_shape, p.lda, p.batch_stride_a, bytes_a, facts.align_a),
        matrix("B", p.b, b_shape, p.ldb, p.batch_stride_b, bytes_b, facts.align_b),
        matrix("D", p.d, (p.m, p.n), p.ldd, p.batch_stride_d, bytes_d, facts.align_d),
    ]
    if facts.beta and p.beta != 0:
        found.append(matrix("C", p.c, (p.m, p.n), p.ldc, p.batch_stride_c, bytes_d, facts.align_d))
    if facts.bias != "none":
        extent = p.n if facts.bias == "row" else p.m
        found.append(Matrix("bias", p.bias, 1, extent, extent, p.batch, p.batch_stride_bias, bytes_d, 1))
    return {matrix.name: matrix for matrix in found}


def overlaps(places: dict[str, Matrix]) -> Iterator[str]:
    """Yield what D would overwrite while it is read. C may be D itself: an element is read before it is written."""
    d = places["D"]
    if not _batches_apart(d):
        yield "D's batches overlap: use a batch stride of whole matrices"
    same = ("pointer", "leading", "batch_stride")
    for name, other in places.items():
        in_place = name == "C" and all(getattr(other, field) == getattr(d, field) for field in same)
        if name != "D" and not in_place and not _apart(d, other):
            yield f"D overlaps {name}"


def _batches_apart(d: Matrix) -> bool:
    one_by_one = d.batch_stride >= (d.rows - 1) * d.leading + d.columns
    side_by_side = d.batch_stride >= d.columns and (d.batch - 1) * d.batch_stride + d.columns <= d.leading
    return d.batch == 1 or one_by_one or side_by_side


def _apart(d: Matrix, other: Matrix) -> bool:
    """Tell whether two matrices share no byte: by their ranges, or as columns of one wide matrix."""
    if d.end <= other.pointer or other.end <= d.pointer:
        return True
    pitch = d.leading * d.element_bytes
    whole = all(m.batch == 1 or m.batch_stride * m.element_bytes % pitch == 0 for m in (d, other))
    if other.leading * other.element_bytes != pitch or not whole:
        return False
    after = (other.pointer - d.pointer) % pitch
    return after >= d.columns * d.element_bytes and pitch - after >= other.columns * other.element_bytes

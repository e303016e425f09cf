"""A device as selection sees it: what it runs, how many SMs it has, and how much shared memory a CTA may take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hgemm.device import Device
from hgemm.dtypes import DTYPES
from hgemm.errors import RequestError
from hgemm.launch_traits import MAX_MAP_STRIDE_BYTES
from hgemm.model.predict import SECTOR_BYTES
from hgemm.octave_grid import Point, point
from hgemm.problem import Kind, Problem

KIB = 1024


@dataclass(frozen=True)
class Target:
    """One GPU by its numbers; it need not be here."""

    capability: tuple[int, int]
    sms: int
    smem_bytes_per_cta: int

    @property
    def number(self) -> int:
        """Return 90 for compute capability 9.0."""
        return self.capability[0] * 10 + self.capability[1]

    @property
    def name(self) -> str:
        return f"sm_{self.number}"

    @classmethod
    def of(cls, device: Device) -> Target:
        """Return a device that is here."""
        return cls(device.capability, device.sms, device.smem_bytes_per_cta)

    @classmethod
    def typical(cls, arch: str, sms: int = 0) -> Target:
        """Return a common GPU of an architecture such as sm_89, or one with so many SMs.

        Raises: RequestError where the architecture is not known.
        """
        number = "".join(digit for digit in arch if digit.isdigit())
        if int(number or 0) not in TYPICAL:
            raise RequestError(f"arch {arch!a} is unknown: use {', '.join(f'sm_{known}' for known in TYPICAL)}")
        usual_sms, smem_kib = TYPICAL[int(number)]
        return cls(divmod(int(number), 10), sms or usual_sms, smem_kib * KIB)


TYPICAL = {
    75: (40, 64),
    80: (108, 163),
    86: (84, 99),
    87: (16, 163),
    88: (16, 99),
    89: (142, 99),
    90: (132, 227),
    100: (148, 227),
    103: (160, 227),
    110: (20, 227),
    120: (170, 99),
    121: (48, 99),
}
"""SMs, and KiB of shared memory a CTA, of T4, A100, A40, Orin, a later one, L40S, H100 and H200, B200, B300, Thor, RTX 5090, GB10.

Source: CUDA Programming Guide 13.x, section 5.1.3, table 31 (shared memory); the products' data sheets (SMs).
"""


# ==== A problem as selection sees it ====


MAX_ALIGN = 8
"""Elements; no variant asks for more."""
ANY_WORKSPACE = 2**62
"""Bytes: as much as a variant asks for."""


@dataclass(frozen=True)
class SelectionQuery:
    """A problem as selection sees it.

    Units: alignments are elements, of pointers, leading dimensions and batch strides together, 1 to 8.
    """

    kind: Kind
    m: int
    n: int
    k: int
    batch: int = 1
    beta: bool = False
    align_a: int = MAX_ALIGN
    align_b: int = MAX_ALIGN
    align_d: int = MAX_ALIGN
    workspace_bytes: int = 0
    mappable: bool = True
    """Whether TMA can address its strides."""
    straddling: int = 0
    """How many of A and B have rows that begin off the sectors of L2."""

    @property
    def point(self) -> Point:
        return point(self.m, self.n, self.k, self.batch)

    @classmethod
    def dense(
        cls, kind: Kind, extents: tuple[int, int, int, int], workspace_bytes: int = ANY_WORKSPACE
    ) -> SelectionQuery:
        """Return the problem of m, n, k and batch whose operands have nothing unused after a row or a matrix."""
        return cls.of(kind, with_dense_strides(Problem(*extents), kind), workspace_bytes)

    @classmethod
    def of(cls, kind: Kind, problem: Problem, workspace_bytes: int = 0) -> SelectionQuery:
        """Read it from a problem; pointers that are null, and A and B where k is 0, are taken to be aligned to anything."""
        p, size = problem, {name: DTYPES[getattr(kind, f"dtype_{name}")].bytes for name in "abd"}
        rows = {
            "a": p.m if kind.layout[0] == "t" else p.k,
            "b": p.n if kind.layout[1] == "n" else p.k,
            "d": p.m,
        }
        leading = {name: getattr(p, f"ld{name}") if rows[name] > 1 else 0 for name in "abd"}
        strides = {name: getattr(p, f"batch_stride_{name}") if p.batch > 1 else 0 for name in "abd"}
        align = {name: _align(getattr(p, name), size[name], leading[name] | strides[name]) for name in "abd"}
        if p.k == 0:
            align["a"] = align["b"] = MAX_ALIGN
        if p.beta:
            ldc, stride = p.ldc if p.m > 1 else 0, p.batch_stride_c if p.batch > 1 else 0
            align["d"] = min(align["d"], _align(p.c, size["d"], ldc | stride))
        widest = max(size[name] * max(leading[name], strides[name]) for name in "abd")
        return cls(
            kind,
            *(p.m, p.n, p.k, p.batch),
            bool(p.beta),
            *(align["a"], align["b"], align["d"]),
            workspace_bytes,
            widest < MAX_MAP_STRIDE_BYTES,
            sum((getattr(p, name) | leading[name] * size[name]) % SECTOR_BYTES > 0 for name in "ab") if p.k else 0,
        )


def _align(pointer: int, element_bytes: int, strides: int) -> int:
    """Return the largest power of 2, up to 8, of elements that a pointer and all of `strides` are multiples of."""
    together = pointer // element_bytes | strides | MAX_ALIGN
    return together & -together


def with_dense_strides(problem: Problem, kind: Kind) -> Problem:
    """Return the problem with leading dimensions, and D's batch stride, of matrices without gaps in the place of zeros."""
    p = problem
    stored = {
        "a": (p.m, p.k) if kind.layout[0] == "t" else (p.k, p.m),
        "b": (p.n, p.k) if kind.layout[1] == "n" else (p.k, p.n),
        "c": (p.m, p.n),
        "d": (p.m, p.n),
    }
    leading = {f"ld{name}": getattr(p, f"ld{name}") or columns for name, (_, columns) in stored.items()}
    filled = replace(p, **leading)
    if p.batch > 1 and not p.batch_stride_d:
        filled = replace(filled, batch_stride_d=p.m * filled.ldd)
    return filled

"""The input of selection: the target device and the query, which is a problem with its alignments and limits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hgemm.device import Device
from hgemm.dtypes import DTYPES, VECTOR_BYTES
from hgemm.epilogue import NONE, Epilogue, Input, Output, pairs_violation
from hgemm.errors import ProblemError, RequestError
from hgemm.gpus import TYPICAL
from hgemm.launch_traits import MAX_MAP_STRIDE_BYTES
from hgemm.model.predict import SECTOR_BYTES
from hgemm.octave_grid import Point, point
from hgemm.problem import Aux, Kind, Problem

# ==== The target device ====

KIB = 1024


@dataclass(frozen=True)
class Target:
    """One GPU by its numbers. It need not be in this machine.

    Fields: `dram_gbytes_per_s` is 0 for the usual speed of DRAM.
    """

    capability: tuple[int, int]
    sms: int
    smem_bytes_per_cta: int
    dram_gbytes_per_s: int = 0

    @property
    def number(self) -> int:
        """The compute capability as one number: 90 for 9.0."""
        return self.capability[0] * 10 + self.capability[1]

    @property
    def name(self) -> str:
        return f"sm_{self.number}"

    @classmethod
    def of(cls, device: Device) -> Target:
        """Return the target of a device in this machine."""
        return cls(device.capability, device.sms, device.smem_bytes_per_cta, device.dram_gbytes_per_s)

    @classmethod
    def typical(cls, arch: str, sms: int = 0) -> Target:
        """Return a common GPU of an architecture such as sm_89, with its own or the given number of SMs.

        Raises: RequestError for an unknown architecture.
        """
        number = "".join(digit for digit in arch if digit.isdigit())
        if int(number or 0) not in TYPICAL:
            raise RequestError(f"arch {arch!a} is unknown: use {', '.join(f'sm_{known}' for known in TYPICAL)}")
        gpu = TYPICAL[int(number)]
        return cls(divmod(int(number), 10), sms or gpu.sms, gpu.smem_kib * KIB)


# ==== The query ====

MAX_ALIGN = 8
"""The largest alignment that a kernel requires. Units: elements."""
ANY_WORKSPACE = 2**62
"""A workspace that is large enough for every kernel. Units: bytes."""


@dataclass(frozen=True)
class SelectionQuery:
    """The properties of a problem that selection depends on.

    Units: alignments are 1 to MAX_ALIGN elements. Each holds for the pointer, the leading dimension and the batch stride.
    Fields: `mappable` is whether TMA supports the strides. `straddling` counts the operands of A and B whose rows do not
        begin on L2 sectors. `expression` is the text of the kind's expression, if known: a kind has its hash only, which
        suffices to select a kernel but not to build one. `align_d_of` is the operand that determines `align_d`: D, C, or a matrix
        of the expression. `batch_invariant` requires one accumulation order for all m and batches. `cublas_order` prefers the order
        of cuBLASLt's unsplit kernels.
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
    straddling: int = 0
    batch_invariant: bool = False
    cublas_order: bool = False
    expression: str = field(default=NONE, compare=False, repr=False)
    align_d_of: str = field(default="D", compare=False, repr=False)

    @property
    def point(self) -> Point:
        """The coordinates on the octave grid."""
        return point(self.m, self.n, self.k, self.batch)

    @classmethod
    def dense(
        cls, kind: Kind, extents: tuple[int, int, int, int], workspace_bytes: int = ANY_WORKSPACE
    ) -> SelectionQuery:
        """Return the query of a problem (m, n, k, batch) whose operands have no gaps."""
        return cls.of(kind, with_dense_strides(Problem(*extents), kind), workspace_bytes)

    @classmethod
    def of(
        cls, kind: Kind, problem: Problem, workspace_bytes: int = 0, epilogue: Epilogue | None = None
    ) -> SelectionQuery:
        """Return the query of a problem. Null pointers, and A and B if k is 0, count as fully aligned.

        The matrices of an expression count as D does. Matrices in pointer arrays count as aligned to 16 bytes.

        Raises: ProblemError if the columns of B are not whole pairs of a gated pair: no kernel multiplies them.
        """
        if violation := pairs_violation(epilogue, problem.n):
            raise ProblemError(violation)
        if kind.pointer_arrays:
            addresses: dict[str, Any] = dict.fromkeys("abcd", 0)
            strides_of: dict[str, Any] = {f"batch_stride_{name}": 0 for name in "abcd"}
            problem = replace(problem, **addresses, **strides_of)
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
        results = {"D": align["d"]}
        if p.beta:
            ldc, stride = p.ldc if p.m > 1 else 0, p.batch_stride_c if p.batch > 1 else 0
            results["C"] = _align(p.c, size["d"], ldc | stride)
        named: tuple[Input | Output, ...] = (*epilogue.operands, *epilogue.outputs) if epilogue else ()
        for one, aux in zip(named, p.aux):
            if one.kind == "matrix":
                results[one.name] = _align_of_input(aux, DTYPES[one.of(kind.dtype_d)].bytes, p)
        least = min(results, key=results.__getitem__)
        widest = max(size[name] * max(leading[name], strides[name]) for name in "abd")
        return cls(
            kind,
            *(p.m, p.n, p.k, p.batch),
            bool(p.beta),
            *(align["a"], align["b"], results[least]),
            workspace_bytes,
            widest < MAX_MAP_STRIDE_BYTES,
            sum((getattr(p, name) | leading[name] * size[name]) % SECTOR_BYTES > 0 for name in "ab") if p.k else 0,
            expression=epilogue.text if epilogue else NONE,
            align_d_of=least,
        )


def _align_of_input(aux: Aux, element_bytes: int, problem: Problem) -> int:
    """Return the alignment of a matrix of an expression, MAX_ALIGN if it is aligned to 16 bytes."""
    leading, stride = (aux.leading if problem.m > 1 else 0), (aux.batch_stride if problem.batch > 1 else 0)
    found = _align(aux.pointer, element_bytes, leading | stride)
    return MAX_ALIGN if found * element_bytes >= VECTOR_BYTES else found


def _align(pointer: int, element_bytes: int, strides: int) -> int:
    """Return the alignment of a pointer and strides: a power of 2, at most MAX_ALIGN elements."""
    together = pointer // element_bytes | strides | MAX_ALIGN
    return together & -together


def with_dense_strides(problem: Problem, kind: Kind) -> Problem:
    """Return the problem with zeros in leading dimensions and D's batch stride replaced by those of dense matrices."""
    p = problem
    stored = {
        "a": (p.m, p.k) if kind.layout[0] == "t" else (p.k, p.m),
        "b": (p.n, p.k) if kind.layout[1] == "n" else (p.k, p.n),
        "c": (p.m, p.n),
        "d": (p.m, p.n),
    }
    leading: dict[str, Any] = {f"ld{name}": getattr(p, f"ld{name}") or columns for name, (_, columns) in stored.items()}
    filled = replace(p, **leading)
    if p.batch > 1 and not p.batch_stride_d:
        filled = replace(filled, batch_stride_d=p.m * filled.ldd)
    return filled

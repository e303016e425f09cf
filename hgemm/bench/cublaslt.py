"""The part of cuBLASLt that a baseline needs, by ctypes: what it proposes for a problem, and running it.

It is column-major. D (m, n) of ours is row-major, which is D^T (n, m) to it: so it is asked for D^T = B^T A^T.
Source: cuBLAS Library 13.x, "Using the cuBLASLt API"; cublasLt.h for the numbers of its enumerations.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hgemm.bench.measure import BASELINE
from hgemm.bench.operands import Dense, Operands, dense
from hgemm.bench.work import Work
from hgemm.device import Device
from hgemm.errors import DeviceError, HgemmError
from hgemm.problem import Problem

WORKSPACE_BYTES = 64 << 20
_SONAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
_DATA = {"f32": 0, "tf32": 0, "f16": 2, "bf16": 14}  # cudaDataType
_COMPUTE = {"f32": 68, "f16_promoted": 68, "f16": 64}  # cublasComputeType_t: 32F and 16F
_COMPUTE_TF32 = 77  # CUBLAS_COMPUTE_32F_FAST_TF32
_TRANSA, _TRANSB = 3, 4  # cublasLtMatmulDescAttributes_t
_BATCH_COUNT, _BATCH_OFFSET = 5, 6  # cublasLtMatrixLayoutAttribute_t
_MAX_WORKSPACE = 1  # cublasLtMatmulPreferenceAttributes_t
_NOTHING_FOUND = 15  # CUBLAS_STATUS_NOT_SUPPORTED

_VOID, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t


class Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: 96 bytes."""

    _fields_ = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", _SIZE),
        ("status", _INT),
        ("waves", ctypes.c_float),
        ("reserved", _INT * 4),
    ]


_SIGNATURES = {
    "cublasLtCreate": [ctypes.POINTER(_VOID)],
    "cublasLtDestroy": [_VOID],
    "cublasLtMatmulDescCreate": [ctypes.POINTER(_VOID), _INT, _INT],
    "cublasLtMatmulDescSetAttribute": [_VOID, _INT, _VOID, _SIZE],
    "cublasLtMatmulDescDestroy": [_VOID],
    "cublasLtMatrixLayoutCreate": [ctypes.POINTER(_VOID), _INT, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64],
    "cublasLtMatrixLayoutSetAttribute": [_VOID, _INT, _VOID, _SIZE],
    "cublasLtMatrixLayoutDestroy": [_VOID],
    "cublasLtMatmulPreferenceCreate": [ctypes.POINTER(_VOID)],
    "cublasLtMatmulPreferenceSetAttribute": [_VOID, _INT, _VOID, _SIZE],
    "cublasLtMatmulPreferenceDestroy": [_VOID],
    "cublasLtMatmulAlgoGetHeuristic": [*[_VOID] * 7, _INT, ctypes.POINTER(Heuristic), ctypes.POINTER(_INT)],
    # handle, operation, alpha, A, its layout, B, its layout, beta, C, its layout, D, its layout, algorithm, workspace,
    # its size, stream
    "cublasLtMatmul": [*[_VOID] * 14, _SIZE, _VOID],
}


def find_library() -> str:
    """Return what the loader opens as cuBLASLt: pip's, the toolkit's, or whatever lies on the loader's path."""
    with suppress(Exception):  # an old cuda-bindings has no pathfinder, and every version raises errors of its own
        from cuda.pathfinder import load_nvidia_dynamic_lib

        if path := load_nvidia_dynamic_lib("cublasLt").abs_path:
            return str(path)
    for name in _SONAMES:
        for folder in map(Path, sys.path):
            for path in sorted(folder.glob(f"nvidia/*/lib/{name}")):
                return str(path)
    return _SONAMES[0]


class CublasLt:
    """The library on a device whose context is the thread's, with a workspace of 64 MiB."""

    def __init__(self, device: Device) -> None:
        path = find_library()
        try:
            self.library = ctypes.CDLL(path)
        except OSError as error:
            raise DeviceError(f"no cuBLASLt for the baseline ({error}): pip install nvidia-cublas") from None
        for name, arguments in _SIGNATURES.items():
            function = getattr(self.library, name)
            function.argtypes, function.restype = arguments, _INT
        self.library.cublasLtGetVersion.restype = _SIZE
        number = int(self.library.cublasLtGetVersion())
        self.name = f"cuBLASLt {number // 10000}.{number // 100 % 100}.{number % 100}"
        self.handle = self._made("cublasLtCreate")
        self.device, self.workspace = device, device.allocate(WORKSPACE_BYTES)

    def free(self) -> None:
        self.device.free(self.workspace)
        self.ok("cublasLtDestroy", self.handle)

    def propose(self, work: Work, count: int) -> Proposals:
        """Return what the heuristic answers for a problem, at most `count` algorithms."""
        return Proposals(self, work, count)

    def ok(self, call: str, *arguments: object) -> None:
        """Call a function. Raises CublasError where it returns another status than 0."""
        status = getattr(self.library, call)(*arguments)
        if status:
            raise CublasError(call, status)

    def _made(self, call: str, *arguments: object) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.ok(call, ctypes.byref(made), *arguments)
        return made

    def _set(self, call: str, thing: ctypes.c_void_p, attribute: int, packed: bytes) -> None:
        self.ok(call, thing, attribute, packed, len(packed))

    def layout(self, place: Dense) -> ctypes.c_void_p:
        """Describe a matrix as it is stored: our rows of contiguous elements are its columns."""
        made = self._made("cublasLtMatrixLayoutCreate", _DATA[place.dtype], place.columns, place.rows, place.columns)
        if place.batch > 1:
            self._set("cublasLtMatrixLayoutSetAttribute", made, _BATCH_COUNT, struct.pack("<i", place.batch))
            self._set("cublasLtMatrixLayoutSetAttribute", made, _BATCH_OFFSET, struct.pack("<q", place.stride))
        return made

    def operation(self, work: Work) -> ctypes.c_void_p:
        """Describe D^T = op(B) op(A): each is transposed where its rows, as stored, are not those of the product."""
        scale = "f16" if work.acc == "f16" else "f32"
        compute = _COMPUTE_TF32 if work.dtype_a == "tf32" else _COMPUTE[work.acc]
        made = self._made("cublasLtMatmulDescCreate", compute, _DATA[scale])
        for attribute, transposed in ((_TRANSA, work.layout[1] == "n"), (_TRANSB, work.layout[0] == "n")):
            self._set("cublasLtMatmulDescSetAttribute", made, attribute, struct.pack("<i", int(transposed)))
        return made

    def preference(self) -> ctypes.c_void_p:
        made = self._made("cublasLtMatmulPreferenceCreate")
        packed = struct.pack("<Q", WORKSPACE_BYTES)
        self._set("cublasLtMatmulPreferenceSetAttribute", made, _MAX_WORKSPACE, packed)
        return made


class CublasError(HgemmError):
    """A status of cuBLASLt."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(f"{call} returned status {status}")
        self.status = status


class Proposals:
    """What cuBLASLt proposes for a problem, its best guess first; there may be nothing."""

    def __init__(self, lt: CublasLt, work: Work, count: int) -> None:
        self.lt = lt
        self.operation = lt.operation(work)
        self.layouts: dict[str, ctypes.c_void_p] = {}
        self.one, self.zero = (struct.pack("<e" if work.acc == "f16" else "<f", value) for value in (1.0, 0.0))
        try:
            for name, place in dense(work).items():
                self.layouts[name] = lt.layout(place)
            self.contenders = [Proposal(self, one, at) for at, one in enumerate(self._ask(count))]
        except CublasError:
            self.free()
            raise

    def _ask(self, count: int) -> list[Heuristic]:
        found, returned, lay = (Heuristic * count)(), ctypes.c_int(), self.layouts
        preference = self.lt.preference()
        described = (self.lt.handle, self.operation, lay["b"], lay["a"], lay["d"], lay["d"], preference)
        try:
            self.lt.ok("cublasLtMatmulAlgoGetHeuristic", *described, count, found, ctypes.byref(returned))
        except CublasError as error:
            if error.status != _NOTHING_FOUND:
                raise
        finally:
            self.lt.ok("cublasLtMatmulPreferenceDestroy", preference)
        return [one for one in found[: returned.value] if one.status == 0]

    def bind(self, algorithm: Heuristic, problem: Problem, stream: int) -> Callable[[], None]:
        """Return what launches one proposal on a problem's addresses. Raises CublasError when it is refused."""
        lay, lt = self.layouts, self.lt
        arguments = (lt.handle, self.operation, self.one, problem.b, lay["b"], problem.a, lay["a"], self.zero)
        arguments += (problem.d, lay["d"], problem.d, lay["d"], ctypes.byref(algorithm), lt.workspace)
        return lambda: lt.ok("cublasLtMatmul", *arguments, WORKSPACE_BYTES, stream)

    def free(self) -> None:
        for layout in self.layouts.values():
            self.lt.ok("cublasLtMatrixLayoutDestroy", layout)
        self.lt.ok("cublasLtMatmulDescDestroy", self.operation)


@dataclass
class Proposal:
    """One algorithm that cuBLASLt proposes; number 0 is its first guess."""

    proposals: Proposals
    algorithm: Heuristic
    number: int
    side: str = BASELINE

    @property
    def name(self) -> str:
        return f"cublaslt#{self.number}"

    def bind(self, operands: Operands, stream: int) -> list[Callable[[], None]]:
        sets = range(operands.sets)
        return [self.proposals.bind(self.algorithm, operands.problem(at), stream) for at in sets]

    def free(self) -> None:
        pass

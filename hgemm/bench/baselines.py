"""The libraries that the benchmark compares with: cuBLASLt and torch.matmul.

cuBLASLt's heuristic is queried, and its algorithms are launched through ctypes. cuBLASLt is column-major. A row-major D (m, n) is
a column-major D^T (n, m), so cuBLASLt computes D^T = B^T A^T.
Source: cuBLAS Library 13.x, "Using the cuBLASLt API"; enumeration values from cublasLt.h.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hgemm.bench.measure import BASELINE
from hgemm.bench.operands import Dense, Operands, dense
from hgemm.bench.work import Work
from hgemm.device import Device
from hgemm.dtypes import DTYPES, stored_dtype
from hgemm.errors import DeviceError, HgemmError, UnsupportedError
from hgemm.problem import Problem

WORKSPACE_BYTES = 64 << 20
_SONAMES = ("libcublasLt.so.13", "libcublasLt.so.12")
_DATA = {"f32": 0, "tf32": 0, "f16": 2, "bf16": 14}  # cudaDataType
_COMPUTE = {"f32": 68, "f16_promoted": 68, "f16": 64}  # cublasComputeType_t: 32F and 16F
_COMPUTE_TF32 = 77  # CUBLAS_COMPUTE_32F_FAST_TF32
_TRANSA, _TRANSB = 3, 4  # cublasLtMatmulDescAttributes_t
_EPILOGUE, _BIAS_POINTER = 7, 8
_BATCH_COUNT, _BATCH_OFFSET = 5, 6  # cublasLtMatrixLayoutAttribute_t
_MAX_WORKSPACE = 1  # cublasLtMatmulPreferenceAttributes_t
_EPILOGUES = {"none": 1, "relu": 2, "gelu": 32}  # cublasLtEpilogue_t; its gelu is the approximation with tanh
_EPILOGUE_BIAS = 4
_NOT_SUPPORTED = 15  # CUBLAS_STATUS_NOT_SUPPORTED

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
    # handle, operation, alpha, A, layout of A, B, layout of B, beta, C, layout of C, D, layout of D, algorithm,
    # workspace, workspace size, stream
    "cublasLtMatmul": [*[_VOID] * 14, _SIZE, _VOID],
}


def find_library() -> str:
    """Return the path or name of cuBLASLt for the loader: from cuda-pathfinder, from pip, else the default name."""
    with suppress(Exception):  # old cuda-bindings have no pathfinder; each version raises different errors
        from cuda.pathfinder import load_nvidia_dynamic_lib

        if path := load_nvidia_dynamic_lib("cublasLt").abs_path:
            return str(path)
    for name in _SONAMES:
        for folder in map(Path, sys.path):
            for path in sorted(folder.glob(f"nvidia/*/lib/{name}")):
                return str(path)
    return _SONAMES[0]


class CublasLt:
    """cuBLASLt on a device, with a workspace of 64 MiB. The device's context must be current."""

    def __init__(self, device: Device) -> None:
        path = find_library()
        try:
            self.library = ctypes.CDLL(path)
        except OSError as error:
            raise DeviceError(
                f"cuBLASLt for the baseline cannot be loaded ({error}): pip install nvidia-cublas"
            ) from None
        for name, arguments in _SIGNATURES.items():
            function = getattr(self.library, name)
            function.argtypes, function.restype = arguments, _INT
        self.library.cublasLtGetVersion.restype = _SIZE
        number = int(self.library.cublasLtGetVersion())
        self.name = f"cuBLASLt {number // 10000}.{number // 100 % 100}.{number % 100}"
        self.handle = self._create("cublasLtCreate")
        self.device, self.workspace = device, device.allocate(WORKSPACE_BYTES)

    def free(self) -> None:
        self.device.free(self.workspace)
        self.ok("cublasLtDestroy", self.handle)

    def propose(self, work: Work, count: int, bias: int = 0) -> Proposals:
        """Return the heuristic's algorithms for a problem, at most `count`. `bias` is the address of the bias.

        Raises: UnsupportedError if cuBLASLt has no epilogue for the problem's bias or activation.
        """
        return Proposals(self, work, count, bias)

    def ok(self, call: str, *arguments: object) -> None:
        """Call a function. Raises CublasError if its status is not 0."""
        status = getattr(self.library, call)(*arguments)
        if status:
            raise CublasError(call, status)

    def _create(self, call: str, *arguments: object) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.ok(call, ctypes.byref(made), *arguments)
        return made

    def _set(self, call: str, thing: ctypes.c_void_p, attribute: int, packed: bytes) -> None:
        self.ok(call, thing, attribute, packed, len(packed))

    def layout(self, place: Dense) -> ctypes.c_void_p:
        """Describe a stored matrix. Our contiguous rows are columns to cuBLASLt."""
        made = self._create("cublasLtMatrixLayoutCreate", _DATA[place.dtype], place.columns, place.rows, place.columns)
        if place.batch > 1:
            self._set("cublasLtMatrixLayoutSetAttribute", made, _BATCH_COUNT, struct.pack("<i", place.batch))
            self._set("cublasLtMatrixLayoutSetAttribute", made, _BATCH_OFFSET, struct.pack("<q", place.stride))
        return made

    def operation(self, work: Work, bias: int) -> ctypes.c_void_p:
        """Describe D^T = op(B) op(A) and its epilogue. A bias has one element per row of D^T, which is a column of D."""
        if work.parsed:
            raise UnsupportedError(f"cuBLASLt does not compute {work.parsed.formula}: its time is not measured")
        if work.activation not in _EPILOGUES or work.bias == "column":
            raise UnsupportedError(f"cuBLASLt has no epilogue for{work.epilogue}: its time is not measured")
        scale = "f16" if work.acc == "f16" else "f32"
        compute = _COMPUTE_TF32 if work.dtype_a == "tf32" else _COMPUTE[work.acc]
        made = self._create("cublasLtMatmulDescCreate", compute, _DATA[scale])
        for attribute, transposed in ((_TRANSA, work.layout[1] == "n"), (_TRANSB, work.layout[0] == "n")):
            self._set("cublasLtMatmulDescSetAttribute", made, attribute, struct.pack("<i", int(transposed)))
        if work.epilogue:
            epilogue = _EPILOGUES[work.activation]
            if work.bias == "row":
                epilogue = (epilogue if work.activation != "none" else 0) | _EPILOGUE_BIAS
                self._set("cublasLtMatmulDescSetAttribute", made, _BIAS_POINTER, struct.pack("<Q", bias))
            self._set("cublasLtMatmulDescSetAttribute", made, _EPILOGUE, struct.pack("<I", epilogue))
        return made

    def preference(self) -> ctypes.c_void_p:
        made = self._create("cublasLtMatmulPreferenceCreate")
        packed = struct.pack("<Q", WORKSPACE_BYTES)
        self._set("cublasLtMatmulPreferenceSetAttribute", made, _MAX_WORKSPACE, packed)
        return made


class CublasError(HgemmError):
    """A cuBLASLt call returned an error status."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(f"{call} returned status {status}")
        self.status = status


class Proposals:
    """The algorithms that cuBLASLt proposes for a problem, its first choice first. There may be none."""

    def __init__(self, lt: CublasLt, work: Work, count: int, bias: int) -> None:
        self.lt = lt
        self.operation = lt.operation(work, bias)
        self.layouts: dict[str, ctypes.c_void_p] = {}
        self.one, self.zero = (struct.pack("<e" if work.acc == "f16" else "<f", value) for value in (1.0, 0.0))
        try:
            for name, place in dense(work).items():
                self.layouts[name] = lt.layout(place)
            self.contenders = [Proposal(self, one, at) for at, one in enumerate(self._query_heuristic(count))]
        except CublasError:
            self.free()
            raise

    def _query_heuristic(self, count: int) -> list[Heuristic]:
        found, returned, lay = (Heuristic * count)(), ctypes.c_int(), self.layouts
        preference = self.lt.preference()
        described = (self.lt.handle, self.operation, lay["b"], lay["a"], lay["d"], lay["d"], preference)
        try:
            self.lt.ok("cublasLtMatmulAlgoGetHeuristic", *described, count, found, ctypes.byref(returned))
        except CublasError as error:
            if error.status != _NOT_SUPPORTED:
                raise
        finally:
            self.lt.ok("cublasLtMatmulPreferenceDestroy", preference)
        return [one for one in found[: returned.value] if one.status == 0]

    def bind(self, algorithm: Heuristic, problem: Problem, stream: int) -> Callable[[], None]:
        """Return a function that launches one algorithm on a problem's addresses. It raises CublasError on failure."""
        lay, lt = self.layouts, self.lt
        inputs = (lt.handle, self.operation, self.one, problem.b, lay["b"], problem.a, lay["a"], self.zero)
        rest = (problem.d, lay["d"], problem.d, lay["d"], ctypes.byref(algorithm), lt.workspace)
        return lambda: lt.ok("cublasLtMatmul", *inputs, *rest, WORKSPACE_BYTES, stream)

    def free(self) -> None:
        for layout in self.layouts.values():
            self.lt.ok("cublasLtMatrixLayoutDestroy", layout)
        self.lt.ok("cublasLtMatmulDescDestroy", self.operation)


@dataclass
class Proposal:
    """One proposed algorithm. Number 0 is cuBLASLt's first choice."""

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


# ---- torch.matmul ----------------------------------------------------------------------------------------------------


class TorchError(HgemmError):
    """torch raised an error."""


class Torch:
    """torch on a device. The device's context must be current."""

    def __init__(self, device: Device) -> None:
        try:
            import torch
        except ImportError:
            raise DeviceError("torch is not installed: pip install torch, or use another --baseline") from None
        self.torch, self.device, self.name = torch, device, f"torch {torch.__version__}"

    def propose(self, work: Work, count: int, bias: int = 0) -> TorchMatmul:
        """Return torch's only contender. Raises UnsupportedError for an expression."""
        if work.parsed:
            raise UnsupportedError(f"this baseline does not compute {work.parsed.formula}: its time is not measured")
        return TorchMatmul(self.torch, self.device.ordinal)

    def free(self) -> None:
        pass


@dataclass
class TorchMatmul:
    """Both the proposal and its only contender."""

    torch: Any
    ordinal: int
    name: str = "torch"
    side: str = BASELINE

    @property
    def contenders(self) -> list[TorchMatmul]:
        return [self]

    def bind(self, operands: Operands, stream: int) -> list[Callable[[], None]]:
        """Return a launch for each set. A launch raises TorchError if torch does not support the types."""
        matmul = self.torch.backends.cuda.matmul
        matmul.allow_fp16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction = False
        matmul.allow_fp16_accumulation = operands.work.acc == "f16"
        matmul.allow_tf32 = operands.work.dtype_a == "tf32"
        return [self._launch(operands, at, stream) for at in range(operands.sets)]

    def _launch(self, operands: Operands, at: int, stream: int) -> Callable[[], None]:
        work, torch_stream = operands.work, self.torch.cuda.ExternalStream(stream, device=self.ordinal)
        a, b, d = (self._tensor(operands, name, at) for name in "abd")
        a = a if work.layout[0] == "t" else a.transpose(-1, -2)
        b = b if work.layout[1] == "t" else b.transpose(-1, -2)
        bias = self._bias(operands)
        activate = self._activation(work.activation)

        def launch() -> None:
            try:
                with self.torch.cuda.stream(torch_stream):
                    if bias is not None and d.dim() == 2:
                        self.torch.addmm(bias, a, b, out=d)
                    elif bias is not None:
                        self.torch.baddbmm(bias, a, b, out=d)
                    else:
                        self.torch.matmul(a, b, out=d)
                    activate(d)
            except RuntimeError as error:
                raise TorchError(" ".join(str(error).split())) from None

        return launch

    def _bias(self, operands: Operands) -> Any:
        """Return the bias, None if there is none. Shapes: (n), or (m, 1) for a column bias."""
        count = operands.bias_elements
        if not count:
            return None
        dtype = operands.work.dtype_d
        memory = _Memory(operands.problem(0).bias, count * DTYPES[dtype].bytes)
        bias = self.torch.as_tensor(memory, device=f"cuda:{self.ordinal}").view(self._dtype(dtype))
        return bias if operands.work.bias == "row" else bias.view(count, 1)

    def _activation(self, name: str) -> Callable[[Any], Any]:
        """Return a function that applies an activation in place."""
        aten, functional = self.torch.ops.aten, self.torch.nn.functional
        functions: dict[str, Callable[[Any], Any]] = {
            "none": lambda d: d,
            "relu": self.torch.relu_,
            "gelu": lambda d: aten.gelu.out(d, out=d),
            "silu": lambda d: functional.silu(d, inplace=True),
            "leaky_relu": lambda d: functional.leaky_relu(d, 0.01, inplace=True),
        }
        return functions[name]

    def _dtype(self, dtype: str) -> Any:
        return {"f16": self.torch.float16, "bf16": self.torch.bfloat16, "f32": self.torch.float32}[stored_dtype(dtype)]

    def _tensor(self, operands: Operands, name: str, at: int) -> Any:
        """Return one operand of a set as stored, without a copy. Shapes: (rows, columns), or (batch, rows, columns)."""
        place = operands.places[name]
        pointer = operands.blocks[name] + at * place.pitch * place.item
        memory = _Memory(pointer, place.batch * place.stride * place.item)
        flat = self.torch.as_tensor(memory, device=f"cuda:{self.ordinal}").view(self._dtype(place.dtype))
        shape = (place.rows, place.columns)
        return flat.view(place.batch, *shape) if place.batch > 1 else flat.view(shape)

    def free(self) -> None:
        pass


class _Memory:
    """Device memory as an object that torch can wrap."""

    def __init__(self, pointer: int, size_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "strides": None,
            "version": 3,
        }

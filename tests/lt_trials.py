"""Call the functions of cuBLASLt in libhgemm_blas.so on a driver without a GPU: `lt_trials.py LIBRARY TRIAL FAKE_CUBLAS`.

It prints one line of JSON: for each call a label, the expected result and the result.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator

import numpy as np
from blas_trials import (
    BF16,
    COMPUTE_16F,
    COMPUTE_32F,
    COMPUTE_TF32,
    F16,
    F32,
    INVALID_VALUE,
    N_,
    NOT_INITIALIZED,
    NOT_SUPPORTED,
    SUCCESS,
    Blas,
    C,
    K,
    M,
    N,
    Results,
    T,
    check,
    decoded,
    encoded,
    operands,
    scalar,
)

ALLOC_FAILED = 3
DEFAULT, RELU, BIAS, RELU_BIAS, RELU_AUX, GELU, GELU_BIAS = 1, 2, 4, 6, 130, 32, 36
LAYOUT, OPERATION, PREFERENCE = "MatrixLayout", "MatmulDesc", "MatmulPreference"
TRANSA, TRANSB, EPILOGUE, BIAS_POINTER, BIAS_STRIDE, POINTER_MODE = 3, 4, 7, 8, 10, 2
ORDER, BATCH, STRIDE = 1, 5, 6
WORKSPACE, ALIGNMENT_A, ALIGNMENT_B = 1, 5, 6
RESULT = 96
"""Bytes of cublasLtMatmulHeuristicResult_t: 64 of the algorithm, then the workspace in 8, the state, and the waves."""
ATTRIBUTES = {
    LAYOUT: {0: 4, 1: 4, 2: 8, 3: 8, 4: 8, 5: 4, 6: 8, 7: 8, 8: 4},
    OPERATION: {
        **dict.fromkeys((*range(8), 15, 22, 26, *range(31, 36), 37), 4),
        **dict.fromkeys((8, *range(10, 15), *range(17, 22), 23, 24, 36, 38), 8),
        25: 1,
    },
    PREFERENCE: {0: 4, 1: 8, 3: 4, 5: 4, 6: 4, 7: 4, 8: 4, 9: 4, 12: 8},
}
"""The bytes of each attribute, from the header of cuBLAS 13."""
DEFAULTS = {
    LAYOUT: {0: F16, 1: 0, 2: 4, 3: 5, 4: 6, 5: 1, 6: 0, 7: 0},
    OPERATION: {0: COMPUTE_32F, 1: F32, 2: 0, 3: 0, 6: 2, 7: DEFAULT, 8: 0, 22: -1, 26: -1},
    PREFERENCE: {0: 0, 1: 0, 3: 7, 5: 256, 8: 256, 9: 0, 12: -1},
}


def lt(blas: Blas, name: str, *arguments: object) -> int:
    return blas.call(f"cublasLt{name}", *arguments)


def created(blas: Blas, kind: str, *arguments: object) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    assert lt(blas, f"{kind}Create", ctypes.byref(made), *arguments) == SUCCESS
    return made


def set_(blas: Blas, kind: str, descriptor: ctypes.c_void_p, attribute: int, value: int) -> None:
    bytes_ = ATTRIBUTES[kind][attribute]
    data = (value % (1 << 8 * bytes_)).to_bytes(bytes_, "little")
    assert lt(blas, f"{kind}SetAttribute", descriptor, attribute, data, bytes_) == SUCCESS


class Call:
    """The descriptors and matrices of one product."""

    def __init__(
        self,
        blas: Blas,
        dtype: int = F16,
        out: int | None = None,
        compute: int = COMPUTE_32F,
        trans: tuple[int, int] = (T, N),
        epilogue: int = DEFAULT,
        batch: int = 1,
        bias: np.ndarray | None = None,
    ) -> None:
        self.blas = blas
        self.handle: object = blas.handle
        self.out = dtype if out is None else out
        self.a, self.b, self.product = operands(dtype, *trans, batch=batch)
        self.c, self.d = (
            np.concatenate([encoded(np.full((M, N_), x), self.out).ravel("F")] * batch) for x in (1.0, 9.0)
        )
        self.operation = created(blas, OPERATION, compute, F16 if compute == COMPUTE_16F else F32)
        for attribute, value in ((TRANSA, trans[0]), (TRANSB, trans[1]), (EPILOGUE, epilogue)):
            set_(blas, OPERATION, self.operation, attribute, value)
        if bias is not None:
            self.bias = encoded(bias[:, None], self.out).ravel()
            set_(blas, OPERATION, self.operation, BIAS_POINTER, self.bias.ctypes.data)
        shapes = ((M, K) if trans[0] == N else (K, M), (K, N_) if trans[1] == N else (N_, K), (M, N_), (M, N_))
        self.layouts = [
            created(blas, LAYOUT, of, *shape, shape[0])
            for of, shape in zip((dtype, dtype, self.out, self.out), shapes, strict=True)
        ]
        for layout, shape in zip(self.layouts, shapes, strict=True):
            if batch != 1:
                set_(blas, LAYOUT, layout, BATCH, batch)
                set_(blas, LAYOUT, layout, STRIDE, shape[0] * shape[1])
        self.alpha, self.beta = scalar(0.5, compute), scalar(2.0, compute)
        self.workspace, self.stream = np.zeros(64, np.uint8), 0
        self.algorithm: object = None

    def run(self, **change: object) -> int:
        a, b, c, d = self.layouts
        arguments = {
            "handle": self.handle, "operation": self.operation, "alpha": self.alpha, "a": self.a, "layout_a": a, "b": self.b,
            "layout_b": b, "beta": self.beta, "c": self.c, "layout_c": c, "d": self.d, "layout_d": d,
            "algorithm": self.algorithm, "workspace": None, "bytes": 0, "stream": self.stream,
        }  # fmt: skip
        return lt(self.blas, "Matmul", *(arguments | change).values())

    def heuristic(self, wanted: int = 1, **change: object) -> tuple[int, int, ctypes.Array]:
        count = ctypes.c_int(-5)
        results = ctypes.create_string_buffer(RESULT * max(wanted, 1))
        arguments = {
            "handle": self.handle, "operation": self.operation, "a": self.layouts[0], "b": self.layouts[1],
            "c": self.layouts[2], "d": self.layouts[3], "preference": self.preference(), "wanted": wanted,
            "results": results, "count": ctypes.byref(count),
        }  # fmt: skip
        function = "MatmulAlgoGetHeuristicForStream" if "stream" in change else "MatmulAlgoGetHeuristic"
        return lt(self.blas, function, *(arguments | change).values()), count.value, results

    def preference(self, **values: int) -> ctypes.c_void_p:
        made = created(self.blas, PREFERENCE)
        for attribute, value in {WORKSPACE: 1 << 20, **{int(key[1:]): value for key, value in values.items()}}.items():
            set_(self.blas, PREFERENCE, made, attribute, value)
        return made


def result_of(results: ctypes.Array, at: int = 0) -> tuple[int, int]:
    """Return the workspace and the state of a heuristic result."""
    raw = results.raw[at * RESULT : (at + 1) * RESULT]
    return int.from_bytes(raw[64:72], "little"), int.from_bytes(raw[72:76], "little")


# ---- Products -------------------------------------------------------------------------------------------------------


def expected(call: Call, epilogue: int, beta: float, bias: np.ndarray) -> np.ndarray:
    value = 0.5 * call.product + beta
    if epilogue & BIAS:
        value = value + bias[:, None]
    if epilogue & RELU:
        return np.maximum(value, 0)
    return value * (1 + np.vectorize(math.erf)(value / math.sqrt(2))) / 2 if epilogue & GELU else value


def check_gelu(results: Results, label: str, call: Call, alpha: float, bias: np.ndarray, dtype: int) -> None:
    """Check a product with beta 0 and the gelu by tanh, within a rounding of the result. gelu by erf is not that near."""
    x = alpha * call.product + bias.reshape(-1, M, 1)
    wanted = x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    status = call.run()
    found = decoded(call.d, dtype).reshape(wanted.shape[0], N_, M).transpose(0, 2, 1)
    near = np.abs(found - wanted) <= np.abs(wanted) * (2.0**-10 if dtype == F16 else 2.0**-7) + 1e-6
    results.append((label, [SUCCESS, True], [status, bool(near.all())]))


def lt_products(blas: Blas) -> Results:
    """Layouts, types, epilogues, batches, a D other than C, and scalars in device memory give the right numbers."""
    results: Results = []
    bias = np.arange(M) - 2.0
    types = ((F16, F16, COMPUTE_16F), (F16, F16, COMPUTE_32F), (F16, F32, COMPUTE_32F), (BF16, BF16, COMPUTE_32F))
    exact = ((F32, F32, COMPUTE_TF32), (F32, F32, COMPUTE_32F))
    for (dtype, out, compute), trans in itertools.product((*types, *exact), itertools.product((N, T, C), (N, T))):
        call = Call(blas, dtype, out, compute, trans)
        check(results, f"{dtype} {out} {compute} {trans}", call.run(), call.d, out, expected(call, DEFAULT, 2.0, bias))
    for epilogue, dtype, batch, mode in itertools.product((RELU, BIAS, RELU_BIAS), (F16, BF16), (1, 3), (0, 1)):
        call = Call(blas, dtype, epilogue=epilogue, batch=batch, bias=bias)
        set_(blas, OPERATION, call.operation, POINTER_MODE, mode)
        label = f"epilogue {epilogue} {dtype} batch {batch} mode {mode}"
        check(results, label, call.run(), call.d, dtype, expected(call, epilogue, 2.0, bias))
    call = Call(blas)
    check(results, "in place", call.run(c=call.d), call.d, F16, 0.5 * call.product + 18)
    call = Call(blas)
    call.beta[:] = 0
    check(results, "no C", call.run(c=None), call.d, F16, 0.5 * call.product)
    for epilogue in (GELU, GELU_BIAS):
        call = Call(blas, epilogue=epilogue, bias=bias)
        status, wanted = call.run(), expected(call, epilogue, 2.0, bias)[0].ravel("F")
        close = bool(np.allclose(call.d.astype(np.float64), wanted, rtol=2e-3, atol=2e-3))
        results.append((f"epilogue {epilogue}", [SUCCESS, True], [status, close]))
    for dtype, batch, alpha in itertools.product((F16, BF16), (1, 3), (0.5, 1.0)):
        bias_of_each = np.arange(batch * M) / 4 - 1.0
        call = Call(blas, dtype, epilogue=GELU_BIAS, batch=batch, bias=bias_of_each)
        set_(blas, OPERATION, call.operation, BIAS_STRIDE, M)
        call.beta[:], call.alpha[:] = 0, alpha
        check_gelu(results, f"gelu by tanh {dtype} {batch} {alpha}", call, alpha, bias_of_each, dtype)
    call = Call(blas, batch=3, epilogue=BIAS, bias=np.arange(3 * M) - 7.0)
    set_(blas, OPERATION, call.operation, BIAS_STRIDE, M)
    wanted = 0.5 * call.product + 2 + (np.arange(3 * M) - 7.0).reshape(3, M, 1)
    check(results, "a bias for each product", call.run(), call.d, F16, wanted)
    call = Call(blas)
    handle = ctypes.c_void_p()
    assert lt(blas, "Create", ctypes.byref(handle)) == SUCCESS
    call.handle = handle
    check(results, "a handle of cuBLASLt", call.run(), call.d, F16, 0.5 * call.product + 2)
    results.append(("its end", [SUCCESS, NOT_INITIALIZED], [lt(blas, "Destroy", handle), call.run()]))
    return results


# ---- Statuses -------------------------------------------------------------------------------------------------------


def changed(blas: Blas, kind: str, at: int, attribute: int, value: int) -> Callable[[Call], dict[str, object]]:
    """Change a descriptor of a call: `at` is the number of a layout."""

    def change(call: Call) -> dict[str, object]:
        set_(blas, kind, call.operation if kind == OPERATION else call.layouts[at], attribute, value)
        return {}

    return change


def lt_statuses(blas: Blas) -> Results:
    """Each illegal argument of a product, a heuristic and a check has the status that cuBLASLt documents."""
    results: Results = []
    descriptors = ("operation", "layout_a", "layout_b", "layout_c", "layout_d")
    given: dict[str, tuple[int, Callable[[Call], dict[str, object]]]] = {
        "nothing": (SUCCESS, lambda call: {}),
        "handle": (NOT_INITIALIZED, lambda call: {"handle": None}),
        "foreign handle": (NOT_SUPPORTED, lambda call: {"handle": blas.handle, "operation": np.zeros(64)}),
        "no handle": (NOT_INITIALIZED, lambda call: {"handle": 12345}),
        **{name: (INVALID_VALUE, lambda call, name=name: {name: None}) for name in (*descriptors, "alpha", "beta")},
        **{name: (INVALID_VALUE, lambda call, name=name: {name: None}) for name in ("a", "b", "c", "d")},
    }
    both = {
        "transa": (INVALID_VALUE, changed(blas, OPERATION, 0, TRANSA, 3)),
        "transb": (INVALID_VALUE, changed(blas, OPERATION, 0, TRANSB, -1)),
        "transa that does not match": (INVALID_VALUE, changed(blas, OPERATION, 0, TRANSA, N)),
        "rows of A": (INVALID_VALUE, changed(blas, LAYOUT, 0, 2, K + 1)),
        "columns of B": (INVALID_VALUE, changed(blas, LAYOUT, 1, 3, N_ + 1)),
        "rows of C": (INVALID_VALUE, changed(blas, LAYOUT, 2, 2, M + 1)),
        "columns of D": (INVALID_VALUE, changed(blas, LAYOUT, 3, 3, N_ + 1)),
        **{f"ld of {name}": (INVALID_VALUE, changed(blas, LAYOUT, i, 4, 2)) for i, name in enumerate("ABCD")},
        **{f"batch of {name}": (INVALID_VALUE, changed(blas, LAYOUT, i, BATCH, 2)) for i, name in enumerate("ABCD")},
        "order": (NOT_SUPPORTED, changed(blas, LAYOUT, 0, ORDER, 1)),
        "type of A": (NOT_SUPPORTED, changed(blas, LAYOUT, 0, 0, 3)),
        "type of C": (NOT_SUPPORTED, changed(blas, LAYOUT, 2, 0, F32)),
        "compute type": (NOT_SUPPORTED, changed(blas, OPERATION, 0, 0, 70)),
        "scale type": (NOT_SUPPORTED, changed(blas, OPERATION, 0, 1, F16)),
        "epilogue with aux": (NOT_SUPPORTED, changed(blas, OPERATION, 0, EPILOGUE, RELU_AUX)),
        "a scale of A": (NOT_SUPPORTED, changed(blas, OPERATION, 0, 17, 4096)),
        "a vector of alphas": (NOT_SUPPORTED, changed(blas, OPERATION, 0, POINTER_MODE, 2)),
        "transc": (NOT_SUPPORTED, changed(blas, OPERATION, 0, 5, T)),
    }  # fmt: skip
    for label, (status, change) in {**given, **both}.items():
        call = Call(blas)
        results.append((label, status, call.run(**change(call))))
    call = Call(blas)
    for layout in call.layouts[1:]:
        set_(blas, LAYOUT, layout, 3, 0)
    results.append(("an empty product", [SUCCESS, 9.0], [call.run(), float(call.d.max())]))
    call = Call(blas, epilogue=BIAS)
    results.append(("bias", [INVALID_VALUE, SUCCESS], [call.run(), call.heuristic()[0]]))
    for label, (status, change) in both.items():
        call = Call(blas)
        change(call)
        found = call.heuristic()
        results.append((f"heuristic: {label}", [status, 0], [found[0], found[1]]))
    arguments = ("operation", "a", "b", "c", "d", "preference", "results", "count")
    for name in arguments:
        results.append((f"heuristic: {name}", INVALID_VALUE, Call(blas).heuristic(**{name: None})[0]))
    for status, change in (
        (INVALID_VALUE, {"wanted": 0}),
        (INVALID_VALUE, {"wanted": -1}),
        (NOT_INITIALIZED, {"handle": None}),
        (NOT_INITIALIZED, {"handle": 4096, "operation": np.zeros(64)}),
    ):
        results.append((f"heuristic: {[*change]}", status, Call(blas).heuristic(**change)[0]))
    results += [
        ("create nowhere", INVALID_VALUE, lt(blas, "Create", None)),
        ("destroy nothing", INVALID_VALUE, lt(blas, "Destroy", None)),
        ("destroy what is none", NOT_INITIALIZED, lt(blas, "Destroy", 4096)),
        ("transform without a handle", NOT_INITIALIZED, lt(blas, "MatrixTransform", None, *([None] * 10))),
        ("transform", NOT_SUPPORTED, lt(blas, "MatrixTransform", blas.handle, *([None] * 10))),
        ("identifiers of algorithms", NOT_SUPPORTED, lt(blas, "MatmulAlgoGetIds", blas.handle, *([0] * 9))),
    ]
    return results


# ---- Descriptors and heuristics ---------------------------------------------------------------------------------------


def inits(blas: Blas) -> Iterator[tuple[str, tuple[object, ...], int]]:
    """Yield each kind of descriptor, the arguments that make one, and the bytes that programs have for it."""
    yield LAYOUT, (F16, 4, 5, 6), 64
    yield OPERATION, (COMPUTE_32F, F32), 184  # 256 in the header of cuBLAS 13
    yield PREFERENCE, (), 64


def lt_descriptors(blas: Blas) -> Results:
    """Attributes come back, have defaults and sizes as documented, and survive a copy of the descriptor."""
    results: Results = []
    size = ctypes.c_size_t()
    for kind, arguments, room in inits(blas):
        memory = ctypes.create_string_buffer(b"\xff" * (room + 64), room + 64)
        short = lt(blas, f"{kind}Init_internal", memory, 8, *arguments)
        status = lt(blas, f"{kind}Init_internal", memory, room, *arguments)
        results += [
            (f"{kind} short", [ALLOC_FAILED, SUCCESS], [short, status]),
            (f"{kind} stays inside", b"\xff".hex() * 64, memory.raw[room:].hex()),
            (f"{kind} nowhere", INVALID_VALUE, lt(blas, f"{kind}Init_internal", None, room, *arguments)),
            (f"{kind} created nowhere", INVALID_VALUE, lt(blas, f"{kind}Create", None, *arguments)),
            (f"{kind} none destroyed", SUCCESS, lt(blas, f"{kind}Destroy", None)),
            (f"{kind} destroyed", SUCCESS, lt(blas, f"{kind}Destroy", created(blas, kind, *arguments))),
        ]

        def get(of: object, attribute: int, needed: int, kind: str = kind) -> tuple[int, int]:
            value = ctypes.create_string_buffer(16)
            status = lt(blas, f"{kind}GetAttribute", of, attribute, value, needed, ctypes.byref(size))
            return status, int.from_bytes(value.raw[:needed], "little", signed=True)

        for attribute, value in DEFAULTS[kind].items():
            found = get(memory, attribute, ATTRIBUTES[kind][attribute])
            results.append((f"{kind} {attribute} by default", [SUCCESS, value], [*found]))
        for order, (attribute, needed) in enumerate(ATTRIBUTES[kind].items()):
            value = 3 + order
            data = value.to_bytes(16, "little")
            setter, getter = f"{kind}SetAttribute", f"{kind}GetAttribute"
            label = f"{kind} {attribute}"
            statuses = [
                lt(blas, setter, memory, attribute, data, needed + 1),
                lt(blas, setter, memory, attribute, data, 0),
                lt(blas, setter, memory, attribute, None, needed),
                lt(blas, setter, None, attribute, data, needed),
                lt(blas, getter, memory, attribute, data, needed + 1, None),
                lt(blas, getter, memory, attribute, None, needed, None),
                lt(blas, getter, memory, attribute, None, 0, None),
                lt(blas, getter, None, attribute, data, needed, None),
            ]
            results.append((f"{label} illegal", [INVALID_VALUE] * 8, statuses))
            asked = [lt(blas, getter, memory, attribute, None, 0, ctypes.byref(size)), size.value]
            results.append((f"{label} has a size", [SUCCESS, needed], asked))
            stored = lt(blas, setter, memory, attribute, data, needed)
            alone = lt(blas, getter, memory, attribute, ctypes.create_string_buffer(16), needed, None)
            results.append(
                (
                    f"{label} stored",
                    [SUCCESS, SUCCESS, SUCCESS, value],
                    [stored, alone, *get(memory, attribute, needed)],
                )
            )
        copy = ctypes.create_string_buffer(memory.raw)
        kept = [get(copy, attribute, needed)[1] for attribute, needed in ATTRIBUTES[kind].items()]
        results.append((f"{kind} copied", [3 + order for order in range(len(kept))], kept))
        for attribute in (-1, 9 if kind == OPERATION else 20, 99):
            unknown = lt(blas, f"{kind}SetAttribute", memory, attribute, bytes(16), 4), get(memory, attribute, 4)[0]
            results.append((f"{kind} {attribute} unknown", [INVALID_VALUE] * 2, [*unknown]))
        foreign = ctypes.create_string_buffer(256)
        status = [
            lt(blas, f"{kind}SetAttribute", foreign, 1, bytes(16), 4),
            get(foreign, 1, 4)[0],
            lt(blas, f"{kind}Destroy", foreign),
        ]
        results.append((f"{kind} of nobody", [INVALID_VALUE] * 3, status))
    return results


def lt_heuristics(blas: Blas) -> Results:
    """A heuristic gives one algorithm of ours, with which a product runs, and which can be checked and asked."""
    results: Results = []
    call = Call(blas)
    status, count, found = call.heuristic(4)
    workspace, state = result_of(found)
    results.append(("heuristic", [SUCCESS, 1, SUCCESS, True], [status, count, state, workspace <= 1 << 20]))
    call.algorithm = found
    check(results, "its product", call.run(), call.d, F16, 0.5 * call.product + 2)
    again = ctypes.create_string_buffer(RESULT)
    a, b, c, d = call.layouts
    results.append(
        (
            "its check",
            [SUCCESS, result_of(found)[0]],
            [
                lt(blas, "MatmulAlgoCheck", blas.handle, call.operation, a, b, c, d, found, again),
                result_of(again)[0],
            ],
        )
    )
    status, count, for_stream = call.heuristic(1, stream=48)
    of_stream = lt(blas, "MatmulAlgoCheckForStream", blas.handle, call.operation, a, b, c, d, for_stream, again, 48)
    same = result_of(for_stream) == result_of(found) == result_of(again)
    results.append(("for a stream", [SUCCESS, 1, SUCCESS, True], [status, count, of_stream, same]))
    without = [call.heuristic(stream=48, handle=None)[0], call.heuristic(stream=48, a=None)[0]]
    results.append(("for a stream, illegal", [NOT_INITIALIZED, INVALID_VALUE], without))
    layout = ctypes.c_void_p(1)
    grouped = [
        lt(blas, "GroupedMatrixLayoutCreate", ctypes.byref(layout), F16, 2, None, None, None),
        lt(blas, "GroupedMatrixLayoutCreate", None, F16, 2, None, None, None),
    ]
    results.append(("groups", [NOT_SUPPORTED, INVALID_VALUE, None], [*grouped, layout.value]))
    value, size = ctypes.c_int(-5), ctypes.c_size_t()
    ask = "MatmulAlgoConfigGetAttribute"
    for attribute, needed in ((0, 4), (1, 4), (2, 4), (7, 2), (8, 2)):
        asked = [
            lt(blas, ask, found, attribute, None, 0, ctypes.byref(size)),
            size.value,
            lt(blas, ask, found, attribute, ctypes.byref(value), needed, None),
            lt(blas, ask, found, attribute, ctypes.byref(value), needed + 1, None),
        ]
        results.append((f"attribute {attribute}", [SUCCESS, needed, SUCCESS, INVALID_VALUE], asked))
    illegal = [
        lt(blas, ask, None, 0, ctypes.byref(value), 4, None),
        lt(blas, ask, found, 9, ctypes.byref(value), 4, None),
        lt(blas, "MatmulAlgoConfigSetAttribute", found, 1, bytes(4), 4),
        lt(blas, "MatmulAlgoCapGetAttribute", found, 1, ctypes.byref(value), 4, None),
        lt(blas, "MatmulAlgoCheck", blas.handle, call.operation, a, b, c, d, None, again),
        lt(blas, "MatmulAlgoCheck", blas.handle, call.operation, a, b, c, d, found, None),
    ]
    results.append(("illegal", [INVALID_VALUE] * 6, illegal))
    misaligned = call.heuristic(preference=call.preference(_5=1))
    results.append(("elements between two bytes", INVALID_VALUE, misaligned[0]))
    for label, values in (("another search", {"_0": 1}), ("no reduction", {"_3": 0}), ("no tensor cores", {"_12": 1})):
        found = call.heuristic(preference=call.preference(**values))
        results.append((label, [NOT_SUPPORTED, 0], [found[0], found[1]]))
    blas.library.cublasLtGetVersion.restype = ctypes.c_size_t
    blas.library.cublasLtGetStatusName.restype = ctypes.c_char_p
    major = ctypes.c_int()
    results += [
        ("version", 120000, blas.library.cublasLtGetVersion()),
        ("property", [SUCCESS, 12], [lt(blas, "GetProperty", 0, ctypes.byref(major)), major.value]),
        ("property 3", INVALID_VALUE, lt(blas, "GetProperty", 3, ctypes.byref(major))),
        ("name", "CUBLAS_STATUS_NOT_SUPPORTED", blas.library.cublasLtGetStatusName(15).decode()),
    ]
    return results


# ---- The real cuBLASLt ------------------------------------------------------------------------------------------------


def lt_forwarded(blas: Blas) -> Results:
    """The real cuBLASLt gets what this library does not serve, in descriptors of its own with the same attributes."""
    results: Results = []
    real = ctypes.CDLL(sys.argv[3])
    real.fake_last.restype = ctypes.c_double
    real.fake_seen.restype = ctypes.c_long

    def seen(descriptor: int, attribute: int) -> int:
        return real.fake_seen(descriptor, 1 + attribute)

    handle = ctypes.c_void_p()
    assert lt(blas, "Create", ctypes.byref(handle)) == SUCCESS
    call = Call(blas, epilogue=RELU_AUX, batch=3)
    call.handle = handle
    for attribute, value in ((11, 1 << 40), (12, 128), (13, -128), (22, F16), (25, 1), (31, 2), (38, 77)):
        set_(blas, OPERATION, call.operation, attribute, value)
    set_(blas, LAYOUT, call.layouts[0], ORDER, 2)
    results.append(("no real handle yet", 0, real.fake_lights()))
    call.stream = 64
    status = call.run(workspace=call.workspace, bytes=32)
    results.append(
        ("matmul", [14, 64 + 32 + 2.0, 1, 0], [status, real.fake_last(), real.fake_lights(), real.fake_had_algorithm()])
    )
    wanted = {0: COMPUTE_32F, 1: F32, 3: T, 7: RELU_AUX, 11: 1 << 40, 12: 128, 13: -128, 22: F16, 25: 1, 31: 2, 38: 77}
    results.append(("operation", wanted, {key: seen(0, key) for key in wanted}))
    for at, shape in enumerate(((K, M), (K, N_), (M, N_), (M, N_)), 1):
        attributes = [F16, 2 if at == 1 else 0, *shape, shape[0], 3, shape[0] * shape[1]]
        results.append((f"layout {at}", attributes, [seen(at, key) for key in range(7)]))
    status, count, found = call.heuristic(2)
    results.append(("heuristic", [SUCCESS, 1, 4242], [status, count, result_of(found)[0]]))
    results.append(("preference", [1 << 20, 0], [seen(5, 1), seen(5, 5)]))
    call.algorithm = found
    results.append(("matmul with its algorithm", [14, 1], [call.run(), real.fake_had_algorithm()]))
    again = ctypes.create_string_buffer(RESULT)
    status = lt(blas, "MatmulAlgoCheck", handle, call.operation, *call.layouts, found, again)
    results.append(("check", [SUCCESS, 4343], [status, result_of(again)[0]]))
    value = ctypes.c_int()
    status = lt(blas, "MatmulAlgoConfigGetAttribute", found, 6, ctypes.byref(value), 4, None)
    results.append(("an attribute of its algorithm", [SUCCESS, 706], [status, value.value]))
    a, b, c, _ = call.layouts
    x = np.zeros(8)
    status = lt(blas, "MatrixTransform", handle, x, x, x, a, x, x, b, x, c, 48)
    results.append(("transform", [SUCCESS, 49.0], [status, real.fake_last()]))

    served = Call(blas)
    before = real.fake_calls()
    check(results, "what is served", served.run(), served.d, F16, 0.5 * served.product + 2)
    served = Call(blas, epilogue=GELU_BIAS, bias=np.ones(M))
    served.beta[:] = 0
    check_gelu(results, "gelu by tanh", served, 0.5, np.ones(M), F16)
    results.append(("asked nobody", before, real.fake_calls()))
    served = Call(blas)
    served.algorithm = found
    results.append(("an algorithm of the real library", [14, before + 1], [served.run(), real.fake_calls()]))
    status, count, found = served.heuristic(3)
    states = [status, count, real.fake_results_wanted(), result_of(found)[1], result_of(found, 1)[0]]
    results.append(("ours, then those of the real library", [SUCCESS, 2, 2, SUCCESS, 4242], states))
    set_(blas, OPERATION, served.operation, EPILOGUE, RELU_AUX)
    served.algorithm = found
    results.append(("our algorithm for another product", [14, 0], [served.run(), real.fake_had_algorithm()]))
    for label, changes in (
        ("gelu by tanh", {"epilogue": GELU}),
        ("exact f32", {"dtype": F32}),
        ("i8", {"dtype": F16, "compute": 72}),
    ):
        results.append((label, 14, Call(blas, **changes).run()))
    illegal = Call(blas)
    set_(blas, OPERATION, illegal.operation, TRANSA, 9)
    before = real.fake_calls()
    results.append(("illegal", [INVALID_VALUE, before], [illegal.run(), real.fake_calls()]))
    device = Call(blas)
    set_(blas, OPERATION, device.operation, POINTER_MODE, 1)
    results.append(("scalars in device memory", 14, device.run()))

    rooms = [(ctypes.c_long * 64)() for _ in range(5)]
    real.cublasLtMatmulDescInit_internal(rooms[0], ctypes.c_size_t(512), COMPUTE_32F, F32)
    for room in rooms[1:]:
        real.cublasLtMatrixLayoutInit_internal(room, ctypes.c_size_t(512), F16, *map(ctypes.c_long, (4, 4, 4)))
    foreign = ctypes.c_void_p()
    real.cublasLtCreate(ctypes.byref(foreign))
    call = Call(blas)
    call.handle, call.operation, call.layouts = foreign, rooms[0], rooms[1:]
    results.append(("descriptors of the real library", 14, call.run()))
    value8 = (5).to_bytes(8, "little")
    stored = lt(blas, "MatrixLayoutSetAttribute", rooms[1], 2, value8, 8), rooms[1][3]
    results.append(("an attribute of them", [SUCCESS, 5], [*stored]))
    results.append(("handles", [2, SUCCESS, 1], [real.fake_lights(), lt(blas, "Destroy", foreign), real.fake_lights()]))
    results.append(("destroyed", [SUCCESS, 0], [lt(blas, "Destroy", handle), real.fake_lights()]))
    return results


TRIALS: dict[str, Callable[[Blas], Results]] = {
    "lt_products": lt_products,
    "lt_statuses": lt_statuses,
    "lt_descriptors": lt_descriptors,
    "lt_heuristics": lt_heuristics,
    "lt_forwarded": lt_forwarded,
}

if __name__ == "__main__":
    print(json.dumps(TRIALS[sys.argv[2]](Blas(sys.argv[1]))))

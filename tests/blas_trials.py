"""Call libhgemm_blas.so on a driver without a GPU, in a process of its own: `blas_trials.py LIBRARY TRIAL`.

It prints one line of JSON: for each call a label, the expected result and the result.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import sys
from collections.abc import Callable

import numpy as np

SUCCESS, NOT_INITIALIZED, INVALID_VALUE, NOT_SUPPORTED = 0, 1, 7, 15
N, T, C = 0, 1, 2
F32, F64, F16, I8, BF16 = 0, 1, 2, 3, 14
COMPUTE_16F, COMPUTE_32F, COMPUTE_PEDANTIC, COMPUTE_64F, COMPUTE_TF32 = 64, 68, 69, 70, 77
TF32_MATH = 3
Results = list[tuple[str, object, object]]


class Blas:
    """The library, a handle, and matrices in memory, which the fake GPU shares."""

    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.handle = ctypes.c_void_p()
        assert self.library.cublasCreate_v2(ctypes.byref(self.handle)) == SUCCESS
        self.kept: list[object] = []  # what pointers refer to

    def call(self, name: str, *arguments: object) -> int:
        """Call a function. Arrays are passed by address, and int64 values as such."""
        self.kept = list(arguments)
        return getattr(self.library, name)(*map(as_c, arguments))


def as_c(value: object) -> object:
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.c_longlong(value) if isinstance(value, int) else value


def encoded(x: np.ndarray, dtype: int) -> np.ndarray:
    """Return the matrix in column-major order, in a type of cuBLAS. bf16 is truncated: values here are small integers."""
    x = np.asfortranarray(x)
    if dtype == BF16:
        return np.asfortranarray((x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16))
    return np.asfortranarray(x.astype(np.float16 if dtype == F16 else np.float32))


def decoded(x: np.ndarray, dtype: int) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32) if dtype == BF16 else x.astype(np.float32)


def scalar(value: float, compute: int) -> np.ndarray:
    return np.array([value], np.float16 if compute == COMPUTE_16F else np.float32)


# ---- Products -------------------------------------------------------------------------------------------------------

M, N_, K = 5, 7, 9
COMBINATIONS = (
    (F16, F16, COMPUTE_16F),
    (F16, F16, COMPUTE_32F),
    (F16, F16, COMPUTE_PEDANTIC),
    (F16, F32, COMPUTE_32F),
    (BF16, BF16, COMPUTE_32F),
    (BF16, F32, COMPUTE_32F),
    (F32, F32, COMPUTE_32F),
    (F32, F32, COMPUTE_TF32),
)


def operands(dtype: int, transa: int, transb: int, batch: int = 1, k: int = K) -> tuple[np.ndarray, ...]:
    """Return A and B as stored by batch, column-major, and op(A) op(B) in float64."""
    rng = np.random.default_rng(7)
    a = rng.integers(-3, 4, (batch, *((M, k) if transa == N else (k, M)))).astype(np.float64)
    b = rng.integers(-3, 4, (batch, *((k, N_) if transb == N else (N_, k)))).astype(np.float64)
    product = (a if transa == N else a.transpose(0, 2, 1)) @ (b if transb == N else b.transpose(0, 2, 1))
    stored = [np.concatenate([encoded(one, dtype).ravel("F") for one in x]) for x in (a, b)]
    return (*stored, product)


def check(results: Results, label: str, status: int, c: np.ndarray, dtype: int, wanted: np.ndarray) -> None:
    found = decoded(c, dtype).reshape(wanted.shape[0], N_, M).transpose(0, 2, 1)
    results.append((label, [SUCCESS, True], [status, bool(np.array_equal(found, wanted))]))


def products(blas: Blas) -> Results:
    """Every layout, types, scalars, form and math mode gives the right numbers."""
    results: Results = []
    for mode, (dtype, out, compute), transa, transb, beta in itertools.product(
        (0, TF32_MATH), COMBINATIONS, (N, T, C), (N, T, C), (0.0, 2.0)
    ):
        assert blas.call("cublasSetMathMode", blas.handle, mode) == SUCCESS
        a, b, wanted = operands(dtype, transa, transb)
        start = np.ones((1, M, N_))
        c = encoded(np.ones((M, N_)), out).ravel("F").copy()
        lda, ldb = M if transa == N else K, K if transb == N else N_
        alpha, beta_at = scalar(0.5, compute), scalar(beta, compute)
        for suffix in ("", "_64"):
            c[:] = encoded(np.ones((M, N_)), out).ravel("F")
            status = blas.call(
                f"cublasGemmEx{suffix}", blas.handle, transa, transb, M, N_, K, alpha, a, dtype, lda, b, dtype, ldb, beta_at, c,
                out, M, compute, -1,
            )  # fmt: skip
            label = f"cublasGemmEx{suffix} {dtype} {out} {compute} {transa}{transb} {beta} mode {mode}"
            check(results, label, status, c, out, 0.5 * wanted + beta * start)
    return results


def forms(blas: Blas) -> Results:
    """The other functions, batches, and alpha and beta in device memory."""
    results: Results = []
    for suffix, (dtype, prefix, compute) in itertools.product(
        ("", "_64"), ((F16, "H", COMPUTE_16F), (F32, "S", COMPUTE_32F))
    ):
        a, b, wanted = operands(dtype, T, N, batch=3)
        one, zero = scalar(1, compute), scalar(0, compute)
        c = np.zeros(3 * M * N_, a.dtype)
        size, strides = a.itemsize, (M * K, K * N_, M * N_)
        starts = [(x.ctypes.data, step * size) for x, step in zip((a, b, c), strides, strict=True)]
        pointers = [np.array([first + i * step for i in range(3)], np.uint64) for first, step in starts]
        ex = (dtype,)
        for mode in (0, 1):
            assert blas.call("cublasSetPointerMode_v2", blas.handle, mode) == SUCCESS
            start = (blas.handle, T, N, M, N_, K)
            plain = "cublasSgemm_v2" if prefix == "S" else "cublasHgemm"
            calls: dict[str, tuple] = {
                plain: (*start, one, a, K, b, K, zero, c, M),
                f"cublas{prefix}gemmStridedBatched": (*start, one, a, K, M * K, b, K, K * N_, zero, c, M, M * N_, 3),
                f"cublas{prefix}gemmBatched": (*start, one, pointers[0], K, pointers[1], K, zero, pointers[2], M, 3),
                "cublasGemmStridedBatchedEx": (
                    *start, one, a, *ex, K, M * K, b, *ex, K, K * N_, zero, c, *ex, M, M * N_, 3, compute, 99,
                ),
                "cublasGemmBatchedEx": (
                    *start, one, pointers[0], *ex, K, pointers[1], *ex, K, zero, pointers[2], *ex, M, 3, compute, 0,
                ),
            }  # fmt: skip
            for name, arguments in calls.items():
                c[:] = 0
                status = blas.call(name + suffix, *arguments)
                expected = wanted.copy()
                expected[1 if name == plain else 3 :] = 0
                check(results, f"{name}{suffix} {dtype} mode {mode}", status, c, dtype, expected)
        assert blas.call("cublasSetPointerMode_v2", blas.handle, 0) == SUCCESS
    return results


def pointers(blas: Blas) -> Results:
    """Pointers at constant distances are one launch, also if products share a matrix. Any other pointers give the right numbers."""
    results: Results = []
    launches = ctypes.CDLL("libcuda.so.1").fake_launches
    launches.restype = ctypes.c_long
    sizes = (M * K, K * N_, M * N_)
    orders: dict[str, tuple[int | None, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
        "constant distances": (1, (0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)),
        "every second matrix": (1, (0, 2), (1, 3), (0, 2)),
        "one matrix for all": (1, (1, 1, 1, 1), (0, 1, 2, 3), (0, 1, 2, 3)),
        "one matrix for two": (2, (0, 0, 1, 1), (0, 1, 2, 3), (0, 1, 2, 3)),
        "any order": (None, (3, 1, 0, 2), (0, 2, 1, 3), (1, 0, 3, 2)),
        "backwards": (4, (3, 2, 1, 0), (3, 2, 1, 0), (3, 2, 1, 0)),
        "the same result": (4, (0, 1, 2, 3), (0, 1, 2, 3), (2, 2, 2, 2)),
    }
    for (label, (count, *order)), (dtype, compute) in itertools.product(
        orders.items(), ((F16, COMPUTE_16F), (BF16, COMPUTE_32F), (F32, COMPUTE_32F))
    ):
        a, b, _ = operands(dtype, T, N, batch=4)
        c = np.zeros(4 * M * N_, a.dtype)
        arrays = [
            np.array([x.ctypes.data + i * size * x.itemsize for i in places], np.uint64)
            for x, size, places in zip((a, b, c), sizes, order, strict=True)
        ]
        wanted = np.zeros((4, M, N_))
        factors = decoded(a, dtype).reshape(4, M, K), decoded(b, dtype).reshape(4, N_, K).transpose(0, 2, 1)
        for at_a, at_b, at_c in zip(*order, strict=True):
            wanted[at_c] = factors[0][at_a] @ factors[1][at_b]
        one, zero, before = scalar(1, compute), scalar(0, compute), launches()
        status = blas.call(
            "cublasGemmBatchedEx", blas.handle, T, N, M, N_, K, one, arrays[0], dtype, K, arrays[1], dtype, K, zero,
            arrays[2], dtype, M, len(order[0]), compute, -1,
        )  # fmt: skip
        check(results, f"{label}, {dtype}", status, c, dtype, wanted)
        if count is not None:
            results.append((f"{label}, {dtype}, launches", count, launches() - before))
    return results


def captured(blas: Blas) -> Results:
    """While a graph is captured, one launch reads the arrays of pointers on the GPU, on tensor cores if k is a multiple of 8."""
    results: Results = []
    driver = ctypes.CDLL("libcuda.so.1")
    driver.fake_launches.restype = ctypes.c_long
    stream = ctypes.c_void_p(64)
    assert blas.call("cublasSetStream_v2", blas.handle, stream) == SUCCESS
    for k, (dtype, out, compute), beta in itertools.product((K, 12, 16), COMBINATIONS, (0.0, 2.0)):
        a, b, product = operands(dtype, T, N, batch=3, k=k)
        c = np.concatenate([encoded(np.ones((M, N_)), out).ravel("F")] * 3)
        wanted = 0.5 * product[[2, 0, 1]] + beta
        arrays = [
            np.array([x.ctypes.data + i * size * x.itemsize for i in order], np.uint64)
            for x, size, order in ((a, M * k, (2, 0, 1)), (b, k * N_, (2, 0, 1)), (c, M * N_, (0, 1, 2)))
        ]
        before = driver.fake_launches()
        driver.fake_capture(stream)
        status = blas.call(
            "cublasGemmBatchedEx", blas.handle, T, N, M, N_, k, scalar(0.5, compute), arrays[0], dtype, k, arrays[1], dtype, k,
            scalar(beta, compute), arrays[2], out, M, 3, compute, -1,
        )  # fmt: skip
        driver.fake_capture(None)
        check(results, f"{k} {dtype} {out} {compute} {beta}", status, c, out, wanted)
        results.append((f"{k} {dtype} {out} {compute} {beta}, launches", 1, driver.fake_launches() - before))
    return results


def graphs(blas: Blas) -> Results:
    """A GPU replays graphs that captured products of arrays of pointers. Needs torch."""
    import torch

    results: Results = []
    order, count = [2, 0, 1], 3
    types = (
        (torch.float16, F16, COMPUTE_32F),
        (torch.bfloat16, BF16, COMPUTE_32F),
        (torch.float32, F32, COMPUTE_32F),
        (torch.float32, F32, COMPUTE_TF32),
    )
    for k, (dtype, kind, compute), transa, transb, beta in itertools.product(
        (45, 48), types, (N, T), (N, T), (0.0, 2.0)
    ):
        m, n = 72, 40
        sizes = (m, k) if transa else (k, m), (k, n) if transb else (n, k), (n, m)  # column-major
        a, b, c = (torch.randint(-3, 4, (count, *size), device="cuda").to(dtype) for size in sizes)
        left, right = a if transa else a.transpose(1, 2), b if transb else b.transpose(1, 2)
        wanted = (left[order].double() @ right.double()).transpose(1, 2) + beta * c.double()
        arrays = [
            torch.tensor([x[i].data_ptr() for i in places], device="cuda")
            for x, places in ((a, order), (b, range(count)), (c, range(count)))
        ]
        at_a, at_b, at_c = (ctypes.c_void_p(array.data_ptr()) for array in arrays)
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        blas.call("cublasSetStream_v2", blas.handle, ctypes.c_void_p(stream.cuda_stream))
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            status = blas.call(
                "cublasGemmBatchedEx", blas.handle, transa, transb, m, n, k, scalar(1, COMPUTE_32F), at_a, kind,
                k if transa else m, at_b, kind, n if transb else k, scalar(beta, COMPUTE_32F), at_c, kind, m, count,
                compute, -1,
            )  # fmt: skip
        graph.replay()
        torch.cuda.synchronize()
        right_numbers = bool((c.double() == wanted.to(dtype).double()).all())
        results.append((f"{k} {dtype} {compute} {transa}{transb} {beta}", [SUCCESS, True], [status, right_numbers]))
    return results


def edges(blas: Blas) -> Results:
    """Empty products, k of 0, alpha of 0 over NaN, and strides that only cuBLAS allows."""
    results: Results = []
    a, b, wanted = operands(F32, N, N)
    one, zero, two = scalar(1, COMPUTE_32F), scalar(0, COMPUTE_32F), scalar(2, COMPUTE_32F)
    c = np.ones(M * N_, np.float32)

    def sgemm(m: int, n: int, k: int, alpha: np.ndarray, beta: np.ndarray) -> int:
        return blas.call("cublasSgemm_v2", blas.handle, N, N, m, n, k, alpha, a, M, b, K, beta, c, M)

    for m, n in ((0, N_), (M, 0)):
        results.append((f"m {m} n {n}", [SUCCESS, 1.0], [sgemm(m, n, K, one, zero), float(c.max())]))
    check(results, "k 0", sgemm(M, N_, 0, one, two), c, F32, np.full((1, M, N_), 2.0))
    a[:] = np.nan
    check(results, "alpha 0", sgemm(M, N_, K, zero, two), c, F32, np.full((1, M, N_), 4.0))
    half = np.ones(M * K, np.float16)
    out = np.zeros(M * N_, np.float16)
    arguments = (half, F16, M, -M * K, np.ones(K * N_, np.float16), F16, K, K * N_, zero, out, F16, M, M * N_)
    status = blas.call("cublasGemmStridedBatchedEx", blas.handle, N, N, M, N_, K, one, *arguments, 1, COMPUTE_32F, -1)
    check(results, "a negative stride of one product", status, out, F16, np.full((1, M, N_), float(K)))
    return results


# ---- Statuses -------------------------------------------------------------------------------------------------------


def statuses(blas: Blas) -> Results:
    """Each illegal argument of each product has the status that cuBLAS documents."""
    results: Results = []
    one, a = np.ones(1, np.float32), np.zeros(4096, np.float32)
    pointers = np.full(4, a.ctypes.data, np.uint64)
    wrong: dict[str, tuple[int, dict[str, object]]] = {
        "nothing": (SUCCESS, {}),
        "handle": (NOT_INITIALIZED, {"handle": None}),
        "foreign handle": (NOT_INITIALIZED, {"handle": 12345}),
        "transa": (INVALID_VALUE, {"transa": 3}),
        "transb": (INVALID_VALUE, {"transb": -1}),
        **{f"{name} negative": (INVALID_VALUE, {name: -1}) for name in ("m", "n", "k")},
        "lda": (INVALID_VALUE, {"lda": 3}),
        "lda transposed": (INVALID_VALUE, {"transa": T, "lda": 5}),
        "ldb": (INVALID_VALUE, {"ldb": 5}),
        "ldb transposed": (INVALID_VALUE, {"transb": T, "ldb": 4}),
        "ldc": (INVALID_VALUE, {"ldc": 3}),
        "ldc 0 of an empty product": (INVALID_VALUE, {"m": 0, "ldc": 0}),
        "alpha": (INVALID_VALUE, {"alpha": None}),
        "beta": (INVALID_VALUE, {"beta": None}),
        "count": (INVALID_VALUE, {"count": -1}),
        "no products": (SUCCESS, {"count": 0}),
        "type_a": (INVALID_VALUE, {"type_a": 99}),
        "type_c": (INVALID_VALUE, {"type_c": -1}),
        "compute": (INVALID_VALUE, {"compute": 5}),
        "algorithm": (INVALID_VALUE, {"algorithm": 50}),
        "f64": (NOT_SUPPORTED, {"type_a": F64, "type_b": F64, "type_c": F64, "compute": COMPUTE_64F}),
        "different types": (NOT_SUPPORTED, {"type_a": BF16, "type_b": F16}),
        "f16 sums of f32": (NOT_SUPPORTED, {"compute": COMPUTE_16F, "type_a": F32, "type_b": F32, "type_c": F32}),
        "i8": (NOT_SUPPORTED, {"type_a": I8, "type_b": I8}),
    }  # fmt: skip
    order = {
        "cublasHgemm": "handle transa transb m n k alpha a lda b ldb beta c ldc",
        "cublasSgemm_v2": "handle transa transb m n k alpha a lda b ldb beta c ldc",
        "cublasHgemmStridedBatched": "handle transa transb m n k alpha a lda stride b ldb stride beta c ldc stride count",
        "cublasSgemmStridedBatched": "handle transa transb m n k alpha a lda stride b ldb stride beta c ldc stride count",
        "cublasHgemmBatched": "handle transa transb m n k alpha array lda array ldb beta array ldc count",
        "cublasSgemmBatched": "handle transa transb m n k alpha array lda array ldb beta array ldc count",
        "cublasGemmEx": "handle transa transb m n k alpha a type_a lda b type_b ldb beta c type_c ldc compute algorithm",
        "cublasGemmStridedBatchedEx": "handle transa transb m n k alpha a type_a lda stride b type_b ldb stride beta c type_c "
        "ldc stride count compute algorithm",
        "cublasGemmBatchedEx": "handle transa transb m n k alpha array type_a lda array type_b ldb beta array type_c ldc count "
        "compute algorithm",
    }  # fmt: skip
    usual = {
        "handle": blas.handle, "transa": N, "transb": N, "m": 4, "n": 5, "k": 6, "alpha": one, "beta": one, "lda": 4, "ldb": 6,
        "ldc": 4, "a": a, "b": a[1024:], "c": a[2048:], "array": pointers, "stride": 64, "count": 1, "type_a": F16,
        "type_b": F16, "type_c": F16, "compute": COMPUTE_32F, "algorithm": -1,
    }  # fmt: skip
    three = np.array([a.ctypes.data + 4096 * i for i in range(3)], np.uint64)
    for (name, words), suffix, (label, (status, change)) in itertools.product(
        order.items(), ("", "_64"), wrong.items()
    ):
        if not change.keys() <= {*words.split()}:
            continue
        given = {**usual, **change}
        arrays = itertools.cycle([three[0:], three[1:], three[2:]])
        arguments = [next(arrays) if word == "array" else given[word] for word in words.split()]
        results.append((f"{name}{suffix} {label}", status, blas.call(name + suffix, *arguments)))
    return results


def settings(blas: Blas) -> Results:
    """Setters and getters: values come back, and illegal ones have the documented status."""
    results: Results = []
    value, pointer = ctypes.c_int(-5), ctypes.c_void_p(1)
    call, handle, at = blas.call, blas.handle, ctypes.byref(value)
    for name, good, bad in (
        ("PointerMode{}_v2", (1, 0), (2, -1)),
        ("MathMode{}", (0, 1, 2, 3, 16, 19, 0), (-1, 13, 64)),
        ("AtomicsMode{}", (1, 0), (2,)),
        ("SmCountTarget{}", (1, 132, 0), (-1, 133)),
    ):
        setter, getter = f"cublasSet{name.format('')}", f"cublasGet{name.format('')}"
        for one in good:
            found = [call(setter, handle, one), call(getter, handle, at), value.value]
            results.append((f"{setter} {one}", [SUCCESS, SUCCESS, one], found))
        for one in bad:
            results.append((f"{setter} {one}", INVALID_VALUE, call(setter, handle, one)))
        results += [
            (f"{setter} without a handle", NOT_INITIALIZED, call(setter, None, 0)),
            (f"{getter} without a handle", NOT_INITIALIZED, call(getter, None, at)),
            (f"{getter} without a place", INVALID_VALUE, call(getter, handle, None)),
        ]
    found = [
        call("cublasSetStream_v2", handle, 48),
        call("cublasGetStream_v2", handle, ctypes.byref(pointer)),
        pointer.value,
    ]
    results += [
        ("stream", [SUCCESS, SUCCESS, 48], found),
        ("stream without a handle", NOT_INITIALIZED, call("cublasSetStream_v2", None, 0)),
        ("stream without a place", INVALID_VALUE, call("cublasGetStream_v2", handle, None)),
        ("workspace", SUCCESS, call("cublasSetWorkspace_v2", handle, 4096, 1024)),
        ("no workspace", SUCCESS, call("cublasSetWorkspace_v2", handle, None, 0)),
        ("workspace between 256 bytes", INVALID_VALUE, call("cublasSetWorkspace_v2", handle, 4224, 1024)),
        ("workspace without a handle", NOT_INITIALIZED, call("cublasSetWorkspace_v2", None, 4096, 1024)),
        ("create nowhere", INVALID_VALUE, call("cublasCreate_v2", None)),
        ("destroy nothing", NOT_INITIALIZED, call("cublasDestroy_v2", None)),
        ("version", [SUCCESS, 120000], [call("cublasGetVersion_v2", handle, at), value.value]),
        ("version without a place", INVALID_VALUE, call("cublasGetVersion_v2", handle, None)),
        ("property", [SUCCESS, 12], [call("cublasGetProperty", 0, at), value.value]),
        ("property 3", INVALID_VALUE, call("cublasGetProperty", 3, at)),
        ("property without a place", INVALID_VALUE, call("cublasGetProperty", 0, None)),
    ]
    for name in ("cublasGetStatusName", "cublasGetStatusString"):
        getattr(blas.library, name).restype = ctypes.c_char_p
    names = [blas.library.cublasGetStatusName(status).decode() for status in (0, 7, 15, 99)]
    wanted = ["SUCCESS", "INVALID_VALUE", "NOT_SUPPORTED", "UNKNOWN"]
    results.append(("names", [f"CUBLAS_STATUS_{word}" for word in wanted], names))
    other = ctypes.c_void_p()
    found = [
        call("cublasCreate_v2", ctypes.byref(other)),
        call("cublasDestroy_v2", other),
        call("cublasDestroy_v2", other),
    ]
    results.append(("destroy twice", [SUCCESS, SUCCESS, NOT_INITIALIZED], found))
    results.append(("a destroyed handle", NOT_INITIALIZED, call("cublasSetMathMode", other, 0)))
    results.append(("what nobody serves", NOT_SUPPORTED, call("cublasDgemm_v2", handle)))
    return results


def forwarded(blas: Blas) -> Results:
    """The real cuBLAS gets what this library does not serve, with its own handle, the same stream and the same modes."""
    results: Results = []
    real = ctypes.CDLL(sys.argv[3])
    real.fake_last.restype = ctypes.c_double
    two, x = np.array([2.0]), np.zeros(64)
    call, handle = blas.call, blas.handle
    call("cublasSetStream_v2", handle, 64)
    call("cublasSetMathMode", handle, 2)
    results.append(("no real handle yet", 0, real.fake_live()))
    arguments = (handle, 1, 0, 3, 4, 5, two, x, 6, x, 7, two, x, 8)
    results.append(
        ("Dgemm", [13, 64 + 1 + 12 + 4 + 21 + 3 + 20000], [call("cublasDgemm_v2", *arguments), real.fake_last()])
    )
    call("cublasSetPointerMode_v2", handle, 1)
    call("cublasSetStream_v2", handle, 0)
    results.append(
        ("later settings", [13, 1 + 12 + 4 + 21 + 3 + 21000], [call("cublasDgemm_v2", *arguments), real.fake_last()])
    )
    call("cublasSetPointerMode_v2", handle, 0)
    blas.library.cublasDscal(ctypes.c_int(3), ctypes.c_double(2.5), as_c(x), ctypes.c_int(1))
    results.append(("the old interface", 3 + 2.5 + 1 + 1, real.fake_last()))
    results.append(("what it lacks, too", NOT_SUPPORTED, call("cublasZgemm_v2", handle)))
    ex = (handle, 0, 0, 4, 5, 6, two, x, F64, 4, x, F64, 6, two, x, F64, 4, COMPUTE_64F, -1)
    results.append(("f64", [0, 15 + 14 + 3 + 70 - 1 + 1], [call("cublasGemmEx", *ex), real.fake_last()]))
    one = np.ones(1, np.float32)
    before = real.fake_calls()
    apart = np.zeros(96, np.float32)
    single = (handle, 0, 0, 4, 5, 6, one, apart, 4, apart[32:], 6, one, apart[64:], 4)
    results.append(("exact f32", [0, before + 1], [call("cublasSgemm_v2", *single), real.fake_calls()]))
    call("cublasSetMathMode", handle, TF32_MATH)
    results.append(("a small product of tf32", [0, before + 2], [call("cublasSgemm_v2", *single), real.fake_calls()]))
    square = np.zeros((3, 64, 64), np.float32)
    larger = (handle, 0, 0, 64, 64, 64, one, square[0], 64, square[1], 64, one, square[2], 64)
    results.append(("tf32", [0, before + 2], [call("cublasSgemm_v2", *larger), real.fake_calls()]))
    results.append(
        ("illegal", [7, before + 2], [call("cublasSgemm_v2", handle, 0, 0, -4, *single[4:]), real.fake_calls()])
    )
    foreign = ctypes.c_void_p()
    real.cublasCreate_v2(ctypes.byref(foreign))
    found = [
        call("cublasSetMathMode", foreign, 1),
        call("cublasSetStream_v2", foreign, 32),
        call("cublasSgemm_v2", foreign, *single[1:]),
    ]
    results.append(("a handle of the real cuBLAS", [[0, 0, 0], before + 3], [found, real.fake_calls()]))
    results.append(("its end", [2, 0, 1], [real.fake_live(), call("cublasDestroy_v2", foreign), real.fake_live()]))
    call("cublasDestroy_v2", handle)
    results.append(("destroyed", 0, real.fake_live()))
    return results


IMPORTS = {
    "onnxruntime-gpu 1.31.1": """
        Create_v2 Destroy_v2 Dgeam DgemmBatched DgemmStridedBatched Dgemm_v2 DgetrfBatched DgetriBatched GemmBatchedEx GemmEx
        GemmStridedBatchedEx GetMathMode GetStatusName GetStatusString LtCreate LtDestroy LtMatmul LtMatmulAlgoConfigSetAttribute
        LtMatmulAlgoGetHeuristic LtMatmulAlgoInit LtMatmulDescCreate LtMatmulDescDestroy LtMatmulDescSetAttribute
        LtMatmulPreferenceCreate LtMatmulPreferenceDestroy LtMatmulPreferenceSetAttribute LtMatrixLayoutCreate
        LtMatrixLayoutDestroy LtMatrixLayoutSetAttribute LtMatrixTransform LtMatrixTransformDescCreate
        LtMatrixTransformDescDestroy Scopy_v2 SetMathMode SetStream_v2 Sgeam SgemmBatched SgemmStridedBatched Sgemm_v2
        SgetrfBatched SgetriBatched Sscal_v2""",
    "llama-cpp-python 0.3.36": """
        Create_v2 Destroy_v2 GemmBatchedEx GemmEx GemmStridedBatchedEx GetStatusString LoggerConfigure SetMathMode SetStream_v2
        SetWorkspace_v2 SgemmBatched SgemmStridedBatched Sgemm_v2 StrsmBatched""",
    "ctranslate2 4.8.5": """
        Create_v2 Destroy_v2 GemmEx GemmStridedBatchedEx GetMathMode GetProperty SetStream_v2 SgemmStridedBatched Sgemm_v2""",
}
"""The functions that clients import from cuBLAS and cuBLASLt, without the prefix cublas: `nm -D --undefined-only`."""
UNSERVED = (
    "Scopy_v2 Sgeam SgetrfBatched SgetriBatched Sscal_v2 StrsmBatched Dgeam DgemmBatched DgemmStridedBatched".split()
)


def imports(blas: Blas) -> Results:
    """Each function that a client imports exists, and unsupported ones return a status."""
    needed = {name for names in IMPORTS.values() for name in names.split()}
    assert needed > set(UNSERVED)
    results: Results = [(f"{name} is there", True, hasattr(blas.library, f"cublas{name}")) for name in sorted(needed)]
    return results + [
        (f"{name} without cuBLAS", NOT_SUPPORTED, blas.call(f"cublas{name}", blas.handle, *[0] * 15))
        for name in UNSERVED
    ]


TRIALS: dict[str, Callable[[Blas], Results]] = {
    "imports": imports,
    "products": products,
    "forms": forms,
    "pointers": pointers,
    "captured": captured,
    "graphs": graphs,
    "edges": edges,
    "statuses": statuses,
    "settings": settings,
    "forwarded": forwarded,
}

if __name__ == "__main__":
    print(json.dumps(TRIALS[sys.argv[2]](Blas(sys.argv[1]))))

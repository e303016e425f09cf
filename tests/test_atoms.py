"""The atoms on the CPU: they agree with the PTX manual, and with the results of an H200 for the same bits.

`PYTHONPATH=. python tests/atom_runs.py > tests/data/atoms_h200.json` on that GPU makes the vectors anew.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from atom_probes import (
    FRAGMENTS,
    LOAD,
    MATRICES,
    NUMBERS,
    OUT_WORDS,
    PRODUCTS,
    SHARED_WORDS,
    STORE,
    SYMBOL,
    TF32_PRODUCTS,
    THREADS,
    Probe,
    probes,
)
from atom_runs import VECTORS, compiled, kept, map_base, run_on_device, run_on_executor, translatable

from generator.proof.executor import Adversary, Executable, HostToolchain

LATE, ANY = Adversary("late", "ahead_low", 1), Adversary("any_time", "any_order", 32)
ALL = list(probes())
EXACT_WGMMA = [probe for probe in ALL if probe.wgmma]
BOXES = [probe for probe in ALL if probe.box]
FAULTS = [probe for probe in BOXES if probe.box.at[0] * probe.box.element_bytes % 16]
"""Boxes that begin within 16 bytes of a row: an H200 ends with an illegal instruction."""


@pytest.fixture(scope="session")
def executed(o0_toolchain: HostToolchain):
    """Return what runs a probe on the CPU and gives shared memory and each thread's words; nothing may be found."""
    executables: dict[str, Executable] = {}

    def execute(probe: Probe, adversary: Adversary = LATE) -> np.ndarray:
        text = probe.text()
        if text not in executables:
            executables[text] = Executable(o0_toolchain.executable(SYMBOL, translatable(text)))
        words, findings = run_on_executor(executables[text], probe, adversary)
        assert not findings, [str(finding) for finding in findings]
        return words

    return execute


def named(name: str) -> Probe:
    (found,) = (probe for probe in ALL if probe.name == name)
    return found


def parts(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return shared memory as halves and what each thread gave."""
    return words[:SHARED_WORDS].view(np.uint16), words[SHARED_WORDS:].reshape(THREADS, OUT_WORDS)


def inputs(probe: Probe) -> tuple[np.ndarray, np.ndarray]:
    words = probe.words()
    return words[:SHARED_WORDS].view(np.uint16), words[SHARED_WORDS:].reshape(THREADS, -1)


def halves(values: np.ndarray, dtype: str = "f16") -> np.ndarray:
    if dtype == "f16":
        return values.view(np.float16).astype(np.float64)
    return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


# ---- Against the instructions' documents ----------------------------------------------------------------------------


def test_ldmatrix_and_stores_round_trip(executed) -> None:
    probe = named("matrices")
    assert probe.mode == MATRICES
    shared, threads = parts(executed(probe))
    before, given = inputs(probe)
    row = [thread * 37 % 128 * 8 for thread in range(THREADS)]
    for thread in range(THREADS):
        warp, lane = thread // 32 * 32, thread % 32
        for matrix in range(4):
            plain = [int(before[row[warp + matrix * 8 + lane // 4] + lane % 4 * 2 + e]) for e in (0, 1)]
            turned = [int(before[row[warp + matrix * 8 + lane % 4 * 2 + e] + lane // 4]) for e in (0, 1)]
            assert threads[thread, matrix] == plain[0] | plain[1] << 16
            assert threads[thread, 4 + matrix] == turned[0] | turned[1] << 16
            pair = given[thread, matrix : matrix + 1].view(np.uint16)
            for first, matrices, transposed in ((0, 4, False), (1024, 4, True), (2048, 2, False), (3072, 2, True)):
                if matrix >= matrices:
                    continue
                for e in (0, 1):
                    r, c = (lane % 4 * 2 + e, lane // 4) if transposed else (lane // 4, lane % 4 * 2 + e)
                    assert shared[first + row[warp + matrix * 8 + r] + c] == pair[e]


def tiles(given: np.ndarray, warp: int, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a (16, 16), b (16, 8) and d (16, 8) of a warp from its lanes' registers."""
    a, b, d = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((16, 8))
    for lane in range(32):
        words = given[warp * 32 + lane]
        pairs = halves(words.view(np.uint16), dtype).reshape(-1, 2)
        for i in range(4):
            a[lane // 4 + i % 2 * 8, lane % 4 * 2 + i // 2 * 8 :][:2] = pairs[i]
            d[lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2] = words[6 + i : 7 + i].view(np.float32)[0]
        for i in range(2):
            b[lane % 4 * 2 + i * 8 :, lane // 4][:2] = pairs[4 + i]
    return a, b, d


def tiles_of_tf32(given: np.ndarray, warp: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a (16, 8), b (8, 8) and d (16, 8) of a warp from its lanes' registers."""
    a, b, d = np.zeros((16, 8)), np.zeros((8, 8)), np.zeros((16, 8))
    for lane in range(32):
        words = given[warp * 32 + lane]
        cut = (words[:6] & np.uint32(0xFFFFE000)).view(np.float32)
        for i in range(4):
            a[lane // 4 + i % 2 * 8, lane % 4 + i // 2 * 4] = cut[i]
            d[lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2] = words[6 + i : 7 + i].view(np.float32)[0]
        for i in range(2):
            b[lane % 4 + i * 4, lane // 4] = cut[4 + i]
    return a, b, d


@pytest.mark.parametrize("name", ["products of tf32", "products of all digits of tf32"])
def test_tf32_products_ignore_the_lower_13_bits(executed, name: str) -> None:
    probe = named(name)
    _, threads = parts(executed(probe))
    _, given = inputs(probe)
    for warp in range(4):
        a, b, d = tiles_of_tf32(given, warp)
        exact = a @ b + d
        bound = (0 if probe.exact else 2.0**-21) * (abs(a) @ abs(b) + abs(d))
        for lane in range(32):
            got = threads[warp * 32 + lane, :4].view(np.float32).reshape(2, 2)
            rows, columns = slice(lane // 4, None, 8), slice(lane % 4 * 2, lane % 4 * 2 + 2)
            assert (abs(got - exact[rows, columns]) <= bound[rows, columns]).all()


@pytest.mark.parametrize(
    "name", ["products", "products of bf16", "products of normal numbers", "products of normal bf16"]
)
def test_mma_atoms_multiply_matrices(executed, name: str) -> None:
    probe = named(name)
    dtype = "f16" if probe.mode == PRODUCTS else "bf16"
    _, threads = parts(executed(probe))
    _, given = inputs(probe)
    for warp in range(4):
        a, b, d = tiles(given, warp, dtype)
        exact = a @ b + d
        bound = 0 if probe.exact else 2.0**-20 * (abs(a) @ abs(b) + abs(d))
        for lane in range(32):
            got = threads[warp * 32 + lane, :8].view(np.float32).reshape(2, 2, 2)
            rows, columns = slice(lane // 4, None, 8), slice(lane % 4 * 2, lane % 4 * 2 + 2)
            error = abs(got - exact[rows, columns])
            assert (error <= (0 if probe.exact else bound[rows, columns])).all()


@pytest.mark.parametrize("name", ["products of fragments", "products of fragments of bf16"])
@pytest.mark.parametrize(("a_by_rows", "b_by_rows"), [(True, True), (True, False), (False, True), (False, False)])
def test_wmma_fragments_multiply_matrices(executed, name: str, a_by_rows: bool, b_by_rows: bool) -> None:
    """The sums are two pieces of 16 x 8 side by side, each held as the d of mma.m16n8."""
    probe = named(name)
    dtype = "f16" if probe.mode == FRAGMENTS else "bf16"
    shared, given = inputs(probe)
    values, at = halves(shared, dtype), 24 * (not a_by_rows) + 12 * (not b_by_rows)
    _, threads = parts(executed(probe))
    places = np.arange(16)[:, None] * [40, 24]
    for thread in range(THREADS):
        first, lane = thread // 32 * 16, thread % 32
        a = values[first + places[:, :1] + np.arange(16)]
        b = values[4096 + places[:, 1:] + np.arange(16)]
        product = (a if a_by_rows else a.T) @ (b if b_by_rows else b.T)
        rows, columns = lane // 4 + np.array([0, 8])[None, :, None], lane % 4 * 2 + np.array([0, 1])
        exact = product[rows, columns + np.array([0, 8])[:, None, None]].reshape(2, 4)  # (left and right, 2 rows of 2)
        before = given[thread, 6:10].view(np.float32)
        got = threads[thread, at : at + 8].view(np.float32).reshape(2, 4)
        assert np.array_equal(got, exact + before + [[0], [1]])
        if dtype == "f16":
            sums = given[thread, 10:14].view(np.float16).reshape(2, 4)
            assert np.array_equal(threads[thread, at + 8 : at + 12].view(np.float16).reshape(2, 4), exact + sums)


def test_halves_are_rounded_as_numpy_rounds_them(executed) -> None:
    probe = named("numbers")
    assert probe.mode == NUMBERS
    _, threads = parts(executed(probe))
    _, given = inputs(probe)
    values = given[:, :32].view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(np.float16)
    got = threads[:, :32].copy().view(np.uint16).reshape(THREADS, 32, 2)[..., 0].view(np.float16)
    assert np.array_equal(got, expected, equal_nan=True)
    assert np.array_equal(
        threads[:, 64:96].view(np.float32),
        given[:, :32].astype(np.uint16).view(np.float16).astype(np.float32),
        equal_nan=True,
    )
    bfloat = (threads[:, 32:64] << 16).view(np.float32)
    finite = np.isfinite(values) & (abs(values) < 3e38) & (abs(values) > 1e-37)
    assert (abs(bfloat[finite] - values[finite]) <= abs(values[finite]) * 2.0**-8).all()


@pytest.mark.parametrize("probe", FAULTS, ids=lambda probe: probe.name.replace(" ", "-"))
def test_illegal_tma_boxes_are_found(o0_toolchain: HostToolchain, probe: Probe) -> None:
    _, findings = run_on_executor(Executable(o0_toolchain.executable(SYMBOL, translatable(probe.text()))), probe, LATE)
    assert any(finding.kind == "tma" and "multiple of 16" in str(finding) for finding in findings)


@pytest.mark.parametrize(
    "probe", [probe for probe in BOXES if probe not in FAULTS], ids=lambda probe: probe.name.replace(" ", "-")
)
def test_tma_boxes_have_the_expected_layout(executed, probe: Probe) -> None:
    box = probe.box
    dtype = np.uint16 if box.element_bytes == 2 else np.uint32
    words = executed(probe, ANY if probe.offset else LATE)
    shared = (words if probe.mode == LOAD else probe.words())[:SHARED_WORDS].view(dtype)
    outside = (probe.words() if probe.mode == LOAD else words)[SHARED_WORDS:]
    tensor = outside[: box.span() // 4].view(dtype)
    untouched = np.ones(len(tensor), bool)
    for row in range(box.box[1]):
        for column in range(box.box[0]):
            byte = probe.offset + (row * box.box[0] + column) * box.element_bytes
            byte ^= byte >> 3 & (box.swizzle - 16 if box.swizzle else 0)
            x, y, z = box.at[0] + column, box.at[1] + row, box.at[2]
            inside = 0 <= x < box.columns and 0 <= y < box.rows and 0 <= z < 2
            place = (z * box.strides[1] + y * box.strides[0]) // box.element_bytes + x
            assert not (inside or probe.mode == LOAD) or shared[byte // box.element_bytes] == (
                tensor[place] if inside else 0
            )
            if inside:
                untouched[place] = False
    if probe.mode == STORE:
        assert (tensor[untouched] == np.iinfo(dtype).max).all()
        assert map_base(probe, 0, 0) == SHARED_WORDS * 4


@pytest.mark.parametrize("probe", EXACT_WGMMA, ids=lambda probe: probe.name.replace(" ", "-"))
def test_wgmma_follows_its_descriptors(executed, probe: Probe) -> None:
    wgmma = probe.wgmma
    shared, _ = inputs(probe)
    values = halves(shared, wgmma.dtype) if wgmma.size == 2 else shared.view(np.float32).astype(np.float64)
    a_at, b_at = wgmma.place(wgmma.a_k_major, 64, wgmma.a_first), wgmma.place(wgmma.b_k_major, wgmma.n, wgmma.b_first)
    depth, size = range(wgmma.depth), wgmma.size
    a = np.array([[values[a_at(m, k) // size] for k in depth] for m in range(64)])
    b = np.array([[values[b_at(n, k) // size] for k in depth] for n in range(wgmma.n)])
    product = 2 * (a @ b.T)
    _, threads = parts(executed(probe, ANY if probe.wgmma.a_first else LATE))
    for thread in range(THREADS):
        rows = thread // 32 * 16 + thread % 32 // 4 + np.array([0, 8])
        columns = (np.arange(wgmma.n // 8)[:, None] * 8 + thread % 4 * 2 + np.array([0, 1]))[:, None, :]
        exact = product[rows[None, :, None], columns]  # (n / 8, 2 rows, 2 columns)
        count = wgmma.n // (2 if wgmma.sum == "f32" else 4)
        if wgmma.sum == "f32":
            got = threads[thread, :count].view(np.float32)
            assert np.array_equal(got, exact.ravel() + np.arange(count) % 7)
        else:  # the sums begin as bits of tiny halves, which vanish in all sums but 0
            got = threads[thread, :count].copy().view(np.float16).astype(np.float64)
            assert np.allclose(got, exact.ravel(), rtol=0, atol=1e-6)


# ---- Against a GPU --------------------------------------------------------------------------------------------------


def compare(probe: Probe, words: np.ndarray, vector: dict) -> None:
    if probe.wgmma and probe.wgmma.sum == "f16" and kept(probe, words) != vector:
        # Where terms cancel the H200 leaves 2^-22 or so of terms near 2^7: the executor's sum is another one, and as good.
        ours, theirs = (np.array(each["first"], np.uint32).view(np.float16) for each in (kept(probe, words), vector))
        assert np.allclose(ours, theirs, rtol=0, atol=2**-20)
        return
    if probe.exact:
        assert kept(probe, words) == vector
        return
    ours = np.array(kept(probe, words)["words"], np.uint32)
    theirs = np.array(vector["words"], np.uint32)
    floats = slice(0, 4 if probe.mode == TF32_PRODUCTS else 8)
    assert np.allclose(ours[:, floats].view(np.float32), theirs[:, floats].view(np.float32), rtol=2e-5, atol=2e-5)
    if probe.mode == PRODUCTS:
        assert np.allclose(
            ours[:, 8:].copy().view(np.float16), theirs[:, 8:].copy().view(np.float16), rtol=1e-2, atol=1e-2
        )


@pytest.mark.skipif(not VECTORS.is_file(), reason="no vectors of an H200 are recorded: run tests/atom_runs.py on one")
@pytest.mark.parametrize("probe", ALL, ids=lambda probe: probe.name.replace(" ", "-"))
def test_executor_matches_recorded_h200_results(executed, probe: Probe) -> None:
    vectors = json.loads(VECTORS.read_text())["vectors"]
    if probe.name not in vectors:
        pytest.skip("no vector of an H200 is recorded: run tests/atom_runs.py on one")
    if probe.name == "election":
        assert sum(vectors[probe.name]["first"][:1]) in (0, 1)  # which lane is elected is nobody's business
        return
    if "fault" in vectors[probe.name]:
        assert probe in FAULTS
        return
    compare(probe, executed(probe), vectors[probe.name])


@pytest.mark.gpu
def test_gpu_matches_the_executor(executed) -> None:
    text, cubin = "", b""
    for probe in ALL:
        if probe.name == "election" or probe in FAULTS:
            continue
        if probe.text() != text:
            text, cubin = probe.text(), compiled(probe.text())
        compare(probe, run_on_device(probe, cubin), kept(probe, executed(probe)))

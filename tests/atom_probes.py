"""Probes of the atoms: their input bits, their instruction, and the registers and memory of its operands."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SYMBOL, THREADS, SHARED_BYTES = "atom_probes", 128, 18432 + 1024
SHARED_WORDS, IN_WORDS, OUT_WORDS = 4608, 64, 128
TEXT = (ROOT / "tests" / "atom_probes.cu").read_text()
MATRICES, PRODUCTS, BF16_PRODUCTS, NUMBERS, COPIES, LOAD, STORE, WGMMA, ELECTION = range(9)
TF32_PRODUCTS, FRAGMENTS, BF16_FRAGMENTS, COUNTED = range(9, 13)
SWIZZLES = (0, 32, 64, 128)
_MAP_ROWS, _MAP_LAYERS = 24, 2


@dataclass(frozen=True)
class Box:
    """A tensor map over the 128 x 64 words of a thread's input or over the output, and where its box is.

    Units: elements; `swizzle` and `element_bytes` are bytes.
    """

    swizzle: int
    element_bytes: int
    columns: int
    rows: int
    at: tuple[int, int, int]

    @property
    def box(self) -> tuple[int, int, int]:
        return (self.swizzle or 32) // self.element_bytes, 16, 1

    @property
    def extents(self) -> tuple[int, int, int]:
        return self.columns, self.rows, _MAP_LAYERS

    @property
    def strides(self) -> tuple[int, int]:
        pitch = -(-self.columns * self.element_bytes // 16) * 16
        return pitch, pitch * _MAP_ROWS

    @property
    def bytes(self) -> int:
        return self.box[0] * self.box[1] * self.element_bytes

    def span(self) -> int:
        return self.strides[1] * _MAP_LAYERS


@dataclass(frozen=True)
class Wgmma:
    """One wgmma: its types, its n, how A and B lie, and where their tiles begin in shared memory. Units: bytes."""

    n: int
    sum: str
    dtype: str
    a_k_major: bool
    b_k_major: bool
    swizzle: int
    a_first: int = 0
    b_first: int = 8192

    @property
    def name(self) -> str:
        kind = self.dtype.upper()
        return f"64x{self.n}x{self.depth}_{self.sum.upper()}{kind}{kind}_SS{'_TN' if self.size == 4 else ''}"

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return 4 if self.dtype == "tf32" else 2

    @property
    def depth(self) -> int:
        return 32 // self.size

    def text(self) -> str:
        lines = {
            "HGEMM_WGMMA(64x64x16_F32F16F16_SS)": f"HGEMM_WGMMA{'_TN' if self.size == 4 else ''}({self.name})",
            "registers = 32": f"registers = {self.n // (2 if self.sum == 'f32' else 4)}",
            _side("A", True): _side("A", self.a_k_major),
            _side("B", True): _side("B", self.b_k_major),
            "using In = f16": f"using In = {self.dtype}",
            "using Sum = float": f"using Sum = {'float' if self.sum == 'f32' else 'uint32_t'}",
        }
        text = TEXT
        for old, new in lines.items():
            assert text.count(old) == 1
            text = text.replace(old, new)
        return text

    def place(self, k_major: bool, extent: int, first: int) -> Callable[[int, int], int]:
        """Return where element (m or n, k) lies. Rows of the swizzle's width, 8 of them a group, groups along the other index."""
        width = self.swizzle or 16
        leading, stride = self.steps(k_major, extent)
        size = self.size

        def at(index: int, k: int) -> int:
            along, across = (k, index) if k_major else (index, k)
            if self.swizzle:
                piece = along * size % width + along * size // width * leading + across // 8 * stride
            else:
                piece = along * size % 16 + along * size // 16 * (leading if k_major else stride)
                piece += across // 8 * (stride if k_major else leading)
            address = first + piece + across % 8 * width
            return address ^ (address >> 3 & (width - 16 if self.swizzle else 0))

        return at

    def steps(self, k_major: bool, extent: int) -> tuple[int, int]:
        """Return the descriptor's leading and stride byte offsets."""
        width = self.swizzle or 16
        group = 8 * width
        if self.swizzle:
            return (16, group) if k_major else (2 * group, group)
        return (group, 2 * group) if k_major else (group * -(-extent // 8), group)

    def descriptor(self, k_major: bool, extent: int, first: int) -> int:
        mode = {0: 0, 128: 1, 64: 2, 32: 3}[self.swizzle]
        leading, stride = self.steps(k_major, extent)
        return first // 16 | leading // 16 << 16 | stride // 16 << 32 | mode << 62


def _side(name: str, k_major: bool) -> str:
    return f"struct {name} {{ static constexpr bool k_major = {str(k_major).lower()}; }}"


@dataclass(frozen=True)
class Probe:
    """One launch of the probing kernel. Fields: `exact` where every implementation must give the same bits."""

    name: str
    mode: int
    data: str = "bits"
    offset: int = 0
    box: Box | None = None
    wgmma: Wgmma | None = None
    exact: bool = True

    def text(self) -> str:
        return self.wgmma.text() if self.wgmma else TEXT

    def words(self) -> np.ndarray:
        """Return what goes in: the words of shared memory, then those of each thread."""
        rng = np.random.default_rng(int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "little"))
        count = SHARED_WORDS + THREADS * IN_WORDS
        if self.data == "bits":
            return rng.integers(0, 2**32, count, np.uint32)
        if self._dtype == "tf32":
            drawn = rng.integers(-3, 4, count) if self.data == "integers" else rng.standard_normal(count)
            return drawn.astype(np.float32).view(np.uint32)
        if self.data == "integers":
            return small_integers(rng, count, self._dtype, in_floats=slice(6, 10))
        halves = rng.standard_normal(2 * count).astype(np.float32)
        return _encoded(halves, self._dtype).view(np.uint32).copy()

    @property
    def _dtype(self) -> str:
        if self.wgmma:
            return self.wgmma.dtype
        return {BF16_PRODUCTS: "bf16", BF16_FRAGMENTS: "bf16", TF32_PRODUCTS: "tf32"}.get(self.mode, "f16")


def _encoded(values: np.ndarray, dtype: str) -> np.ndarray:
    return (
        values.astype(np.float16).view(np.uint16)
        if dtype == "f16"
        else (values.view(np.uint32) >> 16).astype(np.uint16)
    )


def small_integers(rng: np.random.Generator, count: int, dtype: str, in_floats: slice) -> np.ndarray:
    """Return pairs of halves between -3 and 3; of each thread's words, those of `in_floats` are floats."""
    words = _encoded(rng.integers(-3, 4, 2 * count).astype(np.float32), dtype).view(np.uint32).copy()
    threads = words[SHARED_WORDS:].reshape(THREADS, IN_WORDS)
    floats = threads[:, in_floats]
    floats[...] = rng.integers(-9, 10, floats.shape).astype(np.float32).view(np.uint32)
    return words


def probes() -> Iterator[Probe]:
    """Yield all probes, those of one text after one another."""
    yield Probe("matrices", MATRICES)
    yield Probe("products", PRODUCTS, "integers")
    yield Probe("products of bf16", BF16_PRODUCTS, "integers")
    yield Probe("products of normal numbers", PRODUCTS, "normal", exact=False)
    yield Probe("products of normal bf16", BF16_PRODUCTS, "normal", exact=False)
    yield Probe("numbers", NUMBERS)
    yield Probe("copies", COPIES)
    yield Probe("counted copies", COUNTED)
    yield Probe("election", ELECTION)
    yield Probe("products of fragments", FRAGMENTS, "integers")
    yield Probe("products of fragments of bf16", BF16_FRAGMENTS, "integers")
    for swizzle in SWIZZLES:
        for element_bytes in (2, 4):
            width = (swizzle or 32) // element_bytes
            columns = 2 * width + 8 // element_bytes
            for at in ((0, 0, 0), (width, 8, 1), (-3, -5, 0), (columns - 5, _MAP_ROWS - 3, 1), (0, 0, 2)):
                for offset in (0, 1280):
                    box = Box(swizzle, element_bytes, columns, _MAP_ROWS - 1, at)
                    name = f"{swizzle} B, elements of {element_bytes} B, from {offset}, at {at}"
                    yield Probe(f"load, {name}", LOAD, offset=offset, box=box)
                    if min(at) >= 0:
                        yield Probe(f"store, {name}", STORE, offset=offset, box=box)
    yield from _wgmmas()
    yield Probe("products of tf32", TF32_PRODUCTS, "integers")
    yield Probe("products of all digits of tf32", TF32_PRODUCTS, "normal", exact=False)
    for swizzle in SWIZZLES:
        yield from _wgmma_probes(Wgmma(64, "f32", "tf32", True, True, swizzle))
    yield from _wgmma_probes(Wgmma(248, "f32", "tf32", True, True, 32, 0, 4096))


def _wgmmas() -> Iterator[Probe]:
    for swizzle in SWIZZLES:
        for a_k_major, b_k_major in ((True, True), (True, False), (False, True), (False, False)):
            n = 64 if b_k_major or not swizzle else 128
            first = Wgmma(n, "f32", "f16", a_k_major, b_k_major, swizzle)
            yield from _wgmma_probes(first)
            yield from _wgmma_probes(replace(first, a_first=128, b_first=8192 + 384))  # not where the swizzle repeats
    for n, total, dtype in (
        (8, "f32", "f16"),
        (24, "f32", "bf16"),
        (208, "f32", "f16"),
        (256, "f32", "bf16"),
        (256, "f16", "f16"),
    ):
        yield from _wgmma_probes(Wgmma(n, total, dtype, True, True, 32, 0, 4096))


def _wgmma_probes(wgmma: Wgmma) -> Iterator[Probe]:
    majors = "".join("k" if major else "m" for major in (wgmma.a_k_major, wgmma.b_k_major))
    name = f"wgmma {wgmma.name}, {majors}, {wgmma.swizzle} B, from {wgmma.a_first} and {wgmma.b_first}"
    yield Probe(name, WGMMA, "integers", wgmma=wgmma)

"""Compares the bits of kernels on a GPU with their prediction, with one another, and with cuBLASLt.

All kernels of the same types multiply the same matrices, so kernels of one order must give the same bytes.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from generator.device_check import CheckOutcome, open_kernel
from generator.proof.bits import Adder, Prediction, SumOrder, bits_of, predicted, require_order, revealing
from generator.store.library import Library
from generator.tables import counted
from hgemm.bench.baselines import CublasError, CublasLt
from hgemm.bench.work import Work
from hgemm.cases import Case, Shape, whole_pairs
from hgemm.device import Device
from hgemm.dtypes import representable
from hgemm.errors import DeviceError, HgemmError, UnsupportedError
from hgemm.kernel import Kernel
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import LaunchOptions
from hgemm.verification import CheckOptions, Trial

# ==== Products ====

KINDS = ("revealing", "normal", "scaled", "scaled", "scaled", "subnormal", "infinite")
"""The kinds of operands of successive products: their scales are drawn, and some numbers are subnormal or infinite."""
SCALES = (-20, 10)
"""Powers of two that the numbers of A are multiplied by."""
COMMON = Shape(136, 264, 1040)
"""The product that cuBLASLt computes, too."""
_LARGEST = Shape(200, 264, 1000)
_MOST_PARTS = 4
_PROPOSALS = 8
_SUBNORMALS = {"f16": (-24, 8), "bf16": (-133, 10), "tf32": (-136, 10)}
"""The exponent of the smallest subnormal number of A, and that of B's scale."""
_SPECIALS = 0.002
"""The share of infinities and NaNs."""


@dataclass(frozen=True)
class Product:
    """One random product: its shape, and the kind of its operands. `scale` is the power of two of A's scale."""

    at: int
    shape: Shape
    kind: str
    scale: int = 0

    def __str__(self) -> str:
        return f"{self.shape} {self.kind}" + (f" 2^{self.scale}" if self.kind == "scaled" else "")


def products(count: int, seed: int) -> list[Product]:
    """Return random products, the same at every call. The first one has the shape COMMON."""
    rng = np.random.default_rng([seed, count])
    found = []
    for at in range(count):
        extents = (int(rng.integers(1, most + 1)) for most in (_LARGEST.m, _LARGEST.n, _LARGEST.k))
        shape = Shape(*extents)
        found.append(
            Product(at, shape if at else COMMON, KINDS[at % len(KINDS)], int(rng.integers(SCALES[0], SCALES[1] + 1)))
        )
    return found


def fitted(traits: LaunchTraits, product: Product) -> Product:
    """Return the product with an n that the kernel takes: a gated pair takes whole pairs of blocks."""
    (case,) = whole_pairs(traits, [Case(product.shape)])
    return replace(product, shape=case.shape)


def operands(traits: LaunchTraits, product: Product, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw A and B. They depend on the types, not on the kernel. Shapes: a (1, m, k), b (1, k, n)."""
    rng, shape = np.random.default_rng([seed, product.at]), product.shape
    if product.kind == "revealing":
        return revealing(traits, Case(shape), rng)
    a = rng.standard_normal((1, shape.m, shape.k), np.float32)
    b = rng.standard_normal((1, shape.k, shape.n), np.float32)
    if product.kind == "scaled":
        a = np.ldexp(a, product.scale)
    if product.kind == "subnormal":
        smallest, scale = _SUBNORMALS[traits.dtype_a]
        some = rng.random(a.shape) < 0.7
        a = np.where(some, np.ldexp(np.rint(a * 40), smallest).astype(np.float32), np.ldexp(a, smallest + 12))
        b = np.ldexp(b, scale)
    if product.kind == "infinite":
        for one in (a, b):
            special = rng.random(one.shape) < _SPECIALS
            one[special] = rng.choice(np.array([np.inf, -np.inf, np.nan], np.float32), int(special.sum()))
    with np.errstate(over="ignore", invalid="ignore"):
        return tuple(representable(one, dtype) for one, dtype in ((a, traits.dtype_a), (b, traits.dtype_b)))


def case_of(traits: LaunchTraits, product: Product) -> Case:
    """Return the case of a product, without C.

    If launches decide the splits, products have 1 to 4 parts; the first one is unsplit. With serial parts, one cluster of tiles is
    whole in every second product.
    """
    options = None
    if traits.decides_splits or traits.decides_raster:
        splits = 1 + product.at % _MOST_PARTS if traits.decides_splits else 1
        options = LaunchOptions(splits, product.at % 2 * traits.serial_parts, 1)
    return Case(product.shape, bias="none" if traits.decides_bias else traits.bias, options=options)


class ProductTrial(Trial):
    """A product on a device, or on the CPU."""

    def __init__(self, kernel: Any, product: Product, device: Any, seed: int) -> None:
        super().__init__(kernel, case_of(kernel.traits, product), device, CheckOptions(seed=seed), "normal")
        a, b = operands(self.traits, product, seed)
        self.operands = replace(self.operands, a=a, b=b)

    def bits(self) -> np.ndarray:
        """Launch, and return the bits of D. Raises: DeviceError if the launch fails, or writes something else."""
        with np.errstate(over="ignore", invalid="ignore"):
            self.prepare()
        found, failure = self.launch(self.problem())
        if failure:
            raise DeviceError(failure)
        return bits_of(found)


# ==== One kernel ====


@dataclass(frozen=True)
class BitsOutcome(CheckOutcome):
    """The result for one kernel. `digests` are hashes of its results, by product; `elements` is how many equal their prediction."""

    types: str = ""
    order: str = ""
    elements: int = 0
    digests: Mapping[str, str] | None = None


def types_of(traits: LaunchTraits) -> str:
    """Return the types and the expression of a kernel, without which results cannot be compared."""
    expression = f", epilogue {traits.epilogue.hash}" if traits.epilogue else ""
    return f"{traits.dtype_a}, {traits.acc} sums, D in {traits.dtype_d}{expression}"


def digest_of(bits: np.ndarray) -> str:
    """Return a short hash of the bits of D."""
    return hashlib.sha256(np.ascontiguousarray(bits).tobytes()).hexdigest()[:16]


@dataclass
class BitsCheck:
    """Compares kernels of a library on a device.

    Fields: `add` computes predictions. `count` products run for each kernel.
    """

    library: Library
    device: Device
    add: Adder
    count: int = len(KINDS)
    seed: int = 0
    code: str = "auto"

    def outcomes(self, symbols: Sequence[str]) -> Iterator[BitsOutcome]:
        """Yield the outcome of each kernel, in order."""
        for symbol in symbols:
            try:
                yield self.outcome(open_kernel(self.library, symbol, self.code))
            except UnsupportedError as error:
                yield BitsOutcome(symbol, skipped=str(error))
            except HgemmError as error:
                yield BitsOutcome(symbol, error=str(error))

    def order_of(self, kernel: Kernel) -> SumOrder | None:
        """Return the order of a kernel's sums on this device."""
        major, minor = self.device.capability
        return require_order(kernel.record, major * 10 + minor)

    def outcome(self, kernel: Kernel) -> BitsOutcome:
        """Compare one kernel with its prediction. Raises: HgemmError if it cannot run."""
        traits, symbol = kernel.traits, kernel.traits.symbol
        kernel.prepare(self.device.ordinal)
        order = self.order_of(kernel)
        if not order:
            return BitsOutcome(symbol, skipped="the grid decides its order of accumulation, or its record lacks it")
        checks, digests, elements = [], {}, 0
        for product in (fitted(traits, one) for one in products(self.count, self.seed)):
            trial = ProductTrial(kernel, product, self.device, self.seed)
            try:
                found = trial.bits()
            finally:
                trial.free()
            expected = predicted(order, traits, trial.operands, self.add, trial.splits)
            wrong = np.argwhere(expected.known & (found != expected.bits))
            elements += int(expected.known.sum()) - len(wrong)
            digests[str(product)] = digest_of(found)
            checks.append(_check(str(product), found, expected, wrong))
        record = kernel.record["accumulation_order"]["id"]
        return BitsOutcome(
            symbol, tuple(checks), types=types_of(traits), order=record, elements=elements, digests=digests
        )


def _check(name: str, found: np.ndarray, expected: Prediction, wrong: np.ndarray) -> dict[str, Any]:
    reason = ""
    if len(wrong):
        at = tuple(int(i) for i in wrong[0])
        reason = (
            f"{len(wrong)} of {found.size} elements differ from the prediction, the first (row {at[1]}, column {at[2]}) is "
            f"{int(found[at]):#x}, predicted {int(expected.bits[at]):#x}"
        )
    return {"case": name, "passed": not reason, "reason": reason, "max_error": 0.0, "max_bound_ratio": 0.0}


# ==== cuBLASLt ====


def cublaslt_digests(kernel: Kernel, device: Device, seed: int) -> list[str]:
    """Return the digests of cuBLASLt's proposals for the common product, with the operands of a kernel without a bias."""
    traits, product = kernel.traits, products(1, seed)[0]
    shape = product.shape
    types = {name: getattr(traits, name) for name in ("layout", "dtype_a", "dtype_b", "dtype_d", "acc")}
    trial = ProductTrial(kernel, product, device, seed)
    found = []
    with device.current():
        lt = CublasLt(device)
        try:
            trial.prepare()
            proposals = lt.propose(Work(shape.m, shape.n, shape.k, **types), _PROPOSALS)
            for contender in proposals.contenders:
                trial.buffers["d"].upload()
                try:
                    proposals.bind(contender.algorithm, trial.problem(), 0)()
                except CublasError:
                    continue
                device.synchronize()
                d = trial.buffers["d"]
                found.append(digest_of(bits_of(d.matrices(d.download()))))
            proposals.free()
        except CublasError:  # it does not support the types
            return found
        finally:
            trial.free()
            lt.free()
    return found


def is_plain(traits: LaunchTraits) -> bool:
    """Return whether cuBLASLt computes the same D: no bias, activation or expression, and dense rows."""
    dense = all(extent % align == 0 for extent, align in ((COMMON.k, traits.align_a), (COMMON.n, traits.align_d)))
    plain = traits.bias in ("none", "launch") and traits.activation == "none" and not traits.epilogue
    return plain and dense and COMMON.m % 8 == 0


# ==== Text ====


def bits_line(outcome: BitsOutcome) -> str:
    """Return the outcome of one kernel as a line."""
    if outcome.skipped:
        return f"skip  {outcome.symbol}  {outcome.skipped}"
    cases = f"{outcome.passed_cases}/{counted(len(outcome.checks), 'product')}"
    if not outcome.passed:
        return f"FAIL  {outcome.symbol}  {cases}  {outcome.reason}"
    return f"ok    {outcome.symbol}  {cases} as predicted: {outcome.elements:,} elements; {outcome.order}"


def classes_of(outcomes: Sequence[BitsOutcome]) -> dict[tuple[str, str], Counter]:
    """Return how many kernels gave each result of the common product, by types and order. One result means equal bits."""
    found: dict[tuple[str, str], Counter] = defaultdict(Counter)
    for outcome in outcomes:
        if outcome.digests and outcome.passed:
            found[outcome.types, outcome.order][next(iter(outcome.digests.values()))] += 1
    return found


def summary_of(outcomes: Sequence[BitsOutcome], cublaslt: Mapping[str, Sequence[str]]) -> str:
    """Return how many kernels have equal bits, and which order each of cuBLASLt's proposals has, by types."""
    lines = []
    classes = classes_of(outcomes)
    for (types, order), results in sorted(classes.items()):
        same = f"{counted(sum(results.values()), 'kernel')}, {'equal bits' if len(results) == 1 else f'{len(results)} results'}"
        lines.append(f"{types}: {order}: {same}")
    for types, digests in sorted(cublaslt.items()):
        orders = [
            next(
                (order for (of, order), results in classes.items() if of == types and digest in results),
                "no order here",
            )
            for digest in digests
        ]
        told = ", ".join(
            f"{times} have {order}" if times > 1 else f"1 has {order}" for order, times in Counter(orders).items()
        )
        lines.append(f"{types}: cuBLASLt, {counted(len(digests), 'proposal')} for {COMMON}: {told or 'none runs'}")
    passed = [outcome for outcome in outcomes if outcome.passed]
    failed = sum(outcome.failed for outcome in outcomes)
    checked, elements = sum(len(one.checks) for one in passed), sum(one.elements for one in passed)
    lines.append(
        f"{counted(len(passed), 'kernel')} passed, {failed} failed, {len(outcomes) - len(passed) - failed} skipped; "
        f"{counted(checked, 'product')} and {elements:,} elements as predicted"
    )
    return "\n".join(lines)


def compare(
    check: BitsCheck, symbols: Sequence[str]
) -> tuple[Iterator[BitsOutcome], Callable[[Sequence[BitsOutcome]], str]]:
    """Return the outcomes of kernels, and a function that sums them up, with cuBLASLt's results for the same types."""
    cublaslt: dict[str, list[str]] = {}

    def outcomes() -> Iterator[BitsOutcome]:
        for outcome in check.outcomes(symbols):
            if outcome.passed and outcome.types not in cublaslt:
                kernel = open_kernel(check.library, outcome.symbol, check.code)
                if is_plain(kernel.traits):
                    with suppress(DeviceError):  # cuBLASLt is not installed
                        cublaslt[outcome.types] = cublaslt_digests(kernel, check.device, check.seed)
            yield outcome

    return outcomes(), partial(summary_of, cublaslt=cublaslt)

"""Prove a kernel on the CPU: run its cases against several adversaries, check results, races and costs."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from generator.errors import ProofError
from generator.layouts import OperandTile, copy_conflicts, read_conflicts
from generator.proof.bits import OrderTrial, adder, order_cases, require_order
from generator.proof.coverage import COVERAGE_CASE, Coverage
from generator.proof.executor import COSTS_CASE, Adversary, Executable, Finding, HostToolchain, Report, Site
from generator.proof.machine import EmulatedKernel, HostMemory, default_cases, measured_case, number_cases
from generator.proof.sandbox import SandboxedExecutable
from generator.ptx.parser import parse_head
from generator.ptx.translate import FUNCTION, TWIN_FUNCTION
from generator.spec import DTYPE_BYTES, Smem, Tile, WarpTile
from hgemm.cases import Case, Shape, cases_of
from hgemm.dtypes import DTYPES, VECTOR_BYTES
from hgemm.launch_traits import LaunchTraits
from hgemm.verification import UNBOUNDED, CheckOptions, CheckResult, Trial, verify

_PLACEMENT_WARP = 32


@dataclass(frozen=True)
class Placement:
    """The shared-memory layouts of both operands of an mma.sync kernel, and the warps that share a CTA tile."""

    a: OperandTile
    b: OperandTile
    warps_m: int
    warps_n: int
    threads: int

    @property
    def read_conflicts(self) -> int:
        """Return the bank conflicts of reading the fragments of a k-tile, over all warps."""
        return read_conflicts(self.a) * self.warps_n + read_conflicts(self.b) * self.warps_m

    @property
    def copies_are_even(self) -> bool:
        """Return whether, in every pass of every copy, either all lanes of a warp copy a chunk or none do.

        Otherwise the counts cannot be compared: lanes without a chunk run ahead to the next pass, and the executor counts lanes of
        two passes at the same source line as one instruction. Compiled code has an instruction for each pass.
        """
        return all(_is_even(tile, self.threads) for tile in (self.a, self.b))

    @property
    def copy_conflicts(self) -> int:
        """Return the bank conflicts of copying a k-tile to shared memory."""
        return sum(copy_conflicts(tile, self.threads) for tile in (self.a, self.b))


def placement_of(spec: Mapping[str, Any]) -> Placement:
    """Read the placement from a record's spec."""
    tile, warp = Tile.parse(spec["cta_tile"]), WarpTile.parse(spec["warp_tile"])
    warps_m, warps_n = tile.m // warp.m, tile.n // warp.n
    threads = warps_m * warps_n * _PLACEMENT_WARP
    operands = []
    for k_major, extent, name in ((spec["layout"][0] == "t", tile.m, "a"), (spec["layout"][1] == "n", tile.n, "b")):
        rows, columns = (extent, tile.k) if k_major else (tile.k, extent)
        smem, size = Smem.parse(spec[f"smem_{name}"]), DTYPE_BYTES[spec[f"dtype_{name}"]]
        chunk = {"ldg_sts_scalar": 1, "ldg_sts_unaligned": VECTOR_BYTES // size}.get(
            spec["copy"], spec[f"align_{name}"]
        )
        operands.append(OperandTile(k_major, rows, columns, chunk, threads, smem, size))
    return Placement(*operands, warps_m, warps_n, threads)


def _is_even(tile: OperandTile, threads: int) -> bool:
    per_row = tile.columns // tile.chunk
    if per_row >= threads:
        return per_row % _PLACEMENT_WARP == 0
    row_step = threads // per_row
    return row_step * per_row % _PLACEMENT_WARP == 0 and tile.rows % row_step * per_row % _PLACEMENT_WARP == 0


# ==== Costs, counted on the addresses of a launch ====


_ADVERSARY = Adversary("late", "round_robin", 1)
_BARRIER, _MMA = "cta_barrier", "mma"
_COSTS_WARP = 32
_TO_REGISTERS = "ldg"
"""The copy of kernels whose warps share the k of a tile. They stage no operands."""
_UNPLACED = ("tma", _TO_REGISTERS, "by_hand")
"""Copies whose bank conflicts are not predicted: those of the TMA, those to registers, and those of handwritten kernels."""


@dataclass(frozen=True)
class Costs:
    """The costs of one CTA: per k-tile, and outside the mainloop.

    Units: `mma_per_k_tile` counts tensor instructions per warp, or per warpgroup for wgmma; sectors are 32 bytes of global
        memory; conflicts are passes of shared memory beyond the minimum.
    """

    mma_per_k_tile: float
    mma_beside_k_tiles: float
    barriers_per_k_tile: float
    bytes_per_k_tile: float
    read_conflicts_per_k_tile: float
    copy_conflicts_per_k_tile: float
    epilogue_conflicts: float
    sectors_per_request: float
    ideal_sectors_per_request: float


def count(kernel: EmulatedKernel, spec: Mapping[str, Any]) -> tuple[Costs, list[dict[str, Any]]]:
    """Count two launches with k-tiles that differ by one. Return the costs, and the sites of the longer launch."""
    shorter, longer = (_counted(kernel, int(spec["stages"]) + extra) for extra in (1, 2))
    ctas = kernel.traits.splits * kernel.traits.cluster_ctas
    before = {_key(site): site for site in shorter.sites}
    steps = [(site, _less(site, before.get(_key(site)))) for site in longer.sites]
    beside = [site for site, step in steps if not step.requests]
    counters = {name: total - shorter.counters.get(name, 0) for name, total in longer.counters.items()}
    mma, all_mma = (sum(n for name, n in counts.items() if _MMA in name) for counts in (counters, longer.counters))
    touching = [site for site in longer.sites if site.sectors]
    requests = sum(site.requests for site in touching) or 1
    costs = Costs(
        mma_per_k_tile=mma / (ctas * _issuers(kernel.traits, spec)),
        mma_beside_k_tiles=(all_mma - mma * (int(spec["stages"]) + 2)) / ctas,
        barriers_per_k_tile=counters.get(_BARRIER, 0) / ctas,
        bytes_per_k_tile=sum(step.bytes for _, step in steps if step.sectors) / ctas,
        read_conflicts_per_k_tile=sum(_conflicts(step) for _, step in steps if _reads(step)) / ctas,
        copy_conflicts_per_k_tile=sum(_conflicts(step) for _, step in steps if not _reads(step)) / ctas,
        epilogue_conflicts=sum(map(_conflicts, beside)) / ctas,
        sectors_per_request=sum(site.sectors for site in touching) / requests,
        ideal_sectors_per_request=sum(site.ideal_sectors for site in touching) / requests,
    )
    return costs, [asdict(site) for site in longer.sites]


def _issuers(traits: LaunchTraits, spec: Mapping[str, Any]) -> int:
    """Return the number of warps, or warpgroups for wgmma, that compute a tile together."""
    consumers = int(spec.get("consumers", 0))
    if not consumers and ("warp_tile" not in spec or spec["copy"] == _TO_REGISTERS):  # handwritten, or warps share k
        return traits.threads // _COSTS_WARP
    if not consumers:
        tile, warp = Tile.parse(spec["cta_tile"]), WarpTile.parse(spec["warp_tile"])
        return tile.m // warp.m * (tile.n // warp.n)
    return consumers if spec["cooperation"] == "cooperative" else 1


def _counted(kernel: EmulatedKernel, k_tiles: int) -> Report:
    """Launch one problem. Its A is 0: counts do not depend on numbers, and products of zeros take no time."""
    case = measured_case(kernel.traits, k_tiles)
    alone = replace(kernel, adversaries=(_ADVERSARY,), workers=1, reports=[])
    trial = Trial(alone, case, HostMemory(), CheckOptions(), "integer")
    trial.operands = replace(trial.operands, a=np.zeros_like(trial.operands.a))
    try:
        trial.prepare()
        trial.launch(trial.problem())
    finally:
        trial.free()
    ((_, report),) = alone.reports
    return report


def _key(site: Site) -> tuple[str, int, str]:
    return site.file, site.line, site.kind


_COUNTS = ("requests", "wavefronts", "ideal_wavefronts", "sectors", "ideal_sectors", "bytes")


def _less(site: Site, before: Site | None) -> Site:
    if before is None:
        return site
    return replace(site, **{name: getattr(site, name) - getattr(before, name) for name in _COUNTS})


def _reads(site: Site) -> bool:
    """Return whether a source line of the mainloop reads fragments."""
    return site.kind in ("ldmatrix", "wmma_load") or (site.kind, site.space) == ("load", "shared")


def _conflicts(site: Site) -> int:
    return site.wavefronts - site.ideal_wavefronts


def _loads(traits: LaunchTraits, operand: str) -> int:
    """Return how often each byte of a k-tile is loaded. Unaligned copies combine two vectors."""
    return 2 if traits.copies_unaligned(operand) else 1


def _extent(traits: LaunchTraits, spec: Mapping[str, Any], operand: str) -> float:
    """Return the mean extent of A or B that a CTA of a cluster loads. Without an edge map, the last box may extend beyond its tile,
    but not beyond the matrix of measured_case()."""
    axis = "ab".index(operand)
    extent, ctas = (traits.tile_m, traits.tile_n)[axis], traits.cluster_shape[axis]
    rule = next((rule for rule in traits.tensor_maps if rule.operand == operand), None)
    if rule is None or rule.edge or spec["layout"][axis] == "tn"[axis]:
        return extent
    boxes = -(-extent // rule.box[0]) * rule.box[0]
    return sum(min(boxes, left * extent) for left in range(1, ctas + 1)) / ctas


def disagreements(costs: Costs, traits: LaunchTraits, spec: Mapping[str, Any], mma_per_k_tile: int) -> Iterator[str]:
    """Yield the counts that differ from the plan and the layouts."""
    expected: dict[str, float] = {
        "mma_per_k_tile": mma_per_k_tile,
        "mma_beside_k_tiles": 0,  # no k-tile more than there are
        "bytes_per_k_tile": traits.tile_k
        * (
            _extent(traits, spec, "a") * DTYPES[traits.dtype_a].bytes * _loads(traits, "a")
            + _extent(traits, spec, "b") * DTYPES[traits.dtype_b].bytes * _loads(traits, "b")
        ),
    }
    if int(spec.get("consumers", 0)):
        expected["copy_conflicts_per_k_tile"] = 0  # boxes in shared memory
    elif spec["copy"] not in _UNPLACED:
        placement = placement_of(spec)
        expected["read_conflicts_per_k_tile"] = placement.read_conflicts
        if placement.copies_are_even:
            expected["copy_conflicts_per_k_tile"] = placement.copy_conflicts
    for name, value in expected.items():
        found = getattr(costs, name)
        if found != value:
            yield f"{name.replace('_', ' ')}: counted {found:g}, planned {value:g}"


# ==== Proof ====


LAUNCHES = (
    ("late", "ahead_low"),
    ("any_time", "any_order"),
    ("late", "ahead_high"),
    ("early", "round_robin"),
)
"""Timing and order of the launches of a case: two with small integers, whose results are exact, two with normal numbers.

Late copies, while one warp runs far ahead of the others, expose most faults. So this combination is first.
"""


def adversaries_of(case: str, seed: int) -> tuple[Adversary, ...]:
    """Return the adversaries of a case. Their seeds derive from its name and `seed`."""
    return tuple(Adversary(timing, order, _seed(case, seed, at)) for at, (timing, order) in enumerate(LAUNCHES))


def _seed(case: str, seed: int, at: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {at} {case}".encode()).digest()[:4], "little")


_MAX_FAILED_CASES = 3
"""The proof stops after this many failed cases."""


@dataclass(frozen=True)
class Subject:
    """The kernel to prove: its PTX, its record, and the planned number of tensor instructions per k-tile and warp."""

    symbol: str
    ptx: str
    record: Mapping[str, Any]
    mma_per_k_tile: int

    @property
    def stages(self) -> int:
        return int(self.record["spec"]["stages"])

    @property
    def dtype(self) -> str:
        return str(self.record["spec"]["dtype_a"])

    def pair(self, twins: Sequence[Subject]) -> Subject | None:
        """Return the first twin whose elements have another type. It is built with this kernel."""
        return next((twin for twin in twins if twin.dtype != self.dtype), None)


@dataclass(frozen=True)
class EmulatedCheck(CheckResult):
    """A check with the findings of the executor. `numbers_passed` tells whether the results alone are correct."""

    numbers_passed: bool = True
    findings: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class ProofResult:
    """The checks, and the `proof` section of the record. It is empty unless all default cases passed."""

    checks: tuple[EmulatedCheck, ...]
    proof: dict[str, Any]
    sites: tuple[dict[str, Any], ...] = ()


def prove(
    subject: Subject,
    host_toolchain: HostToolchain,
    shapes: tuple[Shape, ...] = (),
    seed: int = 0,
    twins: Sequence[Subject] = (),
) -> ProofResult:
    """Build and check a kernel, on its default cases or on `shapes`.

    Of its `twins`, its pair is built with it: see `check_numbers`.

    Raises: PtxError if its PTX has an instruction that is not supported, BuildError if the compiler rejects the translation,
        DeviceError if the executor rejects a launch.
    """
    began = time.monotonic()
    traits = LaunchTraits.of(subject.record)
    require_launch(subject, traits)
    coverage = Coverage(traits, subject.mma_per_k_tile * _issuers(traits, subject.record["spec"]))
    kernel = EmulatedKernel(traits, load(subject, host_toolchain, subject.pair(twins)), (), coverage=coverage)
    cases = cases_of(traits, shapes) if shapes else default_cases(traits, subject.stages)
    checks = list(_checks_of(kernel, cases, seed))
    if shapes or not all(check.passed for check in checks):
        return ProofResult(tuple(checks), {})
    costs, sites = count(replace(kernel, coverage=None), subject.record["spec"])
    wrong = "; ".join(disagreements(costs, traits, subject.record["spec"], subject.mma_per_k_tile))
    checks.append(EmulatedCheck(COSTS_CASE, 0.0, 0.0, not wrong, wrong))
    lacking = "; ".join([*coverage.shortfalls(), *_unbounded(checks)])
    if lacking:
        checks.append(EmulatedCheck(COVERAGE_CASE, 0.0, 0.0, False, lacking))
    if wrong or lacking:
        return ProofResult(tuple(checks), {}, tuple(sites))
    ordered = list(_order_checks(replace(kernel, coverage=None), subject.record, host_toolchain, seed))
    if not all(check.passed for check, _ in ordered):
        return ProofResult((*checks, *(check for check, _ in ordered)), {}, tuple(sites))
    proof = proof_of(subject, host_toolchain, checks[:-1], costs, seed, time.monotonic() - began)
    proof["coverage"] = coverage.record()
    if ordered:
        proof["order_elements"] = sum(elements for _, elements in ordered)
        checks += [check for check, _ in ordered]
    return ProofResult(tuple(checks), proof, tuple(sites))


def check_numbers(
    subject: Subject, twin: Subject, host_toolchain: HostToolchain, seed: int = 0, pair: Subject | None = None
) -> tuple[EmulatedCheck, ...]:
    """Check the twin of a kernel that has passed, on the cases that depend on numbers. `pair` was built with the kernel.

    That is no proof by itself: see generator.proof.twins. Raises: as `prove`.
    """
    traits = LaunchTraits.of(twin.record)
    require_launch(twin, traits)
    if twin.dtype == subject.dtype:
        executable = load(twin, host_toolchain, pair)
    else:
        executable = load(subject, host_toolchain, twin, run_twin=True)
    kernel = EmulatedKernel(traits, executable, ())
    checks = list(_checks_of(kernel, number_cases(traits, twin.stages), seed))
    checks += [check for check, _ in _order_checks(kernel, twin.record, host_toolchain, seed, most=1)]
    return tuple(checks)


def _unbounded(checks: list[EmulatedCheck]) -> Iterator[str]:
    """Yield a failure if the results of no case have a bound, so that nothing was checked."""
    if all(check.reason == UNBOUNDED for check in checks if check.case != COSTS_CASE):
        yield f"{UNBOUNDED} in any case: the expression is undefined, or overflows, for random inputs"


def require_launch(subject: Subject, traits: LaunchTraits) -> None:
    """Raise ProofError if the record launches a kernel in another way than its PTX allows, so that the driver would reject it."""
    kernel = parse_head(subject.ptx, subject.symbol)
    allowed = {
        "threads": (traits.threads, math.prod(kernel.required_threads), math.prod(kernel.most_threads)),
        "CTAs of a cluster": (math.prod(traits.cluster), math.prod(kernel.cluster), 0),
    }
    for name, (launched, required, most) in allowed.items():
        if (required and launched != required) or (most and launched > most):
            limit = f"exactly {required}" if required else f"at most {most}"
            raise ProofError(
                f"the record launches {launched} {name}, and the PTX allows {limit}: generate the kernel again"
            )


def load(
    subject: Subject, host_toolchain: HostToolchain, twin: Subject | None = None, run_twin: bool = False
) -> Executable:
    """Build and load a kernel, and its twin with it. If this fails because the cache is damaged, build everything once more.

    Raises: PtxError or BuildError if it cannot be built, ProofError if the result cannot be loaded.
    """
    both = (twin.symbol, twin.ptx) if twin else None
    build = partial(host_toolchain.executable, subject.symbol, subject.ptx, twin=both)
    words = (twin.ptx, TWIN_FUNCTION) if twin and run_twin else (subject.ptx, FUNCTION)
    with suppress(OSError, AttributeError):
        return SandboxedExecutable(build(), host_toolchain.runner(), *words)
    path = build(rebuild=True)
    try:
        return SandboxedExecutable(path, host_toolchain.runner(), *words)
    except (OSError, AttributeError) as error:
        raise ProofError(
            f"the output of {host_toolchain.compiler} cannot be loaded ({error}): set CXX to another compiler"
        ) from error


def _checks_of(kernel: EmulatedKernel, cases: list[Case], seed: int) -> Iterator[EmulatedCheck]:
    failed = 0
    for case in cases:
        check = check_case(kernel, case, seed)
        yield check
        failed += not check.passed
        if failed == _MAX_FAILED_CASES:
            return


def check_case(kernel: EmulatedKernel, case: Case, seed: int) -> EmulatedCheck:
    """Check one case: its results as on a device, and the findings of the executor."""
    alone = replace(kernel, adversaries=adversaries_of(str(case), seed)[case.first_order :], reports=[])
    check = verify(alone, case, HostMemory(), CheckOptions(seed=seed))
    found = [(adversary, finding) for adversary, report in alone.reports for finding in report.findings]
    if not found:
        return EmulatedCheck(**asdict(check), numbers_passed=check.passed)
    reason = "; ".join(_lines_of(found)) + ("" if check.passed else f"; {check.reason}")
    findings = tuple({**asdict(finding), "adversary": str(adversary)} for adversary, finding in found)
    numbers = {name: value for name, value in asdict(check).items() if name not in ("passed", "reason")}
    return EmulatedCheck(**numbers, passed=False, reason=reason, numbers_passed=check.passed, findings=findings)


def _order_checks(
    kernel: EmulatedKernel, record: Mapping[str, Any], host_toolchain: HostToolchain, seed: int, most: int | None = None
) -> Iterator[tuple[EmulatedCheck, int]]:
    """Yield a check of each case, or of the first `most`, that shows the order of accumulation, with its number of elements."""
    order = require_order(record, kernel.traits.arch_number)
    if not order:
        return
    add = adder(host_toolchain.ordered_sum())
    for case in order_cases(kernel.traits)[:most]:
        name = _order_name(case)
        alone = replace(kernel, adversaries=adversaries_of(name, seed)[1:2], reports=[])
        trial = OrderTrial(alone, case, HostMemory(), CheckOptions(seed=seed))
        try:
            failure, elements = trial.failure(order, add)
        finally:
            trial.free()
        found = [(adversary, finding) for adversary, report in alone.reports for finding in report.findings]
        reason = "; ".join([*_lines_of(found), *([failure] if failure else [])])
        yield EmulatedCheck(name, 0.0, 0.0, not reason, reason, numbers_passed=not failure), elements


def order_names(record: Mapping[str, Any]) -> list[str]:
    """Return the names of the checks of the order of accumulation that a proof in a record includes."""
    if not record["proof"].get("order_elements"):
        return []
    return [_order_name(case) for case in order_cases(LaunchTraits.of(record))]


def _order_name(case: Case) -> str:
    return f"order {case}"


def _lines_of(found: list[tuple[Adversary, Finding]]) -> Iterator[str]:
    """Yield a line for each kind and place of findings, with the first adversary that exposed it."""
    seen = set()
    for adversary, finding in found:
        place = (finding.kind, finding.file, finding.line)
        if place not in seen:
            seen.add(place)
            yield f"{finding} ({adversary})"


def proof_of(
    subject: Subject,
    host_toolchain: HostToolchain,
    checks: list[EmulatedCheck],
    costs: Costs,
    seed: int,
    seconds: float,
) -> dict[str, Any]:
    """Return the `proof` section of the record, without the fields that come from the plan."""
    counted = {name: int(value) if value == int(value) else value for name, value in asdict(costs).items()}
    del counted["mma_beside_k_tiles"]
    return {
        **counted,
        "mma_per_k_tile": subject.mma_per_k_tile,
        "races": 0,
        "max_error": max(check.max_error for check in checks),
        "max_bound_ratio": max(check.max_bound_ratio for check in checks),
        "shapes": [check.case for check in checks],
        "timings": [f"{timing}, {order}" for timing, order in LAUNCHES],
        "seed": seed,
        "executor": host_toolchain.version(),
        "host_compiler": host_toolchain.compiler.identity,
        "emulate_seconds": round(seconds, 2),
    }

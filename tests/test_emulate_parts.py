"""The Python side of proving on the CPU, with NumPy in the place of compiled kernels: cases, adversaries, regions, judging."""

from __future__ import annotations

from dataclasses import replace

import pytest
import simulated
from records import make_record
from simulated import record

from generator.layouts import OperandTile, read_conflicts, write_conflicts
from generator.proof import executor as abi
from generator.proof.costs import copy_conflicts, placement_of
from generator.proof.executor import Adversary, Finding, Launch, Report
from generator.proof.machine import (
    PERSISTENT_CTAS,
    EmulatedKernel,
    HostMemory,
    default_cases,
    launch_of,
    measured_case,
    regions,
)
from generator.proof.proving import LAUNCHES, adversaries_of, check_case
from generator.spec import Smem
from hgemm.cases import Case, Shape
from hgemm.errors import LibraryError
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import Problem
from hgemm.record import validate
from hgemm.verify import CANARY, CheckOptions, operand_layouts, verify

CLEAN = Report((), (), {"mma_m16n8k16": 8})
RACE = Finding("race", 3, "thread 1 and thread 2", "operand.cuh", 7)
CASE = Case(Shape(33, 49, 20), loose=True)


class FakeExecutable:
    """Launches `simulated` with some faults, and reports what it is told to."""

    def __init__(self, traits: LaunchTraits, *faults: str, report: Report = CLEAN) -> None:
        self.traits, self.faults, self.report = traits, frozenset(faults), report
        self.runs: list[tuple[Launch, Adversary]] = []

    def run(self, launch: Launch, adversary: Adversary) -> Report:
        self.runs.append((launch, adversary))
        problem = Problem(*_unpacked(launch.parameters[0]))
        simulated.launch(self.traits, problem, self.faults)
        return self.report


def _unpacked(parameter: bytes) -> tuple:
    import struct

    v = struct.unpack("<6Q4q5q4i2f", parameter)
    return (*v[15:19], *v[:15], *v[19:])


def kernel_of(document: dict, *faults: str, report: Report = CLEAN) -> EmulatedKernel:
    traits = LaunchTraits.of(document)
    return EmulatedKernel(traits, FakeExecutable(traits, *faults, report=report), ())


VARIANTS = {
    "plain": record(),
    "nt f16": record(layout="nt", acc="f16", align=(4, 2, 1)),
    "bf16 without C": record(layout="nn", dtype_a="bf16", dtype_b="bf16", dtype_d="bf16", align=(1, 1, 8), beta=False),
    "split_k": record("split_k", splits=3, bias="row"),
    "persistent": record("persistent", bias="column", activation="gelu"),
    "stream_k": record("stream_k", bias="row"),
}


# ---- Judging --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIANTS)
def test_a_right_kernel_passes_every_default_case(name: str) -> None:
    kernel = kernel_of(VARIANTS[name])
    for case in default_cases(kernel.traits, stages=3):
        judged = check_case(kernel, case, seed=0)
        assert judged.passed and judged.numbers_passed and not judged.findings, judged


def test_the_numbers_are_judged_as_on_a_device() -> None:
    wrong = kernel_of(record(), "drops an element of k")
    judged = check_case(wrong, CASE, seed=5)
    alone = EmulatedKernel(wrong.traits, wrong.executable, adversaries_of(str(CASE), 5))
    assert not judged.passed and not judged.numbers_passed
    assert judged.reason == verify(alone, CASE, HostMemory(), CheckOptions(seed=5)).reason


def test_a_finding_fails_a_case_whose_numbers_are_right() -> None:
    judged = check_case(kernel_of(record(), report=replace(CLEAN, findings=(RACE,))), CASE, seed=1)
    assert not judged.passed and judged.numbers_passed and len(judged.findings) == len(LAUNCHES)
    first = adversaries_of(str(CASE), 1)[0]
    assert judged.reason == f"race at operand.cuh:7: thread 1 and thread 2 (3 times) ({first})"
    assert {finding["adversary"] for finding in judged.findings} == {*map(str, adversaries_of(str(CASE), 1))}


def test_every_case_meets_every_adversary_and_a_seed_replays_them() -> None:
    kernel = kernel_of(record())
    check_case(kernel, CASE, seed=3)
    met = [adversary for _, adversary in kernel.executable.runs]
    assert met == list(adversaries_of(str(CASE), 3)) and met[0].timing == "late" and met[0].order == "ahead_low"
    assert [(one.timing, one.order) for one in met] == list(LAUNCHES)
    assert adversaries_of(str(CASE), 4) != adversaries_of(str(CASE), 3) != adversaries_of("1x1x1", 3)
    assert {one.timing for one in met} == {*abi.TIMINGS} and {one.order for one in met} == {*abi.ORDERS}


# ---- Launches -------------------------------------------------------------------------------------------------------


def test_every_operand_is_a_region_with_its_rights() -> None:
    document = record("split_k", splits=2, layout="nn", bias="row")
    traits = LaunchTraits.of(document)
    case = Case(Shape(33, 49, 20, 2), 1.0, 0.5, loose=True)
    fields = {}
    for at, (name, place) in enumerate(operand_layouts(traits, case).items()):
        fields[name], fields[f"batch_stride_{name}"] = (1 + at) << 20, place.batch_stride
        if name != "bias":
            fields[f"ld{name}"] = place.leading
    problem = Problem(33, 49, 20, 2, workspace=1 << 24, alpha=1.0, beta=0.5, **fields)
    found = {region.name: region for region in regions(traits, problem, grid=8)}
    assert {*found} == {"A", "B", "C", "bias", "D", "counters", "partial results"}
    assert found["A"].flags == abi.READABLE | abi.INITIALISED | abi.PADDING_READABLE  # m is contiguous
    assert found["B"].flags == found["C"].flags == abi.READABLE | abi.INITIALISED
    assert found["D"].flags == abi.WRITABLE | abi.WRITE_ONCE
    shifting = replace(traits, copy="ldg_sts_unaligned", align_a=8, align_b=1)
    shifted = {region.name: region for region in regions(shifting, problem, grid=8)}
    assert {name for name, region in shifted.items() if region.flags & abi.MATRIX_READABLE} == {"B"}
    assert not found["partial results"].flags & abi.INITIALISED and found["counters"].flags & abi.INITIALISED
    assert (found["D"].rows, found["D"].row_bytes, found["D"].batches) == (33, 98, 2)
    assert found["partial results"].base == found["counters"].base + found["counters"].row_bytes


def test_a_persistent_variant_has_fewer_ctas_than_tiles() -> None:
    traits = LaunchTraits.of(record("persistent"))
    problem = Problem(5 * traits.tile_m, traits.tile_n, 16, a=256, b=256, d=256, lda=16, ldb=16, ldd=traits.tile_n)
    assert launch_of(traits, problem).grid_x == PERSISTENT_CTAS < 5
    assert launch_of(LaunchTraits.of(record()), problem).grid_x == 5


def test_stream_k_may_touch_the_places_of_the_ctas_of_its_grid_only() -> None:
    traits = LaunchTraits.of(record("stream_k"))
    problem = Problem(traits.tile_m, traits.tile_n, 16, a=256, b=256, d=256, lda=16, ldb=16, ldd=traits.tile_n)
    for workers in (1, 7):
        launch = launch_of(traits, replace(problem, workspace=1 << 24), workers)
        (sums,) = (region for region in launch.regions if region.name == "partial results")
        assert (launch.grid_x, sums.row_bytes) == (workers, workers * traits.partial_bytes_per_cta)


def test_tensor_maps_are_what_the_kernel_expects_in_size_and_place() -> None:
    maps = [{"operand": "a", "box": [64, 32, 1], "swizzle_bytes": 128, "element": "f16"}]
    document = record()
    document["launch"] = {**document["launch"], "tensor_maps": maps, "cluster_shape": [1, 1]}
    traits = LaunchTraits.of(document)
    problem = Problem(32, 48, 64, a=4096, b=256, d=256, lda=64, ldb=64, ldd=48)
    first, second = launch_of(traits, problem).parameters
    assert len(first) == 144 and len(second) == 3 * 128 and not any(second[128:])
    read = abi.TensorMap.from_buffer_copy(second)
    assert (read.base, read.magic, read.rank, read.element_bytes, read.swizzle) == (4096, abi.TENSOR_MAP_MAGIC, 3, 2, 3)
    assert list(read.extent)[:3] == [64, 32, 1] and list(read.box)[:3] == [64, 32, 1] and read.stride_bytes[0] == 128


def test_the_guard_bands_hold_poison() -> None:
    assert CANARY.to_bytes(2, "little") == b"\xff\xff"


def test_a_report_is_read() -> None:
    site = dict.fromkeys("line requests wavefronts ideal_wavefronts sectors ideal_sectors bytes".split(), 1)
    document = {
        "findings": [{"kind": "race", "count": 3, "message": "m", "file": "f", "line": 2}],
        "sites": [{"file": "f", "kind": "cp_async", "space": "both", **site}],
        "counters": {"steps": 4},
    }
    report = Report.of_json(document)
    assert (
        str(report.findings[0]) == "race at f:2: m (3 times)" and report.sites[0].bytes == report.counters["steps"] - 3
    )


# ---- Cases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [(16, 16, 16), (256, 256, 64), (64, 32, 48)])
@pytest.mark.parametrize("rule", ["one_tile", "split_k", "persistent"])
def test_default_cases_are_ragged_in_every_way_and_small(tile: tuple[int, int, int], rule: str) -> None:
    m, n, k = tile
    traits = replace(LaunchTraits.of(record(rule, splits=4 if rule == "split_k" else 1)), tile_m=m, tile_n=n, tile_k=k)
    cases = default_cases(traits, stages=4)
    shapes = [case.shape for case in cases]
    assert all(min(s.m, s.n, s.k, s.batch) >= 1 for s in shapes) and len({*map(str, cases)}) == len(cases)
    assert any(s.m % m == s.n % n == s.k % k == 0 and s.k >= 6 * k for s in shapes)
    for extent, name in ((m, "m"), (n, "n"), (k, "k")):
        assert any(getattr(s, name) % extent for s in shapes)
    assert Shape(1, 1, 1) in shapes and any(s.k <= 3 * k for s in shapes) and any(s.batch > 1 for s in shapes)
    assert {case.broadcast for case in cases} == {"", "a", "b,c,bias"} and any(case.in_place for case in cases)
    assert any(case.beta for case in cases) and any(case.loose for case in cases)
    if rule == "persistent":
        assert any(-(-s.m // m) * -(-s.n // n) * s.batch > PERSISTENT_CTAS for s in shapes)
    products = sum(-(-s.m // m) * -(-s.n // n) * -(-s.k // k) * s.batch for s in shapes) * m * n * k
    assert products <= 100 * max(m * n * k, 2**20)


def test_the_measured_case_has_as_many_k_tiles_for_each_split() -> None:
    traits = LaunchTraits.of(record("split_k", splits=3))
    assert measured_case(traits, 5).shape == Shape(traits.tile_m, traits.tile_n, 15 * traits.tile_k)


# ---- Placement ------------------------------------------------------------------------------------------------------

SPEC = {
    "cta_tile": "64x32x32",
    "warp_tile": "32x16",
    "layout": "tn",
    "align_a": 8,
    "align_b": 8,
    "dtype_a": "f16",
    "dtype_b": "f16",
    "copy": "cp_async",
}


def test_the_placement_counts_every_warp_that_reads() -> None:
    placement = placement_of({**SPEC, "smem_a": "none", "smem_b": "none"})
    assert (placement.warps_m, placement.warps_n, placement.threads) == (2, 2, 128)
    assert placement.read_conflicts == 2 * read_conflicts(placement.a) + 2 * read_conflicts(placement.b) > 0
    swizzled = placement_of({**SPEC, "smem_a": "xor:2,3,3", "smem_b": "xor:2,3,3"})
    assert swizzled.read_conflicts == swizzled.copy_conflicts == 0


@pytest.mark.parametrize("smem", ["none", "xor:2,3,3", "xor:1,3,3", "pad:8", "pad:24", "pad_alternate:8"])
@pytest.mark.parametrize("chunk", [8, 4, 2, 1])
def test_copies_of_one_pass_cost_what_the_layouts_say(smem: str, chunk: int) -> None:
    threads = 128
    rows = threads * chunk // 32  # one pass
    tile = OperandTile(True, rows, 32, chunk, threads, Smem.parse(smem))
    assert copy_conflicts(tile, threads) == write_conflicts(tile)


def test_copies_count_every_pass_and_no_thread_without_a_chunk() -> None:
    plain = OperandTile(True, 64, 48, 8, 64, Smem("none"))  # 6 chunks a row, 10 rows a pass, 4 threads idle
    assert copy_conflicts(plain, 64) >= copy_conflicts(replace(plain, rows=10), 64) * 6
    wide = OperandTile(False, 4, 256, 1, 64, Smem("none"))  # 4 passes along a row
    assert copy_conflicts(wide, 64) == 0


@pytest.mark.parametrize(
    ("tile", "align", "even"),
    [("64x32x32", 8, True), ("64x48x48", 8, True), ("32x32x16", 8, True), ("64x32x48", 4, False)],
)
def test_copies_are_even_where_no_warp_is_partly_idle(tile: str, align: int, even: bool) -> None:
    aligned = {"align_a": align, "align_b": align, "smem_a": "none", "smem_b": "none", "warp_tile": "16x16"}
    assert placement_of({**SPEC, **aligned, "cta_tile": tile}).copies_are_even == even


# ---- The record -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"), [("races", "none"), ("shapes", "33x17x40"), ("max_error", -1), ("executor", 3), ("seed", 1.5)]
)
def test_the_fields_of_a_proof_have_types(name: str, value: object) -> None:
    proof = {"mma_per_tile": 4, "races": 0, "shapes": ["8x8x8"], "max_error": 0.5, "note": {"of": ["others"]}}
    validate({**make_record("one")[0], "proof": proof})
    with pytest.raises(LibraryError, match=f"proof.{name}"):
        validate({**make_record("one")[0], "proof": {**proof, name: value}})

"""Kernels on mma.sync: copies through registers, WMMA fragments, their machine code and their results on the CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import made, subject_of
from refusals import assert_refused_by_the_compiler

from generator.build.compile import compile_kernel
from generator.build.emit import emit
from generator.build.inspect import Binary, Listing, MachineCode, disassemble, inspect, read_cubin
from generator.build.pipeline import Settings
from generator.build.toolchain import headers, templates_folder
from generator.families import expectation_of
from generator.families.base import Plan
from generator.families.mma_sync.plan import (
    copy_registers,
    hiding_spacing,
    planned_spacing,
    stores_per_k_tile,
    widest_spacing,
)
from generator.layouts import OperandTile, conflict_free, read_conflicts
from generator.planner import plan_of as wmma_plan_of
from generator.planner import resolve, violations
from generator.proof.executor import (
    HostToolchain,
)
from generator.proof.proving import prove
from generator.spec import Smem, parse_field
from generator.sweep import sweep
from hgemm.launch_traits import LaunchTraits
from hgemm.verification import Buffer

TEMPLATES = templates_folder()
PUBLISHED = {"arch": "sm_75", "tile": "256x256x32", "warp_tile": "128x64", "acc": "f16", "smem": "pad_alternate:8"}
SMALL = {"arch": "sm_75", "tile": "32x64x32", "warp_tile": "16x32"}


def plan_of(**texts: str) -> Plan:
    (plan,) = sweep([texts]).plans
    return plan


# ---- What is planned ------------------------------------------------------------------------------------------------


def test_turing_default_is_the_published_tile_for_f16_accumulators() -> None:
    spec = plan_of(arch="sm_75", acc="f16").spec
    fields = (
        str(spec.cta_tile),
        str(spec.warp_tile),
        spec.mma,
        spec.copy,
        spec.stages,
        spec.ctas_per_sm,
        spec.store_spacing,
    )
    assert fields == ("256x256x32", "128x64", "m16n8k8", "ldg_sts", 2, 1, 5)


def test_store_spacing_hides_stores_on_turing() -> None:
    """5 HMMA for 16 bytes, as published: 4 schedulers that store at 10 cycles each, beside HMMA at 8.06."""
    aligned = {align: plan_of(**SMALL, copy="ldg_sts", align=str(align)) for align in (8, 4, 2, 1)}
    assert {align: hiding_spacing(plan) for align, plan in aligned.items()} == {8: 5, 4: 3, 2: 3, 1: 3}
    assert all(planned_spacing(plan) <= widest_spacing(plan) for plan in aligned.values())


@pytest.mark.parametrize("stages", ["1", "2"])
def test_published_tile_with_alternate_padding_is_legal(stages: str) -> None:
    (candidate,) = sweep([{**PUBLISHED, "stages": stages}]).candidates
    broken = {violation.rule for violation in candidate.broken}
    assert broken == (set() if stages == "1" else {"shared_memory"})  # 36 KiB a stage, of 64 an SM
    assert candidate.plan.stage_bytes == 36 * 1024 and candidate.plan.bank_conflicts == 0


def test_scalar_copies_ignore_the_alignment() -> None:
    vector, scalar = (plan_of(**SMALL, copy=copy) for copy in ("ldg_sts", "ldg_sts_scalar"))
    assert (vector.a.chunk, scalar.a.chunk, stores_per_k_tile(scalar)) == (8, 1, 8 * stores_per_k_tile(vector))
    assert vector.traits() == scalar.traits()


SPACINGS = (
    {"stages": "1"},
    {"stages": "2", "fragment_stages": "1"},
    {"stages": "2", "fragment_stages": "2"},
    {"stages": "1", "tile": "96x64x48", "warp_tile": "96x16"},
    {"stages": "1", "tile": "32x32x16", "warp_tile": "16x16"},
    {"stages": "1", "mma": "wmma16", "smem": "pad:8"},
    {"stages": "2", "mma": "wmma16", "smem": "pad:8"},
    {"stages": "1", "tile": "64x112x16", "warp_tile": "32x56", "align": "4", "layout": "nt"},
)


@pytest.mark.parametrize("texts", SPACINGS, ids=lambda texts: "-".join(texts.values()))
def test_store_spacing_is_limited_by_the_kernel(texts: dict[str, str]) -> None:
    widest = widest_spacing(plan_of(**{**SMALL, **texts}))
    kernel = emit(plan_of(**{**SMALL, **texts, "store_spacing": str(widest)}), TEMPLATES)
    compile_kernel(kernel, headers(kernel.entry_header, TEMPLATES))
    assert_refused_by_the_compiler(kernel, f"store_spacing = {widest};", f"store_spacing = {widest + 1};")
    (candidate,) = sweep([{**SMALL, **texts, "store_spacing": str(widest + 1)}]).candidates
    assert {violation.rule for violation in violations(candidate.plan)} == {"store_spacing"}


@pytest.mark.parametrize("arch", ["sm_75", "sm_89", "sm_90a", "sm_120"])
def test_unaligned_rows_use_shifted_copies(arch: str) -> None:
    plan = plan_of(arch=arch, align_b="1")
    assert (plan.spec.copy, plan.spec.stages, plan.spec.store_spacing) == ("ldg_sts_unaligned", 2, 0)
    a_pieces, b_pieces = (tile.rows * tile.columns // 8 // plan.threads for tile in (plan.a, plan.b))
    assert stores_per_k_tile(plan) == a_pieces + b_pieces and copy_registers(plan) == 4 * a_pieces + 8 * b_pieces


@pytest.mark.parametrize(
    "texts",
    [{"stages": "3"}, {"tile": "208x80x48", "layout": "nt"}, {"dtype": "tf32"}, {"align": "2"}, {"copy": "cp_async"}],
    ids=lambda texts: "-".join(texts.values()),
)
def test_cp_async_replaces_shifted_copies_without_room_or_need(texts: dict[str, str]) -> None:
    assert plan_of(**{"arch": "sm_90", "align": "1", **texts}).spec.copy == "cp_async"


def test_aligned_rows_are_not_shifted() -> None:
    (candidate,) = sweep([{**SMALL, "copy": "ldg_sts_unaligned"}]).candidates
    assert [(violation.rule, violation.fix) for violation in candidate.broken] == [("copy", "Try --copy ldg_sts.")]


def test_without_prefetch_one_stage_is_planned() -> None:
    plan = plan_of(**SMALL, prefetch="off")
    assert (plan.spec.stages, plan.spec.fragment_stages, plan.spec.store_spacing) == (1, 1, 0)
    assert plan.spec.copy == "ldg_sts"


# ---- The machine code -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_75", "sm_89", "sm_100"])
def test_machine_code_has_the_recorded_store_spacing(arch: str, settings: Settings) -> None:
    texts = {"arch": arch, "copy": "ldg_sts", "tile": "64x64x32", "warp_tile": "32x32", "store_spacing": "4"}
    (outcome,) = made(texts, settings)
    assert outcome.error == "" and 4 <= outcome.record.data["proof"]["mma_between_stores"] <= 6


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_without_prefetch_loads_follow_the_last_product(arch: str) -> None:
    """Left to itself, ptxas loads the next k-tile before the products of this one."""
    plan = plan_of(arch=arch, copy="ldg_sts", tile="64x64x32", warp_tile="32x32", prefetch="off")
    kernel = emit(plan, TEMPLATES)
    cubin = compile_kernel(kernel, headers(kernel.entry_header, TEMPLATES)).cubin
    (listing,) = disassemble([MachineCode(arch, read_cubin(cubin, kernel.symbol).text)])
    letters = {"HMMA": "T", "LDG": "L", "STS": "S"}
    letters_of_loop = "".join(letters.get(each.mnemonic, "") for each in listing.loop_of("HMMA"))
    assert letters_of_loop == "T" * plan.mma_per_k_tile + "L" * stores_per_k_tile(plan) + "S" * stores_per_k_tile(plan)


def test_adjacent_stores_violate_the_spacing() -> None:
    kernel = emit(plan_of(**SMALL, store_spacing="0"), TEMPLATES)
    compiled = compile_kernel(kernel, headers(kernel.entry_header, TEMPLATES))
    expected = replace(expectation_of(kernel.plan, False), store_spacing=3)
    found = inspect(Binary(compiled.cubin, kernel.symbol, expected, compiled.ptxas_log))
    assert found.store_spacing is not None and found.store_spacing < 3
    assert found.violations == (
        f"{found.store_spacing} HMMA between two STS in the k loop, the plan says 3: ptxas moved them",
    )


@pytest.mark.parametrize("texts", [SMALL, {"arch": "sm_90", "tile": "64x64x32"}], ids=["sm_75", "sm_90"])
def test_static_shared_memory_needs_none_at_launch(texts: dict[str, str], settings: Settings) -> None:
    plan = plan_of(**texts, smem_alloc="static")
    (outcome,) = made({**texts, "smem_alloc": "static"}, settings)
    data = outcome.record.data
    assert outcome.error == "" and data["resources"]["smem_bytes"] == plan.smem_bytes
    assert data["launch"]["smem_bytes"] == 0 and LaunchTraits.of(data).static_smem_bytes == plan.smem_bytes


# ---- On the CPU -----------------------------------------------------------------------------------------------------

KINDS = (
    {**SMALL, "layout": "nt", "stages": "1", "align": "2"},
    {**SMALL, "layout": "nn", "copy": "ldg_sts_scalar", "bias": "row", "smem_alloc": "static"},
    {**SMALL, "arch": "sm_89", "copy": "ldg_sts", "dtype": "bf16", "fragment_stages": "1", "schedule": "persistent"},
    {
        **SMALL,
        "layout": "tt",
        "tile": "48x32x16",
        "warp_tile": "48x16",
        "copy": "ldg_sts",
        "align": "1",
        "schedule": "split_k:2",
    },
    pytest.param(
        {"arch": "sm_75", "tile": "64x112x16", "warp_tile": "32x56", "layout": "nt", "stages": "1", "align": "4"},
        marks=pytest.mark.slow,
    ),
    {**SMALL, "prefetch": "off", "layout": "nn"},
    {
        **SMALL,
        "arch": "sm_80",
        "copy": "ldg_sts_scalar",
        "prefetch": "off",
        "mma": "wmma16",
        "smem": "none",
        "schedule": "persistent",
    },
    pytest.param(
        {**SMALL, "copy": "ldg_sts_unaligned", "align": "1", "layout": "tt", "tile": "48x64x48", "warp_tile": "48x32"},
        marks=pytest.mark.slow,
    ),
    {
        **SMALL,
        "copy": "ldg_sts_unaligned",
        "align_a": "1",
        "align_b": "4",
        "layout": "nn",
        "bias": "column",
        "schedule": "split_k:2",
    },
    {**SMALL, "copy": "ldg_sts_unaligned", "align_a": "8", "align_b": "1", "prefetch": "off", "smem": "pad:8"},
    pytest.param(
        {
            "arch": "sm_90",
            "copy": "ldg_sts_unaligned",
            "align": "2",
            "tile": "128x64x32",
            "dtype": "bf16",
            "layout": "nt",
            "stages": "1",
        },
        marks=pytest.mark.slow,
    ),
    pytest.param(
        {
            "arch": "sm_90",
            "copy": "ldg_sts_unaligned",
            "align": "1",
            "tile": "32x256x16",
            "schedule": "persistent",
            "layout": "nt",
        },
        marks=pytest.mark.slow,
    ),
    {
        "arch": "sm_80",
        "copy": "ldg_sts_unaligned",
        "align": "1",
        "tile": "32x32x32",
        "mma": "wmma16",
        "layout": "nn",
        "acc": "f16",
    },
    {
        "arch": "sm_80",
        "copy": "ldg_sts_unaligned",
        "align": "2",
        "dtype": "tf32",
        "tile": "32x64x16",
        "schedule": "persistent",
    },
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("texts", KINDS, ids=lambda texts: "-".join(texts.values()))
def test_register_copy_kernels_are_proved_on_the_cpu(texts: dict[str, str], host_toolchain: HostToolchain) -> None:
    kernel = emit(plan_of(**texts), TEMPLATES)
    proved = prove(subject_of(kernel), host_toolchain)
    assert not [check.reason for check in proved.checks if not check.passed]
    assert proved.proof["races"] == 0 and proved.proof["barriers_per_k_tile"] == 3 - int(kernel.plan.spec.stages)


@pytest.mark.parametrize("offset_bytes", [0, 6, 8, 14])
def test_shifted_matrices_may_begin_anywhere(
    offset_bytes: int, host_toolchain: HostToolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Buffer.__init__
    monkeypatch.setattr(
        Buffer, "__init__", lambda self, device, size, _, *guard: begin(self, device, size, offset_bytes, *guard)
    )
    kernel = emit(plan_of(**SMALL, copy="ldg_sts_unaligned", align="1", layout="tt"), TEMPLATES)
    proved = prove(subject_of(kernel), host_toolchain)
    reasons = [check.reason for check in proved.checks if not check.passed]
    assert len(reasons) == (offset_bytes == 0) and all(
        "bytes per k tile" in reason for reason in reasons
    )  # asked for once


# ==== WMMA fragments ==================================================================================================

SMALL_WMMA = {"tile": "64x32x32", "warp_tile": "32x32", "stages": "3", "smem": "pad:8"}


def plan(**texts: str) -> Plan:
    (found,) = sweep([{**SMALL_WMMA, "mma": "wmma16", **texts}]).plans
    return found


def listing_of(planned: Plan) -> Listing:
    kernel, templates = emit(planned, templates_folder()), templates_folder()
    cubin = compile_kernel(kernel, headers(kernel.entry_header, templates)).cubin
    (listing,) = disassemble([MachineCode(planned.spec.arch, read_cubin(cubin, kernel.symbol).text)])
    return listing


# ---- The machine code -----------------------------------------------------------------------------------------------

KINDS_WMMA = [
    {"arch": "sm_80", "layout": "tn"},
    {"arch": "sm_80", "layout": "nt", "acc": "f16"},
    {"arch": "sm_89", "layout": "tt", "dtype": "bf16"},
    {"arch": "sm_86", "layout": "nn", "acc": "f16_promoted", "fragment_stages": "1"},
    {"arch": "sm_90", "layout": "nt", "stages": "1", "fragment_stages": "1"},
    {"arch": "sm_100", "layout": "nn", "dtype": "bf16"},
    {"arch": "sm_120", "layout": "tn", "acc": "f16"},
    {"arch": "sm_80", "layout": "tt", "copy": "ldg_sts", "stages": "2"},
]


@pytest.mark.parametrize("texts", [{}, {"layout": "nt", "acc": "f16"}], ids=lambda texts: " ".join(texts.values()))
def test_wmma_on_sm_75_uses_its_shorter_instructions(texts: dict[str, str]) -> None:
    """An ldmatrix.x2 for each 8 of k, and four products of m16n8k8: as many of these as of those on mma.m16n8k8."""
    ours, theirs = (listing_of(plan(arch="sm_75", stages="2", mma=mma, **texts)) for mma in ("wmma16", "m16n8k8"))
    assert [name for name in ours.opcode_counts() if name.startswith("LDSM")][0].endswith("88.2")
    assert ours.counts()["HMMA"] == theirs.counts()["HMMA"] == plan(arch="sm_75", stages="2", **texts).mma_per_k_tile
    assert ours.counts()["LDSM"] == 2 * theirs.counts()["LDSM"]


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("texts", KINDS_WMMA, ids=lambda texts: " ".join(texts.values()))
def test_wmma_uses_one_ldmatrix_and_two_instructions(texts: dict[str, str]) -> None:
    """So that what holds of the registers of mma.m16n8k16 holds of these: no other instruction moves or multiplies."""
    ours, theirs = (listing_of(plan(**texts, mma=mma)).opcode_counts() for mma in ("wmma16", "m16n8k16"))
    for mnemonic in ("HMMA", "LDSM", "MOVM", "SHFL"):
        found, expected = (
            {name: count for name, count in counts.items() if name.partition(".")[0] == mnemonic}
            for counts in (ours, theirs)
        )
        assert found == expected, mnemonic
    assert not [name for name in ours if name.startswith("MOVM") or name.startswith("SHFL")]


# ---- Placements -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
@pytest.mark.parametrize("tile", ["128x128x32", "256x128x32", "64x64x64", "48x112x16", "128x64x48"])
def test_wmma_rows_have_one_pitch_and_no_conflicts(layout: str, tile: str) -> None:
    request = {"arch": "sm_90", "mma": "wmma16", "layout": layout, "cta_tile": parse_field("cta_tile", tile)}
    planned = wmma_plan_of(resolve(request))
    assert not violations(planned)
    for operand in (planned.a, planned.b):
        assert operand.smem.has_one_pitch and read_conflicts(operand) == 0
        shape = (operand.k_major, operand.rows, operand.columns, operand.chunk, operand.threads)
        assert operand.smem == conflict_free(*shape, one_pitch=True)


@pytest.mark.parametrize(
    "smem",
    [Smem("none"), *(Smem("pad", (pad,)) for pad in (8, 64)), Smem("xor", (2, 3, 3)), Smem("pad_alternate", (8,))],
)
def test_rows_of_one_pitch_form_a_grid(smem: Smem) -> None:
    tile = OperandTile(True, 32, 32, 8, 128, smem)
    on_a_grid = all(tile.offset(row, k) == row * tile.offset(1, 0) + k for row in range(32) for k in range(32))
    assert smem.has_one_pitch == on_a_grid


def test_wmma_fragments_are_aligned_to_32_bytes() -> None:
    for pad in range(0, 65, 8):
        tile = OperandTile(False, 32, 64, 8, 128, Smem("pad", (pad,)) if pad else Smem("none"))
        assert all(tile.offset(row, column) % 16 == 0 for row in (0, 16) for column in range(0, 64, 16))


@pytest.mark.parametrize(("first", "deep"), [("sm_75", 8), ("sm_80", 16), ("sm_120", 16)])
def test_wmma_uses_the_deepest_instructions(first: str, deep: int) -> None:
    planned = plan(arch="sm_80").replace(arch=first)
    warp, k = planned.spec.warp_tile, planned.spec.cta_tile.k
    assert planned.mma_per_k_tile == warp.m // 16 * (warp.n // 16) * (k // 16) * {16: 2, 8: 4}[deep]
    assert planned.mma_opcode == f"HMMA.{ {16: '16816', 8: '1688'}[deep] }.F32"


# ---- On a GPU -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_default_cases_pass_on_the_gpu(tmp_path: Path) -> None:
    """If the accumulators were in other registers than the epilogue expects, all of D would be wrong."""
    from generator.device_check import open_kernel
    from generator.store.library import Library
    from hgemm.cases import default_cases
    from hgemm.device import open_device
    from hgemm.verification import verify

    library = Library(tmp_path / "library")
    settings = Settings(library, templates_folder())
    texts = {**SMALL_WMMA, "arch": "sm_80", "mma": "wmma16"}
    for kinds in (
        {"layout": "tn,nn,nt,tt"},
        {"dtype": "bf16", "layout": "tn,nt"},
        {"acc": "f16,f16_promoted", "smem": "none"},
        {"tile": "96x96x48", "warp_tile": "48x48", "fragment_stages": "1", "align": "1"},
    ):
        assert all(not outcome.error for outcome in made({**texts, **kinds}, settings))
    device = open_device()
    for record in library.records():
        kernel = open_kernel(library, record.symbol, "auto")
        for case in default_cases(kernel.traits, kernel.prepare().resident_ctas):
            found = verify(kernel, case, device)
            assert found.passed, (record.symbol, found)

"""Kernels on WMMA: the same machine instructions as on mma.sync, for fragments that rows of one pitch hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import made

from generator.build.compile import compile_kernel
from generator.build.emit import emit
from generator.build.inspect import Code, Listing, disassemble, read_cubin
from generator.build.pipeline import Settings
from generator.build.toolchain import headers, templates_folder
from generator.families.base import Plan
from generator.layouts import OperandTile, conflict_free, read_conflicts
from generator.planner import plan_of, resolve, violations
from generator.spec import Smem, parse_field
from generator.sweep import sweep

SMALL = {"tile": "64x32x32", "warp_tile": "32x32", "stages": "3", "smem": "pad:8"}


def plan(**texts: str) -> Plan:
    (found,) = sweep([{**SMALL, "mma": "wmma16", **texts}]).plans
    return found


def listing_of(planned: Plan) -> Listing:
    kernel, templates = emit(planned, templates_folder()), templates_folder()
    cubin = compile_kernel(kernel, headers(kernel.entry_header, templates)).cubin
    (listing,) = disassemble([Code(planned.spec.arch, read_cubin(cubin, kernel.symbol).text)])
    return listing


# ---- The machine code -----------------------------------------------------------------------------------------------

KINDS = [
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
def test_on_sm_75_they_are_the_shorter_instructions_that_it_has(texts: dict[str, str]) -> None:
    """An ldmatrix.x2 for each 8 of k, and four products of m16n8k8: as many of these as of those on mma.m16n8k8."""
    ours, theirs = (listing_of(plan(arch="sm_75", stages="2", mma=mma, **texts)) for mma in ("wmma16", "m16n8k8"))
    assert [name for name in ours.opcode_counts() if name.startswith("LDSM")][0].endswith("88.2")
    assert ours.counts()["HMMA"] == theirs.counts()["HMMA"] == plan(arch="sm_75", stages="2", **texts).mma_per_k_tile
    assert ours.counts()["LDSM"] == 2 * theirs.counts()["LDSM"]


@pytest.mark.parametrize("texts", KINDS, ids=lambda texts: " ".join(texts.values()))
def test_a_fragment_is_one_ldmatrix_and_a_product_two_instructions_side_by_side(texts: dict[str, str]) -> None:
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
def test_planned_rows_have_one_pitch_and_fragments_no_conflicts(layout: str, tile: str) -> None:
    request = {"arch": "sm_90", "mma": "wmma16", "layout": layout, "cta_tile": parse_field("cta_tile", tile)}
    planned = plan_of(resolve(request))
    assert not violations(planned)
    for operand in (planned.a, planned.b):
        assert operand.smem.has_one_pitch and read_conflicts(operand) == 0
        shape = (operand.k_major, operand.rows, operand.columns, operand.chunk, operand.threads)
        assert operand.smem == conflict_free(*shape, one_pitch=True)


@pytest.mark.parametrize(
    "smem",
    [Smem("none"), *(Smem("pad", (pad,)) for pad in (8, 64)), Smem("xor", (2, 3, 3)), Smem("pad_alternate", (8,))],
)
def test_rows_of_one_pitch_are_those_whose_elements_lie_on_a_grid(smem: Smem) -> None:
    tile = OperandTile(True, 32, 32, 8, 128, smem)
    on_a_grid = all(tile.offset(row, k) == row * tile.offset(1, 0) + k for row in range(32) for k in range(32))
    assert smem.has_one_pitch == on_a_grid


def test_a_fragment_begins_on_32_bytes() -> None:
    for pad in range(0, 65, 8):
        tile = OperandTile(False, 32, 64, 8, 128, Smem("pad", (pad,)) if pad else Smem("none"))
        assert all(tile.offset(row, column) % 16 == 0 for row in (0, 16) for column in range(0, 64, 16))


@pytest.mark.parametrize(("first", "deep"), [("sm_75", 8), ("sm_80", 16), ("sm_120", 16)])
def test_a_product_takes_the_deepest_instructions_of_an_architecture(first: str, deep: int) -> None:
    planned = plan(arch="sm_80").replace(arch=first)
    warp, k = planned.spec.warp_tile, planned.spec.cta_tile.k
    assert planned.mma_per_k_tile == warp.m // 16 * (warp.n // 16) * (k // 16) * {16: 2, 8: 4}[deep]
    assert planned.mma_opcode == f"HMMA.{ {16: '16816', 8: '1688'}[deep] }.F32"


# ---- On a GPU -------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_every_default_case_passes_on_this_gpu(tmp_path: Path) -> None:
    """Where the sums were held otherwise than the epilogue takes them to be, all of D would be wrong."""
    from generator.device_check import open_kernel
    from generator.store.library import Library
    from hgemm.cases import default_cases
    from hgemm.device import open_device
    from hgemm.verify import verify

    library = Library(tmp_path / "library")
    settings = Settings(library, templates_folder())
    texts = {**SMALL, "arch": "sm_80", "mma": "wmma16"}
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

"""Rules against the compiler: an accepted spec becomes a valid kernel, and a rejected one does not work.

Everything is compiled and inspected, nothing is launched. The larger sample behind the estimate of registers is
benchmarks/data/confusion.json; these are few enough to be compiled by the tests.
"""

from __future__ import annotations

import json
import random

import pytest
from conftest import ROOT

from benchmarks.random_specs import draw
from generator.arch import ARCHS
from generator.build.compile import compile_kernel, supported_archs
from generator.build.emit import emit
from generator.build.inspect import Binary, Inspection, inspect_all, occupancy
from generator.build.toolchain import headers, templates_folder
from generator.errors import BuildError
from generator.families import expectation_of
from generator.families.base import Plan
from generator.layouts import read_conflicts
from generator.planner import broken_rules, plan_of, resolve, violations
from generator.spec import parse_field, symbol_of

SEED = 20
REJECTED, PART = 20, 10
MAX_WRONGLY_REJECTED = 0.5
MAX_WRONGLY_ACCEPTED = 0.015
"""The build rejects these kernels, and names a spec that fits."""


def plan(text: str) -> Plan:
    return plan_of(
        resolve({name: parse_field(name, value) for name, value in (word.split("=") for word in text.split())})
    )


CORNERS = [
    "arch=80 cta_tile=16x16x16",
    "arch=89 cta_tile=256x128x32",
    "arch=86 cta_tile=16x256x64 layout=tt",
    "arch=87 cta_tile=256x16x64 layout=nn",
    "arch=88 cta_tile=32x32x16 stages=2",
    "arch=90 acc=f16 cta_tile=64x64x32",
    "arch=90a acc=f16_promoted mma=m16n8k16 cta_tile=64x64x32",
    "arch=100 cta_tile=64x64x32",
    "arch=103 layout=nt cta_tile=64x64x32",
    "arch=110 layout=nn cta_tile=64x64x32",
    "arch=120 layout=tt cta_tile=64x64x32",
    "arch=121 dtype_a=bf16 dtype_d=f32 cta_tile=64x64x32",
    "arch=80 stages=1",
    "arch=80 stages=8 cta_tile=64x64x16",
    "arch=80 stages=10 cta_tile=64x64x32 align_a=2 align_b=4",
    "arch=90 stages=16 cta_tile=64x64x16",
    "arch=89 stages=2 cta_tile=96x48x48",
    "arch=80 align_a=1 align_b=1 align_d=1 cta_tile=64x64x32",
    "arch=90 align_a=1 align_b=8 layout=nt cta_tile=208x80x48",
    "arch=90 align_a=1 align_b=1 align_d=1 layout=nt cta_tile=96x80x48 copy=ldg_sts_unaligned",
    "arch=75 align_a=1 align_b=2 align_d=1 cta_tile=256x128x32 copy=ldg_sts_unaligned",
    "arch=120 align_a=4 align_b=2 layout=nn cta_tile=64x64x64 copy=ldg_sts_unaligned schedule=persistent",
    "arch=89 align_a=2 align_b=4 layout=nn cta_tile=64x64x64",
    "arch=80 schedule=split_k:64 acc=f16 cta_tile=64x64x32",
    "arch=89 schedule=persistent bias=column activation=gelu cta_tile=64x64x32",
    "arch=80 cta_tile=112x112x32 warp_tile=112x8",
    "arch=80 cta_tile=128x128x32 warp_tile=16x128",
    "arch=80 cta_tile=256x128x32 warp_tile=64x32",
    "arch=80 smem_a=none smem_b=pad:8 cta_tile=64x64x32",
    "arch=80 cta_tile=256x256x32 acc=f16 smem_a=pad_alternate:8 smem_b=pad_alternate:8",
    "arch=80 smem_a=xor:1,10,2 smem_b=xor:2,5,6 cta_tile=64x64x64",
    "arch=80 mma=wmma16 cta_tile=64x64x32",
    "arch=89 mma=wmma16 cta_tile=64x256x48 layout=nt dtype_a=bf16 fragment_stages=1",
    "arch=120 mma=wmma16 cta_tile=256x16x64 layout=tt acc=f16 schedule=persistent align_a=1",
    "arch=80 mma=m16n8k8 mma_order=row store=direct beta=off",
]
"""Legal specs at the edges of what is served."""


def build(plans: list[Plan]) -> list[Inspection | str]:
    """Emit, compile and inspect plans; a compiler error replaces the inspection."""
    templates = templates_folder()
    kernels = [emit(plan, templates) for plan in plans]
    results: list[Inspection | str] = []
    binaries: dict[int, Binary] = {}
    for place, kernel in enumerate(kernels):
        try:
            made = compile_kernel(kernel, headers(kernel.entry_header, templates))
            binaries[place] = Binary(made.cubin, kernel.symbol, expectation_of(kernel.plan, False), made.ptxas_log)
            results.append("")
        except BuildError as error:
            results.append(str(error))
    for place, inspection in zip(binaries, inspect_all([*binaries.values()])):
        results[place] = inspection
    return results


def drawn(rejected: bool, count: int, **fields: str) -> list[Plan]:
    """Draw plans that break no rule, or no rule but that of registers."""
    source = random.Random(SEED)
    found: list[Plan] = []
    while len(found) < count:
        plan = draw(source, **fields)
        if bool(broken_rules(plan)) == rejected:
            found.append(plan)
    return found


def faults(found: Inspection | str) -> tuple[str, ...]:
    return (found,) if isinstance(found, str) else found.violations


def test_corner_cases_cover_every_architecture() -> None:
    assert {plan(text).spec.arch for text in CORNERS} == {*ARCHS}


def assert_compiles_as_planned(plan: Plan) -> None:
    (made,) = build([plan])
    assert faults(made) == (), symbol_of(plan.spec)
    assert made.resources.ctas_per_sm >= plan.spec.ctas_per_sm
    assert made.resources.registers <= plan.max_registers


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("text", CORNERS)
def test_corner_cases_compile_as_planned(text: str) -> None:
    corner = plan(text)
    assert not violations(corner)
    assert_compiles_as_planned(corner)


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("at", "fields"), [*((at, {}) for at in range(10)), *((at, {"mma": "wmma16"}) for at in range(4))]
)
def test_drawn_specs_compile_as_planned(at: int, fields: dict[str, str]) -> None:
    assert_compiles_as_planned(drawn(False, at + 1, **fields)[at])


@pytest.mark.slow(seconds=15)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", range(0, REJECTED, PART))
def test_specs_rejected_for_registers_spill(first: int) -> None:
    """At least half of them do: the estimate keeps a margin."""
    spill = ["registers spill" in "; ".join(faults(made)) for made in build(drawn(True, first + PART)[first:])]
    assert sum(spill) >= (1 - MAX_WRONGLY_REJECTED) * PART


@pytest.mark.parametrize(("family", "even", "near"), [("", 300, 500), ("_wgmma", 100, 150)])
def test_large_sample_meets_the_error_limits(family: str, even: int, near: int) -> None:
    table = json.loads((ROOT / "benchmarks" / "data" / f"confusion{family}.json").read_text())
    for sample, smallest in (("even", even), ("near", near)):
        counts = [
            table[sample][judged][outcome] for judged in ("accepted", "rejected") for outcome in ("spill", "fine")
        ]
        assert sum(counts) >= smallest
    accepted = [table[sample]["accepted"] for sample in ("even", "near")]
    spill, fine = (sum(counts[outcome] for counts in accepted) for outcome in ("spill", "fine"))
    assert spill <= MAX_WRONGLY_ACCEPTED * (spill + fine) and table["even"]["rejected"]["wrong"] <= 0.4


# ---- Rejected by other rules ----------------------------------------------------------------------------------------

SOUND = plan_of(resolve({"arch": "sm_80", "cta_tile": parse_field("cta_tile", "64x64x32")}))


@pytest.mark.parametrize(
    "change",
    [
        {"cta_tile": "72x64x32"},
        {"warp_tile": "48x32"},
        {"warp_tile": "24x32"},
        {"mma": "wmma16"},  # with the swizzle
        {"smem_a": "pad:4"},
        {"smem_b": "pad:7"},
        {"smem_b": "pad_alternate:4"},
    ],
    ids=str,
)
def test_specs_rejected_for_tiles_and_pads_do_not_compile(change: dict[str, str]) -> None:
    rejected = SOUND.replace(**{name: parse_field(name, text) for name, text in change.items()})
    assert violations(rejected)
    (found,) = build([rejected])
    assert isinstance(found, str) and "does not compile" in found


def test_rejected_depths_would_drop_part_of_k() -> None:
    rejected = SOUND.replace(cta_tile=parse_field("cta_tile", "64x64x24"))
    assert {violation.rule for violation in violations(rejected)} == {"cta_tile"}
    atoms, warp = rejected.mma_per_k_tile, rejected.spec.warp_tile
    assert atoms * 16 * 8 * rejected.mma_k < warp.m * warp.n * rejected.spec.cta_tile.k


@pytest.mark.parametrize("change", [{"stages": 64}, {"ctas_per_sm": 32}, {"stages": 8, "ctas_per_sm": 4}], ids=str)
def test_specs_rejected_for_shared_memory_are_not_resident(change: dict[str, int]) -> None:
    rejected = SOUND.replace(**change)
    assert {violation.rule for violation in violations(rejected)} & {"shared_memory", "residency"}
    held = occupancy(ARCHS["sm_80"].limits, rejected.threads, 32, rejected.smem_bytes)
    assert held.ctas_per_sm < rejected.spec.ctas_per_sm


def test_too_many_threads_do_not_launch() -> None:
    rejected = plan("arch=80 cta_tile=256x256x16 warp_tile=16x16")
    assert "threads" in {violation.rule for violation in violations(rejected)}
    assert occupancy(ARCHS["sm_80"].limits, rejected.threads, 32, 0).ctas_per_sm == 0


@pytest.mark.parametrize("text", ["xor:1,1,3", "xor:2,2,3", "xor:3,0,3"])
def test_rejected_swizzles_split_16_byte_pieces(text: str) -> None:
    rejected = SOUND.replace(smem_a=parse_field("smem_a", text))
    assert {violation.rule for violation in violations(rejected)} == {"swizzle"}
    pieces = [[rejected.a.offset(row, column + e) for e in range(8)] for row in range(64) for column in range(0, 32, 8)]
    assert any(piece != [*range(piece[0] // 8 * 8, piece[0] // 8 * 8 + 8)] for piece in pieces)


def test_rejected_alignments_would_store_32_bytes_at_once() -> None:
    rejected = SOUND.replace(dtype_d="f32", align_d=8)
    assert {violation.rule for violation in violations(rejected)} == {"alignment_of_d"}
    assert rejected.spec.align_d * 4 > 16  # the widest store


def test_types_that_no_tensor_instruction_takes_do_not_compile() -> None:
    rejected = SOUND.replace(dtype_a="bf16", dtype_b="bf16", acc="f16")
    assert {violation.rule for violation in violations(rejected)} == {"accumulator"}
    (found,) = build([rejected])
    assert isinstance(found, str) and "does not compile" in found


def test_an_architecture_without_cp_async_does_not_compile() -> None:
    rejected = SOUND.replace(arch="sm_75", mma="m16n8k8")
    assert {violation.rule for violation in violations(rejected)} == {"copy"}
    (found,) = build([rejected])
    assert faults(found)


def test_every_supported_architecture_has_a_compiler() -> None:
    served = {name.removesuffix("a") for name in ARCHS}
    assert served <= supported_archs()


def test_bank_conflicts_are_allowed_and_reported() -> None:
    """`none` is legal, and the planner takes it only where it costs nothing or saves registers."""
    asked = SOUND.replace(smem_a=parse_field("smem_a", "none"))
    assert not violations(asked) and read_conflicts(asked.a) > 0 == read_conflicts(SOUND.a)

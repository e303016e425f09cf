"""Wgmma kernels as compiled: the instruction header, the machine code and the record."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from conftest import made, subject_of
from records import make_record

from generator.build.compile import ATOMS, MORE_ATOMS, Compiled, compile_kernel, only_named_atom
from generator.build.emit import EmittedKernel, emit
from generator.build.inspect import Binary, inspect, inspect_all
from generator.build.pipeline import Settings
from generator.build.toolchain import headers, templates_folder
from generator.errors import HgemmError
from generator.families import expectation_of, family_of
from generator.families.wgmma.plan import WgmmaPlan
from generator.planner import plan_of as plan_of_spec
from generator.proof.executor import HostToolchain
from generator.proof.proving import prove
from generator.spec import Spec
from generator.store.library import Library
from generator.sweep import sweep
from hgemm.launch_traits import LaunchTraits
from hgemm.record import Record

TEMPLATES = templates_folder()
SMALL = {"arch": "sm_90a", "tile": "64x16x32", "consumers": "1", "cooperation": "cooperative", "cluster": "1x1"}


def plan_of(**texts: str) -> WgmmaPlan:
    (plan,) = sweep([{**SMALL, **texts}]).plans
    return plan


PADDED = (
    {"layout": "nn", "tile": "8x64x64", "swap_ab": "on", "schedule": "split_k_cluster:2", "stages": "4"},
    {"layout": "nt", "tile": "40x64x32", "swap_ab": "on", "cluster": "2x1", "dtype": "bf16"},
    {"layout": "tt", "tile": "64x72x32"},
)


@pytest.mark.parametrize("texts", PADDED, ids=lambda texts: texts["layout"])
def test_tiles_with_a_partial_last_box_are_proved(texts: dict[str, str], host_toolchain: HostToolchain) -> None:
    proved = prove(subject_of(emit(plan_of(**texts), TEMPLATES)), host_toolchain)
    assert not [check.reason for check in proved.checks if not check.passed]


# ==== The header of one instruction ===================================================================================

WHOLE = headers("wgmma/kernel.cuh", templates_folder()).files


def texts(files):
    return {header.name: header.text for header in files}


@pytest.mark.parametrize("kind", ["F32F16F16", "F32BF16BF16", "F16F16F16"])
@pytest.mark.parametrize("n", range(8, 257, 8))
def test_every_wgmma_shape_is_found(n, kind):
    name = f"64x{n}x16_{kind}_SS"
    cut = texts(only_named_atom(WHOLE, f"struct Policy {{\n  HGEMM_WGMMA({name});"))
    text = cut[ATOMS].decode()
    assert text.count("struct MMA_") == text.count(f"struct MMA_{name}\n") == 1
    assert text.count("{") == text.count("}")
    assert f"m64n{n}k16" in text
    assert MORE_ATOMS not in cut


def test_other_headers_are_unchanged():
    cut = texts(only_named_atom(WHOLE, "  HGEMM_WGMMA(64x256x16_F32F16F16_SS);"))
    rest = {name: text for name, text in texts(WHOLE).items() if name not in (ATOMS, MORE_ATOMS)}
    assert {name: text for name, text in cut.items() if name != ATOMS} == rest


def test_a_kernel_without_wgmma_gets_no_atom():
    cut = texts(only_named_atom(WHOLE, "struct Policy {};"))
    assert b"struct MMA_" not in cut[ATOMS] and b"warpgroup_wait" in cut[ATOMS]


def test_headers_without_wgmma_are_unchanged():
    files = headers("mma_sync/kernel.cuh", templates_folder()).files
    assert only_named_atom(files, "struct Policy {};") == files


def test_an_unknown_atom_is_named():
    with pytest.raises(HgemmError, match="no wgmma atom MMA_64x300x16_F32F16F16_SS"):
        only_named_atom(WHOLE, "  HGEMM_WGMMA(64x300x16_F32F16F16_SS);")


# ==== Machine code ====================================================================================================

SEED, DRAWN = 20, 6
BASE = {"arch": "sm_90a", "beta": "off"}
KERNELS = [
    {"tile": "128x256x64"},
    {"tile": "64x8x32"},
    {"tile": "64x24x64", "layout": "nn"},
    {"tile": "128x48x32", "layout": "nt", "cluster": "1x2"},
    {"tile": "192x96x64", "layout": "tt"},
    {"tile": "256x64x128", "dtype": "bf16", "stages": "2"},
    {"tile": "64x128x64", "cooperation": "pingpong", "out": "f32"},
    {"tile": "128x128x64", "cooperation": "pingpong", "cluster": "2x2"},
    {"tile": "128x64x64", "acc": "f16", "schedule": "one_tile", "bias": "row"},
    {"tile": "128x64x64", "schedule": "split_k:4", "beta": "on", "activation": "relu"},
    {"tile": "128x64x64", "align_d": "1", "beta": "on", "bias": "column"},
    {"tile": "16x64x64", "consumers": "1", "ctas_per_sm": "2"},
    {"tile": "32x128x64", "layout": "nn", "schedule": "split_k:2"},
    {"tile": "64x64x64", "schedule": "split_k_cluster:4"},
    {"tile": "32x64x64", "swap_ab": "on", "copy": "cp_async", "dtype": "bf16", "layout": "nn", "ctas_per_sm": "2"},
]
LARGE_KERNELS = [
    {"tile": "256x128x64", "align": "2", "beta": "on"},
    {"tile": "128x128x64", "align": "4", "align_d": "8", "layout": "nt", "schedule": "stream_k", "consumers": "2"},
    {"tile": "256x256x64", "acc": "f16", "layout": "tt", "schedule": "stream_k", "cluster": "2x1", "store": "direct"},
    {
        "tile": "128x256x64",
        "align": "2",
        "layout": "tt",
        "schedule": "stream_k",
        "consumers": "2",
        "out": "f32",
        "beta": "on",
    },
]


def emitted_kernel(texts: dict[str, str]) -> EmittedKernel:
    (plan,) = sweep([{**BASE, **texts}]).plans
    return emit(plan, TEMPLATES)


def binary(kernel: EmittedKernel, compiled: Compiled) -> Binary:
    return Binary(compiled.cubin, kernel.symbol, expectation_of(kernel.plan, False), compiled.ptxas_log)


def compiled_kernels(requests: list[dict[str, str]]) -> list[tuple[EmittedKernel, Compiled]]:
    kernels = [emitted_kernel(texts) for texts in requests]
    return [(kernel, compile_kernel(kernel, headers(kernel.entry_header, TEMPLATES))) for kernel in kernels]


@pytest.fixture(scope="module")
def built() -> list[tuple[EmittedKernel, Compiled]]:
    return compiled_kernels(KERNELS)


def test_kernels_compile_as_planned(built: list[tuple[EmittedKernel, Compiled]]) -> None:
    assert_as_planned(built)


@pytest.mark.slow
def test_large_kernels_compile_as_planned() -> None:
    assert_as_planned(compiled_kernels(LARGE_KERNELS))


def assert_as_planned(built: list[tuple[EmittedKernel, Compiled]]) -> None:
    found = inspect_all([binary(*pair) for pair in built])
    assert {kernel.symbol: inspection.violations for (kernel, _), inspection in zip(built, found)} == {
        kernel.symbol: () for kernel, _ in built
    }
    for (kernel, compiled), inspection in zip(built, found):
        plan, sass = kernel.plan, inspection.sass
        assert sass["HGMMA"] == plan.mma_per_k_tile and not {"LDL", "STL", "HMMA"} & {*sass}
        assert {"LDGSTS", "UTMALDG"} & {*sass} == {"LDGSTS" if plan.copied else "UTMALDG"}
        assert ("USETMAXREG" in sass) == any(plan.rebalanced)
        assert inspection.resources.ctas_per_sm >= plan.spec.ctas_per_sm
        assert len(compiled.cubin) <= 64 * 1024
        text = compiled.ptx.decode()
        assert f".entry {kernel.symbol}(" in text and ".target sm_90a" in text
        assert text.count("wgmma.mma_async") == kernel.plan.mma_per_k_tile
        cluster = kernel.plan.launch_cluster
        assert (f".reqnctapercluster {cluster}, 1, 1" in text) or cluster == 1


def drawn(source: random.Random) -> EmittedKernel:
    """Draw a legal kernel that compiles fast: without C and curves, at random in all else."""
    while True:
        rows, columns = source.choice([64, 128, 192, 256]), 8 * source.randint(1, 24)
        swapped = source.random() < 0.3
        tile = f"{columns}x{rows}x64" if swapped else f"{rows}x{columns}x{source.choice([32, 64, 128])}"
        texts = {
            "tile": tile,
            "swap_ab": "on" if swapped else "off",
            "dtype": source.choice(["f16", "bf16"]),
            "layout": source.choice(["tn", "nn", "nt", "tt"]),
            "cluster": source.choice(["1x1", "1x1", "2x1", "1x2", "4x1", "1x4", "2x2"]),
            "cooperation": source.choice(["cooperative", "pingpong"]),
            "schedule": source.choice(["one_tile", "persistent", "split_k:3", "split_k_cluster:2"]),
            "raster": source.choice(["row", "column", "group:8"]),
            "bias": source.choice(["none", "row", "column"]),
            "align_d": source.choice(["4", "1"]),
            "align_a": source.choice(["8", "8", "4", "2"]),
            "ctas_per_sm": source.choice(["1", "1", "2"]),
        }
        plans = sweep([{**BASE, **texts}]).plans
        if plans:
            return emit(plans[0], TEMPLATES)


def test_legal_specs_compile_as_planned() -> None:
    source = random.Random(SEED)
    kernels = [drawn(source) for _ in range(DRAWN)]
    made_of = [compile_kernel(kernel, headers(kernel.entry_header, TEMPLATES)) for kernel in kernels]
    found = inspect_all([binary(*pair) for pair in zip(kernels, made_of)])
    assert {
        kernel.symbol: inspection.violations for kernel, inspection in zip(kernels, found) if inspection.violations
    } == {}
    for kernel, inspection in zip(kernels, found):
        assert inspection.resources.ctas_per_sm >= kernel.plan.spec.ctas_per_sm


@pytest.mark.parametrize(
    "warning",
    [
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ...",
        "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register requirement",
        "ptxas info    : (C7504) Potential Performance Loss: 'setmaxnreg' ignored to maintain compatibility across ...",
    ],
)
def test_a_warning_that_means_a_slow_kernel_is_a_fault(
    built: list[tuple[EmittedKernel, Compiled]], warning: str
) -> None:
    kernel, compiled = built[0]
    warned = replace(compiled, ptxas_log=f"{compiled.ptxas_log}\n{warning}\n")
    (fault,) = inspect(binary(kernel, warned)).violations
    assert fault == f"ptxas warns: {' '.join(warning.split())}"


def test_another_instruction_or_count_than_planned_is_a_fault(built: list[tuple[EmittedKernel, Compiled]]) -> None:
    (_, compiled), other = built[0], emitted_kernel({"tile": "128x256x32", "stages": "4"})
    found = Binary(compiled.cubin, built[0][0].symbol, expectation_of(other.plan, False), compiled.ptxas_log)
    assert (
        "HGMMA 4, the plan expects 2 per k-tile (consumer 64x256, k 32, m64n256k16): the k loop was unrolled"
        in inspect(found).violations
    )


def test_a_record_has_the_launch_of_a_kernel_and_reads_back(settings: Settings) -> None:
    texts = {**BASE, "tile": "64x64x32", "consumers": "1", "cooperation": "cooperative", "cluster": "2x1"}
    (outcome,) = made(texts, settings)
    assert (outcome.status, outcome.error) == ("built", "")
    record = Library(settings.library.folder).load(outcome.symbol).record
    assert Record.parse(record.dump()).data == record.data == Record.parse(outcome.record.dump()).data
    launch = record.data["launch"]
    assert launch["cluster"] == [2, 1, 1] and launch["cluster_shape"] == [2, 1]
    assert [(entry["operand"], entry["box"]) for entry in launch["tensor_maps"]] == [
        ("a", [32, 64, 1]),
        ("b", [32, 32, 1]),
        ("d", [64, 64, 1]),
    ]
    traits = LaunchTraits.of(record.data)
    assert traits.cluster_ctas == 2 and len(traits.tensor_maps) == 3
    flat = record.flat()
    assert (flat["cluster"], flat["consumers"], flat["cooperation"]) == ("2x1", 1, "cooperative")
    assert made(texts, settings)[0].status == "cached"


def test_records_older_than_the_family_are_read() -> None:
    data, _ = make_record("a_symbol")
    assert not {"consumers", "cooperation", "cluster", "swap_ab"} & {*data["spec"]}
    record = Record.parse(json.dumps(data))
    assert Record.parse(record.dump()).data == data
    spec = Spec.from_dict(record.data["spec"])
    assert family_of(spec).name == "mma_sync" and plan_of_spec(spec).launch()["cluster"] == data["launch"]["cluster"]

"""Plans of wgmma kernels: tiles, stages, boxes, registers, and rules."""

from __future__ import annotations

import itertools

import pytest
import specs
from hypothesis import given, settings
from hypothesis import strategies as st

from generator.arch import ARCHS
from generator.build.emit import emit
from generator.build.toolchain import templates_folder
from generator.cli.generate import hints
from generator.families import family_of
from generator.families.tensor_maps import OperandBoxes
from generator.families.wgmma import expectation
from generator.families.wgmma.defaults import MAX_STAGES
from generator.families.wgmma.plan import WgmmaPlan
from generator.families.wgmma.rules import RULES
from generator.planner import apply, plan_of, reject_illegal, requested_family, resolve, violations
from generator.spec import DTYPE_BYTES, Cluster, Tile, parse_field
from generator.sweep import sweep
from hgemm.launch_traits import LaunchTraits
from hgemm.tensor_maps import StoreBoxes

LIMITS = ARCHS["sm_90a"].limits


def plan(text: str) -> WgmmaPlan:
    words = (word.split("=") for word in f"arch=90a {text}".split())
    return plan_of(resolve({name: parse_field(name, value) for name, value in words}))


PLANNED = [
    # request, tile, cooperation, consumers, cluster, stages, raster, shared memory
    ("", "128x256x64", "cooperative", 2, "2x1", 4, "group:16", 230400),
    ("cta_tile=256x128x64", "256x128x64", "cooperative", 2, "2x1", 4, "group:8", 230400),
    ("cta_tile=128x128x64", "128x128x64", "pingpong", 2, "2x1", 6, "group:8", 230400),
    ("cta_tile=128x128x64 schedule=split_k:4", "128x128x64", "cooperative", 2, "2x1", 6, "group:8", 230400),
    ("cta_tile=64x128x64", "64x128x64", "pingpong", 2, "1x1", 8, "group:16", 230400),
    ("cta_tile=128x64x64", "128x64x64", "cooperative", 2, "1x1", 8, "group:8", 230400),
    ("cta_tile=192x192x64", "192x192x64", "cooperative", 3, "2x1", 4, "group:8", 222208),
    ("cta_tile=64x256x64", "64x256x64", "pingpong", 2, "1x1", 5, "group:16", 222208),
    ("cta_tile=64x128x64 schedule=split_k:4", "64x128x64", "cooperative", 1, "1x1", 8, "group:16", 214016),
    ("cta_tile=16x128x64", "16x128x64", "cooperative", 2, "1x1", 8, "group:32", 156672),
    ("consumers=3", "192x192x64", "cooperative", 3, "2x1", 4, "group:8", 222208),
    ("cooperation=pingpong", "128x128x64", "pingpong", 2, "2x1", 6, "group:8", 230400),
    ("align_a=2", "128x256x64", "cooperative", 2, "1x1", 3, "group:16", 181248),
    ("align_a=4 align_d=2 cta_tile=64x64x64", "64x64x64", "pingpong", 2, "1x1", 8, "group:8", 133120),
]


@pytest.mark.parametrize(("text", "tile", "cooperation", "consumers", "cluster", "stages", "raster", "smem"), PLANNED)
def test_open_fields_are_planned(
    text: str, tile: str, cooperation: str, consumers: int, cluster: str, stages: int, raster: str, smem: int
) -> None:
    planned = plan(text)
    spec = planned.spec
    assert (str(spec.cta_tile), spec.cooperation, spec.consumers) == (tile, cooperation, consumers)
    assert (str(spec.cluster), spec.stages, str(spec.raster), planned.smem_bytes) == (cluster, stages, raster, smem)
    assert violations(planned) == () and spec.schedule.kind in ("persistent", "split_k")


# ---- Everything that may be asked for -------------------------------------------------------------------------------

tiles = st.builds(
    Tile,
    m=st.sampled_from([64, 128, 192, 256]) | st.integers(1, 32).map(lambda i: 8 * i),
    n=st.integers(1, 32).map(lambda i: 8 * i),
    k=st.sampled_from([32, 64, 128]),
)
natural = st.fixed_dictionaries(
    {"arch": st.just("sm_90a"), "cta_tile": tiles, "mma": st.just("wgmma")},
    optional={
        "acc": st.sampled_from(["f32", "f16"]),
        "dtype_d": st.sampled_from(["f16", "f32"]),
        "layout": specs.words["layout"],
        "beta": st.booleans(),
        "align_d": st.sampled_from([1, 2, 4]),
        "schedule": st.sampled_from(
            [parse_field("schedule", text) for text in ("one_tile", "split_k:4", "split_k_cluster:4")]
        ),
        "cluster": st.sampled_from([Cluster(1, 1), Cluster(2, 1), Cluster(1, 2), Cluster(4, 1), Cluster(2, 4)]),
        "ctas_per_sm": st.integers(1, 3),
    },
)
"""Typical requests: a tile and the fields of a problem."""


@settings(max_examples=200, deadline=None)
@given(natural)
def test_a_legal_plan_is_found_if_one_exists(request_: dict) -> None:
    planned = plan_of(resolve(request_))
    if not violations(planned):
        return
    modest = {
        "cluster": Cluster(1, 1),
        "raster": parse_field("raster", "row"),
        "stages": 2,
        "store": "direct",
        **request_,
    }
    sharings = itertools.product((1, 2, 3), ("cooperative", "pingpong"), (False, True))
    for consumers, cooperation, swapped in sharings:
        asked = {**modest, "consumers": consumers, "cooperation": cooperation, "swap_ab": swapped}
        if swapped == planned.spec.swap_ab:
            assert violations(plan_of(resolve(asked))), asked


def legal(request_: dict) -> WgmmaPlan | None:
    planned = plan_of(resolve(request_))
    return None if violations(planned) else planned


@settings(max_examples=200, deadline=None)
@given(natural)
def test_stages_fill_shared_memory_without_exceeding_it(request_: dict) -> None:
    planned = legal(request_)
    if planned is None:
        return
    assert planned.smem_bytes <= planned.max_smem_bytes and planned.smem_bytes % 1024 == 0
    more = planned.replace(stages=planned.spec.stages + 1)
    if planned.spec.stages != MAX_STAGES and more.smem_bytes <= more.max_smem_bytes:  # the stage was given up for D
        assert not planned.pingpong and more.epilogue_stages == 1 < planned.epilogue_stages
    parts = (planned.mainloop_bytes, planned.epilogue_bytes, planned.barrier_bytes)
    assert sum(parts) <= planned.smem_bytes < sum(parts) + 3 * 1024


@pytest.mark.parametrize(
    ("tile", "swap_ab", "fits"),
    [
        ("128x160x64", "off", True),
        ("192x128x64", "on", True),
        ("128x192x64", "off", True),
        ("128x256x64", "off", False),
    ],
)
def test_partial_sums_need_registers_beside_the_accumulators_only(tile: str, swap_ab: str, fits: bool) -> None:
    words = f"arch=90a cta_tile={tile} swap_ab={swap_ab} consumers=2 cooperation=cooperative schedule=launch raster=launch beta=on"
    serial = plan(f"{words} serial_parts=on")
    assert (violations(serial) == ()) is fits
    assert serial.needed_registers > 2 * serial.accumulator_registers


@settings(max_examples=200, deadline=None)
@given(natural)
def test_register_reallocation_fits_the_register_file(request_: dict) -> None:
    planned = legal(request_)
    if planned is None:
        return
    spec, (producer, consumer) = planned.spec, planned.rebalanced
    if consumer:
        assert producer % 8 == consumer % 8 == 0 and 24 <= producer <= consumer <= 256
        assert 128 * (producer + spec.consumers * consumer) * spec.ctas_per_sm <= LIMITS.registers_per_sm
        assert producer < planned.launch_registers < consumer
    assert planned.threads == 128 * spec.consumers + (128 if consumer else 32)
    assert planned.threads * planned.launch_registers * spec.ctas_per_sm <= LIMITS.registers_per_sm
    assert planned.accumulator_registers < planned.max_registers
    share = spec.consumers if spec.cooperation == "cooperative" else 1
    area = planned.tile.m * planned.tile.n // share // 128
    assert planned.accumulator_registers == area // (2 if spec.acc == "f16" else 1)


@settings(max_examples=200, deadline=None)
@given(natural)
def test_boxes_of_a_cluster_fill_its_stages(request_: dict) -> None:
    planned = legal(request_)
    if planned is None:
        return
    spec, maps = planned.spec, planned.launch()["tensor_maps"]
    assert [entry["operand"] for entry in maps] == [*("abd" if spec.store == "tma" else "ab")]
    tile, cluster = spec.cta_tile, spec.cluster
    for entry, extent, sharing in zip(maps, (tile.m, tile.n), (cluster.n, cluster.m)):
        x, y, z = entry["box"]
        k_major = entry["contiguous"] == "k"
        assert k_major == (spec.a_k_major if entry["operand"] == "a" else spec.b_k_major)
        across, along = (tile.k, extent) if k_major else (extent, tile.k)
        padded = not k_major and spec.form == "atoms"
        assert (0 <= -across % x < 64 if padded else across % x == 0) and z == 1
        assert y * (1 if along % (sharing * 8) else sharing) == along
        swizzle = 0 if padded and extent == 8 else x * 2
        assert entry["swizzle_bytes"] == swizzle in (128, 64, 32, 0) and y % 8 == 0 and y <= 256
    if spec.store == "tma":
        x, y, z = maps[-1]["box"]
        assert tile.n % x == 0 and x * DTYPE_BYTES[spec.dtype_d] in (128, 64, 32, 16) and (z, y % 8) == (1, 0)
        assert spec.align_d * DTYPE_BYTES[spec.dtype_d] == 16


@settings(max_examples=100, deadline=None)
@given(natural)
def test_launch_traits_match_the_plan(request_: dict) -> None:
    planned = legal(request_)
    if planned is None:
        return
    record = {
        "symbol": "a_symbol",
        "arch": "sm_90a",
        "spec": planned.spec.to_dict(),
        "launch": planned.launch(),
        "traits": planned.traits(),
    }
    traits = LaunchTraits.of(record)
    cluster = planned.spec.cluster
    assert traits.cluster_shape == (cluster.m, cluster.n) and traits.cluster == (planned.launch_cluster, 1, 1)
    assert [rule.box for rule in traits.tensor_maps] == [tensor_map.box for tensor_map in planned.tensor_maps]
    assert (traits.tile_m, traits.tile_n) == (planned.spec.cta_tile.m, planned.spec.cta_tile.n)


# ---- Boxes and swizzles ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k_major", [True, False])
@pytest.mark.parametrize("k", [32, 64, 128])
@pytest.mark.parametrize("extent", range(16, 257, 16))
def test_the_swizzle_is_the_widest_that_divides_the_contiguous_extent(k_major: bool, k: int, extent: int) -> None:
    boxes = OperandBoxes(k_major, extent, k, shared_by=1)
    along = 2 * (k if k_major else extent)
    assert boxes.swizzle_bytes == max(size for size in (128, 64, 32) if along % size == 0)
    assert boxes.stage_bytes % (boxes.box[0] * boxes.box[1] * 2) == 0


@pytest.mark.parametrize("extent", range(8, 257, 8))
def test_a_padded_operand_loads_little_beyond_its_extent(extent: int) -> None:
    boxes = OperandBoxes(False, extent, 64, shared_by=1, padded=True)
    columns, width = boxes.stage_bytes // 64 // 2, boxes.box[0]
    assert columns % width == 0 and extent <= columns < extent + width and (width <= 16) == (extent <= 16)
    assert columns <= (-(-extent // 32) * 32 if extent > 16 else extent) * 7 / 6
    assert boxes.swizzle_bytes == (0 if extent == 8 else 2 * width)
    assert OperandBoxes(True, extent, 64, 1, padded=True).box == OperandBoxes(True, extent, 64, 1).box


@pytest.mark.parametrize(
    "words, edges",
    [
        ("layout=tn", ""),
        ("layout=nn", "a"),
        ("layout=nt", "ab"),
        ("layout=tt", "b"),
        ("layout=nt swap_ab=on cta_tile=64x128x64", "ab"),
        ("layout=nt swap_ab=on cta_tile=8x128x64", "b"),
        ("layout=nt form=cute", ""),
    ],
)
def test_operands_that_are_not_k_major_have_edge_maps(words: str, edges: str) -> None:
    """Not with rows of one vector, which have no swizzle, and not in CuTe's form."""
    found = plan(words if "cta_tile" in words else f"cta_tile=128x64x64 {words}")
    assert "".join(one.operand for one in found.tensor_maps if one.edge) == edges and found.has_edge_maps == bool(edges)
    of_tn = expectation(plan("cta_tile=128x64x64 layout=tn"), allow_spills=False).param_bytes
    assert expectation(found, allow_spills=False).param_bytes - of_tn == (512 if edges else 0)
    assert ("edge_maps = true" in emit(found, templates_folder()).source) == bool(edges)


@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("n", range(8, 257, 8))
def test_d_is_staged_in_whole_boxes_of_at_most_128_bytes_a_row(n: int, element_bytes: int) -> None:
    boxes = StoreBoxes(n, element_bytes, swap_ab=False)
    assert n % boxes.width == 0 == boxes.subtile_columns % boxes.width
    assert boxes.subtile_columns * element_bytes <= 128 and boxes.subtile_columns <= n
    assert boxes.width * element_bytes == (boxes.swizzle_bytes or 16)
    swapped = StoreBoxes(n, 2, swap_ab=True)
    assert swapped.width == 64 and n % swapped.subtile_columns == 0 and swapped.subtile_columns <= 64
    narrow = StoreBoxes(n, 2, swap_ab=True, narrow_last=True)
    assert narrow.subtile_columns in (swapped.subtile_columns, *range(8, 33, 8))
    assert -(-n // narrow.subtile_columns) <= max(4, n / 24)
    assert n % narrow.box_columns == 0 == narrow.subtile_columns % narrow.box_columns


@pytest.mark.parametrize(
    "change, subtile",
    [
        ({}, 32),
        ({"schedule": "launch"}, 8),
        ({"form": "cute"}, 8),
        ({"cta_tile": "104x192x64", "consumers": "3", "stages": "5"}, 32),
        ({"cta_tile": "104x192x64", "consumers": "3", "stages": "6"}, 8),
    ],
)
def test_a_swapped_tile_of_odd_width_has_a_narrow_last_subtile(change: dict, subtile: int) -> None:
    """But CuTe's form, reductions along k, and three consumers without memory for it have subtiles that divide the tile."""
    words = {"cta_tile": "104x64x64", "consumers": "1", "schedule": "persistent", "form": "atoms", **change}
    found = plan(" ".join(f"{name}={value}" for name, value in words.items()) + " swap_ab=on cooperation=cooperative")
    assert found.d.subtile_columns == subtile
    assert found.tensor_maps[2].box == (64, 8, 1)


def test_swapped_kernel_transposes_the_product_and_keeps_the_maps() -> None:
    swapped, plain = plan("cta_tile=64x128x64 layout=tn swap_ab=on"), plan("cta_tile=128x64x64 layout=nt swap_ab=off")
    assert swapped.tile == plain.tile and swapped.mma_opcode == plain.mma_opcode
    a, b, d = swapped.tensor_maps
    assert (a.box, b.box, d.box) == ((64, 64, 1), (64, 128, 1), (64, 64, 1))
    assert swapped.launch()["grid"]["tile_m"] == 64


# ==== Rules ===========================================================================================================


def fields(text: str) -> dict:
    return {name: parse_field(name, value) for name, value in (word.split("=") for word in text.split())}


def candidate_of(text: str) -> WgmmaPlan:
    return plan_of(resolve(fields(text)))


BROKEN = [
    # request, a rule that it breaks, a part of the message, the change that is advised
    (
        "arch=90a epilogue=relu(acc) activation=gelu",
        "expression",
        "and activation gelu as well",
        {"activation": "none"},
    ),
    ("arch=90a epilogue=(acc,row_max(acc)) swap_ab=on", "further_results", "swapped operands", {"swap_ab": "off"}),
    ("arch=90a epilogue=silu(gate)*up swap_ab=on", "gated_pair", "with swapped operands", {"swap_ab": "off"}),
    ("arch=80 mma=wgmma", "family", "sm_80 has no wgmma", {"arch": "sm_90a"}),
    ("arch=90a dtype_a=f16 dtype_b=bf16", "same_inputs", "wgmma requires one type for both", {"dtype_b": "f16"}),
    ("arch=90a dtype_a=bf16 acc=f16", "accumulator", "accumulate in f32 only", {"acc": "f32"}),
    ("arch=90a acc=f16_promoted", "accumulator", "wgmma supports f32 and f16", {"acc": "f32"}),
    ("arch=90a dtype_a=tf32 mma=wgmma align_a=8", "alignment_of_operands", "align_a is 8", {"align_a": "4"}),
    ("arch=90a cta_tile=72x128x64 swap_ab=off", "cta_tile", "m must be 64, 128, 192 or 256", {"swap_ab": "on"}),
    ("arch=90a cta_tile=128x72x64 swap_ab=on", "cta_tile", "with swapped operands; n must be", {"swap_ab": "off"}),
    ("arch=90a dtype_a=tf32 cta_tile=128x128x24", "cta_tile", "tile is 128x128x24", {"cta_tile": "128x128x16"}),
    (
        "arch=90a dtype_a=tf32 cta_tile=128x256x32 mma=m64n256k16",
        "fixed_fields",
        "kernels with mma m64n256k16 and copy tma require mma m64n256k8",
        {"mma": "m64n256k8"},
    ),
    ("arch=90a dtype_d=f32 align_d=8", "alignment_of_d", "4 elements (16 B)", {"align_d": "4"}),
    (
        "arch=90a mma=m64n128k16 cta_tile=128x256x64",
        "fixed_fields",
        "kernels with mma m64n128k16 and copy tma require mma m64n256k16",
        {"mma": "m64n256k16"},
    ),
    (
        "arch=90a mma=wgmma fragment_stages=2",
        "fixed_fields",
        "kernels with mma m64n256k16 and copy tma require fragment_stages 1",
        {"fragment_stages": "1"},
    ),
    (
        "arch=90a smem_b=pad_alternate:8",
        "fixed_fields",
        "kernels with mma m64n256k16 and copy tma require smem_b xor:3,3,3",
        {"smem_b": "xor:3,3,3"},
    ),
    (
        "arch=90a smem_a=pad:8",
        "fixed_fields",
        "kernels with mma m64n256k16 and copy tma require smem_a xor:3,3,3",
        {"smem_a": "xor:3,3,3"},
    ),
    ("arch=90a cta_tile=96x248x64", "cta_tile", "tile is 96x248x64", {"cta_tile": "64x248x64"}),
    ("arch=90a cta_tile=128x100x64", "cta_tile", "n a multiple of 8 up to 256", {"cta_tile": "128x104x64"}),
    ("arch=90a cta_tile=128x104x64 layout=tt form=cute", "cta_tile", "a multiple of 16 in", {"cta_tile": "128x112x64"}),
    (
        "arch=90a cta_tile=24x128x64 layout=nn align_a=4",
        "cta_tile",
        "tile is 24x128x64 with swapped operands",
        {"cta_tile": "32x128x64"},
    ),
    ("arch=90a cta_tile=128x128x48", "cta_tile", "tile is 128x128x48", {"cta_tile": "128x128x32"}),
    ("arch=90a mma=wgmma consumers=0", "consumers", "wgmma supports 1 to 3 consumer warpgroups", {"consumers": "2"}),
    (
        "arch=90a cta_tile=192x128x64 consumers=2",
        "consumers",
        "each consumer computes 64 or 128 or 256 rows",
        {"consumers": "3"},
    ),
    ("arch=90a cooperation=pingpong consumers=1", "consumers", "cooperation pingpong requires 2", {"consumers": "2"}),
    (
        "arch=90a cta_tile=128x128x64 cooperation=pingpong schedule=split_k:2",
        "cooperation",
        "it requires persistent, stream_k or launch",
        {"schedule": "persistent"},
    ),
    (
        "arch=90a cta_tile=192x192x64 schedule=stream_k",
        "registers",
        "the limit is 160 with 1 CTA of 3 consumers per SM",
        {"schedule": "persistent"},
    ),
    (
        "arch=90a cta_tile=192x64x64 cooperation=pingpong consumers=2",
        "cooperation",
        "each consumer computes 64 or 128 or 256 rows",
        None,
    ),
    ("arch=90a mma=wgmma copy=ldg_sts", "copy", "wgmma supports tma and cp_async", {"copy": "tma"}),
    (
        "arch=90a mma=wgmma copy=cp_async cluster=2x1",
        "cluster",
        "threads copy for their own CTA only",
        {"cluster": "1x1"},
    ),
    ("arch=90a mma=wgmma copy=cp_async form=cute", "cute_copy", "form cute requires tma", {"form": "atoms"}),
    ("arch=90a cluster=3x1", "cluster", "wgmma supports 1x1, 2x1, 1x2, 4x1, 1x4, 2x2, 4x2, 2x4", {"cluster": "2x1"}),
    (
        "arch=90a cta_tile=128x200x64 cluster=2x1 form=cute",
        "cluster",
        "200 rows of B do not have 2 slices of a multiple of 8",
        {"cluster": "1x1"},
    ),
    ("arch=90a stages=1", "stages", "wgmma supports 2 to 16", {"stages": "2"}),
    ("arch=90a cta_tile=64x8x32 stages=17", "stages", "wgmma supports 2 to 16", {"stages": "16"}),
    ("arch=90a cta_tile=128x256x64 stages=5", "shared_memory", "sm_90a allows 232,448 B", {"stages": "4"}),
    (
        "arch=90a cta_tile=64x64x64 ctas_per_sm=16",
        "residency",
        "sm_90a holds 7 CTAs of 288 threads",
        {"ctas_per_sm": "4"},
    ),
    ("arch=90a cta_tile=256x256x64", "registers", "256 of them accumulators", None),
    (
        "arch=90a cta_tile=192x208x64",
        "instruction",
        "the limit is 128 with 1 CTA of 512 threads per SM",
        {"cta_tile": "192x192x64"},
    ),
    (
        "arch=90a cta_tile=128x256x64 raster=panel:300",
        "raster",
        "cluster 2x1 requires a multiple of 256 columns",
        {"raster": "panel:256"},
    ),
    (
        "arch=90a cluster=2x1 raster=group:7",
        "raster",
        "cluster 2x1 requires a multiple of 2 tiles",
        {"raster": "group:8"},
    ),
    ("arch=90a cluster=2x1 raster=group:4000", "raster", "the limit is 1,024", {"raster": "group:2048"}),
    ("arch=90a schedule=split_k:65", "splits", "split_k supports 2 to 64 parts", {"schedule": "split_k:64"}),
    (
        "arch=90a schedule=split_k_cluster:16",
        "splits",
        "a cluster has 2 to 8 CTAs",
        {"schedule": "split_k_cluster:8"},
    ),
    ("arch=90a schedule=split_k_cluster:2 cluster=2x1", "splits", "it requires cluster 1x1", {"cluster": "1x1"}),
    (
        "arch=90a cta_tile=128x256x32 schedule=split_k_cluster:2 stages=4",
        "splits",
        "partials of 131,072 B do not fit into 98,304 B of stages",
        {"stages": "6"},
    ),
    ("arch=90a mma=wgmma form=dsl", "form", "form is dsl", {"form": "cute"}),
    (
        "arch=90a mma=wgmma pointer_arrays=on copy=tma store=tma",
        "pointer_arrays",
        "copy is tma, store is tma; pointer_arrays on requires form atoms, copy cp_async and store direct",
        {"copy": "cp_async", "store": "direct"},
    ),
    (
        "arch=90a form=cute schedule=split_k:2",
        "cute_schedule",
        "form cute requires persistent, because one CTA computes a whole tile",
        {"schedule": "persistent"},
    ),
    (
        "arch=90a form=cute raster=launch bias=launch",
        "cute_at_launch",
        "form cute does not support raster launch, bias launch",
        {"raster": "group:8", "bias": "row"},
    ),
    ("arch=90a mma=wgmma store=smem", "store", "wgmma supports tma and direct", {"store": "direct"}),
    ("arch=90a align_d=4 store=tma", "store", "store tma requires 16 B", {"store": "direct"}),
    (
        "arch=90a cta_tile=16x128x64 dtype_d=f32 store=tma",
        "store",
        "with swapped operands it supports f16 and bf16",
        {"store": "direct"},
    ),
    (
        "arch=90a schedule=persistent serial_parts=on",
        "serial_parts",
        "it requires schedule launch and form atoms",
        {"serial_parts": "off"},
    ),
]


@pytest.mark.parametrize(("text", "rule", "message", "change"), BROKEN, ids=[row[0] for row in BROKEN])
def test_broken_rule_states_the_problem_and_the_fix(text: str, rule: str, message: str, change: dict | None) -> None:
    found = {violation.rule: violation for violation in violations(candidate_of(text), fields(text))}
    assert message in found[rule].message
    assert found[rule].change and (change is None or found[rule].change == change)
    assert all(value in found[rule].fix for value in found[rule].change.values())


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("arch=89 cluster=2x1", "Omit --cluster, or use --arch sm_90a."),
        ("arch=80 cooperation=pingpong", "Omit --cooperation, or use --arch sm_90a."),
        ("arch=120 swap_ab=on cluster=2x1", "Omit --cluster and --swap-ab, or use --arch sm_90a."),
        ("arch=89 serial_parts=on", "Omit --serial-parts."),
    ],
)
def test_an_option_of_wgmma_is_named_where_wgmma_is_missing(text: str, fix: str) -> None:
    request = fields(text)
    (violation,) = violations(candidate_of(text), request)
    assert violation.fix == fix and all(f"{name} " in violation.message for name in request.keys() - {"arch"})
    changed = {name: parse_field(name, value) for name, value in violation.change.items()}
    assert not violations(plan_of(resolve({**request, **changed})))


def test_every_rule_has_an_example() -> None:
    assert {rule.name for rule in RULES} == {row[1] for row in BROKEN} | {"alignment", "layout"}


@pytest.mark.parametrize("text", ["arch=90a align_a=4", "arch=90a align_a=2 align_b=2 align_d=1 layout=nt"])
def test_operands_that_tma_cannot_address_are_copied_by_threads(text: str) -> None:
    planned = candidate_of(text)
    assert (planned.spec.copy, violations(planned)) == ("cp_async", ())
    (violation,) = violations(candidate_of(f"{text} copy=tma cluster=2x1"))
    assert violation.rule == "alignment" and "16 B" in violation.message
    assert violation.change == {"copy": "cp_async", "cluster": "1x1"}


@pytest.mark.parametrize("text", ["arch=90a mma=wgmma align_a=1", "arch=90a mma=wgmma align_b=1 layout=nt"])
def test_operands_that_cp_async_cannot_address_use_mma_sync(text: str) -> None:
    illegal = candidate_of(text)
    (violation,) = violations(illegal)
    assert violation.rule == "alignment" and "4 B" in violation.message
    assert violation.fix.startswith("Try --mma m16n8k16") and violation.fix.endswith(
        " and leave the other fields open."
    )
    mended = apply(illegal, violation.change)
    assert family_of(mended.spec).name == "mma_sync" and not violations(mended)
    asked = fields(text)
    assert all(getattr(mended.spec, name) == value for name, value in asked.items() if name != "mma")


@pytest.mark.parametrize("text", ["align=1", "align_a=1", "align_b=1 layout=nt tile=128x128x64"])
def test_requests_that_wgmma_does_not_support_use_mma_sync(text: str) -> None:
    asked = sweep([{"arch": "sm_90a", **dict(word.split("=") for word in text.split())}])
    [candidate] = asked.candidates
    assert family_of(candidate.plan.spec).name == "mma_sync" and not candidate.rules
    [hint] = hints(asked)
    assert hint.startswith("wgmma requires A and B aligned to 4 B; align_") and "mma.sync on sm_90a" in hint


@pytest.mark.parametrize("layout", ["nn", "nt", "tt"])
def test_tf32_layouts_that_wgmma_does_not_support_use_mma_sync(layout: str) -> None:
    illegal = candidate_of(f"arch=90a dtype_a=tf32 mma=wgmma layout={layout}")
    (violation,) = violations(illegal)
    assert violation.rule == "layout" and "wgmma supports tf32 inputs in layout tn only" in str(violation)
    assert violation.fix.startswith("Try --mma m16n8k8") and violation.fix.endswith(" and leave the other fields open.")
    mended = apply(illegal, violation.change)
    assert (family_of(mended.spec).name, mended.spec.layout, mended.spec.dtype_a) == ("mma_sync", layout, "tf32")
    assert (
        not violations(mended)
        and family_of(candidate_of(f"arch=90a dtype_a=tf32 layout={layout}").spec).name == "mma_sync"
    )


LEGAL = (
    "arch=90a",
    "arch=90a dtype_a=tf32",
    "arch=90a dtype_a=tf32 cta_tile=256x128x64 stages=2 dtype_d=f16",
    "arch=90a dtype_a=tf32 cta_tile=8x64x16",
    "arch=90 mma=wgmma",
    "arch=90a cta_tile=64x8x32",
    "arch=90a cta_tile=8x64x128 schedule=split_k:64",
    "arch=90a cta_tile=64x64x64 schedule=split_k_cluster:8",
    "arch=90a cta_tile=128x128x64 cooperation=pingpong schedule=stream_k cluster=2x2",
    "arch=90a cta_tile=256x128x64 acc=f16 cooperation=pingpong",
    "arch=90a cta_tile=256x64x64 dtype_d=f32 consumers=1",
    "arch=90a cta_tile=256x256x64 acc=f16 beta=off",
    "arch=90a cta_tile=128x200x64",
    "arch=90a cta_tile=128x256x64 cluster=2x2 layout=tt",
    "arch=90a cta_tile=64x128x64 ctas_per_sm=2",
    "arch=90a align_d=1",
    "arch=90a align_a=2",
    "arch=90a cta_tile=16x128x64 align_b=4 layout=tt schedule=split_k_cluster:4",
    "arch=90a dtype_a=tf32 align_a=1 align_b=2",
    "arch=90a mma=wgmma copy=cp_async cta_tile=128x128x64 cooperation=pingpong",
    "arch=90a mma=wgmma copy=cp_async cta_tile=128x256x64 schedule=stream_k",
    "arch=90a cta_tile=256x256x64 acc=f16 schedule=stream_k cluster=2x1",
)


@pytest.mark.parametrize("text", LEGAL)
def test_legal_specs_violate_no_rule(text: str) -> None:
    reject_illegal(candidate_of(text))
    assert family_of(candidate_of(text).spec).name == "wgmma" and candidate_of(text).spec.arch == "sm_90a"


FAMILIES = [
    ("arch=90", "mma_sync"),
    ("arch=90a", "wgmma"),
    ("arch=90a dtype_a=tf32", "wgmma"),
    ("arch=90a dtype_a=tf32 layout=tt", "mma_sync"),
    ("arch=90a dtype_a=tf32 layout=tt mma=wgmma", "wgmma"),
    ("arch=75", "mma_sync"),
    ("arch=100", "mma_sync"),
    ("arch=90a mma=m16n8k16", "mma_sync"),
    ("arch=90a copy=cp_async", "mma_sync"),
    ("arch=90a copy=cp_async consumers=2", "wgmma"),
    ("arch=90a align_a=2", "wgmma"),
    ("arch=90a align_a=1", "mma_sync"),
    ("arch=90a dtype_a=tf32 align_a=1", "wgmma"),
    ("arch=90a warp_tile=64x64", "mma_sync"),
    ("arch=90a store=smem", "mma_sync"),
    ("arch=90 copy=tma", "mma_sync_tma"),
    ("arch=90 copy=ldg", "mma_sync_direct"),
    ("arch=90a copy=ldg cta_tile=16x16x1024 stages=4", "mma_sync_direct"),
    ("arch=90a copy=tma", "wgmma"),
    ("arch=90 cluster=2x1", "wgmma"),
    ("arch=90 cluster=1x1 consumers=0 cooperation=cooperative", "mma_sync"),
    ("arch=90 cooperation=pingpong", "wgmma"),
    ("arch=90 mma=wgmma warp_tile=64x256", "wgmma"),
    ("arch=80 swap_ab=on", "wgmma"),
]


@pytest.mark.parametrize(("text", "family"), FAMILIES, ids=[row[0] for row in FAMILIES])
def test_requested_family_wins_over_the_default_of_the_architecture(text: str, family: str) -> None:
    assert requested_family(fields(text)).name == family_of(resolve(fields(text))).name == family

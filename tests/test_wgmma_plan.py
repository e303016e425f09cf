"""Plans of kernels on wgmma: legal wherever one exists, full of stages, with boxes that TMA takes and registers that an SM has."""

from __future__ import annotations

import itertools

import pytest
import specs
from hypothesis import given, settings
from hypothesis import strategies as st

from generator.arch import ARCHS
from generator.families.tensor_maps import OperandBoxes, StoreBoxes
from generator.families.wgmma.defaults import MAX_STAGES
from generator.families.wgmma.plan import WgmmaPlan
from generator.planner import plan_of, resolve, violations
from generator.spec import DTYPE_BYTES, Cluster, Tile, parse_field
from hgemm.launch_traits import LaunchTraits

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
def test_what_is_left_open_is_planned(
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
        "cluster": st.sampled_from([Cluster(1, 1), Cluster(2, 1), Cluster(1, 2), Cluster(4, 1), Cluster(2, 2)]),
        "ctas_per_sm": st.integers(1, 3),
    },
)
"""What people ask for: a tile and what the problem needs."""


@settings(max_examples=200, deadline=None)
@given(natural)
def test_a_plan_is_legal_wherever_one_exists(request_: dict) -> None:
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
def test_stages_fill_shared_memory_and_nothing_goes_beyond_it(request_: dict) -> None:
    planned = legal(request_)
    if planned is None:
        return
    assert planned.smem_bytes <= planned.max_smem_bytes and planned.smem_bytes % 1024 == 0
    more = planned.replace(stages=planned.spec.stages + 1)
    assert planned.spec.stages == MAX_STAGES or more.smem_bytes > more.max_smem_bytes
    parts = (planned.mainloop_bytes, planned.epilogue_bytes, planned.barrier_bytes)
    assert sum(parts) <= planned.smem_bytes < sum(parts) + 3 * 1024


@settings(max_examples=200, deadline=None)
@given(natural)
def test_an_sm_has_the_registers_that_warpgroups_change_to(request_: dict) -> None:
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
def test_the_boxes_of_a_cluster_are_its_stages(request_: dict) -> None:
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
        assert across % x == 0 and y * sharing == along and z == 1
        assert x * 2 == entry["swizzle_bytes"] in (128, 64, 32) and y % 8 == 0 and y <= 256
    if spec.store == "tma":
        x, y, z = maps[-1]["box"]
        assert tile.n % x == 0 and x * DTYPE_BYTES[spec.dtype_d] in (128, 64, 32, 16) and (z, y % 8) == (1, 0)
        assert spec.align_d * DTYPE_BYTES[spec.dtype_d] == 16


@settings(max_examples=100, deadline=None)
@given(natural)
def test_a_launcher_reads_the_launch_of_a_plan(request_: dict) -> None:
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


@pytest.mark.parametrize("element_bytes", [2, 4])
@pytest.mark.parametrize("n", range(8, 257, 8))
def test_d_is_staged_in_whole_boxes_and_128_bytes_of_a_row_at_most(n: int, element_bytes: int) -> None:
    boxes = StoreBoxes(n, element_bytes, swap_ab=False)
    assert n % boxes.width == 0 == boxes.subtile_columns % boxes.width
    assert boxes.subtile_columns * element_bytes <= 128 and boxes.subtile_columns <= n
    assert boxes.width * element_bytes == (boxes.swizzle_bytes or 16)
    swapped = StoreBoxes(n, 2, swap_ab=True)
    assert swapped.width == 64 and n % swapped.subtile_columns == 0 and swapped.subtile_columns <= 64


def test_a_swapped_kernel_is_the_transposed_one_with_the_same_maps_of_a_and_b() -> None:
    swapped, plain = plan("cta_tile=64x128x64 layout=tn swap_ab=on"), plan("cta_tile=128x64x64 layout=nt swap_ab=off")
    assert swapped.tile == plain.tile and swapped.mma_opcode == plain.mma_opcode
    a, b, d = swapped.tensor_maps
    assert (a.box, b.box, d.box) == ((64, 64, 1), (64, 128, 1), (64, 64, 1))
    assert swapped.launch()["grid"]["tile_m"] == 64

"""Specs to test with: hypothesis strategies for all fields of a request."""

from __future__ import annotations

from hypothesis import strategies as st

from generator.arch import ARCHS
from generator.spec import Cluster, Raster, Schedule, Smem, Tile, WarpTile
from hgemm.problem import ACTIVATIONS

MMA_SYNC = ["m16n8k16", "m16n8k8", "wmma16"]
SERVED = [*ARCHS]

tiles = st.builds(
    Tile,
    m=st.integers(1, 16).map(lambda i: 16 * i),
    n=st.integers(1, 16).map(lambda i: 16 * i),
    k=st.sampled_from([8, 16, 24, 32, 48, 64]),
)
any_tiles = st.builds(Tile, m=st.integers(0, 600), n=st.integers(0, 600), k=st.integers(0, 200))
warp_tiles = st.builds(WarpTile, m=st.integers(0, 300), n=st.integers(0, 300)) | st.builds(
    WarpTile, m=st.sampled_from([16, 32, 48, 64, 96, 128]), n=st.sampled_from([8, 16, 32, 40, 64, 128])
)
swizzles = st.builds(
    lambda bits, base, extra: Smem("xor", (bits, base, bits + extra)),
    st.integers(1, 3),
    st.integers(2, 5),
    st.integers(0, 2),
)
any_smem = (
    st.just(Smem("none"))
    | swizzles
    | st.builds(lambda kind, pad: Smem(kind, (pad,)), st.sampled_from(["pad", "pad_alternate"]), st.integers(0, 200))
    | st.builds(lambda *numbers: Smem("xor", numbers), st.integers(0, 9), st.integers(0, 99), st.integers(0, 99))
)
rasters = st.sampled_from([Raster("row"), Raster("column")]) | st.builds(
    Raster, st.sampled_from(["group", "panel"]), st.integers(1, 999_999)
)
schedules = st.sampled_from([Schedule("one_tile"), Schedule("persistent"), Schedule("stream_k")]) | st.builds(
    Schedule, st.sampled_from(["split_k", "split_k_cluster"]), st.integers(1, 999_999)
)
clusters = st.builds(Cluster, st.integers(1, 4), st.integers(1, 4))
aligns = st.sampled_from([8, 4, 2, 1])
words = {
    "acc": st.sampled_from(["f32", "f16", "f16_promoted"]),
    "dtype_d": st.sampled_from(["f16", "bf16", "f32"]),
    "layout": st.sampled_from(["tn", "nn", "nt", "tt"]),
    "mma": st.sampled_from([*MMA_SYNC, "wgmma", "m64n256k16", "m64n8k16", "m64n256k8"]),
    "mma_order": st.sampled_from(["row", "zigzag"]),
    "beta": st.booleans(),
    "bias": st.sampled_from(["none", "row", "column"]),
    "activation": st.sampled_from(ACTIVATIONS),
    "store": st.sampled_from(["direct", "smem", "tma"]),
    "cooperation": st.sampled_from(["cooperative", "pingpong"]),
    "consumers": st.integers(0, 3),
    "cluster": clusters,
    "swap_ab": st.booleans(),
    "align_a": aligns,
    "align_b": aligns,
    "align_d": aligns,
    "raster": rasters,
    "schedule": schedules,
}
dtypes = st.sampled_from(["f16", "bf16", "tf32"])

requests = st.fixed_dictionaries(
    {"arch": st.sampled_from([*ARCHS])},
    optional={
        **words,
        "dtype_a": dtypes,
        "dtype_b": dtypes,
        "cta_tile": tiles | any_tiles,
        "warp_tile": warp_tiles,
        "stages": st.integers(1, 64),
        "fragment_stages": st.integers(1, 8),
        "copy": st.sampled_from(["cp_async", "ldg_sts", "ldg_sts_scalar", "ldg_sts_unaligned", "tma"]),
        "store_spacing": st.integers(0, 12),
        "prefetch": st.booleans(),
        "smem_alloc": st.sampled_from(["dynamic", "static"]),
        "smem_a": any_smem,
        "smem_b": any_smem,
        "ctas_per_sm": st.integers(1, 32),
    },
)
"""Anything that can be written, legal or not, with anything left open."""


def kept(request: dict) -> dict:
    """Return the fields of a request that a spec must have as they are: not those that name more than one value."""
    return {name: value for name, value in request.items() if value not in ("wgmma", "sm_90")}

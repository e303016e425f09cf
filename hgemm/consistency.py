"""Consistency of a record: what its launch, traits and resources say must follow from its spec.

The generator compares a record with the whole plan of its spec. These laws need no generator. They hold for every kernel family.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hgemm.accumulation import order_id
from hgemm.dtypes import DTYPES
from hgemm.epilogue import NONE, EpilogueError, parse_epilogue
from hgemm.gpus import TYPICAL, max_stream_k_ctas
from hgemm.problem import LAUNCH, MAX_EXTENT
from hgemm.tensor_maps import MAPS, MAPS_WITH_EDGES, maps_of

WARP_THREADS = 32
WARPGROUP_THREADS = 128
MAX_CLUSTER_EXTENT = 2**31 - MAX_EXTENT
"""Elements of D along one axis of a cluster, at most: extents are rounded up to whole clusters in 32 bits."""
_IN_WORKSPACE = ("split_k", "stream_k", LAUNCH)
"""Schedules whose partial accumulators can meet in a workspace."""
_TYPES = {
    **dict.fromkeys(("beta", "swap_ab", "prefetch", "serial_parts", "pointer_arrays"), bool),
    **dict.fromkeys(("stages", "ctas_per_sm", "consumers"), int),
}
_SPLIT = ("split_k", "split_k_cluster")


def contradiction(data: Mapping[str, Any]) -> str:
    """Return the first contradiction in a validated record in present words; "" if there is none."""
    try:
        return next(_contradictions(data), "")
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        return f"its spec lacks a field or has a malformed value ({error})"


def _contradictions(data: Mapping[str, Any]) -> Iterator[str]:
    spec, launch, traits, resources = data["spec"], data["launch"], data["traits"], data["resources"]
    grid, align, threads = launch["grid"], traits["min_align"], launch["threads"]
    for name, kind in _TYPES.items():
        if type(spec.get(name, kind())) is not kind:
            yield f"spec.{name} is {spec[name]!a:.60}, not {'true or false' if kind is bool else 'a whole number'}"
    try:
        expression = parse_epilogue(spec.get("epilogue", NONE))
    except EpilogueError as error:
        yield f"spec.epilogue: {error}"
        return
    if expression and (spec["beta"], spec["bias"], spec["activation"]) != (False, "none", "none"):
        yield "spec.epilogue is an expression, but beta, bias or activation is set, too"
    m, n, k = _sizes(spec["cta_tile"], 3)
    rule, _, number = spec["schedule"].partition(":")
    splits = int(number or 1)
    shape = _sizes(spec.get("cluster", "1x1"), 2)
    ctas = splits if rule == "split_k_cluster" else shape[0] * shape[1]
    smem_bytes = launch["smem_bytes"] + launch.get("static_smem_bytes", 0)
    wgmma, copy = spec["mma"].startswith("m64n"), spec["copy"]
    fills_gpu = rule == "persistent" or (rule == LAUNCH and (wgmma or copy == "tma"))
    waits = wgmma or copy in ("tma", "ldg")  # for the previous grid
    tensor_maps = launch.get("tensor_maps", [])
    edges = any(one.get("edge") for one in tensor_maps)
    ages = (maps_of(spec), maps_of(spec, edges=False), maps_of(spec, pads=False, edges=False))
    for name, found, expected in (
        ("arch", data["arch"], spec["arch"]),
        ("launch.grid.rule", grid["rule"], rule),
        ("launch.grid.tile_m", grid["tile_m"], m),
        ("launch.grid.tile_n", grid["tile_n"], n),
        ("launch.grid.splits", grid["splits"], splits if rule in _SPLIT else 1),
        ("launch.grid.persistent", grid.get("persistent", rule == "persistent"), fills_gpu),
        ("launch.cluster", launch["cluster"], [ctas, 1, 1]),
        ("launch.cluster_shape", launch.get("cluster_shape", [1, 1]), shape),
        ("launch.programmatic", launch.get("programmatic", False), waits),
        ("launch.tensor_maps", tensor_maps, tensor_maps if tensor_maps in ages else ages[0]),
        ("launch.map_count", launch.get("map_count", MAPS), MAPS_WITH_EDGES if edges else MAPS),
        ("traits.deterministic", traits["deterministic"], True),
        ("traits.graph_safe", traits["graph_safe"], True),
        ("traits.exact_tiles_only", traits["exact_tiles_only"], False),
        ("traits.min_align.a", align["a"], spec["align_a"]),
        ("traits.min_align.b", align["b"], spec["align_b"]),
        ("traits.min_align.d", align["d"], spec["align_d"]),
        ("resources.smem_bytes", resources["smem_bytes"], smem_bytes),
        ("resources.warps_per_sm", resources["warps_per_sm"], resources["ctas_per_sm"] * threads // WARP_THREADS),
    ):
        if found != expected:
            yield f"{name} is {found}, but {expected} follows from the other fields"
    for axis, extent in (("m", m * shape[0]), ("n", n * shape[1])):
        if extent > MAX_CLUSTER_EXTENT:
            yield f"a cluster has {extent} elements of D along {axis}: at most {MAX_CLUSTER_EXTENT} are supported"
    if order := data.get("accumulation_order"):
        if order["id"] != order_id(order["text"]):
            yield f"accumulation_order.id is {order['id']}, but its text has {order_id(order['text'])}"
        if order["fixed"] != (rule not in ("stream_k", LAUNCH)):
            yield f"accumulation_order.fixed is {order['fixed']} with schedule {rule}"
    workspace = traits["workspace"]
    if not workspace.get("counter_bytes_per_tile"):  # an older layout, which no launch supports
        partial_bytes = 4 * m * n if rule in _IN_WORKSPACE else 0
        if workspace.get("partial_bytes", 0) != partial_bytes:
            yield f"traits.workspace.partial_bytes is {workspace.get('partial_bytes', 0)}, but a tile has {partial_bytes} B"
    number = int("".join(filter(str.isdigit, spec["arch"])))
    max_ctas = (
        max_stream_k_ctas(number, spec["ctas_per_sm"], ctas) if rule == "stream_k" and number in TYPICAL else None
    )
    if grid.get("max_ctas") != max_ctas:
        yield f"launch.grid.max_ctas is {grid.get('max_ctas')}, but {max_ctas} follows from the other fields"
    if copy != "ldg":
        staged_bytes = spec["stages"] * (m + n) * k * DTYPES[spec["dtype_a"]].bytes
        if smem_bytes < staged_bytes:
            yield f"launch.smem_bytes is {smem_bytes}, but the stages of A and B take {staged_bytes} B"
    yield from _thread_contradictions(spec, threads, m, n, wgmma)


def _thread_contradictions(spec: Mapping[str, Any], threads: int, m: int, n: int, wgmma: bool) -> Iterator[str]:
    if wgmma:
        consumers = WARPGROUP_THREADS * spec.get("consumers", 0)
        expected = [consumers + WARP_THREADS, consumers + WARPGROUP_THREADS]  # the producer is a warp or a warpgroup
    elif spec["copy"] in ("tma", "ldg"):
        return  # the plan decides the producer's threads, and which warps share k
    else:
        warp_m, warp_n = _sizes(spec["warp_tile"], 2)
        expected = [m // max(1, warp_m) * (n // max(1, warp_n)) * WARP_THREADS]
    if threads not in expected:
        yield f"launch.threads is {threads}, but the tiles of the spec need {' or '.join(map(str, expected))}"


def _sizes(text: str, count: int) -> list[int]:
    sizes = [int(word) for word in text.split("x")]
    if len(sizes) != count or min(sizes) < 1:
        raise ValueError(text)
    return sizes

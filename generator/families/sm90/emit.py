"""The values that the template of kernels on wgmma takes."""

from __future__ import annotations

from typing import Any

from generator.families.emit import boolean, common_values
from generator.families.sm90 import policy
from generator.families.sm90.plan import WgmmaPlan as Plan
from generator.families.sm90.tensor_maps import OperandBoxes

TEMPLATE = "wgmma/instance.cu.j2"
ENTRY_HEADER = "wgmma/kernel.cuh"


def entry_header(plan: Plan) -> str:
    """Return the one header that the text includes."""
    return ENTRY_HEADER


def values(plan: Plan, symbol: str) -> dict[str, Any]:
    """Return them by name."""
    spec = plan.spec
    producer, consumer = plan.rebalanced
    aligns = (spec.align_b, spec.align_a) if spec.swap_ab else (spec.align_a, spec.align_b)
    return {
        **common_values(plan, symbol),
        "summary": summary(plan),
        "k_major_only": bool(_only_layout(plan)),
        "wgmma": wgmma_name(plan),
        "consumers": spec.consumers,
        "consumer_m": plan.consumer_rows,
        "pingpong": boolean(plan.pingpong),
        "swap_ab": boolean(spec.swap_ab),
        "producer_registers": producer,
        "consumer_registers": consumer,
        "tile_m": plan.tile.m,
        "tile_n": plan.tile.n,
        "cluster_m": plan.cluster.m,
        "cluster_n": plan.cluster.n,
        "cluster_size": plan.launch_cluster,
        "ctas_per_sm": spec.ctas_per_sm,
        "copy": spec.copy,
        "a": _operand(plan.a, "n" if spec.swap_ab else "m", plan.tile.m, aligns[0]),
        "b": _operand(plan.b, "m" if spec.swap_ab else "n", plan.tile.n, aligns[1]),
        "has_maps": bool(plan.tensor_maps),
        "unroll_epilogue": boolean(policy.unroll_epilogue(plan)),
        **{name: boolean(x) if isinstance(x, bool) else x for name, x in policy.stream_k(plan).items()},
        "store": spec.store,
        "store_columns": plan.d.width,
        "epilogue_columns": plan.d.turn_columns,
        "epilogue_stages": plan.epilogue_stages,
        "mainloop_bytes": plan.mainloop_bytes,
    }


def _operand(boxes: OperandBoxes, axis: str, extent: int, align: int) -> dict[str, Any]:
    return {
        "extent": extent,
        "k_major": boolean(boxes.k_major),
        "contiguous": "k" if boxes.k_major else axis,
        "swizzle_bytes": boxes.swizzle_bytes,
        "align": align,
    }


def wgmma_name(plan: Plan) -> str:
    """Name the instruction as CuTe does: the shape, the types of D, A and B, both operands in shared memory."""
    spec = plan.spec
    types = "".join(dtype.upper() for dtype in (spec.acc, spec.dtype_a, spec.dtype_b))
    return f"64x{plan.tile.n}x{plan.mma_k}_{types}_SS{_only_layout(plan)}"


def _only_layout(plan: Plan) -> str:
    """Name the layout, of inputs that wgmma takes in no other."""
    return "" if plan.takes(plan.spec.dtype_a, "nt") else "_TN"


def summary(plan: Plan) -> str:
    """Say in a line what the kernel is."""
    spec = plan.spec
    swapped = "operands swapped, " if spec.swap_ab else ""
    copied = "copies by threads, " if plan.copied else ""
    return (
        f"{spec.arch} {spec.layout}, {spec.dtype_a} in, {spec.acc} accumulate, {spec.dtype_d} out; CTA tile {spec.cta_tile}, "
        f"{swapped}{copied}{spec.consumers} {spec.cooperation} consumers, cluster {spec.cluster}, {spec.stages} stages, "
        f"{plan.threads} threads, {plan.smem_bytes} B of shared memory."
    )

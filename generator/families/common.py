"""Rules, fixes and template values that several families use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from generator import epilogue
from generator.arch import ARCHS, Arch
from generator.families.base import Change, Plan
from generator.spec import Cluster, Raster, Request, Schedule
from generator.tables import counted
from hgemm.dtypes import VECTOR_BYTES
from hgemm.epilogue import PAIR_COLUMNS, accumulators_of, parse_epilogue
from hgemm.problem import LAUNCH

OPCODE_SUFFIXES = {"bf16": ".BF16", "tf32": ".TF32"}
"""Suffix of a tensor instruction in SASS for its inputs; f16 has none."""

MAX_RASTER_TILES = 1024
"""The widest group or panel. The tiles of a group are counted in 32 bits, which is then enough for every n that launches."""

WHOLE_TILES = ("one_tile", "persistent")
"""Schedules whose CTAs compute whole tiles."""

SPLITS = range(2, 65)
"""Values of split-K."""

OF_MMA_SYNC: Request = {
    "consumers": 0,
    "cooperation": "cooperative",
    "cluster": Cluster(1, 1),
    "swap_ab": False,
    "serial_parts": False,
}
"""Fields of all kernels on mma.sync: every warp multiplies, and CTAs share no operands."""


def text_of(value: object) -> str:
    """Return a field's value as an option writes it."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def clamp(value: int, step: int, low: int, high: int) -> int:
    """Return the multiple of `step` nearest to `value` between `low` and `high`."""
    return min(max((value + step // 2) // step * step, low), high)


# ==== Rules ====


def fixed_fields(plan: Plan) -> str | None:
    strays = plan.stray_fields()
    if not strays:
        return None
    found = ", ".join(f"{name} is {text_of(getattr(plan.spec, name))}" for name in strays)
    required = ", ".join(f"{name} {text_of(value)}" for name, value in strays.items())
    return f"{found}; kernels with mma {plan.spec.mma} and copy {plan.spec.copy} require {required}"


def same_inputs(plan: Plan) -> str | None:
    a, b = plan.spec.dtype_a, plan.spec.dtype_b
    return None if a == b else f"A is {a} and B is {b}; {plan.instruction} requires one type for both"


def accumulator(plan: Plan) -> str | None:
    wide = [dtype for dtype in (plan.spec.dtype_a, plan.spec.dtype_b) if dtype in ("bf16", "tf32")]
    if not wide or plan.spec.acc == "f32":
        return None
    return f"acc is {plan.spec.acc}; {wide[0]} inputs accumulate in f32 only"


def alignment_of_operands(plan: Plan) -> str | None:
    most = VECTOR_BYTES // plan.spec.operand_bytes
    aligns = {"align_a": plan.spec.align_a, "align_b": plan.spec.align_b}
    found = [f"{name} is {align}" for name, align in aligns.items() if align > most]
    return f"{', '.join(found)}; {plan.spec.dtype_a} inputs allow {most} elements (16 B)" if found else None


def alignment_of_d(plan: Plan) -> str | None:
    if plan.spec.dtype_d != "f32" or plan.spec.align_d <= 4:
        return None
    return f"align_d is {plan.spec.align_d}; f32 output allows 4 elements (16 B)"


def shared_memory(plan: Plan) -> str | None:
    if plan.smem_bytes <= plan.max_smem_bytes:
        return None
    spec = plan.spec
    is_shared = plan.max_smem_bytes < ARCHS[spec.arch].limits.smem_bytes_per_cta
    residents = f" with {spec.ctas_per_sm} CTAs per SM" if is_shared else ""
    return (
        f"tile {spec.cta_tile} with {counted(spec.stages, 'stage')} needs {plan.smem_bytes:,} B of shared memory; "
        f"{spec.arch} allows {plan.max_smem_bytes:,} B{residents}"
    )


def fragment_stages(plan: Plan) -> str | None:
    found = plan.spec.fragment_stages
    return None if found in (1, 2) else f"fragment_stages is {found}; 1 and 2 are supported"


def raster(plan: Plan) -> str | None:
    kind, size, tile_n = plan.spec.raster.kind, plan.spec.raster.size, max(1, plan.spec.cta_tile.n)
    if kind == "panel" and size % tile_n:
        return f"raster {plan.spec.raster} is not a multiple of the tile's {tile_n} columns"
    if kind in ("group", "panel") and plan.raster_tiles > MAX_RASTER_TILES:
        return f"raster {plan.spec.raster} spans {plan.raster_tiles:,} tiles; the limit is {MAX_RASTER_TILES:,}"
    return None


def splits(plan: Plan) -> str | None:
    schedule = plan.spec.schedule
    if schedule.kind != "split_k" or schedule.splits in SPLITS:
        return None
    return f"schedule is {schedule}; split_k supports {SPLITS[0]} to {SPLITS[-1]} parts"


def fields_at_launch(plan: Plan) -> list[str]:
    """Return the raster and the bias, as text, if the launch decides them."""
    found = {"raster": str(plan.spec.raster), "bias": plan.spec.bias}
    return [f"{name} {LAUNCH}" for name, value in found.items() if value == LAUNCH]


def expression(plan: Plan) -> str | None:
    spec = plan.spec
    if spec.epilogue == "none":
        return None
    if spec.form == "dsl":
        return "epilogue is an expression; form dsl supports bias, activation and beta only"
    given = {
        "beta on": spec.beta,
        f"bias {spec.bias}": spec.bias != "none",
        f"activation {spec.activation}": spec.activation != "none",
    }
    found = [words for words, is_set in given.items() if is_set]
    return f"epilogue is an expression, and {', '.join(found)} as well; write them in the expression" if found else None


def gated_pair(plan: Plan) -> str | None:
    spec = plan.spec
    if accumulators_of(spec.epilogue) == 1:
        return None
    if spec.form != "atoms":
        return f"epilogue is of a gated pair; form {spec.form} has one accumulator for an element of D"
    if spec.swap_ab:
        return "epilogue is of a gated pair; with swapped operands, its columns of B are rows of the instruction"
    for what, columns in (("tile", spec.cta_tile), ("warp tile", spec.warp_tile)):
        if columns.n % (2 * PAIR_COLUMNS):
            return (
                f"epilogue is of a gated pair; {what} {columns} does not have a multiple of {2 * PAIR_COLUMNS} columns"
            )
    return None


def further_results(plan: Plan) -> str | None:
    spec, found = plan.spec, parse_epilogue(plan.spec.epilogue)
    if not found or not found.outputs:
        return None
    if spec.form != "atoms":
        return f"epilogue has further results; form {spec.form} stores D only"
    if not found.reductions:
        return None
    what = "rows" if found.row_reductions else "columns"
    if spec.copy == "ldg":
        return f"epilogue reduces {what}; kernels with copy ldg store elements one at a time"
    if spec.swap_ab:
        return f"epilogue reduces {what}; with swapped operands, rows of D are columns of the instruction"
    if spec.schedule.kind not in WHOLE_TILES:
        return f"epilogue reduces {what}; schedule {spec.schedule} uses the workspace for parts of k"
    if found.column_reductions and spec.store == "smem":
        return "epilogue reduces columns; with store smem, a lane has parts of rows"
    return None


# ==== Fixes: changes that may mend a rule, the nearest first ====


def decided_early(plan: Plan) -> list[Change]:
    """A raster and a bias that are constants, else form atoms."""
    early = {
        name: {"raster": "group:8", "bias": "row"}[name]
        for name in (text.split()[0] for text in fields_at_launch(plan))
    }
    return [early, {"form": "atoms"}]


def nearest_archs(supports: Callable[[Arch], bool], plan: Plan) -> list[Change]:
    """The architectures that can run a family, by the distance of their numbers."""
    number = ARCHS[plan.spec.arch].number
    found = [arch for arch in ARCHS.values() if supports(arch)]
    return [{"arch": arch.name} for arch in sorted(found, key=lambda arch: abs(arch.number - number))]


def as_fixed(plan: Plan) -> Iterator[Change]:
    """Fixed fields at their only value; without prefetch, first the copy that has a choice in it."""
    strays = {name: text_of(value) for name, value in plan.stray_fields().items()}
    if [*strays] == ["prefetch"]:
        yield {"copy": "ldg_sts", "stages": "1", "fragment_stages": "1"}
    yield strays


def one_input_type(plan: Plan) -> list[Change]:
    """One type for both inputs."""
    return [{"dtype_b": plan.spec.dtype_a}, {"dtype_a": plan.spec.dtype_b}]


def legal_accumulators(plan: Plan) -> list[Change]:
    """Accumulators in f32, or inputs in f16."""
    return [{"acc": "f32"}, {"dtype_a": "f16", "dtype_b": "f16"}]


def aligned_to_16_bytes(plan: Plan) -> list[Change]:
    """A and B aligned to 16 bytes."""
    align = str(VECTOR_BYTES // plan.spec.operand_bytes)
    return [{"align_a": align, "align_b": align}]


def off_16_bytes(plan: Plan, what: str) -> str | None:
    """Return which of A and B are not aligned to 16 bytes, which `what` requires."""
    least = VECTOR_BYTES // plan.spec.operand_bytes
    aligns = {"align_a": plan.spec.align_a, "align_b": plan.spec.align_b}
    short = [f"{name} is {align}" for name, align in aligns.items() if align < least]
    return f"{', '.join(short)}; {what} requires {least} elements ({VECTOR_BYTES} B)" if short else None


def expression_alone(plan: Plan) -> list[Change]:
    """Only the expression."""
    alone = {"beta": "off", "bias": "none", "activation": "none"}
    return [alone, {"form": "atoms"}, {**alone, "form": "atoms"}]


def for_pairs(plan: Plan) -> Iterator[Change]:
    """Form atoms, operands that are not swapped, and whole pairs of blocks in a tile."""
    tile = plan.spec.cta_tile
    step = 2 * PAIR_COLUMNS
    wider = {"cta_tile": f"{tile.m}x{max(1, -(-tile.n // step)) * step}x{tile.k}"}
    yield from ({"form": "atoms"}, {"swap_ab": "off"}, {"form": "atoms", "swap_ab": "off"}, wider)
    yield {**wider, "form": "atoms"}
    yield {"warp_tile": f"{plan.spec.warp_tile.m}x{2 * plan.spec.warp_tile.n}"}
    yield {"cta_tile": f"{tile.m}x{max(1, -(-tile.n // 64)) * 64}x{tile.k}"}  # of several warps


def for_further_results(plan: Plan) -> Iterator[Change]:
    """Form atoms, and for reductions whole tiles, D from registers, and operands that are not swapped."""
    changes: list[Change] = [{"form": "atoms"}, {"swap_ab": "off"}, {"store": "direct"}]
    changes += [{"schedule": kind} for kind in WHOLE_TILES]
    yield from changes
    yield from ({**one, **other} for one, other in itertools.combinations(changes, 2) if not one.keys() & other.keys())


def d_aligned_to_16_bytes(plan: Plan) -> list[Change]:
    """f32 output aligned to 16 bytes."""
    return [{"align_d": "4"}]


def one_or_two_fragment_stages(plan: Plan) -> list[Change]:
    """Fragments read ahead, or not."""
    return [{"fragment_stages": "2"}, {"fragment_stages": "1"}]


def fewer_ctas(plan: Plan) -> Iterator[Change]:
    """Fewer CTAs per SM, each with a larger share of it."""
    return ({"ctas_per_sm": str(ctas)} for ctas in range(plan.spec.ctas_per_sm - 1, 0, -1))


def stages_within(stages: range, plan: Plan) -> Iterator[Change]:
    """The most stages that the spec and the range allow, and fewer."""
    most = min(max(plan.spec.stages, stages[0]), stages[-1])
    return ({"stages": str(count)} for count in range(most, stages[0] - 1, -1))


def nearest_rasters(plan: Plan) -> list[Change]:
    """The nearest supported number of whole tiles."""
    tile_n = max(1, plan.spec.cta_tile.n) if plan.spec.raster.kind == "panel" else 1
    size = min(max(1, round(plan.spec.raster.size / tile_n)), MAX_RASTER_TILES) * tile_n
    return [{"raster": str(Raster(plan.spec.raster.kind, size))}]


def split_in_workspace(plan: Plan) -> list[Change]:
    """Split-K through a workspace, with the nearest supported number of splits."""
    return [{"schedule": str(Schedule("split_k", min(max(plan.spec.schedule.splits, SPLITS[0]), SPLITS[-1])))}]


# ==== Template values ====


def common_values(plan: Plan, symbol: str) -> dict[str, Any]:
    """Return the values that every template takes: types, tile, schedule, epilogue, and the numbers that kernels assert."""
    spec = plan.spec
    return {
        "symbol": symbol,
        "dtype_in": spec.dtype_a,
        "dtype_d": spec.dtype_d,
        "acc": spec.acc,
        "tile_m": spec.cta_tile.m,
        "tile_n": spec.cta_tile.n,
        "tile_k": spec.cta_tile.k,
        "threads": plan.threads,
        "stages": spec.stages,
        "schedule": spec.schedule.kind,
        "raster": spec.raster.kind,
        "splits": spec.schedule.splits,
        "raster_tiles": plan.raster_tiles,
        "beta": spec.beta,
        "bias": spec.bias,
        "activation": spec.activation,
        "align_d": spec.align_d,
        **epilogue.template_values(spec.epilogue, spec.dtype_d),
        "smem_bytes": plan.smem_bytes,
        "mma_per_k_tile": plan.mma_per_k_tile,
    }


# ---- Policy constants of stream-K ----

STREAM_K_MIN_K_TILES = 4
"""K-tiles below which storing partial accumulators costs more than it saves."""


def partials_in_flight(vectors: int, copies_beside: bool = False, to_floats: bool = False) -> int:
    """Return how many vectors of partial accumulators a thread with `vectors` of its own can load at once without a spill.

    Source: docs/performance-notes.md, on loads of partial accumulators.
    """
    if vectors <= (25 if copies_beside or to_floats else 32):
        return 16
    return 4 if to_floats else 8


# ---- Types of CuTe, as C++ spells them ----

CUTE_ELEMENTS = {"f16": "half_t", "bf16": "bfloat16_t", "tf32": "tfloat32_t", "f32": "float"}
_NAMED_INTEGERS = frozenset(
    [*range(11), 12, 16, 24, *range(32, 257, 8), 384, 512, 768, *(1 << i for i in range(10, 20))]
)
"""Integers that CuTe names `_N`; others are written Int<N>. Source: cute/numeric/integral_constant.hpp."""


def cute_layout(modes: list[tuple]) -> str:
    """Write a layout of modes (extent, stride), either of which may be a tuple."""
    extents, strides = zip(*modes)
    return f"Layout<{_cute_tuple('Shape', extents)}, {_cute_tuple('Stride', strides)}>"


def cute_integers(*numbers: int) -> str:
    """Write integers as the arguments of a Shape or Stride."""
    return ", ".join(map(_cute_integer, numbers))


def _cute_tuple(name: str, numbers: tuple) -> str:
    return f"{name}<{', '.join(_cute_tuple(name, n) if isinstance(n, tuple) else _cute_integer(n) for n in numbers)}>"


def _cute_integer(number: int) -> str:
    return f"_{number}" if number in _NAMED_INTEGERS else f"Int<{number}>"

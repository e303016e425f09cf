"""What the forms `cute` and `dsl` of kernels on mma.sync cannot express: rules and fixes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from generator.arch import ARCHS
from generator.families import common
from generator.families.base import Change, Check, Fixes, Rule, collector
from generator.families.common import text_of
from generator.families.mma_sync.plan import MmaSyncPlan as Plan
from generator.layouts import OperandTile
from generator.tables import counted

ATOMS: Change = {"form": "atoms"}
"""The form that supports every field."""

DSL_ARCHS = "sm_80 sm_86 sm_87 sm_89 sm_90 sm_90a sm_100 sm_103 sm_120 sm_121".split()
"""Architectures that CuTe DSL writes PTX for. It compiles sm_110 as sm_101, the name that CUDA 12 used.

Source: `cutlass.base_dsl.enums.Arch` of nvidia-cutlass-dsl 4.8.1, and a test that asks it.
"""

DSL_ACTIVATIONS = ("none", "relu", "gelu", "silu", "leaky_relu")
"""Activations that dsl_instance.py.j2 has expressions for: in the kernel, and in the module's own check."""

# ==== Values that a form supports, and why no others ====

CUTE_VALUES = {
    "dtype_a": ("f16", "bf16"),
    "copy": ("cp_async", "ldg_sts"),
    "mma": ("m16n8k16", "m16n8k8"),
    "acc": ("f32", "f16"),
    "prefetch": (True,),
    "fragment_stages": (2,),
    "mma_order": ("zigzag",),
    "store": ("smem",),
    "smem_alloc": ("dynamic",),
    "pointer_arrays": (False,),
}
CUTE_REASONS = {
    "dtype_a": "the TiledMMA multiplies half-precision numbers",
    "copy": "the TiledCopy uses cp.async or whole vectors",
    "mma": "the TiledMMA uses mma.sync",
    "acc": "a TiledMMA accumulates in one type",
    "prefetch": "the mainloop always loads the next k-tile ahead",
    "fragment_stages": "the mainloop always reads the next k-block ahead",
    "mma_order": "cute::gemm visits a warp's atoms in a zigzag",
    "store": "the epilogue's TiledMMA writes to shared memory",
    "smem_alloc": "its SharedStorage lies in dynamic shared memory",
    "pointer_arrays": "its tensors have a batch stride",
}
DSL_VALUES = {
    "dtype_a": ("f16", "bf16"),
    "copy": ("cp_async",),
    "mma": ("m16n8k16",),
    "acc": ("f32", "f16"),
    "fragment_stages": (2,),
    "mma_order": ("zigzag",),
    "store": ("smem",),
    "smem_alloc": ("dynamic",),
    "pointer_arrays": (False,),
}
DSL_REASONS = {
    "dtype_a": "the MmaOp multiplies half-precision numbers",
    "copy": "the TiledCopy uses cp.async",
    "mma": "the MmaOp is m16n8k16",
    "acc": "a TiledMma accumulates in one type",
    "fragment_stages": "the mainloop always reads the next k-block ahead",
    "mma_order": "cute.gemm has its own order of a warp's atoms",
    "store": "the epilogue uses shared memory",
    "smem_alloc": "its SmemAllocator allocates dynamic shared memory",
    "pointer_arrays": "its tensors have a batch stride",
}


def unsupported(plan: Plan, values: Mapping[str, tuple]) -> list[str]:
    """Return the fields with a value that the form does not support."""
    return [name for name, supported in values.items() if getattr(plan.spec, name) not in supported]


def _unsupported_text(plan: Plan, values: Mapping[str, tuple], reasons: Mapping[str, str]) -> str | None:
    strays = unsupported(plan, values)
    found = "; ".join(f"{name} {text_of(getattr(plan.spec, name))}: {reasons[name]}" for name in strays)
    return f"form {plan.spec.form} does not support {found}" if strays else None


def in_cute(plan: Plan) -> list[Change]:
    """The first supported value of each field, else atoms."""
    first = {name: text_of(supported[0]) for name, supported in CUTE_VALUES.items()}
    if not ARCHS[plan.spec.arch].has_cp_async:
        first |= {"copy": "ldg_sts", "mma": "m16n8k8"}
    return [{name: first[name] for name in unsupported(plan, CUTE_VALUES)}, ATOMS]


def in_dsl(plan: Plan) -> list[Change]:
    """The first supported value of each field, else atoms."""
    return [{name: str(DSL_VALUES[name][0]) for name in unsupported(plan, DSL_VALUES)}, ATOMS]


# ==== Rules of both forms ====


def fix_by(*changes: Change) -> Fixes:
    """Return fixes that are the same for every plan: these changes, else atoms."""
    return lambda plan: [*changes, ATOMS]


def schedule(plan: Plan) -> str | None:
    if plan.spec.schedule.kind in ("one_tile", "persistent"):
        return None
    return f"form {plan.spec.form} does not support schedule {plan.spec.schedule}: one CTA computes a whole tile"


def at_launch(plan: Plan) -> str | None:
    found = common.fields_at_launch(plan)
    return f"form {plan.spec.form} does not support {', '.join(found)}" if found else None


def alignment(plan: Plan) -> str | None:
    short = [f"{name} is 1" for name in ("align_a", "align_b") if getattr(plan.spec, name) < 2]
    if plan.register_copy or not short:
        return None
    return f"{', '.join(short)}; form {plan.spec.form} copies by cp.async, 2 elements (4 B) or more"


def swizzles(plan: Plan) -> str | None:
    for name, tile in (("smem_a", plan.a), ("smem_b", plan.b)):
        if tile.smem.kind == "xor" and tile.pitch & (tile.pitch - 1):
            return f"{name} is {tile.smem} with rows of {tile.pitch} elements; CuTe swizzles rows of a power of two"
    return None


def padding(plan: Plan) -> str | None:
    pairs = [f"{name} is {tile.smem}" for name, tile in (("smem_a", plan.a), ("smem_b", plan.b)) if tile.smem.pair_pad]
    return f"{', '.join(pairs)}; form {plan.spec.form} requires rows at one distance" if pairs else None


def k_blocks(plan: Plan) -> str | None:
    if plan.k_blocks >= 2:
        return None
    return (
        f"tile {plan.spec.cta_tile} has {counted(plan.k_blocks, 'k-block')}; form {plan.spec.form} requires 2 or more"
    )


def copies(plan: Plan) -> str | None:
    for name, tile in (("A", plan.a), ("B", plan.b)):
        rows, chunks = thread_shape(tile)
        per_row = max(1, tile.columns // tile.chunk)
        if rows * chunks != plan.threads or tile.rows % rows or per_row % chunks:
            return f"{plan.threads} threads do not tile {tile.rows} rows of {per_row} vectors of {name}; a TiledCopy requires it"
    return None


def thread_shape(tile: OperandTile) -> tuple[int, int]:
    """Return how many rows, and how many vectors of each, a CTA's threads copy at once."""
    chunks = min(max(1, tile.columns // tile.chunk), tile.threads)
    return max(1, tile.threads // chunks), chunks


def deeper_tile(plan: Plan) -> list[Change]:
    """A tile with k of 32, else atoms."""
    return [{"cta_tile": str(plan.spec.cta_tile).rpartition("x")[0] + "x32"}, ATOMS]


def of_form(form: str, check: Check) -> Check:
    """Return a check of plans in this form only, named after the form."""

    def check_form(plan: Plan) -> str | None:
        return check(plan) if plan.spec.form == form else None

    check_form.__name__ = f"{form}_{check.__name__}"
    return check_form


def _rules_of_both(form: str, rule: Callable[[Fixes], Callable[[Check], Check]]) -> tuple[Check, ...]:
    """Add the rules of both forms, and return the checks that the choice of a tile may violate."""
    rule(fix_by({"schedule": "one_tile"}))(of_form(form, schedule))
    rule(common.decided_early)(of_form(form, at_launch))
    rule(fix_by({"align_a": "8", "align_b": "8"}))(of_form(form, alignment))
    for check in (swizzles, padding):
        rule(fix_by({"smem_a": "pad:8", "smem_b": "pad:8"}))(of_form(form, check))
    return rule(deeper_tile)(of_form(form, k_blocks)), rule(fix_by())(of_form(form, copies))


# ==== Form cute ====

CUTE_RULES: list[Rule] = []
cute = collector(CUTE_RULES)


@cute(in_cute)
def cute_fields(plan: Plan) -> str | None:
    return _unsupported_text(plan, CUTE_VALUES, CUTE_REASONS) if plan.spec.form == "cute" else None


@cute(fix_by({"mma": "m16n8k16"}, {"copy": "ldg_sts", "stages": "2"}, {"acc": "f32"}))
def cute_depth(plan: Plan) -> str | None:
    spec = plan.spec
    if spec.form != "cute" or spec.mma != "m16n8k8":
        return None
    if plan.register_copy and (spec.dtype_a, spec.acc) == ("f16", "f32"):
        return None
    return (
        f"mma is m16n8k8 with {spec.dtype_a} inputs, acc {spec.acc} and copy {spec.copy}; "
        "form cute supports it with f16 inputs, acc f32 and copies through registers"
    )


@cute(fix_by({"store_spacing": "0"}))
def cute_spacing(plan: Plan) -> str | None:
    if plan.spec.form != "cute" or not plan.spec.store_spacing:
        return None
    return f"store_spacing is {plan.spec.store_spacing}; form cute requires 0, because it stores a k-tile at once"


CUTE_TILE_CHECKS = _rules_of_both("cute", cute)

# ==== Form dsl ====

DSL_RULES: list[Rule] = []
dsl = collector(DSL_RULES)


@dsl(fix_by())
def dsl_arch(plan: Plan) -> str | None:
    if plan.spec.form != "dsl" or plan.spec.arch in DSL_ARCHS:
        return None
    return f"arch is {plan.spec.arch}; CuTe DSL supports {', '.join(DSL_ARCHS)}"


@dsl(fix_by())
def dsl_activation(plan: Plan) -> str | None:
    if plan.spec.form != "dsl" or plan.spec.activation in DSL_ACTIVATIONS:
        return None
    return f"activation is {plan.spec.activation}; form dsl supports {', '.join(DSL_ACTIVATIONS)}"


@dsl(in_dsl)
def dsl_fields(plan: Plan) -> str | None:
    return _unsupported_text(plan, DSL_VALUES, DSL_REASONS) if plan.spec.form == "dsl" else None


DSL_TILE_CHECKS = _rules_of_both("dsl", dsl)

TILE_CHECKS = (*CUTE_TILE_CHECKS, *DSL_TILE_CHECKS)
"""The checks that the choice of a tile may violate."""

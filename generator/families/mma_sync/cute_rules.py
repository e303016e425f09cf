"""What of a spec on mma.sync its kernel in CuTe cannot say, and why not."""

from __future__ import annotations

from collections.abc import Iterator

from generator.arch import ARCHS
from generator.families.mma_sync import form_rules
from generator.families.mma_sync.form_rules import ATOMS, of_form
from generator.families.mma_sync.plan import MmaSyncPlan as Plan
from generator.families.rules import Rule, adder
from generator.families.ways_out import Change, word

RULES: list[Rule] = []
rule = adder(RULES)

_SERVED = {
    "dtype_a": ("f16", "bf16"),
    "copy": ("cp_async", "ldg_sts"),
    "mma": ("m16n8k16", "m16n8k8"),
    "acc": ("f32", "f16"),
    "prefetch": (True,),
    "fragment_stages": (2,),
    "mma_order": ("zigzag",),
    "store": ("smem",),
    "smem_alloc": ("dynamic",),
}
_REASONS = {
    "dtype_a": "the TiledMMA is of half-precision numbers",
    "copy": "the TiledCopy is of cp.async or of whole pieces",
    "mma": "the TiledMMA is of mma.sync",
    "acc": "a TiledMMA adds up in one type",
    "prefetch": "the next k-tile is loaded while one is multiplied",
    "fragment_stages": "a k-block is read while another is multiplied",
    "mma_order": "cute::gemm goes through a warp's atoms in its own order, a zigzag",
    "store": "the epilogue's TiledMMA writes to shared memory",
    "smem_alloc": "its SharedStorage is laid over dynamic shared memory",
}


def _as_served(plan: Plan) -> Iterator[Change]:
    first = {name: word(served[0]) for name, served in _SERVED.items()}
    if not ARCHS[plan.spec.arch].has_cp_async:
        first |= {"copy": "ldg_sts", "mma": "m16n8k8"}
    yield {name: first[name] for name, served in _SERVED.items() if getattr(plan.spec, name) not in served}
    yield ATOMS


@rule(_as_served)
def cute_fields(plan: Plan) -> str | None:
    if plan.spec.form != "cute":
        return None
    strays = [name for name, served in _SERVED.items() if getattr(plan.spec, name) not in served]
    told = "; ".join(f"{name} {word(getattr(plan.spec, name))}: {_REASONS[name]}" for name in strays)
    return f"form cute cannot say {told}" if strays else None


@rule(lambda plan: [{"mma": "m16n8k16"}, {"copy": "ldg_sts", "stages": "2"}, {"acc": "f32"}, ATOMS])
def cute_depth(plan: Plan) -> str | None:
    spec = plan.spec
    if spec.form != "cute" or spec.mma != "m16n8k8" or (plan.staged and (spec.dtype_a, spec.acc) == ("f16", "f32")):
        return None
    fed = "" if plan.staged else f" fed by {spec.copy}"
    return f"form cute has no m16n8k8 of {spec.dtype_a} that adds up in {spec.acc}{fed}: of f16 in f32 by way of registers only"


@rule(lambda plan: [{"store_spacing": "0"}, ATOMS])
def cute_spacing(plan: Plan) -> str | None:
    if plan.spec.form != "cute" or not plan.spec.store_spacing:
        return None
    return f"store_spacing {plan.spec.store_spacing}: form cute stores all pieces of a k-tile side by side"


rule(form_rules.at_once)(of_form("cute", form_rules.schedule))
rule(form_rules.in_pieces)(of_form("cute", form_rules.alignment))
rule(form_rules.padded)(of_form("cute", form_rules.swizzles))
rule(form_rules.padded)(of_form("cute", form_rules.padding))
cute_k_blocks = rule(form_rules.deeper)(of_form("cute", form_rules.k_blocks))
cute_copies = rule(form_rules.on_atoms)(of_form("cute", form_rules.copies))

FITS = (cute_k_blocks, cute_copies)
"""The rules that a choice of tiles may break."""

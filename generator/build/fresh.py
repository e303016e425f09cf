"""Whether a library's text is what this version writes for its spec. Other text is not compiled or run without --trust."""

from __future__ import annotations

from pathlib import Path

from generator.build.emit import Kernel, emit
from generator.build.pipeline import planned
from generator.errors import HgemmError
from generator.planner import plan_of
from generator.spec import Spec
from hgemm.library import Variant


def fresh_kernel(variant: Variant, templates: Path) -> Kernel:
    """Write the kernel of a variant's spec again. Raises: HgemmError if this version cannot plan or write it."""
    return emit(plan_of(Spec.from_dict(variant.record.data["spec"])), templates)


def foreign(variant: Variant, templates: Path) -> str:
    """Return how a variant's source or launch differs from what this version writes for its spec; "" if it does not."""
    try:
        kernel = fresh_kernel(variant, templates)
    except HgemmError as error:
        return f"its spec cannot be written again ({error})"
    if variant.source != kernel.source.encode():
        return f"its {variant.record.source_name} is not what this version writes for its spec"
    data = variant.record.data
    sections = [name for name, value in planned(kernel).items() if data.get(name, value) != value]
    return f"its {' and '.join(sections)} are not those of its spec" if sections else ""


def refusal(variant: Variant, templates: Path) -> str:
    """Return why a variant is not run, and what to do; "" if it may be run."""
    reason = foreign(variant, templates)
    if not reason:
        return ""
    return f"{reason}, so it is not run: generate it again, or add --trust if you trust who wrote it"

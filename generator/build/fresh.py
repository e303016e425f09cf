"""Whether a library's source and PTX are what this version writes for its spec. Others are not run without --trust."""

from __future__ import annotations

from pathlib import Path

from generator.build.compile import key_of, ptx_of, versions_of
from generator.build.emit import EmittedKernel, emit
from generator.build.pipeline import planned_sections
from generator.build.toolchain import headers
from generator.errors import HgemmError
from generator.planner import plan_of
from generator.spec import Spec
from hgemm.library import StoredKernel
from hgemm.record import PTX_NAME


def fresh_kernel(stored: StoredKernel, templates: Path) -> EmittedKernel:
    """Write the source of a stored kernel again, from its spec. Raises: HgemmError if this version cannot plan or write it."""
    return emit(plan_of(Spec.from_dict(stored.record.data["spec"])), templates)


def foreign(stored: StoredKernel, templates: Path) -> str:
    """Return how a kernel's source or launch differs from what this version writes for its spec; "" if it does not."""
    try:
        kernel = fresh_kernel(stored, templates)
    except HgemmError as error:
        return f"its spec cannot be written again ({error})"
    if stored.source != kernel.source.encode():
        return f"its {stored.record.source_name} is not what this version writes for its spec"
    data = {
        **stored.record.data,
        "spec": kernel.plan.spec.to_dict(),
    }  # older records lack fields that have their default
    sections = [name for name, value in planned_sections(kernel).items() if data.get(name, value) != value]
    return f"its {' and '.join(sections)} is not what this version writes for its spec" if sections else ""


def differing_inputs(stored: StoredKernel, kernel: EmittedKernel) -> str:
    """Return which inputs of the compilation differ between a stored kernel and a fresh one."""
    there, here = stored.record.data["toolchain"], versions_of(kernel)
    differ = [f"{name} {there.get(name, 'none')} there, {version} here" for name, version in here.items()]
    differ = [text for text, name in zip(differ, here) if there.get(name) != here[name]]
    return ", ".join(differ) or "the templates differ"


def foreign_ptx(stored: StoredKernel, templates: Path) -> str:
    """Return how a kernel's PTX differs from what its spec compiles to here; "" if it does not. It takes 0.4 s.

    PTX of other compilers or templates cannot be compared, so it differs.
    """
    try:
        kernel = fresh_kernel(stored, templates)
        found = headers(kernel.entry_header, templates)
        if stored.record.key != key_of(kernel, found):
            return f"its {PTX_NAME} was compiled from other inputs ({differing_inputs(stored, kernel)})"
        same = ptx_of(kernel, found) == stored.artefacts[PTX_NAME]
    except HgemmError as error:
        return f"its {PTX_NAME} cannot be compiled again ({error})"
    return "" if same else f"its {PTX_NAME} is not what its source compiles to"


def refusal(stored: StoredKernel, templates: Path) -> str:
    """Return why a kernel is not run, and what to do; "" if it may be run."""
    reason = foreign(stored, templates) or foreign_ptx(stored, templates)
    if not reason:
        return ""
    return f"{reason}, so it is not run: generate it again, or run `hgemm verify --emulate --trust` if you trust who wrote it"

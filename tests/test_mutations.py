"""The executor finds every fault of the table when its kernel runs on the CPU, and finds nothing without the fault.

`python -m benchmarks.faults` prints the table: fault, caught by, seed. With --sample, as in CI, one of ONE_OF faults is searched.
With --since, those of all kernels that the commit affects are searched, too.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterable
from dataclasses import replace

import pytest
from conftest import ROOT, changed_paths

from benchmarks.anchors import Program
from benchmarks.fault_table import AUDIT_CUTE, DEFAULT_CASES
from benchmarks.faults import FAULTS, NUMBERS, Fault, catch, kernel_of
from generator.build.toolchain import templates_folder
from generator.families import family_of
from generator.proof.executor import HostToolchain
from generator.proof.jobs import check_here

SEED = 0
ONE_OF = 8
TABLE = "benchmarks/fault_table.py"
EXECUTOR = ("generator/proof/", "generator/ptx/", "templates/executor/")


def one_of_each(faults: Iterable[Fault]) -> set[str]:
    """Return the names of the first fault on hand-picked shapes for each architecture, copy and kind of finding."""
    first: dict[tuple, str] = {}
    for fault in faults:
        if fault.shapes != DEFAULT_CASES:
            for kind in fault.caught_by:
                first.setdefault((fault.options.get("arch"), fault.options.get("copy"), kind), fault.name)
    return set(first.values())


QUICK = one_of_each(FAULTS)


def one_of_each_kernel(faults: Iterable[Fault]) -> list[Fault]:
    """Return the first fault of each kernel with the shapes of all; apart from it, the first one with the cases of a proof."""
    shapes: dict[tuple, dict[str, Fault]] = {}
    for fault in faults:
        kernel = (*sorted(fault.options.items()), fault.shapes == DEFAULT_CASES)
        shapes.setdefault(kernel, {}).setdefault(fault.shapes, fault)
    return [replace(next(iter(found.values())), shapes=",".join(found)) for found in shapes.values()]


SOUND = one_of_each_kernel(fault for fault in FAULTS if fault.options != AUDIT_CUTE)
"""test_cute_form.py proves the kernel of AUDIT_CUTE."""


# ---- The kernels that a commit affects -------------------------------------------------------------------------------


def options_of(fault: Fault) -> frozenset[tuple[str, str]]:
    return frozenset(fault.options.items())


KERNELS = {options_of(fault): fault for fault in FAULTS}


def affected(paths: Collection[str], unchanged: Collection[str]) -> set[frozenset[tuple[str, str]]]:
    """Return the options of the kernels whose faults a change of files affects. All if the executor changed.

    `unchanged` has the `repr` of entries of the table. A change of other entries, of a header that the kernel includes, or of its
    family affects a kernel.
    """
    if any(path.startswith(EXECUTOR) for path in paths):
        return {*KERNELS}
    found = {options_of(fault) for fault in FAULTS if repr(fault) not in unchanged}
    if any(path.startswith(("templates/", "generator/families/")) for path in paths):
        found |= {options for options, fault in KERNELS.items() if not texts_of(fault).isdisjoint(paths)}
    return found


def texts_of(fault: Fault) -> set[str]:
    """Return the files that the text of a kernel comes from: included headers, and those of its family."""
    kernel = kernel_of(fault)
    family = family_of(kernel.plan.spec).name
    files = {f"templates/{name}" for name in Program.of(kernel.source, templates_folder()).texts}
    for pattern in (f"templates/{family}/*.j2", f"generator/families/{family}/*.py"):
        files |= {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)}
    return files


def table_of(commit: str) -> set[str]:
    """Return the `repr` of the entries of a commit's table. Of a table that today's modules cannot read, return none."""
    done = subprocess.run(["git", "show", f"{commit}:{TABLE}"], capture_output=True, text=True, cwd=ROOT)
    names: dict = {"__name__": "benchmarks.fault_table"}
    try:
        exec(done.stdout, names)
        return {repr(fault) for fault in names["FAULTS"]}
    except (ImportError, AttributeError, TypeError, LookupError):
        return set()


def affected_since(commit: str) -> set[frozenset[tuple[str, str]]]:
    paths = changed_paths(commit)
    return affected(paths, table_of(commit) if TABLE in paths else {repr(fault) for fault in FAULTS})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Mark the faults of kernels that the commit of --since does not affect as `sampled`."""
    faults = {test_a_seeded_fault_is_found: FAULTS, test_kernels_without_the_fault_pass: SOUND}.get(metafunc.function)
    if faults is not None:
        kept = affected_since(metafunc.config.getoption("since"))
        parameters = []
        for fault in faults:
            marks = [pytest.mark.slow] * (fault.name not in QUICK)
            marks += [pytest.mark.sampled(ONE_OF)] * (options_of(fault) not in kept)
            parameters.append(pytest.param(fault, id=fault.name.replace(" ", "-"), marks=marks))
        metafunc.parametrize("fault", parameters)


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("docs/index.md", 0),
        ("templates/capi/src/select.c", 0),
        ("templates/executor/wgmma.hpp", len(KERNELS)),
        ("templates/common/types.cuh", len(KERNELS)),
    ],
)
def test_changed_files_affect_kernels(path: str, count: int) -> None:
    assert len(affected([path], {repr(fault) for fault in FAULTS})) == count


def test_changed_families_and_entries_affect_their_kernels() -> None:
    entries = [repr(fault) for fault in FAULTS]
    for path in ("templates/wgmma/instance.cu.j2", "generator/families/wgmma/plan.py", "templates/wgmma/mainloop.cuh"):
        archs = {dict(options)["arch"] for options in affected([path], entries)}
        assert archs == {"sm_90a"}
    assert affected([TABLE], entries[1:]) == {options_of(FAULTS[0])}


# ---- The search ------------------------------------------------------------------------------------------------------


def test_fault_table_covers_every_kind() -> None:
    assert len(FAULTS) >= 20 and len({fault.name for fault in FAULTS}) == len(FAULTS)
    caught_by = {kind for fault in FAULTS for kind in fault.caught_by}
    assert all(fault.caught_by for fault in FAULTS if fault.shapes != DEFAULT_CASES)
    assert {"race", "bounds", "alignment", "poison", "uninitialised", "write_once", "pending", NUMBERS} <= caught_by


def test_a_seeded_fault_is_found(fault: Fault, o0_toolchain: HostToolchain) -> None:
    caught = catch(fault, o0_toolchain, SEED, check=check_here)
    assert caught.as_expected, (caught.by, caught.first_finding)


def test_kernels_without_the_fault_pass(fault: Fault, o0_toolchain: HostToolchain) -> None:
    caught = catch(fault, o0_toolchain, SEED, seeded=False, check=check_here)
    assert caught.by == () and caught.first_finding == ""

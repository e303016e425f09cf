"""The executor finds every fault of the table when its kernel runs on the CPU, and finds nothing without the fault.

`python -m benchmarks.faults` prints the table: fault, caught by, seed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from benchmarks.fault_table import AUDIT_CUTE, DEFAULT_CASES
from benchmarks.faults import FAULTS, NUMBERS, Fault, catch
from generator.proof.executor import HostToolchain
from generator.proof.jobs import check_here

SEED = 0


def one_of_each(faults: Iterable[Fault]) -> set[str]:
    """Return the names of the first fault on hand-picked shapes for each architecture, copy and kind of finding."""
    first: dict[tuple, str] = {}
    for fault in faults:
        if fault.shapes != DEFAULT_CASES:
            for kind in fault.caught_by:
                first.setdefault((fault.options.get("arch"), fault.options.get("copy"), kind), fault.name)
    return set(first.values())


QUICK = one_of_each(FAULTS)


def parameters(faults: Iterable[Fault]) -> list:
    return [
        pytest.param(fault, id=fault.name.replace(" ", "-"), marks=[pytest.mark.slow] * (fault.name not in QUICK))
        for fault in faults
    ]


def one_of_each_kernel(faults: Iterable[Fault]) -> list[Fault]:
    """Return the first fault of each kernel with the shapes of all; apart from it, the first one with the cases of a proof."""
    shapes: dict[tuple, dict[str, Fault]] = {}
    for fault in faults:
        kernel = (*sorted(fault.options.items()), fault.shapes == DEFAULT_CASES)
        shapes.setdefault(kernel, {}).setdefault(fault.shapes, fault)
    return [replace(next(iter(found.values())), shapes=",".join(found)) for found in shapes.values()]


SOUND = one_of_each_kernel(fault for fault in FAULTS if fault.options != AUDIT_CUTE)
"""test_cute_form.py proves the kernel of AUDIT_CUTE."""


def test_fault_table_covers_every_kind() -> None:
    assert len(FAULTS) >= 20 and len({fault.name for fault in FAULTS}) == len(FAULTS)
    caught_by = {kind for fault in FAULTS for kind in fault.caught_by}
    assert all(fault.caught_by for fault in FAULTS if fault.shapes != DEFAULT_CASES)
    assert {"race", "bounds", "alignment", "poison", "uninitialised", "write_once", "pending", NUMBERS} <= caught_by


@pytest.mark.parametrize("fault", parameters(FAULTS))
def test_a_seeded_fault_is_found(fault: Fault, o0_toolchain: HostToolchain) -> None:
    caught = catch(fault, o0_toolchain, SEED, check=check_here)
    assert caught.as_expected, (caught.by, caught.first_finding)


@pytest.mark.parametrize("fault", parameters(SOUND))
def test_kernels_without_the_fault_pass(fault: Fault, o0_toolchain: HostToolchain) -> None:
    caught = catch(fault, o0_toolchain, SEED, seeded=False, check=check_here)
    assert caught.by == () and caught.first_finding == ""

"""Edge maps: what the TMA reads beyond a row of A or B changes no element of D, and it reads no byte behind the last element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from conftest import subject_of

import generator.proof.machine as machine
from generator.build.emit import emit
from generator.build.toolchain import templates_folder
from generator.proof.executor import HostToolchain
from generator.proof.machine import EmulatedKernel
from generator.proof.proving import Subject, check_case, load
from generator.sweep import sweep
from hgemm.cases import Case, Shape
from hgemm.launch import OperandMap, operand_maps
from hgemm.launch_traits import LaunchTraits

Maps = tuple[OperandMap | None, ...]
REDUCTIONS = "scale: Column; y = acc * scale + bias; (y, column_max(abs(y)), row_sum(y))"
KERNELS = {
    "two narrow last boxes": {"layout": "nt", "tile": "64x200x64"},
    "swapped": {"layout": "nn", "tile": "104x64x64", "swap_ab": "on"},
    "rows of 64 bytes": {"layout": "nt", "tile": "24x64x64", "swap_ab": "on"},
    "whole boxes": {"layout": "tt", "tile": "64x64x64", "cluster": "2x1", "schedule": "persistent"},
    "splits": {"layout": "nt", "tile": "72x64x64", "swap_ab": "on", "schedule": "split_k:2"},
    "reductions": {"layout": "nt", "tile": "64x72x64", "epilogue": REDUCTIONS},
}


@pytest.fixture(scope="module")
def kernel_of(host_toolchain: HostToolchain) -> Callable[[str], EmulatedKernel]:
    kernels: dict[str, EmulatedKernel] = {}

    def kernel(name: str) -> EmulatedKernel:
        if name not in kernels:
            (plan,) = sweep([{"arch": "sm_90a", "cluster": "1x1", "stages": "3", **KERNELS[name]}]).plans
            subject: Subject = subject_of(emit(plan, templates_folder()))
            kernels[name] = EmulatedKernel(LaunchTraits.of(subject.record), load(subject, host_toolchain), ())
        return kernels[name]

    return kernel


@pytest.mark.parametrize("name", KERNELS)
def test_rows_beyond_the_matrix_change_no_element(kernel_of: Callable[[str], EmulatedKernel], name: str) -> None:
    """Gaps hold NaNs. Memory ends with the last element: guards follow it, which no launch may read."""
    kernel = kernel_of(name)
    assert kernel.traits.has_edge_maps
    shapes = [Shape(8, 8, k) for k in (1, 63, 64, 65, 193)]
    shapes += [
        Shape(kernel.traits.tile_m + 1, kernel.traits.tile_n - 3, 130),
        Shape(41, 43, 129, 2),
        Shape(1, 300, 200),
    ]
    for shape in shapes:
        for loose in (False, True):
            check = check_case(kernel, Case(shape, alpha=2.0, loose=loose, brief=True), seed=1)
            assert check.passed, check.reason


def unbounded(maps: Maps) -> Maps:
    """Extend rows to whole boxes of 64 columns, whatever the next row has."""
    return tuple(one and replace(one, extents=(512, *one.extents[1:])) for one in maps[:2]) + maps[2:]


def always_extended(maps: Maps) -> Maps:
    return (*maps[:2], maps[0])


def whole_boxes(maps: Maps) -> Maps:
    return (maps[0], maps[0], maps[2])


def too_narrow(maps: Maps) -> Maps:
    """End the rows of A or B one vector too early."""
    return tuple(one and replace(one, extents=(one.extents[0] - 8, *one.extents[1:])) for one in maps)


@pytest.mark.parametrize(
    "fault, shape",
    [
        (unbounded, (1, 300, 129)),
        (always_extended, (41, 370, 65)),
        (whole_boxes, (64, 200, 129)),
        (too_narrow, (64, 200, 129)),
    ],
)
def test_maps_with_a_fault_are_found(
    kernel_of: Callable[[str], EmulatedKernel],
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable,
    shape: tuple[int, int, int],
) -> None:
    def wrong(traits, places):
        return {name: fault(maps) if len(maps) == 3 else maps for name, maps in operand_maps(traits, places).items()}

    kernel = kernel_of("two narrow last boxes")
    case = Case(Shape(*shape), brief=True)
    assert check_case(kernel, case, seed=1).passed
    monkeypatch.setattr(machine, "operand_maps", wrong)
    assert not check_case(kernel, case, seed=1).passed

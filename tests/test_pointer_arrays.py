"""Kernels with pointer arrays: each matrix of a batch has an address of its own, which the kernel reads on the GPU."""

from __future__ import annotations

import ctypes
import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import SMALL, hgemm, made_once, subject_of
from exports import CChoice, CDevice, CProblem, export_paper, loaded, paper_library

from generator.build.emit import emit
from generator.build.pipeline import planned_sections
from generator.build.toolchain import templates_folder
from generator.families import family_of
from generator.families.base import Plan
from generator.proof.executor import HostToolchain
from generator.proof.proving import prove
from generator.sweep import sweep
from hgemm.dispatch_table import DispatchTable, kind_of
from hgemm.errors import ProblemError
from hgemm.launch import check
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import Kind, Problem, kind_supports
from hgemm.selection import Selector
from hgemm.selection_query import SelectionQuery, Target

POINTERS = {**SMALL, "pointer_arrays": "on"}
BY_ADDRESS = Kind(pointer_arrays=True)


def plan_of(**texts: str) -> Plan:
    (plan,) = sweep([texts]).plans
    return plan


def traits_of(**texts: str) -> LaunchTraits:
    return LaunchTraits.of(planned_sections(emit(plan_of(**texts), templates_folder())))


# ---- Kernels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "texts",
    [
        {"layout": "tn"},
        {"layout": "nt", "dtype": "tf32"},
        {"layout": "tt", "align": "1", "copy": "ldg_sts_unaligned", "stages": "1"},
        {"layout": "nn", "schedule": "launch", "bias": "launch", "raster": "launch"},
        {"schedule": "persistent", "dtype": "bf16", "out": "f32"},
        {"arch": "sm_90a", "mma": "wgmma", "tile": "64x64x64", "layout": "tt", "stages": "3"},
    ],
    ids=lambda texts: "-".join(texts.values()),
)
def test_kernels_are_proved_on_the_cpu(texts: dict[str, str], host_toolchain: HostToolchain) -> None:
    kernel = emit(plan_of(**{**POINTERS, **texts}), templates_folder())
    proved = prove(subject_of(kernel), host_toolchain)
    assert not [check.reason for check in proved.checks if not check.passed] and proved.proof["races"] == 0


def test_addresses_are_read_on_the_gpu() -> None:
    """A tensor map is made before the launch, so the default on sm_90a is wgmma without TMA."""
    hopper, other = (plan_of(arch=arch, tile="64x64x64", pointer_arrays="on").spec for arch in ("sm_90a", "sm_90"))
    assert (family_of(hopper).name, hopper.copy, hopper.store) == ("wgmma", "cp_async", "direct")
    assert (family_of(other).name, other.copy) == ("mma_sync", "cp_async")
    for texts in ({"copy": "tma"}, {"form": "cute"}, {"mma": "wgmma", "copy": "tma"}, {"mma": "wgmma", "store": "tma"}):
        request = {"arch": "sm_90a", "tile": "64x64x64", "pointer_arrays": "on", **texts}
        (candidate,) = sweep([request]).candidates
        assert any("pointer_arrays" in violation.message for violation in candidate.broken), texts


def test_other_kernels_keep_their_source() -> None:
    """A Policy names pointer arrays only if they are on."""
    with_them, without = (emit(plan_of(**texts), templates_folder()) for texts in (POINTERS, SMALL))
    assert "pointer_arrays = true" in with_them.source and "pointer_arrays" not in without.source


# ---- Selection and checks -------------------------------------------------------------------------------------------


def test_select_supports_pointer_arrays(tmp_path: Path, capsys) -> None:
    plans = [plan_of(**texts) for texts in (POINTERS, SMALL)]
    library = paper_library(tmp_path / "library", [emit(plan, templates_folder()) for plan in plans])
    words = [
        "select",
        "--library",
        library.folder,
        "--arch",
        "80",
        "--m",
        64,
        "--n",
        64,
        "--k",
        64,
        "--batch",
        3,
        "--json",
    ]
    symbols = [emit(plan, templates_folder()).symbol for plan in plans]
    for more, symbol in ((["--pointer-arrays"], symbols[0]), ([], symbols[1])):
        status, out, _ = hgemm(capsys, *words, *more)
        assert status == 0 and json.loads(out)["symbol"] == symbol
    status, _, err = hgemm(capsys, *words, "--pointer-arrays", "--layout", "nt")
    assert status == 1 and "`generate --arch 80 --dtype f16 --layout nt --pointer-arrays on --library" in err


def test_only_problems_with_pointer_arrays_select_them(tmp_path: Path) -> None:
    kernels = [emit(plan_of(**texts), templates_folder()) for texts in (SMALL, POINTERS)]
    library = paper_library(tmp_path, kernels)
    records = [record.data for record in library.records()]
    selector = Selector(DispatchTable.of(records), Target.typical("sm_80"))
    chosen = {
        kind.pointer_arrays: selector.find(SelectionQuery.dense(kind, (64, 64, 64, 3))) for kind in (Kind(), BY_ADDRESS)
    }
    assert {arrays: choice and choice.symbol for arrays, choice in chosen.items()} == {
        False: kernels[0].symbol,
        True: kernels[1].symbol,
    }


def test_kind_code_includes_pointer_arrays() -> None:
    both = Kind(layout="nt", pointer_arrays=True, epilogue="0badf00d")
    for kind in (BY_ADDRESS, both, replace(both, pointer_arrays=False)):
        assert Kind.from_code(kind.code) == kind and kind.code < 2**64
    assert not kind_supports(BY_ADDRESS.code, Kind().code) and not kind_supports(Kind().code, BY_ADDRESS.code)


def test_launch_checks_pointer_arrays() -> None:
    traits = traits_of(**POINTERS)
    assert kind_of(traits) == BY_ADDRESS
    good = Problem(32, 32, 32, 3, a=64, b=128, d=192, lda=32, ldb=32, ldd=32, pointer_arrays=True)
    check(good, traits)
    for wrong, words in (
        (replace(good, pointer_arrays=False), "HGEMM_POINTER_ARRAYS"),
        (replace(good, a=0), "array of A is null"),
        (replace(good, d=196), "array of D, 0xc4"),
        (replace(good, ldb=31), "B's leading dimension 31"),
        (replace(good, beta=1.0), "array of C is null"),
    ):
        with pytest.raises(ProblemError, match=words):
            check(wrong, traits)
    with pytest.raises(ProblemError, match="--pointer-arrays on"):
        check(good, traits_of(**SMALL))


# ---- The C library --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(shared: Path) -> ctypes.CDLL:
    kernels = [emit(plan_of(**texts), templates_folder()) for texts in (SMALL, POINTERS)]

    def make(folder: Path) -> None:
        export_paper(paper_library(folder / "library", kernels), folder / "c")

    return loaded(made_once(shared / "pointer_arrays", make) / "c")


def test_c_and_python_select_and_reject_alike(library: ctypes.CDLL) -> None:
    """It needs no GPU: hgemm_select_for takes one by its numbers."""
    device, choice = CDevice(8, 0, 108, 163 * 1024), CChoice()
    good = Problem(32, 32, 32, 3, a=64, b=128, d=192, lda=32, ldb=32, ldd=32, beta=1.0, c=200, ldc=32)

    def status(kind: Kind, problem: Problem) -> tuple[int, str]:
        given = CProblem.of(kind, problem, 0)
        found = library.hgemm_select_for(ctypes.byref(device), ctypes.byref(given), ctypes.byref(choice))
        return found, choice.symbol.decode() if found == 0 else library.hgemm_last_message().decode()

    pointers, plain = (plan_of(**texts) for texts in (POINTERS, SMALL))
    assert status(BY_ADDRESS, good) == (0, emit(pointers, templates_folder()).symbol)
    strided = Problem(32, 32, 32, 3, lda=32, ldb=32, ldd=32, batch_stride_d=2048)
    assert status(Kind(), strided) == (0, emit(plain, templates_folder()).symbol)
    assert status(replace(BY_ADDRESS, layout="nn"), good)[1].endswith("--pointer-arrays on")
    assert "leading dimension of B" in status(BY_ADDRESS, replace(good, ldb=31))[1]
    assert status(BY_ADDRESS, replace(good, ldb=36))[0] != 0  # rows that are not aligned

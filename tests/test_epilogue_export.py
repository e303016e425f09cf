"""Kernels with an expression in the exported C library: the list, selection, checks and launches, on a driver without a GPU."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import measured
import pytest
from conftest import call
from exports import (
    ANY_WORKSPACE,
    FAST_CC,
    SCALED,
    TESTS,
    CChoice,
    CDevice,
    CProblem,
    compiled,
    export_paper,
    fake_driver,
    loaded,
    need_compiler,
    paper_library,
)

from generator.build.emit import emit
from generator.build.toolchain import templates_folder
from generator.store.library import Library
from generator.sweep import sweep
from hgemm.epilogue import Epilogue
from hgemm.epilogue_language import epilogue_of
from hgemm.errors import UnsupportedError
from hgemm.launch import workspace_bytes
from hgemm.launch_traits import LaunchTraits
from hgemm.library import open_library
from hgemm.problem import Aux, Kind, Problem
from hgemm.selection import MEASURED, Selector
from hgemm.selection_query import SelectionQuery, Target, with_dense_strides

FUSED = epilogue_of(
    "bias: Row; scale: Column['f32']; gain: Scalar; residual: Matrix; relu(alpha * acc + beta * bias) * scale * gain + residual"
)
OTHER = epilogue_of("hgemm_gate: Matrix['f32']; silu(hgemm_gate) * acc")
GATED = epilogue_of("silu(gate) * up + bias")
SEVERAL = epilogue_of(
    "bias: Row; residual: Matrix; y = alpha * acc + beta * bias + residual; (relu(y), f32(y), row_sum_squares(y), row_max(y))"
)
COLUMNS = epilogue_of(
    "bias: Row; residual: Matrix; y = acc + bias + residual; (relu(y), f32(y), column_sum(y), row_max(y))"
)
OF_COLUMNS = epilogue_of(
    "bias: Row; residual: Matrix; y = silu(gate) * up + bias + residual; (y, f32(y), column_max(y), row_max(y))"
)
BASE = 0x700000000000
A100 = Target((8, 0), 108, 166912)


class CInput(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("kind", ctypes.c_int32), ("dtype", ctypes.c_int32)]


class CEpilogue(ctypes.Structure):
    _fields_ = [
        ("hash", ctypes.c_char_p),
        ("formula", ctypes.c_char_p),
        ("columns", ctypes.c_int32),
        ("input_count", ctypes.c_int32),
        ("inputs", CInput * 8),
        ("output_count", ctypes.c_int32),
        ("outputs", CInput * 8),
        ("uses_alpha", ctypes.c_int32),
        ("uses_beta", ctypes.c_int32),
    ]


class CKernel(ctypes.Structure):
    _fields_ = [
        ("symbol", ctypes.c_char_p),
        ("arch", ctypes.c_char_p),
        *((name, ctypes.c_int32) for name in ("layout", "dtype_a", "dtype_b", "dtype_d", "acc", "bias_kind")),
        *((name, ctypes.c_int32) for name in ("activation", "supports_beta", "tile_m", "tile_n", "tile_k")),
        *((name, ctypes.c_int32) for name in ("align_a", "align_b", "align_d", "splits")),
        ("epilogue", ctypes.POINTER(CEpilogue)),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """Planned records: kernels of one expression for aligned and for any operands, of another one, and of none."""
    templates, common = templates_folder(), {"arch": "sm_80"}
    texts = [
        {**common, "tile": "64x64x32,128x128x32", "epilogue": f"none,{FUSED}"},
        {**common, "tile": "64x64x32", "epilogue": str(FUSED), "align": "1"},
        {**common, "tile": "64x64x32", "epilogue": str(OTHER)},
        {**common, "tile": "128x128x32", "epilogue": str(GATED)},
        {**common, "tile": "64x64x32,128x128x32", "epilogue": str(SEVERAL), "align": "8,1"},
        {**common, "tile": "64x64x32,128x128x32", "epilogue": str(COLUMNS), "align": "8,1"},
        {**common, "tile": "64x64x32", "epilogue": str(OF_COLUMNS), "align": "8,1"},
    ]
    kernels = [emit(plan, templates) for plan in sweep(texts).plans]
    return paper_library(tmp_path_factory.mktemp("expressions") / "library", kernels)


@pytest.fixture(scope="module")
def exported(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_paper(library, tmp_path_factory.mktemp("expressions") / "export", "fuse")


@pytest.fixture(scope="module")
def c(exported: Path) -> ctypes.CDLL:
    return loaded(exported, "fuse")


def kind(epilogue: str = FUSED.hash) -> Kind:
    return Kind(epilogue=epilogue)


def problem(m: int = 200, n: int = 304, k: int = 64, batch: int = 1, ld: int | None = None) -> Problem:
    """Return a problem of FUSED with matrices that are far apart."""
    a, b, d, bias, scale, residual = (BASE + (at << 36) for at in range(6))
    strides = {"batch_stride_a": m * k, "batch_stride_b": 0, "batch_stride_d": m * n} if batch > 1 else {}
    aux = (Aux(bias), Aux(scale, batch_stride=m), Aux(value=0.5), Aux(residual, ld or n, m * (ld or n)))
    given = Problem(m, n, k, batch, a=a, b=b, d=d, beta=0.5, aux=aux, **strides)
    return with_dense_strides(given, kind())


def chosen(
    c: ctypes.CDLL, given: Problem, of: Kind, change: Callable[[CProblem], object] = lambda problem: None
) -> tuple[int, str]:
    """Return the status of hgemm_select_for, and the symbol or the message."""
    words, choice = CProblem.of(of, given, ANY_WORKSPACE), CChoice()
    change(words)
    device = CDevice(8, 0, 108, 166912)
    status = c.fuse_select_for(ctypes.byref(device), ctypes.byref(words), ctypes.byref(choice))
    return status, (choice.symbol if status == 0 else c.fuse_last_message()).decode()


def test_kernel_list_names_the_inputs(c: ctypes.CDLL, library: Library) -> None:
    count = c.fuse_list(None, 0)
    kernels = (CKernel * count)()
    c.fuse_list(kernels, count)
    found = {one.symbol.decode(): one.epilogue for one in kernels}
    for record in library.records():
        epilogue, listed = LaunchTraits.of(record.data).epilogue, found[record.symbol]
        assert bool(listed) == (epilogue is not None)
        if epilogue:
            assert (listed.contents.hash.decode(), listed.contents.formula.decode()) == (
                epilogue.hash,
                epilogue.formula,
            )
            inputs = [
                (one.name.decode(), one.kind, one.dtype) for one in listed.contents.inputs[: len(epilogue.operands)]
            ]
            assert listed.contents.input_count == len(inputs)
            wanted = {FUSED: [("bias", 1, -1), ("scale", 2, 2), ("gain", 0, -1), ("residual", 3, -1)]}
            wanted |= {OTHER: [("hgemm_gate", 3, 2)], GATED: [("bias", 1, -1)]}
            wanted |= dict.fromkeys((SEVERAL, COLUMNS, OF_COLUMNS), [("bias", 1, -1), ("residual", 3, -1)])
            assert inputs == wanted[epilogue] and listed.contents.columns == 1 + epilogue.gated
            outputs = [
                (one.name, one.kind, one.dtype) for one in listed.contents.outputs[: listed.contents.output_count]
            ]
            used = (listed.contents.uses_alpha, listed.contents.uses_beta)
            assert used == (epilogue.takes("alpha"), epilogue.takes("beta"))
            kinds = {SEVERAL: (3, 2, 2), COLUMNS: (3, 1, 2), OF_COLUMNS: (3, 1, 2)}.get(epilogue, ())
            assert outputs == [(f"out{at}".encode(), its, 2) for at, its in enumerate(kinds, 1)]


@pytest.mark.parametrize("epilogue", [SEVERAL, FUSED])
def test_hgemm_show_prints_aux_in_the_order_of_c(c: ctypes.CDLL, library: Library, epilogue: Epilogue) -> None:
    kernels = (CKernel * c.fuse_list(None, 0))()
    c.fuse_list(kernels, len(kernels))
    one = next(one for one in kernels if one.epilogue and one.epilogue.contents.hash.decode() == epilogue.hash)
    listed = one.epilogue.contents
    of_c = [*listed.inputs[: listed.input_count], *listed.outputs[: listed.output_count]]
    shown = call("hgemm", "show", one.symbol.decode(), "--library", library.folder).stdout
    found = re.findall(r"aux\[(\d)\] +(\w+): (\w+) (\w+)", shown)
    kinds = ("Scalar", "Row", "Column", "Matrix")
    wanted = [(str(at), aux.name.decode(), kinds[aux.kind]) for at, aux in enumerate(of_c)]
    assert [words[:3] for words in found] == wanted
    assert [words[3] for words in found] == ["f32" if aux.dtype == 2 or aux.kind == 0 else "f16" for aux in of_c]


def test_hgemm_export_takes_an_expression(library: Library, tmp_path: Path) -> None:
    need_compiler()
    words = ["export", "--library", library.folder, "--uncompressed", "--cc", FAST_CC, "--to", tmp_path / "to"]
    done = call("hgemm", *words, "--epilogue", GATED.hash, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["kernels"] == 1, done.stderr


@pytest.mark.parametrize("ld", [None, 305, 308])
@pytest.mark.parametrize("batch", [1, 3])
def test_c_and_python_select_the_same_kernel(c: ctypes.CDLL, library: Library, ld: int | None, batch: int) -> None:
    given = problem(batch=batch, ld=ld)
    query = SelectionQuery.of(kind(), given, ANY_WORKSPACE, FUSED)
    python = Selector(open_library(library.folder).table, Target((8, 0), 108, 166912)).choose(query)
    assert chosen(c, given, kind()) == (0, python.symbol)


@pytest.mark.parametrize("epilogue", [GATED, FUSED])
def test_hgemm_select_takes_an_expression(library: Library, epilogue: Epilogue) -> None:
    words = ["select", "--library", library.folder, "--arch", "80", "--m", 200, "--n", 304, "--k", 64]
    done = call("hgemm", *words, "--epilogue", str(epilogue), "--json")
    query = SelectionQuery(kind(epilogue.hash), 200, 304, 64, align_d=8, workspace_bytes=ANY_WORKSPACE)
    assert json.loads(done.stdout)["symbol"] == Selector(open_library(library.folder).table, A100).choose(query).symbol


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--n", 304, "--beta"], "has no beta"),
        (["--n", 304, "--bias", "row"], "excludes --bias and --activation"),
        (["--n", 300], "n must be a multiple of 16"),
    ],
)
def test_hgemm_select_rejects_products_that_a_gated_pair_cannot_compute(
    library: Library, options: list[str | int], message: str
) -> None:
    words = ["select", "--library", library.folder, "--arch", "80", "--m", 200, "--k", 64]
    done = call("hgemm", *words, "--epilogue", str(GATED), *options)
    assert done.returncode == 2 and message in done.stderr


def test_measurements_of_an_expression_decide_in_c_and_python(library: Library, tmp_path: Path) -> None:
    given, copy = problem(), Library(tmp_path / "library")
    shutil.copytree(library.folder, copy.folder)
    query = SelectionQuery.of(kind(), given, ANY_WORKSPACE, FUSED)
    before = Selector(open_library(copy.folder).table, A100).ranked(query)
    best, slowest = before[0].symbol, before[-1].symbol
    keys = {symbol: copy.load(symbol).record.key for symbol in (best, slowest)}
    of_problem = replace(measured.problem(200, 304, 64), epilogue=FUSED.hash)
    measured.write(copy.folder, [(of_problem, {slowest: 5.0, best: 9.0})], keys, capability=80, sms=108)
    choice = Selector(open_library(copy.folder).table, A100).choose(query)
    assert (choice.symbol, choice.rule) == (slowest, MEASURED) and slowest != best
    c = loaded(export_paper(copy, tmp_path / "export", "fuse"), "fuse")
    assert chosen(c, given, kind()) == (0, slowest)
    status, other = chosen(c, given, kind(epilogue="none"), lambda words: setattr(words, "beta", 0.0))
    assert status == 0 and other not in (best, slowest)


def test_an_expression_selects_its_own_kernels_only(c: ctypes.CDLL, library: Library) -> None:
    epilogues = {record.symbol: LaunchTraits.of(record.data).epilogue for record in library.records()}
    status, symbol = chosen(c, problem(), kind())
    assert status == 0 and epilogues[symbol] == FUSED
    status, symbol = chosen(c, problem(), kind(epilogue="none"), lambda words: setattr(words, "beta", 0.0))
    assert status == 0 and epilogues[symbol] is None


def test_programs_of_the_first_header_still_run(c: ctypes.CDLL) -> None:
    def first_header(words: CProblem) -> None:
        words.beta, words.struct_size = 0.0, CProblem.epilogue.offset
        words.epilogue = b"behind the end of the struct"

    assert chosen(c, problem(), kind(epilogue="none"), first_header)[0] == 0


def _aux(at: int, **values: object) -> Callable[[CProblem], object]:
    def change(words: CProblem) -> None:
        for name, value in values.items():
            setattr(words.aux[at], name, value)

    return change


WRONG: Mapping[str, tuple[Callable[[CProblem], object], int, str]] = {
    "hash": (
        lambda words: setattr(words, "epilogue", b"00000000"),
        7,
        'no kernel of this library has the epilogue "00000000"',
    ),
    "prefix": (lambda words: setattr(words, "epilogue", FUSED.hash[:4].encode()), 7, "see hgemm_list"),
    "activation": (lambda words: setattr(words, "activation", 1), 7, "with an epilogue, both must be 0"),
    "element": (
        _aux(1, pointer=BASE + (40 << 36) + 2),
        10,
        "the address of scale, .* is not a multiple of its element size, 4",
    ),
    "leading": (_aux(3, ld=303), 11, "the leading dimension of residual is 303: it must be at least 304"),
    "stride": (_aux(0, batch_stride=-1), 12, "the batch stride of bias is -1"),
    "overlap": (_aux(0, pointer=BASE + (2 << 36) + 64), 13, "D overlaps bias"),
    "in place, but elsewhere": (_aux(3, pointer=BASE + (2 << 36) + 64), 13, "D overlaps residual"),
    "scalar": (_aux(2, pointer=BASE + (2 << 36)), 13, "D overlaps gain"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_inputs_are_named(c: ctypes.CDLL, case: str) -> None:
    change, status, message = WRONG[case]
    found, text = chosen(c, problem(batch=2), kind(), change)
    assert found == status
    assert re.search(message.replace("hgemm", "fuse"), text), text


def test_d_of_a_gated_pair_has_half_the_columns(c: ctypes.CDLL) -> None:
    given = replace(problem(), ldd=152, beta=0.0)
    assert chosen(c, given, kind(GATED.hash))[0] == 0
    end = given.d + 2 * 200 * 152  # of D
    assert chosen(c, given, kind(GATED.hash), _aux(0, pointer=end))[0] == 0
    assert chosen(c, given, kind(GATED.hash), _aux(0, pointer=end - 2)) == (13, "D overlaps bias")
    assert chosen(c, replace(given, ldd=151), kind(GATED.hash))[0] == 11
    assert chosen(c, replace(given, n=312), kind(GATED.hash)) == (
        8,
        "n is 312: for a gated pair, it must be a multiple of 16",
    )


def test_matrix_input_of_the_type_of_d_may_be_d(c: ctypes.CDLL) -> None:
    given = problem()
    assert chosen(c, given, kind(), _aux(3, pointer=given.d))[0] == 0


# ==== Several results ====


def with_results(m: int = 200, n: int = 304, batch: int = 1) -> Problem:
    """Return a problem of SEVERAL or COLUMNS with operands that are far apart."""
    first, (bias, residual, *results) = problem(m, n, batch=batch), (BASE + (at << 36) for at in range(10, 15))
    stride = max(m, n)
    outputs = (Aux(results[0], n, m * n), *(Aux(one, batch_stride=stride) for one in results[1:]))
    return replace(first, beta=0.0, aux=(Aux(bias), Aux(residual, n, m * n), *outputs))


@pytest.mark.parametrize("workspace", [ANY_WORKSPACE, 1 << 18, (1 << 18) + 2 * 4 * 3 * 200 * 5])
@pytest.mark.parametrize(
    "m, batch, ld", [(200, 1, 304), (200, 3, 304), (200, 3, 309), (1 << 22, 2, 304), (1 << 22, 3, 304)]
)
@pytest.mark.parametrize("expression", [SEVERAL, COLUMNS, OF_COLUMNS], ids=["rows", "columns", "columns of a pair"])
def test_workspaces_count_reductions(
    c: ctypes.CDLL, library: Library, expression: Epilogue, m: int, batch: int, ld: int, workspace: int
) -> None:
    given, opened = with_results(m, batch=batch), open_library(library.folder)
    given = replace(given, aux=(*given.aux[:2], replace(given.aux[2], leading=ld, batch_stride=m * ld), *given.aux[3:]))
    query = SelectionQuery.of(kind(expression.hash), given, workspace, expression)
    words, choice, selector = (
        CProblem.of(kind(expression.hash), given, workspace),
        CChoice(),
        Selector(opened.table, A100),
    )
    status = c.fuse_select_for(ctypes.byref(CDevice(8, 0, 108, 166912)), ctypes.byref(words), ctypes.byref(choice))
    try:
        python = selector.choose(query)
    except UnsupportedError as error:
        assert status and told(c.fuse_last_message().decode()) == told(str(error))
        return
    assert (status, choice.symbol.decode(), choice.workspace_bytes) == (0, python.symbol, python.workspace_bytes)
    traits = LaunchTraits.of(opened.records[python.symbol].data)
    assert python.workspace_bytes == workspace_bytes(traits, m, 304, batch)


def told(message: str) -> tuple[str, ...]:
    """Return the sizes of the workspace in a message, or what kernels need."""
    sizes = re.search(r"has (\d+) bytes, and (\d+) are|\((\d+) B are given\).*; pass a workspace of (\d+) B", message)
    return tuple(filter(None, sizes.groups())) if sizes else tuple(re.findall(r"need (fewer rows.*?\))", message))


WRONG_RESULTS: Mapping[str, tuple[Callable[[CProblem], object], int, str]] = {
    "element": (_aux(3, pointer=BASE + 2), 10, "the address of out2, .* is not a multiple of its element size, 4"),
    "leading": (_aux(2, ld=303), 11, "the leading dimension of out1 is 303: it must be at least 304"),
    "stride": (_aux(4, batch_stride=-1), 12, "the batch stride of out3 is -1"),
    "batches": (_aux(3, batch_stride=199), 13, "the matrices of out2's batch overlap: increase its batch stride"),
    "shared": (_aux(2, batch_stride=0), 13, "the matrices of out1's batch overlap"),
    "D": (_aux(2, pointer=BASE + (2 << 36)), 13, "D overlaps out1"),
    "input": (_aux(2, pointer=BASE + (11 << 36)), 13, "out1 overlaps residual"),
    "A": (_aux(4, pointer=BASE), 13, "out3 overlaps A"),
    "each other": (_aux(4, pointer=BASE + (13 << 36) + 796), 13, "out2 overlaps out3"),
}


@pytest.mark.parametrize("case", WRONG_RESULTS)
def test_wrong_results_are_named(c: ctypes.CDLL, case: str) -> None:
    change, status, message = WRONG_RESULTS[case]
    found, text = chosen(c, with_results(batch=2), kind(SEVERAL.hash), change)
    assert found == status and re.search(message, text), text


@pytest.mark.parametrize(("alpha", "beta", "named"), [(2.0, 0.0, "alpha is 2"), (1.0, 0.5, "beta is 0.5")])
def test_alpha_and_beta_need_an_expression_with_them(c: ctypes.CDLL, alpha: float, beta: float, named: str) -> None:
    given, gate = replace(problem(), alpha=alpha, beta=beta), _aux(0, pointer=BASE + (50 << 36), ld=304)
    status, text = chosen(c, given, kind(epilogue=OTHER.hash), gate)
    assert status == 7 and text == f"{named}, but the epilogue has no {named.split()[0]}: {OTHER.formula}"
    assert chosen(c, replace(given, alpha=1.0, beta=0.0), kind(epilogue=OTHER.hash), gate)[0] == 0


def test_the_misaligned_operand_is_named(c: ctypes.CDLL, library: Library) -> None:
    """In C and in Python, for a matrix of an expression, for D, and for C."""
    gate = Aux(BASE + (50 << 36), 305)
    of_gate = replace(problem(), beta=0.0, aux=(gate,))
    selector = Selector(open_library(library.folder).table, A100)
    for given, of, named in (
        (of_gate, OTHER, "hgemm_gate"),
        (replace(of_gate, aux=(replace(gate, leading=304),), ldd=305), OTHER, "D"),
    ):
        status, text = chosen(c, given, kind(of.hash))
        assert status == 15 and f"(A, B and {named} have 8, 8 and 1 elements)" in text.replace("fuse", "hgemm")
        with pytest.raises(UnsupportedError) as caught:
            selector.choose(SelectionQuery.of(kind(of.hash), given, ANY_WORKSPACE, of))
        assert f"(A, B and {named} have 8, 8 and 1 elements)" in str(caught.value)
        assert f"leading dimension of {named} to 16 bytes, or make one with `generate " in str(caught.value)
    unaligned_c = replace(problem(), c=BASE + (60 << 36) + 2, ldc=304, aux=())
    assert SelectionQuery.of(Kind(), unaligned_c).align_d_of == "C"


def test_products_are_right(library: Library, tmp_path: Path) -> None:
    """C selects, checks and launches; the driver computes. A missing input fails."""
    folder = export_paper(library, tmp_path / "export")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(fake_driver(tmp_path / "driver")), "FAKE_CAPABILITY": "80"}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, TESTS / "export_trials.py", folder, library.folder]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stdout) == (0, "5 sorts, 5 kernels\n"), done.stdout + done.stderr


def test_the_example_finds_inputs_by_their_names(tmp_path: Path) -> None:
    kernels = [
        emit(plan, templates_folder())
        for plan in sweep([{"arch": "sm_80", "tile": "64x64x32", "epilogue": SCALED}]).plans
    ]
    folder = export_paper(paper_library(tmp_path / "library", kernels), tmp_path / "export")
    flags = ("-std=c99", "-pedantic", f"-I{folder / 'include'}")
    source, library = TESTS.parent / "examples/c/fused.c", folder / "lib/libhgemm.a"
    compiled(*flags, source, "-o", tmp_path / "fused", library, "-ldl", "-lpthread")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(fake_driver(tmp_path / "driver")), "FAKE_CAPABILITY": "80"}
    done = subprocess.run([tmp_path / "fused"], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0 and ": 0 of 27200 elements wrong" in done.stdout, done.stdout + done.stderr

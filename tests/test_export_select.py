"""The exported C library chooses as Python does, from the same table."""

from __future__ import annotations

import ctypes
import json
import random
import re
import shutil
from dataclasses import astuple, replace
from pathlib import Path

import measured
import pytest
from conftest import made_once
from exports import ANY_WORKSPACE, AT_LAUNCH, CChoice, CDevice, CProblem, export_paper, loaded, paper_library

from generator.build.emit import emit
from generator.build.toolchain import templates_folder
from generator.export.c_library import BATCH_INVARIANT
from generator.export.c_sources import table_h
from generator.store.library import Library
from generator.sweep import sweep
from hgemm.dispatch_table import GROUPS, PTX, DispatchTable, has_gpcs, kind_of
from hgemm.errors import UnsupportedError
from hgemm.gpus import TYPICAL
from hgemm.launch_traits import LaunchTraits
from hgemm.library import open_library
from hgemm.problem import (
    ACCUMULATIONS,
    ACTIVATIONS,
    BIASES,
    LAUNCH,
    LAYOUTS,
    TYPES,
    Kind,
    LaunchOptions,
    Problem,
    kind_supports,
)
from hgemm.selection import MEASURED, SHIPPED, Selector, unmet_requirements
from hgemm.selection_query import SelectionQuery, Target

PROBLEMS = 3_000
OK, WORKSPACE, NO_KERNEL = 0, 14, 15
ORDER_CUBLAS = 2


MEASURED_KINDS = (Kind("tn"), Kind("tt", "bf16", "bf16", "bf16"), Kind("tn", acc="f16"), Kind("tn", bias="row"))
"""Only kernels that leave options to the launch compute the last one."""
SURVEYED = [
    *(((90, 132), kind) for kind in MEASURED_KINDS),
    ((90, 114), MEASURED_KINDS[1]),
    ((80, 108), MEASURED_KINDS[0]),
]
"""All kinds on one device, and one kind on others."""


@pytest.fixture(scope="module")
def measured_library(paper_library: Library, shared: Path) -> Library:
    """The catalog and more, and made-up times of some of its kernels on some devices."""
    return Library(made_once(shared / "measured_library", lambda folder: measure(paper_library, folder)))


def measure(paper_library: Library, folder: Path) -> None:
    shutil.copytree(paper_library.folder, folder)
    records = [record.data for record in paper_library.records()]
    keys = {record["symbol"]: record["key"] for record in records}
    records_of = {record["symbol"]: record for record in records}
    rng = random.Random(0)
    for (capability, sms), kind in SURVEYED:
        of_kind = [r["symbol"] for r in records if kind_supports(kind_of(LaunchTraits.of(r)).code, kind.code)]
        results = [
            (
                replace(
                    measured.problem(*extents(rng), rng.choice([1, 1, 2]), kind.layout, kind.dtype_a, kind.acc),
                    bias=kind.bias,
                ),
                {symbol: rng.uniform(1, 20) for symbol in rng.sample(of_kind, rng.randint(1, len(of_kind)))},
            )
            for _ in range(30)
        ]
        options = [{symbol: drawn_options(rng, records_of[symbol]) for symbol in times} for _, times in results]
        options = [{symbol: one for symbol, one in of_result.items() if one} for of_result in options]
        measured.write(folder, results, keys, options=options, capability=capability, sms=sms)


def drawn_options(rng: random.Random, record: dict) -> LaunchOptions | None:
    """Draw options for a kernel that leaves some open. Some do not suit the problem."""
    traits = LaunchTraits.of(record)
    if not (traits.decides_splits or traits.decides_raster) or rng.random() < 0.1:
        return None
    if not traits.decides_splits:
        return LaunchOptions(traits.splits, 0, rng.choice([1, 3, -2]))
    return LaunchOptions(rng.choice([1, 2, 3, 7, 40]), rng.choice([0, 0, 1, 132]), rng.choice([1, 3, -2]))


@pytest.fixture(scope="module")
def library(measured_library: Library, shared: Path) -> ctypes.CDLL:
    return loaded(made_once(shared / "measured_export", lambda folder: export_paper(measured_library, folder)))


def extents(rng: random.Random) -> list[int]:
    return [int(2 ** rng.uniform(0, rng.choice([7, 13, 20]))) for _ in range(3)]


def in_c(
    library: ctypes.CDLL, target: Target, kind: Kind, problem: Problem, workspace_bytes: int, flags: int = 0
) -> tuple[int, CChoice]:
    device = CDevice(*target.capability, target.sms, target.smem_bytes_per_cta)
    given = CProblem.of(kind, problem, workspace_bytes, flags)
    choice = CChoice()
    status = library.hgemm_select_for(ctypes.byref(device), ctypes.byref(given), ctypes.byref(choice))
    return status, choice


def drawn(rng: random.Random, kinds: list[Kind], table: DispatchTable) -> tuple[Target, Kind, Problem, int]:
    """Draw a device, a kind, mostly one of `kinds`, a problem whose operands lie apart, often a measured one, and a workspace."""
    target = Target.typical(f"sm_{rng.choice([*TYPICAL, 80, 90, 90])}", rng.choice([0, 0, rng.randint(1, 200)]))
    kind = replace(rng.choice(kinds), acc=rng.choice(ACCUMULATIONS))
    if kind.bias == LAUNCH:
        kind = replace(kind, bias=rng.choice(BIASES))
    if rng.random() < 0.1:
        kind = replace(kind, layout=rng.choice(LAYOUTS), bias=rng.choice(BIASES), activation=rng.choice(ACTIVATIONS))
    m, n, k = extents(rng)
    k = rng.choice([k, k, k, k, 0])
    batch, step = rng.choice([1, 1, 1, 2, 7]), rng.choice([1, 2, 4, 8, 8, 8])
    if rng.random() < 0.5:
        kind = rng.choice(MEASURED_KINDS)
    surveys = [survey for survey in table.surveys if survey.kind == kind.code and survey.capability == target.number]
    if surveys and rng.random() < 0.6:
        m, n, k, batch = rng.choice(rng.choice(surveys).problems).extents

    def up(extent: int) -> int:
        return -(-extent // step) * step + step * rng.choice([0, 0, 3])

    lda = up(k if kind.layout[0] == "t" else m)
    ldb = up(k if kind.layout[1] == "n" else n)
    ldd, ldc = up(n), up(n)
    at = {name: (place << 56) + 4 * step * rng.randrange(4) for place, name in enumerate("abcd", 1)}
    strides = {f"batch_stride_{name}": step * (2**41 if name == "d" else rng.choice([0, 2**36])) for name in "abcd"}
    problem = Problem(
        *(m, n, k, batch),
        **at,
        bias=5 << 56,
        lda=lda,
        ldb=ldb,
        ldc=ldc,
        ldd=ldd,
        **strides,
        beta=rng.choice([0.0, 0.0, 1.0]),
    )
    return target, kind, problem, rng.choice([0, 2**20, ANY_WORKSPACE])


def test_c_and_python_choose_alike(measured_library: Library, library: ctypes.CDLL) -> None:
    table = open_library(measured_library.folder).table
    selectors: dict[Target, Selector] = {}
    rng = random.Random(0)
    kinds = sorted({kind_of(LaunchTraits.of(record.data)) for record in measured_library.records()}, key=str)
    chosen: dict[str, int] = {}
    rules = [0] * 4
    splits: set[tuple[int, int, bool]] = set()
    kinds_told: set[str] = set()
    for _ in range(PROBLEMS):
        target, kind, problem, workspace_bytes = drawn(rng, kinds, table)
        if target not in selectors:
            selectors[target] = Selector(table, target)
        wanted = SelectionQuery.of(kind, problem, workspace_bytes)
        expected = selectors[target].find(wanted)
        _, first = in_c(library, target, kind, problem, workspace_bytes)
        status, found = in_c(library, target, kind, problem, workspace_bytes)  # from what was kept
        assert bytes(first) == bytes(found)
        if expected is None:
            assert (found.symbol, found.kernel) == (None, -1)
            kinds_told.add(told_alike(library.hgemm_last_message().decode(), status, selectors[target], wanted))
            continue
        assert status == OK, library.hgemm_last_message()
        assert found.symbol.decode() == expected.symbol == table.rows[found.kernel].symbol
        assert (found.jit, found.estimated_clocks, found.rule) == (
            expected.code_match == PTX,
            expected.clocks,
            expected.rule,
        )
        assert found.workspace_bytes == expected.workspace_bytes
        options = expected.options or LaunchOptions(expected.row.splits, 0, 1)
        assert (found.splits, found.whole_tiles, found.raster_tiles) == astuple(options)
        tail = expected.options is not None and expected.options.whole_tiles > 0
        splits.add((expected.row.decides_splits, min(found.splits, 2), tail))
        chosen[expected.symbol] = chosen.get(expected.symbol, 0) + 1
        rules[expected.rule] += 1
    assert sum(chosen.values()) > PROBLEMS // 2 and len(chosen) > len(table.rows) // 2, "the draw is too narrow"
    assert min(rules[:SHIPPED]) > PROBLEMS // 50 and rules[SHIPPED] > 5, rules
    assert splits >= {(1, 1, False), (1, 2, False), (1, 2, True), (0, 1, False)}, splits
    assert kinds_told >= {"no such kind", "more workspace", "addresses alignment", "alignment workspace"}, kinds_told


def test_c_and_python_use_measured_launch_options(measured_library: Library, library: ctypes.CDLL) -> None:
    """Options of the same problem, and of a problem with the same tiles."""
    table, rng = open_library(measured_library.folder).table, random.Random(2)
    kind, target = MEASURED_KINDS[-1], Target.typical("sm_90")
    selector = Selector(table, target)
    (survey,) = (one for one in table.surveys if one.kind == kind.code and one.sms == target.sms)
    taken = {True: 0, False: 0}
    for _ in range(600):
        m, n, k, batch = rng.choice(survey.problems).extents
        m, n, k = m + rng.choice([0, 0, 1]), n, k + 8 * rng.choice([0, 0, 1, 5])
        lda, ldb, ldd = (-(-extent // 8) * 8 for extent in (k, k, n))
        problem = Problem(m, n, k, batch, lda=lda, ldb=ldb, ldd=ldd, batch_stride_d=m * ldd)
        wanted = SelectionQuery.of(kind, problem, workspace_bytes := rng.choice([2**20, 2**25, ANY_WORKSPACE]))
        expected = selector.find(wanted)
        status, found = in_c(library, target, kind, problem, workspace_bytes)
        assert (status, found.symbol.decode()) == (OK, expected.symbol), library.hgemm_last_message()
        if expected.options is None:
            continue
        assert (found.splits, found.whole_tiles, found.raster_tiles) == astuple(expected.options)
        was_measured = selector.measured_options(wanted).find(table.rows.index(expected.row), wanted) is not None
        taken[expected.rule == MEASURED] += was_measured
    assert min(taken.values()) > 20, taken


@pytest.mark.slow
def test_c_and_python_count_whole_tiles_in_clusters(tmp_path: Path) -> None:
    """Whole tiles beyond the problem's make measured options unusable, and whole tiles only make no split cost anything."""
    texts = {**AT_LAUNCH, "arch": "sm_90a", "tile": "128x128x64", "cluster": "2x1", "serial_parts": "on"}
    splits = {"arch": "sm_90a", "tile": "128x64x64", "schedule": "split_k_cluster:4"}  # gives the order parts of k
    plans = sweep([texts]).plans + sweep([splits]).plans
    small = paper_library(tmp_path / "library", [emit(plan, templates_folder()) for plan in plans])
    (record,) = (record.data for record in small.records() if record.data["spec"]["schedule"] == "launch")
    problems = {whole: measured.problem(2048, 128 * n, 4096) for n, whole in enumerate((2, 8, 16, 17, 32, 33, 99), 1)}
    options = [{record["symbol"]: LaunchOptions(2, whole, 1)} for whole in problems]
    keys = {record["symbol"]: record["key"]}
    measured.write(small.folder, [(one, {record["symbol"]: 9.0}) for one in problems.values()], keys, options=options)
    library, table = loaded(export_paper(small, tmp_path / "c")), open_library(small.folder).table
    target = Target.typical("sm_90")
    selector, taken, wholes = Selector(table, target), [], set()
    extents = [one.extents[:3] for one in problems.values()] + [(256 * tiles, 128, 32768) for tiles in range(1, 400, 3)]
    for m, n, k in extents:
        problem = Problem(m, n, k, lda=k, ldb=k, ldd=n)
        for flags in (0, BATCH_INVARIANT):
            query = SelectionQuery.of(Kind(), problem, 2**25)
            expected = selector.find(replace(query, batch_invariant=bool(flags)))
            status, found = in_c(library, target, Kind(), problem, 2**25, flags)
            assert (status, found.estimated_clocks) == (OK, expected.clocks)
            of_row = LaunchOptions(expected.row.splits, 0, 1)
            assert (found.splits, found.whole_tiles, found.raster_tiles) == astuple(expected.options or of_row)
            taken.append(expected.measured_options and not flags)
            if expected.options and flags and found.splits > 1:
                wholes.add(found.whole_tiles * 256 * 128 == m * n)
    assert 1 < sum(taken) < len(problems) and wholes == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize(
    "tile, cluster, ordered", [("64x64", "1x1", 3), ("64x64", "2x1", 3), ("64x64", "1x4", 3), ("64x64", "2x2", 0)]
)
def test_c_and_python_order_the_tiles_of_one_wave(tmp_path: Path, tile: str, cluster: str, ordered: int) -> None:
    """So that the GPCs of 132 SMs read the least. For other grids and SMs, a cluster of 1x4 has panels, and others have groups."""
    text = {"arch": "sm_90a", "tile": f"{tile}x64", "cluster": cluster, "schedule": "persistent", "raster": "launch"}
    small = paper_library(tmp_path / "library", [emit(plan, templates_folder()) for plan in sweep([text]).plans])
    library, table = loaded(export_paper(small, tmp_path / "c")), open_library(small.folder).table
    rng, taken = random.Random(3), {True: set(), False: set()}
    for sms in (132, 132, 132, 114):
        target = replace(Target.typical("sm_90"), sms=sms)
        selector = Selector(table, target)
        for _ in range(80):
            m, n, batch = rng.randint(1, 1000), 8 * rng.randint(1, 120), rng.choice([1, 1, 1, 2])
            problem = Problem(m, n, 1024, batch, lda=1024, ldb=1024, ldd=n, batch_stride_d=m * n)
            query = SelectionQuery.of(Kind(), problem, 0)
            expected = selector.find(query)
            status, found = in_c(library, target, Kind(), problem, 0)
            assert (status, found.symbol.decode()) == (OK, expected.symbol)
            assert (found.splits, found.whole_tiles, found.raster_tiles) == astuple(expected.options)
            taken[has_gpcs(expected.row, query, target)].add(found.raster_tiles)
    assert len(taken[True]) >= ordered
    assert {*map(abs, taken[False])} <= set(GROUPS) and (min(taken[False]) < 0) == (cluster == "1x4"), taken
    assert bool(taken[True]) == bool(ordered)


def test_c_and_python_name_the_same_unmet_requirements(measured_library: Library, library: ctypes.CDLL) -> None:
    """On devices with little shared memory, and for problems of more tiles than a grid has."""
    table, rng, kinds_told = open_library(measured_library.folder).table, random.Random(1), set()
    kinds = sorted({kind_of(LaunchTraits.of(record.data)) for record in measured_library.records()}, key=str)
    for _ in range(300):
        target, kind, problem, workspace_bytes = drawn(rng, kinds, table)
        target = replace(target, smem_bytes_per_cta=rng.choice([1024, 40 * 1024]))
        if rng.random() < 0.5:
            leading = {"lda": 8 if kind.layout[0] == "t" else 2**30, "ldb": 8 if kind.layout[1] == "n" else 2**21}
            problem = replace(problem, m=2**30, n=2**21, k=8, batch=1, **leading, ldc=2**21, ldd=2**21)
        wanted, selector = SelectionQuery.of(kind, problem, workspace_bytes), Selector(table, target)
        status, _ = in_c(library, target, kind, problem, workspace_bytes)
        assert (status == OK) == (selector.find(wanted) is not None), library.hgemm_last_message()
        if status != OK:
            kinds_told.add(told_alike(library.hgemm_last_message().decode(), status, selector, wanted))
    assert {"fewer", "shared", "alignment"} <= {word for kinds in kinds_told for word in kinds.split()}, kinds_told


def test_c_and_python_keep_the_same_orders(measured_library: Library, library: ctypes.CDLL) -> None:
    """With HGEMM_BATCH_INVARIANT and HGEMM_ORDER_CUBLAS: the kernel, its options, and what is missing."""
    table, rng = open_library(measured_library.folder).table, random.Random(4)
    kinds = sorted({kind_of(LaunchTraits.of(record.data)) for record in measured_library.records()}, key=str)
    selectors: dict[Target, Selector] = {}
    orders, messages = [], set()
    for _ in range(150):
        target, kind, problem, workspace_bytes = drawn(rng, kinds, table)
        if rng.random() < 0.3:  # few columns and a long k, for which an order with parts of k may be the best
            n, k = 64 * rng.randint(1, 6), 64 * rng.randint(64, 500)
            target, kind = Target.typical("sm_90"), rng.choice([Kind(), Kind(bias="row")])
            problem = replace(problem, n=n, k=k, lda=k, ldb=k, ldc=n, ldd=n)
        selector = selectors.setdefault(target, Selector(table, target))
        flags = rng.choice([BATCH_INVARIANT, BATCH_INVARIANT, ORDER_CUBLAS, BATCH_INVARIANT | ORDER_CUBLAS])
        for m in (problem.m, rng.choice([1, 7, 64, 4096])):
            lda = problem.lda if kind.layout[0] == "t" else max(problem.lda, m)
            given = replace(problem, m=m, lda=lda)
            wanted = SelectionQuery.of(kind, given, workspace_bytes)
            wanted = replace(wanted, batch_invariant=bool(flags & 1), cublas_order=bool(flags & 2))
            expected = selector.find(wanted)
            status, found = in_c(library, target, kind, given, workspace_bytes, flags)
            if expected is None:
                assert status in (NO_KERNEL, WORKSPACE)
                messages.add(library.hgemm_last_message().decode().split(":")[0][-30:])
                continue
            assert status == OK, library.hgemm_last_message()
            assert (found.symbol.decode(), found.estimated_clocks) == (expected.symbol, expected.clocks)
            options = expected.options or LaunchOptions(expected.row.splits, 0, 1)
            assert (found.splits, found.whole_tiles, found.raster_tiles) == astuple(options)
            assert (found.rule, found.workspace_bytes) == (expected.rule, expected.workspace_bytes)
            orders.append(expected.order)
    fixed = [order for order in orders if order]
    assert len(fixed) > len(orders) // 3 and any(order.splits > 1 for order in fixed)
    assert any("order" in text for text in messages), messages


def test_an_invariant_export_needs_no_flag(paper_library: Library, tmp_path: Path) -> None:
    header = table_h(open_library(paper_library.folder).table, "", BATCH_INVARIANT)
    assert f"#define HGEMM_ALWAYS_FLAGS {BATCH_INVARIANT}\n" in header


def told_alike(text: str, status: int, selector: Selector, wanted: SelectionQuery) -> str:
    """Compare the messages of C and Python about a problem without a kernel. Return the kind of message."""
    with pytest.raises(UnsupportedError) as caught:
        selector.choose(wanted)
    reason, listed = str(caught.value), counts_of(text)
    if status == WORKSPACE:
        groups = [selector.table.groups[place] for _, place in selector.groups]
        of_kind = [group for group in groups if kind_supports(group.kind, wanted.kind.code)]
        rows = [row for group in of_kind for row in selector.table.rows[group.first : group.first + group.count]]
        short = [
            row for row in rows if [*map(word_of, unmet_requirements(row, wanted, selector.target))] == ["workspace"]
        ]
        needed = min(row.workspace_bytes(wanted.m, wanted.n, wanted.batch) for row in short)
        assert text == f"the workspace has {wanted.workspace_bytes} bytes, and {needed} are needed"
        assert "workspace" in map(word_of, counts_of(reason))
        return "more workspace"
    assert status == NO_KERNEL and listed == counts_of(reason), (text, reason)
    if listed:
        return " ".join(sorted(map(word_of, listed)))
    runs = "no kernel runs on" in reason
    assert ("no kernel of this library runs on sm_" in text) == runs, text
    assert (f"computes {wanted.kind}:" in text) != runs == (f"no kernel computes {wanted.kind}" not in reason), text
    return "no code" if runs else "no such kind"


def counts_of(text: str) -> dict[str, tuple[str, str]]:
    """Return how many kernels of how many need what, as a message lists it."""
    found = re.findall(r"(\d+) of (\d+) need (.+?)(?=, \d+ of|;|$)", text)
    return {need: (count, of) for count, of, need in found}


def word_of(need: str) -> str:
    return need.removeprefix("more ").split()[0]


def test_exported_table_equals_the_table_of_the_library(paper_library: Library, paper_export: Path) -> None:
    exported = json.loads((paper_export / "table.json").read_text())
    assert exported == json.loads(json.dumps(open_library(paper_library.folder).table.to_dict()))


def test_header_and_python_number_words_alike(paper_export: Path) -> None:
    """Every enumeration of hgemm.h, in the order of hgemm/problem.py."""
    text = (paper_export / "include" / "hgemm.h").read_text()
    wanted = {
        "layout": [f"HGEMM_{word}" for word in LAYOUTS],
        "dtype": [f"HGEMM_{word}" for word in TYPES],
        "acc": [f"HGEMM_ACC_{word}" for word in ACCUMULATIONS],
        "bias": [f"HGEMM_BIAS_{word}" for word in BIASES],
        "activation": [f"HGEMM_ACTIVATION_{word}" for word in ACTIVATIONS],
    }
    for name, words in wanted.items():
        (body,) = re.findall(rf"typedef enum hgemm_{name} {{(.*?)}}", text, re.DOTALL)
        found = re.findall(r"(HGEMM_\w+) = (\d+)", body)
        assert found == [(word.upper(), str(place)) for place, word in enumerate(words)]


def test_invalid_devices_are_rejected(library: ctypes.CDLL) -> None:
    for device in (CDevice(0, 0, 1, 1), CDevice(9, 10, 1, 1), CDevice(9, 0, 0, 1), CDevice(9, 0, 132, -1)):
        problem, choice = CProblem.of(Kind(), Problem(1, 1, 1), 0), CChoice()
        assert library.hgemm_select_for(ctypes.byref(device), ctypes.byref(problem), ctypes.byref(choice)) == 3
        assert b"is no GPU" in library.hgemm_last_message()


def test_missing_kernels_give_an_error(library: ctypes.CDLL) -> None:
    h200 = Target.typical("sm_90")
    status, _ = in_c(library, h200, Kind(activation="silu"), Problem(1, 1, 1), 0)
    assert status == NO_KERNEL
    assert library.hgemm_last_message().startswith(b"no kernel for sm_90 computes tn f16->f16 acc f32 silu: ")
    narrow = Target((9, 0), 132, 1024)
    status, _ = in_c(library, narrow, Kind(), Problem(64, 64, 64, lda=64, ldb=64, ldd=64), 0)
    assert status == NO_KERNEL and re.fullmatch(
        rb"no kernel for sm_90 supports 64x64x64, batch 1: (\d+) of \1 need more shared memory \(a CTA has 1024 B\)(, .*)?",
        library.hgemm_last_message(),
    )
    status, _ = in_c(library, Target((5, 0), 13, 49152), Kind(), Problem(64, 64, 64, lda=64, ldb=64, ldd=64), 0)
    assert (status, library.hgemm_last_message()) == (NO_KERNEL, b"no kernel of this library runs on sm_50")
    only_splits = Kind("tn", "f16", "f16", "f32")
    status, _ = in_c(library, Target.typical("sm_80"), only_splits, Problem(64, 64, 64, lda=64, ldb=64, ldd=64), 100)
    assert status == WORKSPACE and library.hgemm_last_message().startswith(b"the workspace has 100 bytes, and ")

"""What a library does not support is reported, and added: the shipped catalog has no holes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import call
from tables import catalog_records, catalog_table, record_of

from generator.build.emit import emit
from generator.build.toolchain import templates_folder
from generator.export.cover import SORTS, computes, holes, kinds_of, promised_types
from generator.store.library import Library
from generator.sweep import sweep
from hgemm.dispatch_table import DispatchTable
from hgemm.errors import RequestError
from hgemm.problem import LAYOUTS
from hgemm.selection import Selector
from hgemm.selection_query import SelectionQuery, Target

ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120")
"""What the catalog is shipped for; code for sm_90a serves GPUs of sm_90."""
ALIGNS = (8, 4, 2, 1)
PROMISED = kinds_of(("f16", "bf16"), LAYOUTS, ("none",), ("none",))
TF32 = kinds_of(("tf32",), LAYOUTS, ("none",), ("none",))
"""Of which the catalog has code for sm_80 and, in one layout, for sm_90a: other GPUs take that of sm_80, or its PTX."""


def found(table: DispatchTable, archs=ARCHS, kinds=PROMISED, aligns=ALIGNS, beta: bool = True) -> list:
    return list(holes(table, archs, kinds, aligns, beta))


def test_the_catalog_serves_all_that_it_promises_on_every_architecture() -> None:
    assert found(catalog_table()) == []
    assert {record["arch"].rstrip("a") for record in catalog_records()} == {*ARCHS}


def test_the_catalog_serves_tf32_on_every_architecture() -> None:
    assert promised_types(catalog_table()) == ["f16", "bf16", "tf32"]
    assert {kind.dtype_d for kind in TF32} == {"f32"} and found(catalog_table(), kinds=TF32) == []


def test_a_library_without_tf32_is_not_asked_for_it_and_can_be_given_it() -> None:
    halves = DispatchTable.of(record for record in catalog_records() if record["spec"]["dtype_a"] != "tf32")
    assert promised_types(halves) == ["f16", "bf16"]
    missing = found(halves, archs=["sm_80"], kinds=TF32, aligns=(8, 4))
    added = [record_of(emit(plan, templates_folder())) for plan in sweep([hole.request() for hole in missing]).plans]
    assert [record["traits"]["min_align"] for record in added] == [{"a": 4, "b": 4, "d": 4}] * len(LAYOUTS)
    assert found(DispatchTable.of(added), archs=["sm_80"], kinds=TF32, aligns=(8, 4)) == []


@pytest.mark.parametrize("arch", ARCHS)
def test_the_catalog_serves_with_code_of_its_own(arch: str) -> None:
    """Nothing that is promised is left to the driver's compiler."""
    own = DispatchTable.of(record for record in catalog_records() if record["arch"].rstrip("a") == arch)
    assert found(own, archs=[arch]) == []


def test_each_kernel_of_the_fallback_is_needed() -> None:
    """Without any one of them there is a hole: the catalog has no more of them than it takes."""
    fallback = [record for record in catalog_records() if {*record["traits"]["min_align"].values()} == {1}]
    for left_out in fallback:
        rest = DispatchTable.of(
            r for r in catalog_records() if r["symbol"] != left_out["symbol"] and r["arch"] == left_out["arch"]
        )
        (hole,) = found(
            rest, archs=[left_out["arch"]], kinds=PROMISED + TF32 if left_out["arch"] == "sm_80" else PROMISED
        )
        assert (hole.arch, hole.kind.layout) == (left_out["arch"], left_out["spec"]["layout"])


def test_a_hole_says_alignments_and_sorts_and_asks_for_the_least() -> None:
    table = DispatchTable.of(record for record in catalog_records() if {*record["traits"]["min_align"].values()} != {1})
    missing = found(table, archs=["sm_90"])
    assert len(missing) == len(PROMISED)
    for hole in missing:
        assert hole.sorts[1] == tuple(SORTS) and {*hole.sorts} in ({1}, {4, 2, 1}, {8, 4, 2, 1})
        assert hole.request()["align"] == "1"
    (hole,) = found(table, ["sm_80"], kinds_of(["f16"], ["nn"], ["none"], ["none"]), aligns=(8, 4))
    assert (hole.sorts, hole.request()["align"]) == ({4: tuple(SORTS)}, "4")


def test_what_is_asked_for_closes_the_hole() -> None:
    kinds = kinds_of(["f16:f32", "bf16"], ["tn", "tt"], ["none", "row"], ["none", "gelu"])
    missing = found(catalog_table(), ["sm_89"], kinds)
    assert len(missing) == 14, "all but plain bf16"
    plans = sweep([hole.request() for hole in missing]).plans
    assert len(plans) == len(missing)
    records = [record_of(emit(plan, templates_folder())) for plan in plans]
    assert found(DispatchTable.of([*catalog_records(), *records]), ["sm_89"], kinds) == []


def test_every_problem_of_what_is_covered_is_supported() -> None:
    """Not only the sorts that are looked at: shapes beside the edges of tiles, and mixed alignments."""
    extents = (1, 2, 15, 16, 17, 63, 65, 127, 129, 255, 257, 5000)
    for arch in ARCHS:
        selector = Selector(catalog_table(), Target.typical(arch))
        for place, kind in enumerate(kind for kind in PROMISED if computes(arch, kind)):
            for m in extents:
                n, k = extents[(m + place) % len(extents)], extents[(3 * m + place) % len(extents)]
                aligned = {f"align_{name}": ALIGNS[(m + place + i) % 4] for i, name in enumerate("abd")}
                assert selector.find(SelectionQuery(kind, m, n, k, batch=1 + m % 3, beta=bool(m % 2), **aligned))


def test_unknown_words_are_refused() -> None:
    with pytest.raises(RequestError, match="dtype_a 'f8' is unknown"):
        kinds_of(["f8"], ["tn"], ["none"], ["none"])
    with pytest.raises(RequestError, match="kernels multiply f32 as tf32 only: use tf32:f16"):
        kinds_of(["f32:f16"], ["tn"], ["none"], ["none"])


def test_the_command_tells_of_holes_adds_what_closes_them_and_is_then_content(
    small_library: Library, tmp_path: Path
) -> None:
    library = tmp_path / "library"
    symbol = small_library.rows()[0]["symbol"]
    (library / symbol).mkdir(parents=True)
    for path in (small_library.folder / symbol).iterdir():
        (library / symbol / path.name).write_bytes(path.read_bytes())
    layout = symbol.split("_")[2]
    words = ["cover", "--library", library, "--arch", "80", "--dtype", "f16", "--layout", layout]
    done = call("hgemm", *words)
    told = f"sm_80 {layout} f16->f16 acc f32 yes 4,2,1 all"
    assert (done.returncode, done.stdout.splitlines()[1].split()) == (1, told.split())
    assert done.stderr.startswith("hgemm: ") and "--add" in done.stderr
    done = call("hgemm", *words, "--json")
    (hole,) = json.loads(done.stdout)
    assert hole["sorts"].keys() == {"4", "2", "1"} and hole["request"]["align"] == "1"
    done = call("hgemm", *words, "--add")
    assert done.returncode == 0 and done.stderr.startswith("added hgemm_sm80_"), done.stderr
    assert done.stdout.startswith("sm_80: 1 kind supported, at alignments 8,4,2,1")
    assert call("hgemm", *words).returncode == 0
    assert call("hgemm", *words, "--align", "3").returncode == 2
    assert call("hgemm", *words, "--arch", "70").returncode == 2


def test_an_architecture_is_not_asked_for_what_it_cannot_multiply() -> None:
    beyond = kinds_of(["bf16", "tf32"], LAYOUTS, ("none",), ("none",))
    assert found(DispatchTable.of([]), archs=["sm_75"], kinds=beyond) == []
    assert len(found(DispatchTable.of([]), archs=["sm_80"], kinds=beyond)) == len(beyond)


def test_kinds_are_counted_by_architecture_and_none_is_refused(paper_library: Library) -> None:
    words = ["cover", "--library", paper_library.folder, "--layout", "tn", "--align", "8"]
    done = call("hgemm", *words, "--dtype", "f16,bf16", "--arch", "75,80")
    assert done.returncode == 0 and done.stdout.startswith(
        "sm_75: 1 kind, sm_80: 2 kinds supported, at alignments 8, for"
    )
    assert done.stderr == "hgemm: sm_75 multiplies f16 only: 1 kind skipped\n"
    done = call("hgemm", *words, "--dtype", "bf16", "--arch", "75")
    assert done.returncode == 2 and "instructions of sm_75 multiply f16 only: use --dtype f16" in done.stderr

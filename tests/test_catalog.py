"""The shipped catalog: its specs are legal and complete, and its lock file matches what the emitter writes now."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
from conftest import ROOT, made
from tables import shipped_kernels

from generator.build.pipeline import Settings
from generator.catalog import (
    EXTRA,
    FOLDER,
    LOCK,
    golden_kernels,
    group_names,
    load_catalog,
    lock_text,
    read_lock,
    write_lock,
    write_sources,
)
from generator.cli.generate import requested
from generator.errors import LibraryError, RequestError
from generator.families import family_of
from generator.spec import BY_NAME, Spec, symbol_of
from generator.store.library import Library
from generator.store.maintenance import collect_garbage
from generator.sweep import overridden, read_toml, sweep

EMITTED = ROOT / "emitted"
PLANNED = {"dtype_d", "smem_a", "smem_b", "epilogue", "serial_parts", "pointer_arrays"}
"""Fields that the catalog leaves to the planner: D has the type of A, the placement without bank conflicts is computed, not
chosen, no kernel has an expression or pointer arrays, and few have parts in series.

Those in which a family has no choice need no pin.
"""


# ---- The data -------------------------------------------------------------------------------------------------------


def test_catalog_is_legal_without_duplicates() -> None:
    asked = sweep(load_catalog())
    assert not asked.summary()
    assert sum(len(sweep(load_catalog([name])).candidates) for name in group_names()) == len(asked.candidates)
    assert len({kernel.symbol for kernel in shipped_kernels()}) == len(shipped_kernels())


@pytest.mark.parametrize("group", group_names())
def test_catalog_sets_every_planned_field(group: str) -> None:
    for candidate in sweep(load_catalog([group])).candidates:
        decided = {*candidate.plan.fixed_fields}
        assert {field.name for field in fields(Spec)} - candidate.request.keys() - decided <= PLANNED


def test_catalog_supports_every_layout_and_alignment() -> None:
    specs = [kernel.plan.spec for kernel in shipped_kernels()]
    assert {spec.layout for spec in specs if family_of(spec).name == "wgmma"} == {"tn", "nn", "nt", "tt"}
    for arch in {spec.arch for spec in specs if family_of(spec).name == "mma_sync"}:
        served = {(spec.layout, spec.align_a, spec.align_b, spec.align_d) for spec in specs if spec.arch == arch}
        wanted = {(layout, align, align, align) for layout in ("tn", "nn", "nt", "tt") for align in (8, 1)}
        assert wanted <= served, arch


@pytest.mark.parametrize("group", ["general", "hopper", "hopper_bias", "hopper_layouts"])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_type_selects_the_kernels_of_a_group_that_have_it(group: str, dtype: str) -> None:
    texts = load_catalog([group])
    wanted = [plan for plan in sweep(texts).plans if (plan.spec.dtype_a, plan.spec.dtype_d) == (dtype, dtype)]
    assert wanted == [*sweep([overridden(one, {"dtype": dtype}) for one in texts]).plans]


def test_kernels_of_turing_are_built_for_newer_architectures_only_by_name() -> None:
    def symbols(catalog: str, arch: str) -> list[str]:
        return [symbol_of(plan.spec) for plan in requested({"spec_file": None, "catalog": catalog, "arch": arch}).plans]

    turing, ada = symbols("all", "sm_75"), symbols("all", "sm_89")
    assert sorted(symbols("all", "sm_75,sm_89")) == sorted(turing + ada)
    assert turing == symbols("turing", "sm_75")
    assert not {*ada} & {*symbols("turing", "sm_89")}
    assert {*symbols("turing", "sm_89")} < {*symbols("all,turing", "sm_89")}


def test_unknown_group_error_lists_the_groups() -> None:
    assert load_catalog(["half", "general"]) == load_catalog(["half"]) + load_catalog(["general"])
    assert load_catalog([" half", "", "half"]) == load_catalog(["half"])
    assert load_catalog(["half", "all"]) == load_catalog()
    assert load_catalog(["all", "blas"]) == load_catalog() + load_catalog(["blas"])
    for wrong in (["all", "nope"], [""]):
        with pytest.raises(RequestError, match="--catalog .*: the groups are general, "):
            load_catalog(wrong)
    with pytest.raises(RequestError, match="no group 'large_m': the groups are .*general.*unaligned"):
        load_catalog(["general", "large_m"])


def test_catalog_files_use_option_names() -> None:
    for path in sorted([*FOLDER.glob("*.toml"), *EXTRA.glob("*.toml")]):
        assert path.read_text(encoding="ascii").startswith("# "), path
        common = read_toml(path)
        tables = common.pop("kernel", [])
        assert {name for table in (common, *tables) for name in table} <= {*BY_NAME}, path


def test_blas_group_has_the_kernels_that_cublas_programs_need() -> None:
    asked = sweep(load_catalog(["blas"]))
    assert not asked.summary() and not {*asked.plans} & {kernel.plan for kernel in shipped_kernels()}
    for arch in ("sm_80", "sm_90", "sm_90a"):
        specs = [plan.spec for plan in asked.plans if plan.spec.arch == arch]
        wanted = {(dtype, layout) for dtype in ("f16", "bf16") for layout in ("tn", "nn", "nt", "tt")}
        for found in (
            [spec for spec in specs if spec.dtype_d == "f32" and not spec.pointer_arrays],
            [spec for spec in specs if spec.pointer_arrays and spec.dtype_d == "f32"],
            [spec for spec in specs if spec.pointer_arrays and spec.dtype_d == spec.dtype_a],
            [spec for spec in specs if spec.activation == "relu" and spec.bias == "launch"],
            [spec for spec in specs if spec.epilogue != "none"],
        ):
            assert {(spec.dtype_a, spec.layout) for spec in found} >= wanted


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("group", group_names())
def test_the_first_tile_of_each_group_passes_inspection(group: str, settings: Settings) -> None:
    texts = load_catalog([group])[0]
    first = {"arch": "sm_90", "layout": "tn", "tile": texts["tile"].partition(",")[0]}
    outcomes = made(overridden(texts, first), settings)  # several if the group lists schedules
    assert outcomes and all(outcome.error == "" for outcome in outcomes)


# ---- The lock file and the golden kernels ---------------------------------------------------------------------------

STALE = "run `make catalog`; in emitted/, `git add -f` new folders and `git rm -r` those that are no longer golden"


def test_lock_file_is_current() -> None:
    assert (EMITTED / LOCK).read_text(encoding="ascii") == lock_text(shipped_kernels()), STALE


def test_the_lock_file_names_each_kernel_with_the_hashes_of_its_spec_and_source() -> None:
    locked = read_lock(lock_text(shipped_kernels()))
    assert [*locked] == [kernel.symbol for kernel in shipped_kernels()]
    assert len({spec for spec, _ in locked.values()}) == len({source for _, source in locked.values()}) == len(locked)


def test_golden_sources_are_current() -> None:
    for kernel in golden_kernels(EMITTED):
        place = EMITTED / kernel.symbol / kernel.source_name
        assert place.is_file() and place.read_bytes() == kernel.source.encode(), STALE


def test_a_kernel_of_each_family_and_form_is_golden() -> None:
    specs = [kernel.plan.spec for kernel in golden_kernels(EMITTED)]
    families = {("mma_sync", "atoms"), ("mma_sync", "cute"), ("mma_sync", "dsl"), ("mma_sync_tma", "atoms")}
    assert {(family_of(spec).name, spec.form) for spec in specs} == families | {("wgmma", "atoms"), ("wgmma", "cute")}


def test_only_lock_file_and_golden_kernels_are_committed() -> None:
    texts = {f"emitted/{kernel.symbol}/{kernel.source_name}" for kernel in golden_kernels(EMITTED)}
    assert {*tracked()} == {f"emitted/{LOCK}", "emitted/golden.toml", *texts}, STALE


def tracked() -> list[str]:
    """Return what git has of emitted/; a checkout may hold more, which `generate` put there."""
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout: what is committed cannot be told from what was built")
    listed = subprocess.run(["git", "ls-files", "-z", "emitted"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip(f"git does not list this checkout: {listed.stderr.strip()}")
    return [path for path in listed.stdout.split("\0") if path]


def test_lock_file_is_written_only_if_it_differs(tmp_path: Path) -> None:
    first, second = shipped_kernels()[:2]
    assert write_lock(tmp_path, [first]) and not write_lock(tmp_path, [first]) and write_lock(tmp_path, [first, second])
    assert [*read_lock((tmp_path / LOCK).read_text())] == [first.symbol, second.symbol]


# ---- Writing them ---------------------------------------------------------------------------------------------------


def test_catalog_command_counts_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("generator.catalog.FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["catalog", str(tmp_path / "library")])

    def answer(tile: str, ctas_per_sm: str) -> tuple[str, str]:
        (tmp_path / "tiles.toml").write_text(f'arch = "sm_90"\ntile = "{tile}"\nctas_per_sm = {ctas_per_sm}\n')
        runpy.run_module("generator.catalog.__main__", run_name="__main__")
        captured = capsys.readouterr()
        return captured.out.splitlines()[0], captured.err

    assert answer("128x128x32", "2") == ("catalog: 1 kernel (1 added, 0 removed), 0 golden; 1 file written", "")
    out, err = answer("192x128x32", "[1, 2]")
    assert out == "catalog: 1 kernel (1 added, 1 removed), 0 golden; 1 file written"
    assert (
        "1 of 2 combinations is illegal and left out (" in err
        and "`generate --catalog --explain` shows the reasons" in err
    )


def test_sources_are_written_only_if_they_differ(tmp_path: Path) -> None:
    first, second = shipped_kernels()[:2]
    paths = write_sources(tmp_path / "library", [first, second])
    assert [path.read_text() for path in paths] == [first.source, second.source]
    assert write_sources(tmp_path / "library", [first, second]) == []
    paths[1].write_text(second.source + " ")
    assert write_sources(tmp_path / "library", [first, second]) == [paths[1]]
    assert sorted(path.name for path in (tmp_path / "library").rglob("*")) == sorted(
        ["kernel.cu", "kernel.cu", first.symbol, second.symbol]
    )


def test_library_of_sources_is_valid_and_empty(tmp_path: Path) -> None:
    (path,) = write_sources(tmp_path, shipped_kernels()[:1])
    assert Library(tmp_path).rows() == [] and collect_garbage(Library(tmp_path)) == []
    assert path.is_file()


def test_outdated_builds_are_removed_and_foreign_files_stay(tmp_path: Path) -> None:
    (path,) = write_sources(tmp_path, shipped_kernels()[:1])
    path.write_text("// older\n")
    for name in ("kernel.cubin", "record.json", "notes.txt"):
        (path.parent / name).write_text("of the older text")
    write_sources(tmp_path, shipped_kernels()[:1])
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["kernel.cu", "notes.txt"]


def test_current_builds_stay(tmp_path: Path) -> None:
    (path,) = write_sources(tmp_path, shipped_kernels()[:1])
    (path.parent / "kernel.cubin").write_bytes(b"built")
    assert write_sources(tmp_path, shipped_kernels()[:1]) == []
    assert (path.parent / "kernel.cubin").read_bytes() == b"built"


def test_blocking_file_gives_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "library").write_text("")
    with pytest.raises(LibraryError, match="library"):
        write_sources(tmp_path / "library", shipped_kernels()[:1])

"""The pipeline: each content is built once, and a failure is reported and does not stop other kernels."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from inspect import unwrap
from pathlib import Path

import pytest
from conftest import ROOT, SMALL, call, made, start

from generator import planner
from generator.build import compile as compile_stage
from generator.build import pipeline
from generator.build import pipeline as build_stage
from generator.build.compile import compile_kernel
from generator.build.emit import EmittedKernel, emit
from generator.build.inspect import inspect_all, parse_ptxas_log
from generator.build.pipeline import Settings, build_and_store, make, planned_sections, prepare
from generator.build.toolchain import Headers, headers, templates_folder
from generator.build.workers import cores
from generator.cli import generate
from generator.cli.options import texts_of
from generator.errors import BuildError, LibraryError
from generator.planner import advice_on_spills, resolve
from generator.spec import symbol_of
from generator.store.library import Library
from generator.store.maintenance import collect_garbage
from generator.sweep import sweep
from hgemm.record import ARTEFACTS, Record

ARGUMENTS = [word for name, text in SMALL.items() for word in ("--" + name, text)]
SPILLING = {"arch": "sm_80", "tile": "64x64x16", "warp_tile": "64x64", "stages": "2", "ctas_per_sm": "16"}

TIGHT = {
    **{
        "arch": "sm_80",
        "tile": "128x96x48",
        "warp_tile": "32x48",
        "stages": "3",
        "fragment_stages": "2",
        "ctas_per_sm": "2",
    },
    **{
        "align_a": "8",
        "align_b": "1",
        "align_d": "2",
        "raster": "panel:192",
        "store": "direct",
        "bias": "column",
        "beta": "off",
    },
}
"""Spills 92 B with ptxas's own options."""


def plan_of(**texts: str):
    (candidate,) = sweep([{**SMALL, **texts}]).candidates
    return candidate.plan


# ---- What is built --------------------------------------------------------------------------------------------------


def test_second_build_finds_the_first_kernel(settings: Settings) -> None:
    (first,) = made(SMALL, settings)
    (second,) = made(SMALL, settings)
    assert (first.status, second.status, first.error) == ("built", "cached", "")
    assert first.record == second.record or first.record.dump() == second.record.dump()
    kernel = settings.library.load(first.symbol)
    assert {*kernel.artefacts} == {*ARTEFACTS}
    assert kernel.artefacts["kernel.cubin"][:4] == b"\x7fELF" and b".target sm_80" in kernel.artefacts["kernel.ptx"]


def test_record_contains_plan_build_and_inspection(small_library: Library) -> None:
    for record in small_library.records():
        data = record.data
        assert Record.parse(record.dump()).data == data
        plan = plan_of(layout=data["spec"]["layout"])
        assert all(
            data[name] == value for name, value in planned_sections(prepare(plan, templates_folder()).kernel).items()
        )
        assert data["sass"]["HMMA"] == data["proof"]["mma_per_k_tile"] == plan.mma_per_k_tile
        assert data["resources"]["smem_bytes"] == plan.smem_bytes and data["proof"]["bank_conflicts"] == 0
        assert {"LDSM", "LDGSTS"} <= {*data["sass"]} and not {"LDL", "STL"} & {*data["sass"]}
        assert "mma_sync/kernel.cuh" in data["inputs"] and data["toolchain"]["nvrtc"].startswith("13.0")
        assert not any(str(ROOT) in text or "site-packages" in text for text in (record.dump(), data["key"]))


STAGES = (texts_of, sweep, resolve, planner.plan_of, emit, compile_kernel, inspect_all, Library.publish)


def test_each_stage_runs_once_a_kernel(tmp_path: Path) -> None:
    codes, entered = {unwrap(stage).__code__: stage.__name__ for stage in STAGES}, Counter[str]()

    def count(frame, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in codes:
            entered[codes[frame.f_code]] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        result = call("generate", *ARGUMENTS, "--library", tmp_path / "library", "-j", "1")
    finally:
        sys.setprofile(before)
    assert result.returncode == 0 and entered == dict.fromkeys(codes.values(), 1)


def test_workers_receive_small_messages(settings: Settings, monkeypatch) -> None:
    sent, compiled = pickle.dumps([prepare(plan_of(), settings.templates)]), []

    def fail(kernel: EmittedKernel, headers: Headers) -> None:
        compiled.append(kernel)
        raise BuildError(kernel.symbol, "stop")

    monkeypatch.setattr(pipeline, "compile_kernel", fail)
    monkeypatch.setattr(pipeline, "emit", lambda *given: pytest.fail("emitted again"))
    (outcome,) = build_and_store(pickle.loads(sent), settings)
    assert outcome.status == "failed" and len(compiled) == 1 and len(sent) < 10_000


def test_parallel_builds_keep_the_order(settings: Settings) -> None:
    texts = {**SMALL, "layout": "tn,nn,nt"}
    outcomes = made(texts, settings, processes=2)
    assert [outcome.status for outcome in outcomes] == ["built"] * 3
    assert [outcome.symbol for outcome in outcomes] == [
        prepare(plan, settings.templates).kernel.symbol for plan in sweep([texts]).plans
    ]
    assert [outcome.status for outcome in made(texts, settings)] == ["cached"] * 3
    assert len(settings.library.rows()) == 3


def test_without_workers_one_process_builds_in_small_batches(settings: Settings, monkeypatch) -> None:
    plans = sweep([{**SMALL, "stages": "2:5", "layout": "tn,nn,nt,tt"}]).plans
    sizes = []

    def built(some, settings: Settings) -> list[pipeline.Outcome]:
        sizes.append(len(some))
        return [pipeline.Outcome(prepared.kernel.symbol, "built") for prepared in some]

    monkeypatch.setattr(pipeline, "build_and_store", built)
    monkeypatch.setattr("generator.build.workers.process_pool", None)
    outcomes = [*make(plans, settings, 0)]
    assert len(plans) == 16 and [place for place, _ in outcomes] == [*range(16)] and sizes == [8, 8]
    assert [outcome.symbol for _, outcome in outcomes] == [symbol_of(plan.spec) for plan in plans]
    assert [generate._workers(jobs) for jobs in (1, 2, None)] == [0, 2, cores()]


# ---- The cache ------------------------------------------------------------------------------------------------------


def test_moving_the_checkout_keeps_the_key_and_editing_a_template_changes_it(
    settings: Settings, tmp_path: Path
) -> None:
    moved, edited = (Path(shutil.copytree(settings.templates, tmp_path / name)) for name in ("moved", "edited"))
    with open(edited / "common" / "warp_epilogue.cuh", "a") as file:
        file.write("// edited\n")
    plan = plan_of()
    key, same, other = (prepare(plan, folder).key for folder in (settings.templates, moved, edited))
    assert key == same != other
    (first,) = made(SMALL, settings)
    assert [made(SMALL, replace(settings, templates=folder))[0].status for folder in (moved, edited)] == [
        "cached",
        "built",
    ]
    assert settings.library.load(first.symbol).record.key == other


@pytest.mark.parametrize("wheel", ["nvidia-cuda-nvrtc", "nvidia-nvjitlink", "nvidia-cutlass"])
def test_another_compiler_version_misses_the_cache(
    small_library: Library, monkeypatch: pytest.MonkeyPatch, wheel: str
) -> None:
    settings, plan = Settings(small_library, templates_folder()), plan_of()
    assert pipeline.cached(prepare(plan, settings.templates), settings)
    genuine = compile_stage.version_of
    monkeypatch.setattr(compile_stage, "version_of", lambda name: "13.1.80" if name == wheel else genuine(name))
    assert not pipeline.cached(prepare(plan, settings.templates), settings)


def test_force_and_differing_records_miss_the_cache(small_library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(small_library, templates_folder())
    prepared = prepare(plan_of(), settings.templates)
    assert not pipeline.cached(prepared, replace(settings, force=True))
    monkeypatch.setattr(pipeline, "planned_sections", lambda kernel: {**planned_sections(kernel), "traits": {}})
    assert not pipeline.cached(prepared, settings)


def test_damaged_kernel_is_reported_and_rebuilt(settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    (first,) = made(SMALL, settings)
    (settings.library.folder / first.symbol / "kernel.cubin").write_bytes(b"?")
    (second,) = made(SMALL, settings)
    assert second.status == "built" and f"rebuilding {first.symbol}: " in caplog.text
    assert settings.library.load(first.symbol).record.key == first.record.key


def test_the_second_run_loads_no_compiler(small_library: Library) -> None:
    code = (
        "import sys; from generator.cli.main import generate_command, main; code = main(generate_command, sys.argv[1:]);"
        "print(code, [name for name in ('cuda', 'rich', 'numpy', 'tomllib') if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, *ARGUMENTS, "--library", str(small_library.folder)]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "0 []" and "cached" in out


# ---- What goes wrong ------------------------------------------------------------------------------------------------


@pytest.fixture
def broken(settings: Settings, tmp_path: Path) -> Settings:
    """Templates of which kernels with three stages do not compile."""
    templates = Path(shutil.copytree(settings.templates, tmp_path / "templates"))
    with open(templates / "mma_sync" / "instance.cu.j2", "a") as file:
        file.write('static_assert(Policy::stages != 3, "three stages");\n')
    return replace(settings, templates=templates)


def test_failed_compilation_keeps_its_source_and_stops_no_other_build(broken: Settings) -> None:
    two, three, four = made({**SMALL, "stages": "2:4"}, broken)
    assert (two.status, three.status, four.status) == ("built", "failed", "built")
    folder = broken.library.folder / "failed" / three.symbol
    assert three.error.startswith(f"{three.symbol} does not compile: kernel.cu(") and "three stages" in three.error
    assert f"source {folder}/kernel.cu, log {folder}/compile.log" in three.error and "\n" not in three.error
    assert three.symbol in (folder / "kernel.cu").read_text() and "three stages" in (folder / "compile.log").read_text()
    assert len(broken.library.rows()) == 2
    (again,) = made({**SMALL, "stages": "3"}, replace(broken, templates=templates_folder()))
    assert again.status == "built" and not folder.parent.exists()


def test_files_of_failed_builds_are_garbage(broken: Settings) -> None:
    made({**SMALL, "stages": "3"}, broken)
    (removal,) = collect_garbage(broken.library)
    assert removal.name.startswith("failed/hgemm_") and removal.freed_bytes > 0
    assert not (broken.library.folder / "failed").exists() and collect_garbage(broken.library) == []


def test_spilling_kernel_is_rejected_unless_allowed(settings: Settings) -> None:
    (plan,) = (candidate.plan for candidate in sweep([SPILLING]).candidates)
    ((_, refused),) = make([plan], settings, processes=1)
    assert refused.status == "failed" and refused.record is None and settings.library.rows() == []
    assert "differs from its plan and is not stored: LDL " in refused.error and "B spilled" in refused.error
    assert refused.error.endswith(f". {advice_on_spills(plan)}") and "Try --" in refused.error
    allowing = replace(settings, allow_spills=True)
    ((_, spilled),) = make([plan], allowing, processes=1)
    assert (
        spilled.status == "spilled"
        and spilled.record.data["spilled"]
        and spilled.record.data["resources"]["spill_bytes"]
    )
    assert [outcome.status for _, outcome in make([plan], allowing, processes=1)] == ["spilled"]
    assert [outcome.status for _, outcome in make([plan], settings, processes=1)] == ["failed"]


def test_spilling_kernel_is_assembled_again_with_fewer_loads_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    (candidate,) = sweep([TIGHT]).candidates
    prepared = prepare(candidate.plan, templates_folder())
    found = headers(prepared.kernel.entry_header, templates_folder())
    frugal = compile_kernel(prepared.kernel, found)
    monkeypatch.setattr(compile_stage, "FRUGAL", compile_stage.FRUGAL[:1])
    plain = compile_kernel(prepared.kernel, found)
    reports = [parse_ptxas_log(made.ptxas_log)[prepared.kernel.symbol] for made in (plain, frugal)]
    assert reports[0].spill_bytes > 0 == reports[1].spill_bytes
    assert frugal.ptx == plain.ptx and {*frugal.options} - {*plain.options}


def test_deviations_from_the_plan_are_rejected_even_if_spills_are_allowed(settings: Settings, monkeypatch) -> None:
    genuine = build_stage.expectation_of
    monkeypatch.setattr(build_stage, "expectation_of", lambda *given: replace(genuine(*given), mma_per_k_tile=3))
    ((_, outcome),) = make([plan_of()], replace(settings, allow_spills=True), processes=1)
    assert "the plan expects 3 per k-tile" in outcome.error and settings.library.rows() == []


def test_read_only_folder_fails_before_compilation(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(build_stage, "compile_kernel", lambda *given: pytest.fail("compiled in vain"))
    with pytest.raises(LibraryError, match="cannot write .*/file/library: a file is in the place of a folder"):
        made(SMALL, Settings(Library(tmp_path / "file" / "library"), templates_folder()))


def test_full_disk_stops_the_run_with_one_line(settings: Settings, monkeypatch) -> None:
    def full(*given):
        raise LibraryError("cannot write x: no space is left on the disk: free some")

    monkeypatch.setattr(Library, "publish", full)
    with pytest.raises(LibraryError, match="no space is left"):
        made(SMALL, settings)


def test_kernel_built_by_another_process_is_not_rebuilt(settings: Settings, monkeypatch) -> None:
    batch = [prepare(plan, settings.templates) for plan in (plan_of(), plan_of(layout="nn"))]
    made(SMALL, settings)
    assert [outcome.status for outcome in build_and_store(batch, settings)] == ["cached", "built"]


# ---- Processes that share a library, and those that are killed ------------------------------------------------------


@pytest.mark.slow
def test_concurrent_processes_fill_one_library(tmp_path: Path) -> None:
    """Four processes, two of each kernel."""
    library = tmp_path / "library"
    sets = [["--layout", layout, "--stages", "2"] for layout in ("tn", "nt")]
    running = [start("generate", *ARGUMENTS[:4], *sets[place % 2], "--library", library, "-q") for place in range(4)]
    results = [(process.communicate(timeout=120), process.returncode) for process in running]
    assert [code for _, code in results] == [0] * 4
    assert not any("error" in err or "warning" in err for (_, err), _ in results)
    listed = json.loads(call("hgemm", "list", "--library", library, "--json").stdout)
    assert [record["spec"]["layout"] for record in listed] == ["nt", "tn"]
    assert not [path for path in library.iterdir() if path.name.startswith(".tmp")]


def kernels(library: Path) -> list[Path]:
    return [path.parent for path in library.glob("hgemm_*/record.json")]


def wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    found = [child for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]
    return [int(child) for child in found if b"workers:serve" in Path(f"/proc/{child}/cmdline").read_bytes()]


SWEEP = [*ARGUMENTS[:4], "--stages", "2:5", "--layout", "tn,nn", "-j", "2"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_next_run_completes_the_library_of_a_killed_run(tmp_path: Path) -> None:
    library = tmp_path / "library"
    process = start("generate", *SWEEP, "--library", library)
    wait_for(lambda: kernels(library) or process.poll() is not None)
    workers = children(process.pid)
    assert workers
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert json.loads(call("hgemm", "list", "--library", library, "--json").stdout)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), seconds=20)
    result = call("generate", *SWEEP, "--library", library)
    assert result.returncode == 0 and len(kernels(library)) == 8 and "cached" in result.stdout


@pytest.mark.slow
def test_killed_worker_loses_no_kernel(tmp_path: Path) -> None:
    """Another worker builds its kernels, and nothing is built or reported twice."""
    library = tmp_path / "library"
    process = start("generate", *SWEEP, "--library", library)
    wait_for(lambda: kernels(library) or process.poll() is not None)
    victims = children(process.pid)[:1]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    symbols = [line.split()[-1] for line in out.splitlines()[1:]]
    assert process.returncode == 0 and len(victims) == 1, err
    assert len(symbols) == len({*symbols}) == 8 and sorted(symbols) == sorted(path.name for path in kernels(library))
    reported = [
        line.split()[2].rstrip(",") for line in err.splitlines() if line.startswith("[") and "] at work, " not in line
    ]
    assert sorted(reported) == sorted(symbols)


def test_ctrl_c_ends_promptly(tmp_path: Path) -> None:
    library = tmp_path / "library"
    process = start("generate", *SWEEP, "--library", library)
    wait_for(lambda: kernels(library) or process.poll() is not None)
    begin = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    if process.returncode == 0:
        pytest.skip("it was done before it could be interrupted")
    assert process.returncode == 130 and time.monotonic() - begin < 3 and "Traceback" not in err
    assert err.splitlines()[-1] == "generate: interrupted" and out == ""
    assert call("hgemm", "list", "--library", library).returncode == 0


def test_gc_keeps_foreign_files_in_the_folder_failed(settings: Settings, tmp_path: Path) -> None:
    folder = settings.library.folder
    (folder / "failed" / "run1").mkdir(parents=True)
    (folder / "failed" / "run1" / "notes.txt").write_text("mine")
    outside = tmp_path / "outside" / "precious"
    outside.mkdir(parents=True)
    (outside / "kernel.cu").write_text("mine too")
    (folder / "linked").symlink_to(outside.parent)
    assert collect_garbage(settings.library) == []
    (folder / "failed").rename(folder / "kept")
    (folder / "failed").symlink_to(outside.parent)
    assert collect_garbage(settings.library) == []
    assert (folder / "kept" / "run1" / "notes.txt").exists() and (outside / "kernel.cu").exists()

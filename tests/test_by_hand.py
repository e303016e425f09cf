"""Kernels that programs load by hand, in C and in Python, on drivers without a GPU; and on a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from computing_driver import ComputingDriver
from conftest import ROOT, call
from exports import compiled, fake_driver, need_compiler
from fake_driver import SUCCESS, unpack
from test_gpu import make_library

from generator.export.launch_header import launch_header
from generator.store.library import Library
from hgemm.errors import RequestError
from hgemm.launch import grid_x, matrices, operand_maps, workspace_bytes
from hgemm.launch_traits import LaunchTraits
from hgemm.library import open_library
from hgemm.problem import Problem

EXAMPLES = ROOT / "examples" / "by_hand"
RIGHT = "304x200x136 {}: 0 of 60800 elements wrong\n"
SORTS: dict[str, Callable[[LaunchTraits], bool]] = {
    "one tile a CTA": lambda one: one.grid_rule == "one_tile" and one.arch == "sm_80" and one.layout == "nn",
    "split-K": lambda one: one.grid_rule == "split_k" and not one.tensor_maps,
    "persistent with clusters and TMA": lambda one: one.persistent and one.cluster[0] > 1 and one.layout == "tt",
    "split-K with TMA": lambda one: one.grid_rule == "split_k" and bool(one.tensor_maps),
    "stream-K with TMA": lambda one: one.grid_rule == "stream_k" and bool(one.tensor_maps),
    "rows along n": lambda one: bool(one.tensor_maps) and one.tile_m == 16,
}


def chosen(library: Library, sort: str) -> dict:
    records = [record.data for record in library.records()]
    f16 = [one for one in records if one["spec"]["dtype_a"] == one["spec"]["dtype_d"] == "f16"]
    return next(one for one in f16 if SORTS[sort](LaunchTraits.of(one)) and LaunchTraits.of(one).activation == "none")


def built(header: str, folder: Path) -> Path:
    (folder / "kernel.h").write_text(header)
    flags = ("-std=c11", "-O1", "-D_GNU_SOURCE", f"-I{folder}", f"-I{ROOT / 'examples/c'}")
    compiled(*flags, EXAMPLES / "multiply.c", "-o", folder / "multiply", "-ldl")
    return folder / "multiply"


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_compiler()
    return fake_driver(tmp_path_factory.mktemp("driver"))


@pytest.mark.parametrize("sort", SORTS)
def test_a_c_program_launches_a_kernel_by_its_header(
    sort: str, paper_library: Library, cuda: Path, tmp_path: Path
) -> None:
    record = chosen(paper_library, sort)
    traits, folder = LaunchTraits.of(record), paper_library.folder / record["symbol"]
    program, log = built(launch_header(record), tmp_path), tmp_path / "log"
    env = {**os.environ, "LD_LIBRARY_PATH": str(cuda), "FAKE_LOG": str(log), "FAKE_SMS": "8"}
    done = subprocess.run([program, folder], capture_output=True, text=True, env=env, timeout=60)
    assert (done.stdout, done.returncode) == (RIGHT.format(traits.symbol), 0), done.stderr
    said = log.read_text()
    (launch,) = re.findall(r"launch (\w+) grid (\d+) threads (\d+) smem (\d+)", said)
    resident = 8 // 2 * traits.cluster[0] if traits.cluster[0] > 1 else 2 * 8
    assert launch == (
        traits.symbol,
        str(grid_x(traits, 304, 200, 1, resident)),
        str(traits.threads),
        str(traits.smem_bytes),
    )
    size = workspace_bytes(traits, 304, 200)
    assert f"alloc {size} " in said or not size
    by_rows, by_columns = traits.a_k_major, traits.b_k_major
    given = Problem(304, 200, 136, lda=136 if by_rows else 304, ldb=136 if by_columns else 200, ldd=200)
    maps = [one for of in operand_maps(traits, matrices(given, traits)).values() for one in of if one]
    assert re.findall(r"\nmap .* extents (.*?) strides .* box (.*?) step", said) == [
        (" ".join(map(str, one.extents)), " ".join(map(str, one.rule.box))) for one in maps
    ]


def test_programs_load_the_ptx_on_a_gpu_of_a_later_architecture(
    paper_library: Library, cuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = chosen(paper_library, "one tile a CTA")
    folder = paper_library.folder / record["symbol"]
    program, log = built(launch_header(record), tmp_path), tmp_path / "log"
    env = {**os.environ, "LD_LIBRARY_PATH": str(cuda), "FAKE_LOG": str(log), "FAKE_NO_BINARY": "1"}
    done = subprocess.run([program, folder], capture_output=True, text=True, env=env, timeout=60)
    assert (done.stdout, done.returncode) == (RIGHT.format(record["symbol"]), 0), done.stderr
    assert "load ptx" in log.read_text()

    class Later(Contexts):
        def cuModuleLoadData(self, image):
            return super().cuModuleLoadData(image) if image.startswith(b"kernel.ptx") else (209, None)

    module, fake = example(), Later(open_library(paper_library.folder))
    monkeypatch.setattr(module, "driver", fake)
    assert module.main([str(folder)]) == 0 and fake.images[-1].endswith(b"\0")


def example():
    spec = importlib.util.spec_from_file_location("by_hand", EXAMPLES / "multiply.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Contexts(ComputingDriver):
    """A driver with the calls on contexts that only a program of its own makes."""

    def cuCtxSetCurrent(self, context):
        self.contexts.append(context)
        return (SUCCESS,)

    def cuCtxSynchronize(self):
        return (SUCCESS,)


@pytest.mark.parametrize("sort", SORTS)
def test_a_python_program_launches_a_kernel_by_its_record(
    sort: str, paper_library: Library, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    record = chosen(paper_library, sort)
    traits, module = LaunchTraits.of(record), example()
    fake = Contexts(open_library(paper_library.folder))
    monkeypatch.setattr(module, "driver", fake)
    assert module.main([str(paper_library.folder / record["symbol"])]) == 0
    assert capsys.readouterr().out == RIGHT.format(traits.symbol)
    resident = fake.resident_clusters * traits.cluster[0] if traits.cluster[0] > 1 else fake.launches[0][0]
    assert fake.launches == [(grid_x(traits, 304, 200, 1, resident), traits.threads, traits.smem_bytes, 0)]
    assert not fake.memory
    if traits.tensor_maps:
        problem = unpack(fake.packed)
        used = {rule.operand for rule in traits.tensor_maps}
        assert fake.mapped() == {name: getattr(problem, name) if name in used else 0 for name in "abd"}
    else:
        assert not fake.maps


def test_show_prints_the_header(paper_library: Library) -> None:
    record = chosen(paper_library, "one tile a CTA")
    done = call("hgemm", "show", record["symbol"], "--header", "--library", paper_library.folder)
    assert done.stdout == launch_header(record)


def test_a_header_is_of_one_kernel(paper_library: Library) -> None:
    done = call("hgemm", "show", "hgemm_sm80*", "--header", "--library", paper_library.folder)
    assert done.returncode == 2 and not done.stdout and "--header describes one kernel" in done.stderr


def header_of(epilogue: str) -> str:
    from generator.sweep import sweep
    from generator.tuning import planned_record

    (plan,) = sweep([{"arch": "sm_80", "tile": "64x64x32", "epilogue": epilogue}]).plans
    return launch_header(planned_record(plan))


def test_header_names_the_inputs_and_results_of_an_expression() -> None:
    assert "in this order: bias." in header_of("relu(alpha * acc + bias)")
    assert "in this order: bias, out1." in header_of("bias: Row; (relu(acc + bias), acc + bias)")


def test_a_header_does_not_describe_reductions() -> None:
    with pytest.raises(RequestError, match="workspace of reductions"):
        header_of("(acc, row_sum_squares(acc))")


@pytest.mark.gpu
def test_programs_run_on_a_gpu(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    need_compiler()
    folder = make_library(tmp_path_factory)
    records = [json.loads((place / "record.json").read_text()) for place in folder.glob("hgemm_*")]
    plain = {"dtype_a": "f16", "dtype_d": "f16", "activation": "none"}
    ran = 0
    for record in records:
        spec = record["spec"]
        if any(spec[name] != word for name, word in plain.items()) or spec["bias"] not in ("none", "launch"):
            continue
        place = folder / record["symbol"]
        in_c, in_python = [built(launch_header(record), tmp_path)], [sys.executable, EXAMPLES / "multiply.py"]
        for command in (in_c, in_python):
            done = subprocess.run([*map(str, command), str(place)], capture_output=True, text=True, timeout=120)
            said = done.stdout + done.stderr
            assert done.returncode == 0 and done.stdout.endswith(": 0 of 60800 elements wrong\n"), said
        ran += 1
    assert ran

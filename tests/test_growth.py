"""Libraries that build missing kernels on demand, and the note about a slower fallback."""

from __future__ import annotations

import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from computing_driver import ComputingDriver, Cuda, placed
from conftest import ROOT, call, start
from fake_driver import SUCCESS, installed

import hgemm
import hgemm.device
import hgemm.launch
from generator.build.pipeline import Outcome
from generator.pack import growth as builder
from generator.pack.growth import best_plan, build_kernel
from generator.pack.kernels import candidates_for
from generator.tuning import planned_record
from hgemm import growth
from hgemm.dispatch_table import DispatchTable
from hgemm.errors import DeviceError, LibraryError, RequestError, UnsupportedError
from hgemm.growth import LOCK_NAME, Missing, size_of_problem, size_of_tile
from hgemm.launch_traits import LaunchTraits
from hgemm.library import Library
from hgemm.problem import Kind, Problem
from hgemm.selection import FallbackWatch, Selector
from hgemm.selection_query import SelectionQuery, Target

pytestmark = pytest.mark.usefixtures("builds_once")

A100, H100 = Target.typical("sm_80"), Target.typical("sm_90")
GELU = Kind("tn", "bf16", "bf16", "bf16", bias="row", activation="gelu")


def query(m: int, n: int = 512, k: int = 256, kind: Kind = GELU) -> SelectionQuery:
    return SelectionQuery.dense(kind, (m, n, k, 1), 0)


def lines(caplog: pytest.LogCaptureFixture, word: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "hgemm" and word in record.getMessage()]


class Counting:
    """Builds as the generator does, and remembers what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, build=build_kernel) -> None:
        self.sizes: list[str] = []
        self._build = build
        monkeypatch.setattr(growth, "_builder", lambda: self)

    def __call__(self, folder: Path, missing: Missing) -> str | None:
        self.sizes.append(missing.size)
        return self._build(folder, missing)


# ==== What is built, and how often ====


def test_a_missing_kernel_is_built_once_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting(monkeypatch)
    library = hgemm.open(tmp_path / "new", build=True)
    first = library.select(query(64), A100)
    assert library.select(query(48), A100).symbol == first.symbol == library.symbols[0]
    assert library.kernel(first.symbol).traits.activation == "gelu"
    (line,) = lines(caplog, "built")
    assert first.symbol in line and "bias row gelu" in line and "64x512x256" in line
    again = hgemm.open(tmp_path / "new", build=True)
    assert again.select(query(64), A100).symbol == first.symbol
    assert hgemm.open(tmp_path / "new").select(query(64), A100).symbol == first.symbol
    assert counting.sizes == ["small"]


def test_calls_of_other_sizes_get_kernels_of_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(monkeypatch)
    library = hgemm.open(tmp_path, build=True)
    tiles = {}
    for m in (1, 4096, 8, 8192):
        row = library.select(query(m, 4096), A100).row
        tiles[m] = (row.tile_m, row.tile_n)
    assert counting.sizes == ["few_rows", "large"]
    assert tiles[1] == tiles[8] and tiles[1][0] <= 16
    assert tiles[4096] == tiles[8192] and min(tiles[4096]) >= 128


def test_kernels_without_a_large_gain_are_not_built(tmp_path: Path) -> None:
    fast = Missing(query(64), A100, "small", clocks=1)
    assert build_kernel(tmp_path, fast) is None and [*tmp_path.iterdir()] == []
    slow = replace(fast, clocks=2**40)
    assert build_kernel(tmp_path, slow)


def test_missing_gain_of_one_problem_does_not_block_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = hgemm.open(tmp_path, build=True).select(query(1, 4096), A100)
    gains = {48: False, 64: True}
    counting = Counting(
        monkeypatch, lambda folder, missing: build_kernel(folder, missing) if gains[missing.query.m] else None
    )
    library = hgemm.open(tmp_path, build=True)
    for _ in range(2):
        assert library.select(query(48, 4096), A100).symbol == few.symbol
    assert counting.sizes == ["small"]
    assert library.select(query(64, 4096), A100).symbol != few.symbol
    assert counting.sizes == ["small", "small"]


def test_selectors_see_kernels_built_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(monkeypatch)
    selector = hgemm.open(tmp_path, build=True).selector(A100)
    found = [selector.choose(query(m, 4096)).symbol for m in (1, 16, 4096, 8)]
    assert found[0] == found[1] == found[3] != found[2]
    assert counting.sizes == ["few_rows", "large"]


def test_a_kernel_for_one_row_serves_a_few_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(monkeypatch)
    library = hgemm.open(tmp_path, build=True)
    assert len({library.select(query(m, 511, 256), H100).symbol for m in (1, 5, 16)}) == 1
    assert counting.sizes == ["few_rows"]


def test_concurrent_threads_build_a_kernel_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting(monkeypatch)
    libraries = [hgemm.open(tmp_path, build=True) for _ in range(2)]
    found, begin = [], threading.Barrier(6)

    def run(place: int) -> None:
        begin.wait()
        found.append(libraries[place % 2].select(query(64), A100).symbol)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(run, range(6)))
    assert len(found) == 6 and len({*found}) == 1
    assert counting.sizes == ["small"] and len(lines(caplog, "built")) == 1


PROCESS = """
import hgemm
from hgemm.problem import Kind
from hgemm.selection_query import SelectionQuery, Target

kind = Kind("tn", "bf16", "bf16", "bf16", bias="row", activation="gelu")
library = hgemm.open({folder!r}, build=True)
print(library.select(SelectionQuery.dense(kind, (64, 512, 256, 1), 0), Target.typical("sm_80")).symbol)
"""


def test_concurrent_processes_build_a_kernel_once(tmp_path: Path) -> None:
    code = PROCESS.format(folder=str(tmp_path / "library"))
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=pipe, stderr=pipe, text=True) for _ in range(2)
    ]
    results = [process.communicate(timeout=120) for process in started]
    symbols, errors = [out for out, _ in results], "".join(err for _, err in results)
    assert symbols[0] == symbols[1] and symbols[0].startswith("hgemm_sm80_tn_bf16")
    assert errors.count("built ") == 1, errors


def test_kernels_are_built_for_the_present_device(tmp_path: Path) -> None:
    library = hgemm.open(tmp_path, build=True)
    symbol = library.select(query(64), H100).symbol
    assert symbol.startswith("hgemm_sm90a_") and library.records[symbol].data["spec"]["mma"].startswith("m64n")
    turing = library.select(query(64, kind=Kind()), Target.typical("sm_75"))
    assert turing.symbol.startswith("hgemm_sm75_")


@pytest.mark.parametrize("extents", [(64, 511, 255), (33, 64, 0)], ids=["odd", "k of 0"])
def test_calls_that_tma_cannot_serve_get_a_kernel(extents: tuple[int, int, int], tmp_path: Path) -> None:
    library = hgemm.open(tmp_path, build=True)
    assert library.select(query(*extents, kind=Kind()), H100).symbol in library.symbols


def test_a_kernel_that_does_not_build_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = best_plan(query(64), A100, "small")
    real = builder.make

    def make(plans, settings, processes):
        if plans[0] == first:
            yield 0, Outcome("x", "failed", error="registers spill")
        else:
            yield from real(plans, settings, processes)

    monkeypatch.setattr(builder, "make", make)
    library = hgemm.open(tmp_path, build=True)
    symbol = library.select(query(64), A100).symbol
    assert library.records[symbol].data["spec"]["cta_tile"] != str(first.spec.cta_tile)


def test_best_kernel_of_a_size_class_has_that_size() -> None:
    for target in (A100, H100, Target.typical("sm_89")):
        for m in (1, 40, 512, 4096):
            size = size_of_problem(query(m, 4096), target.sms)
            tile = best_plan(query(m, 4096), target, size).spec.cta_tile
            assert size_of_tile(tile.m, tile.n) == size, (target.name, m)


@pytest.mark.parametrize(
    "kind",
    [
        Kind("tn", "tf32", "tf32", "f32"),
        Kind("nn", "tf32", "tf32", "f32", bias="column"),
        Kind("tt", "bf16", "bf16", "f32", "f16", activation="silu"),
        Kind("nt", acc="f16_promoted"),
    ],
    ids=str,
)
def test_every_kind_has_a_kernel_of_every_size(kind: Kind) -> None:
    for m in (1, 40, 512, 4096):
        plan = best_plan(query(m, 4096, kind=kind), H100, size_of_problem(query(m, 4096), H100.sms))
        selector = Selector(DispatchTable.of([planned_record(plan)]), H100)
        assert selector.find(query(m, 4096, kind=kind)), (m, plan.spec)


# ==== What is not built ====


def test_without_build_a_missing_kernel_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "library").mkdir()
    with pytest.raises(UnsupportedError, match="no kernel runs on sm_80"):
        hgemm.open(tmp_path / "library").select(query(64), A100)
    assert [*(tmp_path / "library").iterdir()] == []
    with pytest.raises(LibraryError, match="does not exist"):
        hgemm.open(tmp_path / "none")


def test_a_type_that_no_kernel_multiplies_stays_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = hgemm.open(tmp_path, build=True)
    for kind in (Kind("tn", "f32", "f32", "f32"), Kind("tn", "f16", "bf16", "f16")):
        with pytest.raises(UnsupportedError):
            library.select(query(64, kind=kind), A100)
    with pytest.raises(UnsupportedError):
        library.select(query(64), Target.typical("sm_75"))
    assert library.symbols == ()


def test_nothing_is_built_while_a_graph_is_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(monkeypatch)
    library = hgemm.open(tmp_path, build=True)
    few = library.select(query(1, 4096), A100)

    def refuse(doing: str) -> None:
        raise DeviceError(f"cannot {doing}: call the product once before the capture")

    with monkeypatch.context() as during:
        during.setattr(growth, "forbid_in_capture", refuse)
        assert library.select(query(4096, 4096), A100).symbol == few.symbol, (
            "a captured call takes a kernel of the library"
        )
        with pytest.raises(DeviceError, match="cannot build a kernel for nn .*: call the product once"):
            library.select(query(64, kind=Kind("nn")), A100)
    assert counting.sizes == ["few_rows"]
    assert library.select(query(4096, 4096), A100).symbol != few.symbol, "after the capture the kernel is built"


def test_missing_generator_error_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "generator.plugin", None)
    with pytest.raises(LibraryError, match="hgemm-generator.*pip install"):
        hgemm.open(tmp_path, build=True).select(query(64), A100)


def test_without_the_generator_calls_use_existing_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    few = hgemm.open(tmp_path, build=True).select(query(1, 4096), A100)
    monkeypatch.setitem(sys.modules, "generator.plugin", None)
    library = hgemm.open(tmp_path, build=True)
    for m in (4096, 8192):
        assert library.select(query(m, 4096), A100).symbol == few.symbol
    assert len(lines(caplog, "no better kernel")) == 1


def test_read_only_folder_gives_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LibraryError, match="file"):
        hgemm.open(tmp_path / "file", build=True)
    library = hgemm.open(tmp_path / "library", build=True)
    (tmp_path / "library" / LOCK_NAME).symlink_to(tmp_path / "file")
    with pytest.raises(LibraryError, match="cannot build a kernel for"):
        library.select(query(64), A100)


def test_other_commands_ignore_the_lock(tmp_path: Path) -> None:
    symbol = hgemm.open(tmp_path, build=True).select(query(64), A100).symbol
    assert (tmp_path / LOCK_NAME).exists()
    for words in (["list"], ["gc"], ["merge", tmp_path, "--into", tmp_path / "other"]):
        library = [] if words[0] == "merge" else ["--library", tmp_path]
        done = call("hgemm", *words, *library)
        assert done.returncode in (0, 2), done.stderr
    assert symbol in hgemm.open(tmp_path).symbols


# ==== Calls ====


class Live(dict):
    """The traits of the kernels that a library has at the time."""

    def __init__(self, library: Library) -> None:
        self.library = library

    def __missing__(self, symbol: str) -> LaunchTraits:
        return LaunchTraits.of(self.library.records[symbol].data)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ComputingDriver]:
    """A driver that computes on the CPU, with a library that grows."""
    fake = ComputingDriver(hgemm.open(tmp_path, build=True))
    with installed(fake, monkeypatch):
        yield fake


def test_a_product_with_a_bias_is_right_at_the_first_call(device: ComputingDriver, tmp_path: Path) -> None:
    library = hgemm.open(tmp_path, build=True)
    device.traits = Live(library)
    x, w, bias = (placed(np.ones(shape, "f2")) for shape in ((40, 64), (48, 64), (48,)))
    out = placed(np.zeros((40, 48), "f2"))
    for _ in range(2):
        library.matmul(Cuda(x), Cuda(w.T), Cuda(out), bias=Cuda(bias), activation="relu")
        assert (out == 65).all()
    assert len({*device.symbols}) == 1 and len(library.symbols) == 1
    plan = library.plan(Problem(m=40, n=48, k=64), Kind(bias="row"))
    assert plan.kernel.traits.bias == "row" and len(library.symbols) == 2


def test_a_captured_product_that_lacks_a_kernel_says_how_to_warm_up(
    device: ComputingDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = hgemm.open(tmp_path, build=True)
    device.traits = Live(library)
    x, w, out = (placed(np.ones(shape, "f2")) for shape in ((40, 64), (48, 64), (40, 48)))
    with monkeypatch.context() as during:
        during.setattr(device, "cuStreamIsCapturing", lambda stream: (SUCCESS, 1))
        with pytest.raises(
            DeviceError, match="cannot build a kernel for tn .* graph is captured: call the product once"
        ):
            library.matmul(Cuda(x), Cuda(w.T), Cuda(out))
    library.matmul(Cuda(x), Cuda(w.T), Cuda(out))
    assert (out == 64).all()


# ==== Slower families ====


def planned(*kinds: tuple[Kind, str]) -> list:
    return [
        candidate.plan for kind, arch in kinds for candidate in candidates_for(kind, query(64, kind=kind), arch)[:2]
    ]


def watched(plans: list) -> Selector:
    records = [planned_record(plan) for plan in plans]
    wgmma = {record["symbol"] for record in records if record["arch"] == "sm_90a"}
    return Selector(DispatchTable.of(records), H100, Path("lib"), FallbackWatch(wgmma))


def test_fallback_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    nn = Kind("nn", "bf16", "bf16", "bf16")
    selector = watched(planned((GELU, "sm_90a"), (nn, "sm_90")))
    for m in (64, 72, 64):
        selector.choose(query(m))
        selector.choose(query(m, kind=nn))
    (line,) = lines(caplog, "falls back")
    assert "nn bf16" in line and "mma.sync" in line and "build=True" in line
    command = line.partition("`")[2].partition("`")[0].split()
    assert command[:2] == ["hgemm", "cover"] and {"--no-fallback", "--add", "nn", "bf16"} <= {*command}


@pytest.mark.slow
def test_logged_command_supports_an_unaligned_d(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`hgemm cover` gives all operands one alignment, and kernels on wgmma need more for A and B than D has here."""
    nn, shape = Kind("nn"), (64, 513, 256, 1)
    done = call(
        "generate", "--arch", "90", "--tile", "32x32x32", "--layout", "nn", "--align", "1", "--library", tmp_path
    )
    assert done.returncode == 0, done.stderr
    odd = replace(SelectionQuery.dense(nn, shape, 0), align_a=8, align_b=8, align_d=1)
    hgemm.open(tmp_path).select(odd, H100)
    (line,) = lines(caplog, "falls back")
    done = call(*shlex.split(line.partition("`")[2].partition("`")[0]))
    assert done.returncode == 0, done.stdout + done.stderr
    assert hgemm.open(tmp_path).select(odd, H100).symbol.startswith("hgemm_sm90a_")


def test_no_fallback_line_if_wgmma_cannot_help(caplog: pytest.LogCaptureFixture) -> None:
    tf32 = Kind("nn", "tf32", "tf32", "f32")
    selector = watched(planned((tf32, "sm_90")))
    selector.choose(query(64, kind=tf32))
    odd = [one.plan for one in candidates_for(Kind(), query(64, 511, 255, Kind()), "sm_90")][:2]
    watched(odd).choose(query(64, 511, 255, Kind()))
    Selector(
        DispatchTable.of(map(planned_record, planned((GELU, "sm_80")))), A100, Path("lib"), FallbackWatch(())
    ).choose(query(64))
    assert lines(caplog, "falls back") == []


def test_a_growing_library_builds_instead_of_falling_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    nn = Kind("nn")
    done = call("generate", "--arch", "90", "--layout", "nn", "--tile", "64x64x32", "--library", tmp_path)
    assert done.returncode == 0, done.stderr
    assert hgemm.open(tmp_path).select(query(64, kind=nn), H100).symbol.startswith("hgemm_sm90_")
    assert len(lines(caplog, "falls back")) == 1
    grown = hgemm.open(tmp_path, build=True).select(query(64, kind=nn), H100)
    assert grown.symbol.startswith("hgemm_sm90a_") and len(lines(caplog, "falls back")) == 1


@pytest.fixture
def covers_once(builds_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `hgemm cover` build in this process, each kernel once a run of the tests."""
    monkeypatch.setattr("generator.cli.deploy.cores", lambda: 0)


@pytest.mark.slow
@pytest.mark.usefixtures("covers_once")
def test_cover_adds_the_kernel_that_a_call_lacks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The command in the note runs, and no fallback follows."""
    done = call(
        "generate", "--arch", "90", "--tile", "32x32x32", "--layout", "nn", "--align", "1", "--library", tmp_path
    )
    assert done.returncode == 0, done.stderr
    hgemm.open(tmp_path).select(query(64, kind=Kind("nn")), H100)
    (line,) = lines(caplog, "falls back")
    words = line.partition("`hgemm ")[2].partition("`")[0].split()
    assert call("hgemm", *(word for word in words if word != "--add")).returncode == 1
    done = call("hgemm", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    library = hgemm.open(tmp_path)
    sizes = {size_of_tile(row.tile_m, row.tile_n) for row in library.table.rows if "sm90a" in row.symbol}
    assert sizes == {"few_rows", "small", "medium", "large"}
    assert library.select(query(64, kind=Kind("nn")), H100).symbol.startswith("hgemm_sm90a_")


@pytest.mark.slow
@pytest.mark.usefixtures("covers_once")
def test_cover_without_fallbacks_fills_an_empty_library(tmp_path: Path) -> None:
    words = "cover --arch 90 --dtype f16 --layout nn --no-fallback --add --library".split()
    done = call("hgemm", *words, tmp_path / "new")
    assert done.returncode == 0, done.stdout + done.stderr


def test_two_covers_at_once_add_a_kernel_once(tmp_path: Path) -> None:
    words = "cover --arch 80 --dtype f16 --layout tn --align 1 --add --library".split()
    started = [start("hgemm", *words, tmp_path / "new") for _ in range(2)]
    results = [(process.communicate(timeout=120), process.returncode) for process in started]
    assert [status for _, status in results] == [0, 0], results
    assert "".join(err for (_, err), _ in results).count("] built hgemm_sm80_tn_f16") == 1


def test_growing_library_is_a_library(tmp_path: Path) -> None:
    library = hgemm.open(tmp_path, build=True)
    assert isinstance(library, Library) and library.symbols == ()
    with pytest.raises(RequestError):
        library.kernel("../x")


@pytest.mark.gpu
def test_built_kernels_run_on_the_gpu(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    library = hgemm.open(tmp_path, build=True)
    x, w, bias = (torch.randn(*shape, device="cuda").bfloat16() for shape in ((40, 256), (512, 256), (512,)))
    expected = torch.nn.functional.silu(x.float() @ w.float().T + bias.float())
    y = library.matmul(x, w.T, bias=bias, activation="silu")
    assert (y - expected).abs().max() < 0.02 * expected.abs().max()
    with pytest.raises(DeviceError, match="while a CUDA graph is captured"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            library.matmul(x, w.T, bias=bias, activation="relu")
    torch.cuda.synchronize()
    y = library.matmul(x, w.T, bias=bias, activation="relu")
    assert (y.float() - torch.relu(x.float() @ w.float().T + bias.float())).abs().max() < 0.02 * expected.abs().max()

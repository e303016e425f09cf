"""Modules of CuTe DSL in a library: every verb shows, packs, launches or refuses their code, and none runs their text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import simulated
from click.testing import CliRunner, Result
from exports import need_compiler
from fake_bench import BenchDriver, FakeCublasLt, build
from fake_driver import FakeDriver
from records import make_record

import hgemm.bench.operands
import hgemm.device
from benchmarks.compare_forms import groups
from generator.cli import main as cli
from generator.cli.main import hgemm_command
from generator.device_check import CheckWorkers, check_here
from generator.proof import jobs as emulate
from generator.store.library import Library
from hgemm.bench import cublaslt
from hgemm.errors import HgemmError, LibraryError
from hgemm.kernel import Kernel
from hgemm.record import Record
from hgemm.tune.__main__ import command as tune_here

SYMBOL = "hgemm_module"
SPEC = {"arch": "sm_80", "cta_tile": "32x48x16"}
SIZES = ["--m", "40", "--n", "56", "--k", "24"]
QUICK = "--seconds 0 --screen-ms 0.01 --warm-up 0 --rewarm 0 --rounds 3".split()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    """A library with one module, which leaves a mark where anything runs it."""
    monkeypatch.chdir(tmp_path)
    made = simulated.record(beta=False)
    traits = {**made["traits"], "deterministic": True, "graph_safe": True, "exact_tiles_only": False}
    text = f"open({str(tmp_path / 'it was run')!r}, 'w').close()\n".encode()
    files = {"kernel.py": text, "kernel.cubin": b"code", "kernel.ptx": b"text"}
    record, _ = make_record(SYMBOL, files, **SPEC, launch=made["launch"], traits=traits)
    library = Library(tmp_path / "library")
    library.publish({**record, "spec": {**record["spec"], "form": "dsl"}}, files)
    return library


def serve(monkeypatch: pytest.MonkeyPatch, fake: FakeDriver) -> FakeDriver:
    for place in ("device", "bench.device"):
        monkeypatch.setattr(f"hgemm.{place}.driver", lambda: fake)
    monkeypatch.setattr(CheckWorkers, "check", lambda self, request: (check_here(request), ""))  # where the fake lives
    hgemm.device._open.cache_clear()
    return fake


@pytest.fixture
def gpu(library: Library, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """A GPU that computes what the kernel says it computes."""
    fake = serve(monkeypatch, FakeDriver())
    traits = Kernel(library.load(SYMBOL).record.data).traits
    fake.kernel = lambda problem: simulated.launch(traits, problem, frozenset())
    yield fake
    hgemm.device._open.cache_clear()


@pytest.fixture
def timed_gpu(library: Library, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[BenchDriver]:
    """A GPU whose clock is simulated, with cuBLASLt beside."""
    fake, lt = serve(monkeypatch, BenchDriver()), build(tmp_path)
    monkeypatch.setattr(hgemm.bench.operands, "POOL_ELEMENTS", 8 * 127)
    monkeypatch.setattr(cublaslt, "find_library", lambda: str(lt))
    fake.serve(Kernel(library.load(SYMBOL).record.data), 8.0)
    fake.lt = FakeCublasLt(lt, fake, [10.0])
    yield fake
    hgemm.device._open.cache_clear()


def call(library: Library, *words: str) -> Result:
    """Run a verb on the library; whatever it says, the module's text must not have run."""
    # The verb of the run-time package tunes a library as it is, and makes nothing.
    command = tune_here if words[0] == "tune" else hgemm_command.get_command(None, words[0])
    result = CliRunner().invoke(command, [*words[1:], "--library", str(library.folder)])
    if result.exception and not isinstance(result.exception, (SystemExit, HgemmError)):
        raise result.exception
    assert not (library.folder.parent / "it was run").exists()
    assert library.load(SYMBOL).source.startswith(b"open(")
    return result


@pytest.mark.parametrize(
    ("words", "exit_code", "told"),
    [
        (["list", "--json"], 0, f'"symbol": "{SYMBOL}"'),
        (["show", SYMBOL, "--source"], 0, "open("),
        (["verify", "--emulate"], 1, f"skip  {SYMBOL}  {emulate.NOT_IN_CPP}"),
        (["reindex"], 0, "1 variant indexed"),
        (["gc", "--dry-run"], 0, "0 would be removed"),
        (["report", "--to", "report.html"], 0, "report.html"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_module_is_shown_and_reported(library: Library, words: list[str], exit_code: int, told: str) -> None:
    result = call(library, *words)
    assert told in result.stdout and result.exit_code == exit_code


def test_an_export_has_its_code_and_with_sources_is_refused(library: Library) -> None:
    refused = call(library, "export", "--uncompressed", "--source", "--to", "with_source")
    assert "nvcc cannot compile" in str(refused.exception) and refused.exception.exit_code == 2
    need_compiler()
    assert call(library, "export", "--uncompressed", "--to", "exported").exit_code == 0
    packed = (library.folder.parent / "exported" / "src" / "images.bin").read_bytes()
    assert b"code" in packed and b"open(" not in packed


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["verify", "--device", "--shapes", "33x49x17"], f"ok    {SYMBOL}  1/1 shapes"),
        (["run", SYMBOL, *SIZES], SYMBOL),
    ],
    ids=["verify", "run"],
)
def test_its_code_is_launched(library: Library, gpu: FakeDriver, words: list[str], told: str) -> None:
    result = call(library, *words)
    assert told in result.stdout and result.exit_code == 0 and gpu.launches
    assert {*gpu.images} == {b"text\0"}, "sm_90 takes the PTX of sm_80"


@pytest.mark.parametrize("verb", ["bench", "tune"])
def test_its_code_is_timed(library: Library, timed_gpu: BenchDriver, verb: str) -> None:
    result = call(library, verb, *SIZES, *QUICK)
    assert SYMBOL in result.stdout and result.exit_code == 0 and SYMBOL in timed_gpu.log


@pytest.mark.parametrize(
    ("names", "words"),
    [(["kernel.cu", "kernel.py"], "only one may be the source"), ([], "files.kernel.cu is missing")],
)
def test_a_record_has_one_source(library: Library, names: list[str], words: str) -> None:
    data = library.load(SYMBOL).record.data
    module = data["files"].pop("kernel.py")
    with pytest.raises(LibraryError, match=words):
        Record.parse(json.dumps({**data, "files": {**data["files"], **dict.fromkeys(names, module)}}))


def test_forms_of_one_spec_are_found_in_a_library(library: Library) -> None:
    library.publish(*make_record("hgemm_other", **SPEC, stages=2))
    same, files = make_record("hgemm_same", **SPEC)
    library.publish({**same, "spec": {**same["spec"], "form": "atoms"}}, files)
    (found,) = groups(library)
    assert [(one.form, one.record.symbol) for one in found] == [("atoms", "hgemm_same"), ("dsl", SYMBOL)]


@pytest.mark.parametrize(
    ("words", "early"),
    [
        (["--arch", "sm_80", "--form", "dsl"], True),
        (["--arch", "sm_80"], False),
        (["--arch", "sm_80", "--form", "dsl", "--tile", "128x128x32,64x64x32"], False),
        (["--arch", "sm_80", "--form", "dsl", "--dry-run"], False),
        (["--arch", "sm_80", "--form", "dsl", "--verify", "emulate"], False),
        (["--form", "dsl", "--kernels", "*"], False),
        (["--arch", "sm_80", "--form", "dsl", "--executor", "dask", "--address", "tcp://host:1"], False),
    ],
)
def test_its_process_starts_before_all_else_for_one_kernel_only(
    monkeypatch: pytest.MonkeyPatch, words: list[str], early: bool
) -> None:
    order: list[str] = []
    monkeypatch.setattr("generator.build.dsl.begin", lambda: order.append("begun"))
    monkeypatch.setattr("generator.cli.generate.run", lambda options: order.append("run") or 0)
    with pytest.raises(SystemExit, match="0"):
        cli.generate_command.main(words)
    assert order == ["begun", "run"][not early :]

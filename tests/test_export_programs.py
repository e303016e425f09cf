"""Programs that use the exported C library, on a driver without a GPU: the examples, a probe of every call, C++ and prefixes."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import ROOT
from exports import AT_LAUNCH, compiled, export_paper, fake_driver, need_compiler, paper_library

from generator.build.emit import emit
from generator.build.toolchain import cuda_include, templates_folder
from generator.errors import LibraryError, RequestError
from generator.export.c_library import ExportOptions, check_name, export, renamed
from generator.export.c_sources import MAX_LISTED_ROW
from generator.store.library import Library
from generator.sweep import sweep
from hgemm.launch import (
    COUNTER_BYTES,
    WORKSPACE_COUNTERS,
    MapDescription,
    counter_bytes,
    grid_x,
    matrices,
    operand_maps,
    starts_early,
)
from hgemm.launch_traits import LaunchTraits
from hgemm.library import Library as OpenLibrary
from hgemm.library import open_library
from hgemm.problem import LAYOUTS, Kind, LaunchOptions, Problem
from hgemm.record import dump
from hgemm.selection import Selector
from hgemm.selection_query import SelectionQuery, Target
from hgemm.workspace import DEFAULT_WORKSPACE_BYTES

EXAMPLE = ROOT / "examples" / "c"
RIGHT = re.compile(r"\d+x\d+x\d+ (\w+): 0 of \d+ elements wrong")
NO_GPU = 77


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the driver is the one without a GPU."""
    need_compiler()
    return {"LD_LIBRARY_PATH": str(fake_driver(tmp_path_factory.mktemp("driver")))}


def run(program: Path, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, timeout=60, env={**os.environ, **env}
    )


def built(source: Path, program: Path, export_folder: Path, *flags: object, name: str = "hgemm") -> Path:
    library = export_folder / "lib" / f"lib{name}.a"
    compiled(*flags, f"-I{export_folder / 'include'}", source, "-o", program, library, "-ldl", "-lpthread")
    return program


@pytest.fixture(scope="module")
def example(paper_export: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("example") / "multiply"
    return built(EXAMPLE / "multiply.c", program, paper_export, "-std=c99", "-pedantic", "-O2")


@pytest.fixture(scope="module")
def probe(paper_export: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that calls everything, with launches that only count."""
    program = tmp_path_factory.mktemp("probe") / "probe"
    return built(ROOT / "tests" / "probe_export.c", program, paper_export, "-std=gnu11", "-O1")


# ---- Programs -------------------------------------------------------------------------------------------------------


def test_example_reports_a_missing_gpu(example: Path, tmp_path: Path) -> None:
    empty = {"LD_LIBRARY_PATH": str(tmp_path)}
    done = run(example, **empty)
    if done.returncode != NO_GPU:
        pytest.skip("there is a GPU here")
    assert done.stdout.startswith("cannot load libcuda.so.1: install") and not done.stderr


@pytest.mark.parametrize("capability", ["80", "86", "89", "90", "100", "120"])
def test_example_products_are_right_on_every_architecture(example: Path, cuda: dict[str, str], capability: str) -> None:
    done = run(example, FAKE_CAPABILITY=capability, **cuda)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 8 and all(map(RIGHT.fullmatch, lines)), done.stdout + done.stderr


@pytest.mark.parametrize("rule", ["multiply", "shared"])
def test_makefile_of_the_example_works(paper_export: Path, cuda: dict[str, str], rule: str, tmp_path: Path) -> None:
    if not shutil.which("make"):
        pytest.skip("no make here")
    folder = shutil.copytree(EXAMPLE, tmp_path / "c")
    subprocess.run(["make", "-s", f"HGEMM={paper_export}", rule], cwd=folder, check=True, capture_output=True)
    assert run(folder / "multiply", **cuda).returncode == 0


def test_devices_without_a_kernel_give_an_error(example: Path, cuda: dict[str, str]) -> None:
    done = run(example, FAKE_CAPABILITY="70", **cuda)
    assert done.returncode == 1 and "no kernel of this library runs on sm_70" in done.stderr
    assert run(example, FAKE_COUNT="0", **cuda).returncode == NO_GPU
    done = run(example, FAKE_FAIL="cuInit", **cuda)
    assert done.returncode == NO_GPU and "cannot start the driver: refused (100)" in done.stdout


@pytest.mark.parametrize("capability", ["80", "90"])
def test_operands_are_passed_to_the_kernel(
    paper_export: Path, paper_library: Library, cuda: dict[str, str], capability: str
) -> None:
    """Every sort of product, ragged, batched, broadcast, with unused elements after rows, and in place."""
    command = [sys.executable, ROOT / "tests" / "export_trials.py", paper_export, paper_library.folder]
    env = {**os.environ, **cuda, "FAKE_CAPABILITY": capability, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = re.fullmatch(r"(\d+) sorts, (\d+) kernels\n", done.stdout)
    assert found and int(found[1]) > 20 and int(found[2]) > 10, done.stdout


def test_c_launches_equal_python_launches(
    example: Path, cuda: dict[str, str], paper_library: Library, tmp_path: Path
) -> None:
    """Grid, threads and shared memory, of one tile a CTA, split-K, and no k at all; and the handle's workspace."""
    run(example, FAKE_LOG=str(tmp_path / "log"), **cuda)
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    launches = [words for words in lines if words[0] == "launch"]
    assert len(launches) == 8
    records = {record.symbol: record.data for record in paper_library.records()}
    splitting = []
    for words in launches:
        traits = LaunchTraits.of(records[words[1]])
        m, n, k, batch = map(int, words[11:15])
        options = LaunchOptions(*map(int, words[16:18]))
        assert [int(words[i]) for i in (3, 5, 7)] == [
            grid_x(traits, m, n, batch, 132 * 2 // traits.cluster_ctas, options),
            traits.threads,
            traits.smem_bytes,
        ]
        assert k > 0 or k == -traits.tile_k
        splitting += [words] if counter_bytes(traits, m, n, batch, options) else []
    assert splitting and len({words[19] for words in splitting}) == 1, "one stream has one workspace"
    zeroed = [int(words[1]) for words in lines if words[0] == "zero"]
    assert zeroed == [WORKSPACE_COUNTERS * COUNTER_BYTES] * 2, "that of the stream, and one in reserve"


def test_a_large_product_has_a_cta_for_each_tile(
    probe: Path, cuda: dict[str, str], paper_library: Library, tmp_path: Path
) -> None:
    """Only persistent kernels have no more CTAs than the device holds, here 2 an SM of 132."""
    log = tmp_path / "log"
    assert run(probe, "maps", FAKE_LAZY="1", FAKE_CAPABILITY="80", FAKE_LOG=str(log), **cuda).returncode == 0
    words = next(line.split() for line in log.read_text().splitlines() if line.startswith("launch"))
    (record,) = (record for record in paper_library.records() if record.symbol == words[1])
    traits = LaunchTraits.of(record.data)
    assert not traits.persistent and not traits.max_ctas
    options = LaunchOptions(*map(int, words[16:18]))
    assert int(words[3]) == grid_x(traits, 4096, 8192, 3, 132 * 2, options) > 132 * 2


@pytest.mark.parametrize("ctas_per_sm", [1, 3])
def test_stream_k_launch_equals_python(cuda: dict[str, str], tmp_path: Path, ctas_per_sm: int) -> None:
    """All CTAs that the device holds, 2 an SM of 132 here, but no more than the workspace is for; then counters for each tile."""
    texts = {"arch": "sm_80", "tile": "32x32x32", "schedule": "stream_k", "ctas_per_sm": str(ctas_per_sm)}
    kernels = [emit(plan, templates_folder()) for plan in sweep([texts]).plans]
    library = paper_library(tmp_path / "library", kernels)
    command = [
        sys.executable,
        ROOT / "tests" / "export_trials.py",
        export_paper(library, tmp_path / "c"),
        library.folder,
    ]
    log = tmp_path / "log"
    env = {**os.environ, **cuda, "FAKE_CAPABILITY": "80", "FAKE_LOG": str(log), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=env, timeout=300)
    assert done.stdout == "1 sorts, 1 kernels\n", done.stdout + done.stderr[-2000:]
    (record,) = library.records()
    traits = LaunchTraits.of(record.data)
    lines = [line.split() for line in log.read_text().splitlines()]
    launches = [words for words in lines if words[0] == "launch"]
    assert (
        {int(words[3]) for words in launches} == {min(132 * 2, 108 * ctas_per_sm)} == {grid_x(traits, 1, 1, 1, 132 * 2)}
    )
    sizes = [[int(words[i]) for i in (11, 12, 14)] for words in launches]
    zeroed = [int(words[1]) for words in lines if words[0] == "zero"]
    assert zeroed and zeroed == [counter_bytes(traits, *size) for size in sizes]


LAUNCH_ONE = """
import sys
from pathlib import Path
from exports import ByC, loaded
from hgemm.launch_traits import LaunchTraits
from hgemm.library import Library as OpenLibrary
from hgemm.library import open_library
from hgemm.problem import Problem

(record,) = open_library(sys.argv[2]).records.values()
m, n, k = map(int, sys.argv[3:])
place = 1 << 40
problem = Problem(m, n, k, a=place, b=2 * place, d=3 * place, workspace=4 * place, lda=k, ldb=k, ldd=n)
ByC(loaded(Path(sys.argv[1])), LaunchTraits.of(record.data)).launch(problem, workspace_size=1 << 25)
"""


@pytest.mark.parametrize("cluster", ["1x1", "2x1"])
def test_whole_tiles_of_a_launch_count_clusters(cuda: dict[str, str], tmp_path: Path, cluster: str) -> None:
    """The kernel gets the options that Python selects, here with tiles that are not split and a tail of tiles that are."""
    texts = {**AT_LAUNCH, "arch": "sm_90a", "tile": "128x128x64", "cluster": cluster}
    kernels = [emit(plan, templates_folder()) for plan in sweep([texts]).plans]
    library = paper_library(tmp_path / "library", kernels)
    selector = Selector(open_library(library.folder).table, Target.typical("sm_90"))
    m, n, k = 2304, 2304, 4096
    problem = Problem(m, n, k, lda=k, ldb=k, ldd=n)
    options = selector.find(SelectionQuery.of(Kind(), problem, 1 << 25)).options
    assert options.splits > 1 and options.whole_tiles > 0
    log = tmp_path / "log"
    env = {**os.environ, **cuda, "FAKE_CAPABILITY": "90", "FAKE_LOG": str(log), "FAKE_LAZY": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command = [sys.executable, "-c", LAUNCH_ONE, export_paper(library, tmp_path / "c"), library.folder, m, n, k]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
    (launch,) = (line.split() for line in log.read_text().splitlines() if line.startswith("launch"))
    assert LaunchOptions(*map(int, launch[16:18]), options.raster_tiles) == options
    (record,) = open_library(library.folder).records.values()
    traits = LaunchTraits.of(record.data)
    assert int(launch[3]) == grid_x(traits, m, n, 1, 132 * 2 // traits.cluster_ctas, options)


def test_failures_release_all_resources(probe: Path, cuda: dict[str, str]) -> None:
    for entry in ("", "cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernelEx", "cuMemsetD8Async"):
        done = run(probe, "lifetime", FAKE_FAIL=entry, FAKE_LAZY="1", **cuda)
        words = done.stdout.split()
        assert done.returncode == 0 and words[:2] == ["live", "0"], done.stdout + done.stderr
        assert (words[3] == "0") == (entry in ("", "cuMemsetD8Async")), done.stdout


def test_context_of_the_thread_is_restored(probe: Path, cuda: dict[str, str]) -> None:
    done = run(probe, "context", FAKE_LAZY="1", **cuda)
    assert done.stdout == "none before, none after\nmine before, mine after\nno context: 3\n", done.stdout + done.stderr


def test_threads_load_a_kernel_once(probe: Path, cuda: dict[str, str], tmp_path: Path) -> None:
    done = run(probe, "threads", FAKE_LAZY="1", FAKE_LOG=str(tmp_path / "log"), **cuda)
    words = [line.split()[0] for line in (tmp_path / "log").read_text().splitlines()]
    assert done.returncode == 0 and words.count("load") == 1 and words.count("launch") == 8 * 100


def test_threads_do_not_race(paper_export: Path, tmp_path: Path) -> None:
    """Eight threads that first meet a kernel at once, and the driver below them, under the thread sanitizer."""
    flags = [need_compiler(), "-std=gnu11", "-O1", "-fsanitize=thread", "-ldl", "-lpthread", "-lm"]
    defines = [f"-I{paper_export / 'include'}", f'-DHGEMM_IMAGES="{paper_export / "src" / "images.bin"}"']
    sources = [ROOT / "tests" / "probe_export.c", *sorted((paper_export / "src").glob("*.c"))]
    driver = [ROOT / "tests" / "fake_libcuda.c", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1"]
    for command in ([*flags, *driver], [*flags, *defines, *sources, "-o", tmp_path / "probe"]):
        done = subprocess.run(command, capture_output=True, text=True)
        if "tsan" in done.stderr:
            pytest.skip("this C compiler has no thread sanitizer")
        assert done.returncode == 0, done.stderr
    for act in ("threads", "thread_workspaces"):
        done = run(tmp_path / "probe", act, FAKE_LAZY="1", LD_LIBRARY_PATH=str(tmp_path))
        assert done.returncode == 0 and not done.stderr, done.stderr[:2000]


def test_no_function_needs_a_stack_that_grows_with_the_library(paper_export: Path, tmp_path: Path) -> None:
    """Compiled for as many kernels as a table names: threads may have stacks of 128 KiB."""
    table = (paper_export / "src" / "table.h").read_text()
    (tmp_path / "table.h").write_text(re.sub(r"(HGEMM_(?:ROW|SURVEY)_COUNT) \d+", rf"\1 {MAX_LISTED_ROW}", table))
    includes = (f"-I{tmp_path}", f"-I{paper_export / 'include'}")
    for source in sorted((templates_folder() / "capi" / "src").glob("*.c")):
        if source.name == "images.c":
            continue  # which has no function
        compiled("-std=gnu11", "-Wframe-larger-than=16384", *includes, "-c", source, "-o", tmp_path / "out.o")


def test_kernel_list_matches_the_library(probe: Path, paper_library: Library) -> None:
    listed = [line.split() for line in run(probe, "list").stdout.splitlines()]
    records = {record.symbol: record.data for record in paper_library.records()}
    assert sorted(words[0] for words in listed) == sorted(records)
    for symbol, arch, tile, align in listed:
        spec = records[symbol]["spec"]
        traits = LaunchTraits.of(records[symbol])
        assert (arch, tile) == (spec["arch"], f"{traits.tile_m}x{traits.tile_n}x{traits.tile_k}")
        assert align == f"{traits.align_a}{traits.align_b}{traits.align_d}"


def test_bad_input_gives_a_status_and_a_message(probe: Path, cuda: dict[str, str]) -> None:
    done = run(probe, "bad", FAKE_LAZY="1", **cuda)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) > 20
    for line in lines:
        wanted, found, message = line.split("|")
        assert wanted == found and len(message) > 10, line


def test_a_damaged_image_is_rejected(paper_export: Path, cuda: dict[str, str], tmp_path: Path) -> None:
    copied = Path(shutil.copytree(paper_export, tmp_path / "damaged"))
    path = copied / "src" / "images.bin"
    blob = path.read_bytes()
    (shared,) = (copied / "lib").glob("libhgemm.so.*")
    content = shared.read_bytes()
    assert content.count(blob) == 1
    shared.write_bytes(content.replace(blob, bytes(len(blob))))
    program = tmp_path / "probe"
    compiled(
        *("-std=gnu11", f"-I{copied / 'include'}", ROOT / "tests" / "probe_export.c", "-o", program),
        *(f"-L{copied / 'lib'}", "-lhgemm", f"-Wl,-rpath,{copied / 'lib'}", "-ldl", "-lpthread"),
    )
    done = run(program, "lifetime", FAKE_LAZY="1", **cuda)
    assert done.stdout.split()[:4] == ["live", "0", "status", "16"], done.stdout + done.stderr
    assert "is corrupt (its CRC-32 differs)" in done.stdout


def test_tensor_maps_are_encoded_as_python_encodes_them(probe: Path, cuda: dict[str, str], tmp_path: Path) -> None:
    """A, B and D of a batch, B the same for all: one layer, and strides in bytes. Then 8 rows, adjacent or not."""
    done = run(probe, "maps", FAKE_LAZY="1", FAKE_LOG=str(tmp_path / "log"), **cuda)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "log").read_text().splitlines()
    maps = [line for line in lines if line.startswith("map")]
    assert len(maps) == 3 * (1 + 1 + 5 + 2), (
        "the second launch of the same problem encodes nothing; other strides need other maps"
    )
    promotions = [int(line.rpartition(" ")[2]) for line in maps[:6]]
    assert promotions == [3, 3, 3, 3, 2, 3], "L2 promotes to 256 bytes only if rows start at multiples of them"
    told = [
        re.fullmatch(r"map type 6 rank 3 extents (.*) strides (.*) box (.*) swizzle \d l2 3", line) for line in maps[:3]
    ]
    assert [match[1] for match in told] == ["2048 4096 3", "2048 8192 1", "8192 4096 3"]
    assert [match[2] for match in told] == ["4096 16777216", "4096 4096", "16384 67108864"]
    launch = next(line.split() for line in lines if line.startswith("launch"))
    assert "_sm90a_" in launch[1] and int(launch[3]) <= 132
    few = [re.sub(r" swizzle.*", "", line).partition("extents ")[2] for line in (maps[-6], maps[-4], maps[-3])]
    assert few == [
        "64 4096 1 strides 16 16 box 64 128 1 step 8",
        "8192 8 1 strides 16384 16384 box 64 8 1 step 1",
        "8 4096 1 strides 32 32 box 8 128 1 step 1",
    ]


@pytest.mark.parametrize("rejects_overlap", [0, 1])
def test_edge_maps_are_encoded_as_python_encodes_them(
    probe: Path, paper_library: Library, cuda: dict[str, str], tmp_path: Path, rejects_overlap: int
) -> None:
    """Of operands that are contiguous along m and n, with and without a gap between rows."""
    asked = {"FAKE_REJECT_OVERLAP": str(rejects_overlap)}
    done = run(probe, "edges", FAKE_LAZY="1", FAKE_LOG=str(tmp_path / "log"), **asked, **cuda)
    assert done.returncode == 0, done.stdout + done.stderr
    log = (tmp_path / "log").read_text()
    expected = []
    for lda, symbol in zip((200, 208), re.findall(r"^launch (\w+)", log, re.MULTILINE), strict=True):
        traits = LaunchTraits.of(paper_library.load(symbol).record.data)
        assert traits.map_count == 7
        given = Problem(200, 2000, 512, lda=lda, ldb=lda + 1800, ldd=2000)
        maps = [one for of in operand_maps(traits, matrices(given, traits)).values() for one in of if one]
        for one in maps:
            told = MapDescription.of(one.rule, one.extents, one.strides, overlaps=not rejects_overlap)
            expected += [(*(" ".join(map(str, of)) for of in (told.extents, told.strides, told.box)),)]
    assert re.findall(r"^map .* extents (.*?) strides (.*?) box (.*?) step", log, re.MULTILINE) == expected


def test_blas_arguments_multiply(paper_export: Path, cuda: dict[str, str], tmp_path: Path) -> None:
    program = built(ROOT / "tests" / "gemm_ex.c", tmp_path / "gemm_ex", paper_export, "-std=c99", "-pedantic")
    done = run(program, FAKE_CAPABILITY="80", **cuda)
    assert done.stdout == "0 0 0 0 0 0 0 0 0 5 5 7 11\n", done.stdout + done.stderr


# ---- The handle's workspaces ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """The result of a sequence of calls of the C library. `log` has the driver's calls, by their first word."""

    statuses: list[int]
    splits: list[int]
    messages: list[str]
    log: list[list[str]]
    live: int

    def count(self, word: str) -> int:
        return sum(words[0] == word for words in self.log)

    @property
    def workspaces(self) -> list[int]:
        """The address of the workspace of each launch."""
        return [int(words[19], 16) for words in self.log if words[0] == "launch"]

    @property
    def programmatic(self) -> list[int]:
        """The number of launch attributes of each launch."""
        return [int(words[21]) for words in self.log if words[0] == "launch"]


@pytest.fixture
def told(probe: Path, cuda: dict[str, str], tmp_path: Path) -> Callable[..., Told]:
    """Make the calls that a text names, in a new handle."""

    def calls(text: str, **env: str) -> Told:
        log = tmp_path / "log"
        log.write_text("")
        env = {**os.environ, **cuda, "FAKE_LAZY": "1", "FAKE_LOG": str(log), **env}
        done = subprocess.run([probe, "workspaces"], input=text, capture_output=True, text=True, env=env, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        *lines, last = [line.split(" ", 3) for line in done.stdout.splitlines()]
        words = [line.split() for line in log.read_text().splitlines()]
        return Told(
            [int(line[1]) for line in lines],
            [int(line[2]) for line in lines if line[0] == "select"],
            [line[3] for line in lines if line[3]],
            words,
            int(last[1]),
        )

    return calls


OUT_OF_MEMORY, CAPTURE, BAD_WORKSPACE = 18, 19, 14


def test_a_call_without_a_workspace_splits_k(told: Callable[..., Told]) -> None:
    """It takes the workspace of its stream. The first call allocates it, and a capture its own. Counters stay zero."""
    made = told("select run run stream=16 run run stream=0 run")
    assert not any(made.statuses) and made.splits[0] > 1 and made.live == 0
    first, second, third, fourth, fifth = made.workspaces
    assert first == second == fifth != third == fourth
    assert [words[1] for words in made.log if words[0] == "alloc"] == [str(DEFAULT_WORKSPACE_BYTES)] * 3
    assert made.count("zero") == 3 and made.log[-4][0] == "launch", "four workspaces are freed"
    assert all(words[21] == "1" for words in made.log if words[0] == "launch" and "sm90" in words[1])


def test_no_workspace_is_allocated_before_a_kernel_needs_one(told: Callable[..., Told]) -> None:
    assert told("select").count("alloc") == 0
    assert told("limit=1 select run").count("alloc") == 0


def test_capture_has_its_own_workspace_and_never_allocates(told: Callable[..., Told]) -> None:
    made = told("stream=16 run capture=16 run run capture=0 run")
    assert not any(made.statuses) and made.live == 0
    eager, *captured, after = made.workspaces
    assert len({*captured}) == 1 and eager == after != captured[0]
    assert made.count("alloc") == 2
    made = told("prepare prepare stream=16 capture=16 run")
    assert not any(made.statuses) and made.count("alloc") == 1


def test_a_captured_launch_begins_early_only_after_a_kernel_of_the_handle(told: Callable[..., Told]) -> None:
    foreign, memset = "after=0", "after=2"
    text = f"stream=16 run capture=16 run run run {foreign} run {memset} run run join run capture=0 run"
    made = told(text)
    assert not any(made.statuses)
    assert made.programmatic == [1, 0, 1, 1, 0, 0, 1, 0, 1]
    assert all(told(text, FAKE_FAIL="cuStreamGetCaptureInfo_v3").programmatic), "as in a driver before CUDA 12.3"


def test_a_launch_begins_early_unless_it_would_be_spread_unevenly(told: Callable[..., Told]) -> None:
    """Each SM holds one CTA. A launch waits if it fills less than 4/5 of the SMs, but more than half."""
    seen = set()
    for sms in (32, 40, 41, 50, 63, 64, 79, 80, 132, 264, 528):
        made = told("run", FAKE_SMS=str(sms), FAKE_CTAS="1")
        (launch,) = (words for words in made.log if words[0] == "launch")
        ctas = int(launch[3])  # selection chooses it, also by the number of SMs
        assert made.programmatic == [not sms / 2 < ctas < sms * 4 / 5], (sms, ctas)
        seen.add((made.programmatic[0], ctas * 2 > sms))
    assert seen == {(0, True), (1, True), (1, False)}, "each part of the rule was asked for"


CLUSTERS = {"tn": "1x2", "nn": "2x1", "nt": "1x4", "tt": "2x4"}


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> tuple[OpenLibrary, Path]:
    """A library with clusters of another shape for each layout, and the probe of its export."""
    folder = tmp_path_factory.mktemp("clusters")
    texts = {**AT_LAUNCH, "arch": "sm_90a", "tile": "128x64x64", "acc": "f32", "out": "f16"}
    asked = [{**texts, "layout": layout, "cluster": cluster} for layout, cluster in CLUSTERS.items()]
    kernels = [emit(plan, templates_folder()) for plan in sweep(asked).plans]
    exported = export_paper(paper_library(folder / "library", kernels), folder / "export")
    program = built(ROOT / "tests" / "probe_export.c", folder / "probe", exported, "-std=gnu11", "-O1")
    return open_library(folder / "library"), program


def test_c_and_python_agree_on_early_launches(
    clusters: tuple[OpenLibrary, Path], cuda: dict[str, str], tmp_path: Path
) -> None:
    """Pairs of CTAs in one wave, with a long k, wait, unless D has one row or column of them."""
    library, program = clusters
    cases = [*itertools.product((128, 1024, 4096), (128, 1024), (64, 4096, 16384), (1, 2), CLUSTERS)]
    texts = (f"m={m} n={n} k={k} batch={b} layout={LAYOUTS.index(layout)} run" for m, n, k, b, layout in cases)
    log = tmp_path / "log"
    env = {**os.environ, **cuda, "FAKE_LAZY": "1", "FAKE_LOG": str(log)}
    subprocess.run([program, "workspaces"], input=" ".join(texts), env=env, text=True, timeout=60, check=True)
    launches = [line.split() for line in log.read_text().splitlines() if line.startswith("launch")]
    early = set()
    for words, (m, n, k, batch, layout) in zip(launches, cases, strict=True):
        traits, options = library.kernel(words[1]).traits, LaunchOptions(int(words[16]), int(words[17]))
        assert traits.layout == layout
        resident = 132 // 2 * traits.cluster[0]  # of the driver without a GPU
        assert int(words[3]) == grid_x(traits, m, n, batch, resident, options)
        expected = starts_early(traits, Problem(m, n, k, batch, options=options), resident)
        assert int(words[21]) == expected, (m, n, k, batch, layout)
        early.add((layout, expected))
    assert early >= {*itertools.product(("tn", "nn"), (False, True)), ("nt", True), ("tt", True)}
    assert ("tt", False) not in early, "large clusters always begin early"


def test_capture_without_a_workspace_names_the_fix(told: Callable[..., Told]) -> None:
    made = told("run stream=16 capture=16 run stream=32 capture=32 run capture=0 prepare capture=32 run")
    assert [status for status in made.statuses if status] == [CAPTURE]
    assert "before the capture, call hgemm_prepare" in made.messages[0]
    assert len({*made.workspaces}) == 3
    made = told("reserve=2 select prepare stream=16 capture=16 run stream=32 capture=32 run")
    assert not any(made.statuses) and made.count("alloc") == 2
    made = told("reserve=32 reserve=33")
    assert made.statuses == [0, BAD_WORKSPACE] and "a handle has 32 at most" in made.messages[0]


def test_a_thread_may_allocate_while_another_captures(told: Callable[..., Told]) -> None:
    made = told("stream=16 capture=32 run")
    assert not any(made.statuses) and made.count("alloc") == 2


def test_a_new_stream_with_an_old_handle_gets_another_workspace(told: Callable[..., Told]) -> None:
    """The work of a destroyed stream may still run."""
    made = told("stream=16 run new_streams run")
    assert len({*made.workspaces}) == 2
    made = told("stream=16 run capture=16 run capture=0 new_streams run capture=16 run run")
    assert not any(made.statuses) and len({*made.workspaces}) == 4
    made = told("stream=16 set=0x700000000 new_streams run capture=16 run")
    assert not any(made.statuses) and 0x700000000 not in made.workspaces


def test_streams_beyond_the_limit_allocate_in_stream_order(told: Callable[..., Told]) -> None:
    made = told(" ".join(f"stream={16 * i} select run" for i in range(1, 37)))
    assert not any(made.statuses) and len({*made.splits}) == 1 and made.live == 0
    assert made.count("alloc") == 32 and made.count("alloc-async") == made.count("free-async") == 4
    late = made.log[[words[0] for words in made.log].index("alloc-async") :]
    assert [words[0] for words in late[:4]] == ["alloc-async", "zero", "launch", "free-async"]


@pytest.mark.parametrize("text", ["size=0 select run prepare", "limit=1 select run", "pass=16 select run"])
def test_without_a_workspace_only_kernels_that_need_none_are_selected(told: Callable[..., Told], text: str) -> None:
    made = told(text)
    assert not any(made.statuses) and made.splits == [1] and made.count("alloc") == 0


def test_another_size_replaces_the_workspaces(told: Callable[..., Told]) -> None:
    made = told("run size=1048576 select run limit=67108864 run prepare")
    assert not any(made.statuses) and made.splits[0] > 1 and made.live == 0
    sizes = [words[1] for words in made.log if words[0] == "alloc"]
    assert sizes == [str(DEFAULT_WORKSPACE_BYTES)] * 2 + ["1048576"] * 2
    order = [words[0] for words in made.log if words[0] in ("alloc", "free")]
    assert order == ["alloc"] * 2 + ["free"] * 2 + ["alloc"] * 2 + ["free"] * 2


def test_workspace_of_the_caller_is_used(told: Callable[..., Told]) -> None:
    made = told("stream=16 set=0x700000000 run capture=16 run capture=0 stream=32 run stream=16 set=0 run")
    assert not any(made.statuses) and made.live == 0
    first, captured, other, again = made.workspaces
    assert first == captured == 0x700000000 and len({first, other, again}) == 3
    made = told(
        "stream=16 set=0x700000008 bytes=1024 set=0x700000000 size=1024 set=0x700000000 capture=16 set=0x700000000"
    )
    assert [status for status in made.statuses if status] == [BAD_WORKSPACE, BAD_WORKSPACE, CAPTURE]
    assert "is not a multiple of 16 bytes" in made.messages[0] and "has 1024 bytes" in made.messages[1]
    made = told("set=0x300000000 run")
    assert made.statuses[-1] == 13 and "D overlaps the workspace" in made.messages[0]


def test_out_of_memory_gives_a_status(told: Callable[..., Told]) -> None:
    made = told("run size=0 run", FAKE_FAIL="cuMemAlloc_v2")
    assert made.statuses == [OUT_OF_MEMORY, 0, 0] and "hgemm_set_workspace_size" in made.messages[0] and made.live == 0
    made = told("run", FAKE_FAIL="cuMemsetD8Async")
    assert made.statuses == [17] and made.live == 0


# ---- C++, prefixes, sources -----------------------------------------------------------------------------------------


def test_the_headers_are_c99_and_cpp17(paper_export: Path, cuda: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "header.c").write_text('#include "hgemm.h"\nint main(void) { return HGEMM_OK; }\n')
    compiled("-std=c99", "-pedantic", f"-I{paper_export / 'include'}", "-fsyntax-only", tmp_path / "header.c")
    if not shutil.which("c++"):
        pytest.skip("no C++ compiler, c++, here")
    program = tmp_path / "cpp"
    library = paper_export / "lib" / "libhgemm.a"
    command = ["c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{paper_export / 'include'}"]
    source = ROOT / "tests" / "probe_export.cpp"
    done = subprocess.run(
        [*command, source, "-o", program, library, "-ldl", "-lpthread"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert run(program, FAKE_LAZY="1", **cuda).stdout == "launched\nHGEMM_ERROR_LEADING_DIMENSION\n"


@pytest.mark.parametrize("page", ["tutorial.md", "how-to/link.md"])
def test_the_code_of_the_documentation_compiles(paper_export: Path, tmp_path: Path, page: str) -> None:
    snippets = re.findall(r"```c\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    assert snippets
    for number, snippet in enumerate(snippets):
        lines = snippet.splitlines()
        includes = ["#include <stdio.h>", *(line for line in lines if line.startswith("#"))]
        body = [line for line in lines if not line.startswith("#")]
        head = "int call(void *x, void *w, void *bias, void *residual, void *y, void *stream) {"
        unused = "(void)x, (void)w, (void)bias, (void)residual, (void)y, (void)stream;"
        unused += "\nreturn 0;\n}\nint main(void) { return 0; }\n"
        source = tmp_path / f"snippet{number}.c"
        source.write_text("\n".join([*includes, head, *body, unused]))
        built(source, tmp_path / f"snippet{number}", paper_export, "-std=c99", "-pedantic")


def test_deprecated_names_still_compile_with_a_warning(paper_export: Path, tmp_path: Path) -> None:
    (tmp_path / "old.c").write_text(
        '#include "hgemm.h"\n'
        "int main(void) {\n"
        "  hgemm_problem p;\n  hgemm_choice choice = {0};\n  hgemm_variant v = {0};\n"
        "  hgemm_type type = HGEMM_BF16;\n  hgemm_accumulation accumulation = HGEMM_ACC_F16;\n"
        "  hgemm_problem_init(&p);\n"
        "  p.type_a = p.type_b = p.type_d = type, p.accumulation = accumulation, p.activation = HGEMM_SILU;\n"
        "  return p.size != sizeof p || p.dtype_d != HGEMM_BF16 || p.acc != HGEMM_ACC_F16 || choice.clocks\n"
        "         || choice.variant || v.adds_c\n"
        "         || HGEMM_RELU != HGEMM_ACTIVATION_RELU || HGEMM_GELU != HGEMM_ACTIVATION_GELU;\n}\n"
    )
    program, library = tmp_path / "old", paper_export / "lib" / "libhgemm.a"
    command = [need_compiler(), "-Wall", "-Wextra", "-pedantic", "-std=c99", f"-I{paper_export / 'include'}"]
    done = subprocess.run(
        [*command, tmp_path / "old.c", "-o", program, library, "-ldl", "-lpthread"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "use dtype_a" in done.stderr, done.stderr
    assert run(program).returncode == 0


def test_two_exports_link_into_one_program(
    small_library: Library, paper_export: Path, cuda: dict[str, str], tmp_path: Path
) -> None:
    other = export_paper(small_library, tmp_path / "other", name="mygemm")
    (tmp_path / "both.c").write_text(
        '#include <stdio.h>\n#include "hgemm.h"\n#include "mygemm.h"\n'
        "int main(void) {\n"
        "  hgemm_handle *one;\n  mygemm_handle *two;\n"
        "  if (hgemm_create(&one, 0) != HGEMM_OK || mygemm_create(&two, 0) != MYGEMM_OK) return 1;\n"
        '  printf("%zu %zu\\n", hgemm_list(NULL, 0), mygemm_list(NULL, 0));\n'
        "  hgemm_destroy(one), mygemm_destroy(two);\n  return 0;\n}\n"
    )
    libraries = (paper_export / "lib" / "libhgemm.a", other / "lib" / "libmygemm.a")
    include = (f"-I{paper_export / 'include'}", f"-I{other / 'include'}")
    compiled(*include, tmp_path / "both.c", "-o", tmp_path / "both", *libraries, "-ldl", "-lpthread")
    done = run(tmp_path / "both", **cuda)
    rows = len(json.loads((paper_export / "table.json").read_text())["rows"])
    assert (done.returncode, done.stdout) == (0, f"{rows} 4\n"), done.stderr
    texts = [path for path in other.rglob("*") if path.suffix in (".h", ".c", ".hpp", ".txt", ".cmake", ".pc")]
    left = {path.name: re.findall(r"(?i)\bhgemm(?!_sm)\w*", path.read_text()) for path in texts}
    assert not any(left.values()), left


@pytest.mark.parametrize("name", ["", "Mine", "9lives", "a-b", "a" * 33, "std", "namespace", "é", "mine_"])
def test_illegal_prefix_is_rejected(name: str) -> None:
    with pytest.raises(RequestError, match="is (not a valid name|reserved): "):
        check_name(name)


def test_renaming_keeps_case() -> None:
    assert renamed("hgemm_run HGEMM_OK libhgemm hgemm::hgemm", "mine") == "mine_run MINE_OK libmine mine::mine"


def test_the_source_form_compiles_from_its_own_folder(small_library: Library, tmp_path: Path) -> None:
    """NVRTC gets nothing but the exported files and the CUDA toolkit's headers."""
    from cuda.bindings import nvrtc

    library = open_library(small_library.folder)
    export(
        library,
        tmp_path / "export",
        ExportOptions(library.symbols[:1], compressed=False, sources=True, compiler="absent"),
    )
    source = tmp_path / "export" / "source"
    (instance,) = (source / "instances").iterdir()
    folders = (source / "include", source / "include" / "cute_lean", cuda_include(), cuda_include() / "cccl")
    options = [
        b"--std=c++17",
        b"--gpu-architecture=compute_80",
        *(f"--include-path={path}".encode() for path in folders),
    ]
    status, program = nvrtc.nvrtcCreateProgram(instance.read_bytes(), b"kernel.cu", 0, [], [])
    assert int(status) == 0
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = bytes(nvrtc.nvrtcGetProgramLogSize(program)[1])
    nvrtc.nvrtcGetProgramLog(program, log)
    assert int(status) == 0, log.decode()
    launches = json.loads((source / "launch.json").read_text())
    assert launches[instance.stem] == library.records[instance.stem].data["launch"]


def test_outdated_header_is_reported(small_library: Library, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(small_library.folder, tmp_path / "library"))
    symbol = open_library(folder).symbols[0]
    path = folder / symbol / "record.json"
    record = json.loads(path.read_text())
    record["inputs"]["common/problem.cuh"] = hashlib.sha256(b"older").hexdigest()
    path.write_text(dump(record))
    with pytest.raises(LibraryError, match="was compiled with a different common/problem.cuh than the installed one"):
        export(open_library(folder), tmp_path / "export", ExportOptions([symbol], sources=True, compressed=False))

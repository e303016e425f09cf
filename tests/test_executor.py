"""The CPU executor: each rule finds a kernel that violates it, and each content is built once."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from atom_runs import translatable
from conftest import ROOT

from generator.build.toolchain import templates_folder
from generator.errors import BuildError, LibraryError, ProofError
from generator.proof import executor as abi
from generator.proof import proving
from generator.proof.executor import (
    Adversary,
    EmulatedTensorMap,
    Executable,
    HostCompiler,
    HostToolchain,
    Launch,
    NoCompiler,
    Region,
    Report,
    add_to_cache,
    cache_folder,
    cached,
    find_compiler,
    includes_of,
    includes_of_file,
    require_working,
    temporary_file,
    trim,
)
from generator.store.files import temporary_name
from hgemm.errors import DeviceError
from hgemm.object_cache import get_or_build, seal

SOURCE = (ROOT / "tests" / "executor_rules.cu").read_text()
RULES = re.findall(r"\bDO\((\w+)\)", SOURCE)
SHARED_BYTES = 8192 + 16384 + 4096 + 1024
ALL = [
    Adversary(timing, order, seed)
    for timing in abi.TIMINGS
    for order in abi.ORDERS
    for seed in ((1, 2, 3) if timing == "any_time" or order == "any_order" else (1,))
]
READ, BOTH = abi.READABLE | abi.INITIALISED, abi.READABLE | abi.WRITABLE

EXPECTED = {
    "neighbours_of_a_cta": {"race", "uninitialised", "poison"},
    "neighbours_of_a_warp": {"race"},
    "overwritten_while_read": {"race"},
    "halves_of_a_word": {"race"},
    "a_barrier_for_all": {"deadlock"},
    "a_collective_for_all": {"divergence"},
    "fragments_of_a_warp": {"wmma"},
    "fragments_aligned": {"wmma"},
    "named_barriers": {"divergence", "deadlock", "race"},
    "whole_warps": {"divergence"},
    "fences_between_ctas": {"race"},
    "endless": {"endless"},
    "initialised": {"uninitialised", "poison"},
    "inside_shared": {"bounds"},
    "inside_global": {"bounds", "poison"},
    "allowed": {"bounds"},
    "aligned": {"alignment", "poison"},
    "once": {"write_once"},
    "always": {"write_once"},
    "set": {"poison"},
    "copies_awaited": {"race", "poison"},
    "copies_finished": {"pending"},
    "copies_arrived": {"race", "poison"},
    "stores_of_copies_fenced": {"proxy"},
    "boxes_awaited": {"race", "uninitialised", "poison", "pending"},
    "too_many_expected": {"deadlock"},
    "too_few_expected": {"deadlock"},
    "barriers_fenced": {"mbarrier"},
    "barriers_begun": {"race", "mbarrier"},
    "arrivals_counted": {"mbarrier"},
    "missing_arrival": {"deadlock"},
    "phases_awaited": {"mbarrier"},
    "boxes_reused": {"race", "poison", "deadlock"},
    "reads_fenced": {"proxy"},
    "boxes_aligned": {"alignment"},
    "stores_fenced": {"proxy"},
    "stores_awaited": {"race"},
    "stores_within_rows": {"bounds"},
    "products_fenced": {"wgmma"},
    "products_awaited": {"poison", "wgmma"},
    "operands_kept": {"race"},
    "registers_handed_over": {"deadlock"},
    "cluster_waits": {"divergence", "race", "uninitialised", "poison"},
    "cluster_reads": {"race", "cluster"},
    "cluster_outlives": {"cluster"},
    "launches_awaited": {"launch"},
    "scope_of_arrivals": {"race"},
    "scope_of_waits": {"race"},
    "overwritten_in_cluster": {"race"},
    "async_stores_awaited": {"race", "pending"},
    "async_stores_expected": {"mbarrier", "deadlock", "race", "poison", "pending"},
}
"""Allowed findings for a violated rule. At least one must be found with any adversary, and no other."""
IN_CLUSTER = (
    *("cluster_waits", "cluster_reads", "cluster_outlives", "scope_of_arrivals", "scope_of_waits"),
    *("overwritten_in_cluster", "async_stores_awaited", "async_stores_expected"),
)
GRIDS = {"fences_between_ctas": (4, 1), **dict.fromkeys(IN_CLUSTER, (2, 2))}
THREADS = {"registers_handed_over": 384}


@dataclass(frozen=True)
class Memory:
    """The arrays of a launch, with as much poison after each as it has elements."""

    arrays: dict[str, np.ndarray]

    @classmethod
    def fresh(cls) -> Memory:
        arrays = {}
        for name, words in (("in", 256), ("out", 1024), ("scratch", 1025)):
            block = np.full(words * 2 + 64, 0xFFFFFFFF, np.uint32)
            first = -block.ctypes.data % 128 // 4
            arrays[name] = block[first : first + words]
        arrays["in"][:] = np.arange(256) + 2
        arrays["scratch"][0] = 0
        return cls(arrays)

    def region(self, name: str, first: int, words: int, flags: int, rows: int = 1, pitch: int = 0) -> Region:
        """Return rows of so many words, `pitch` words apart."""
        return Region(name, self.arrays[name].ctypes.data + first * 4, rows, words * 4, pitch * 4, 1, 0, 4, flags)


def run(executable: Executable, rule: str, fault: bool, adversary: Adversary, memory: Memory | None = None) -> Report:
    memory = memory or Memory.fresh()
    ctas, cluster = GRIDS.get(rule, (1, 1))
    threads = THREADS.get(rule, 128)
    stores = rule.startswith("stores")
    at = {name: array.ctypes.data for name, array in memory.arrays.items()}
    parameters = struct.pack("<2I3Q", RULES.index(rule), fault, at["in"], at["out"], at["scratch"])
    columns = 15 if rule == "stores_within_rows" else 16
    tensor = EmulatedTensorMap(
        base=at["out" if stores else "in"],
        extent=(columns, 64 if stores else 16, 1, 0, 0),
        stride_bytes=(64, 4096, 0, 0),
        box=(16, 64, 1, 0, 0),
        rank=3,
        element_bytes=4,
        swizzle=0,
        magic=abi.TENSOR_MAP_MAGIC,
    )
    rows, words = (64, columns) if stores else (1, ctas * threads)
    regions = (
        memory.region("in", 0, 128 if rule == "inside_global" else 256, READ),
        memory.region("out", 0, words, abi.WRITABLE | abi.WRITE_ONCE, rows, pitch=16),
        memory.region("scratch", 0, 1, BOTH | abi.INITIALISED),
        memory.region("scratch", 1, 1024, BOTH),
    )
    launch = Launch(
        (ctas, 1, 1), (cluster, 1, 1), threads, SHARED_BYTES, (parameters, bytes(tensor)), regions, 0, 20_000
    )
    return executable.run(launch, adversary)


@pytest.fixture(scope="session")
def rules(host_toolchain: HostToolchain) -> Executable:
    ptx = translatable(SOURCE, "executor_rules")
    return Executable(host_toolchain.executable("executor_rules", ptx), ptx)


def test_every_rule_has_its_kernels() -> None:
    assert RULES == list(EXPECTED)


@pytest.mark.parametrize("rule", RULES)
def test_a_kernel_that_keeps_the_rule_is_clean(rules: Executable, rule: str) -> None:
    for adversary in ALL:
        report = run(rules, rule, False, adversary)
        assert not report.findings, (str(adversary), [str(finding) for finding in report.findings])


@pytest.mark.parametrize("rule", RULES)
def test_a_kernel_that_breaks_the_rule_is_found(rules: Executable, rule: str) -> None:
    for adversary in ALL:
        kinds = {finding.kind for finding in run(rules, rule, True, adversary).findings}
        assert kinds & EXPECTED[rule] and kinds <= EXPECTED[rule] | {"write_once"}, (str(adversary), kinds)


# ---- Findings -------------------------------------------------------------------------------------------------------


def message_of(executable: Executable, rule: str, kind: str, adversary: Adversary = ALL[0]) -> str:
    return next(each.message for each in run(executable, rule, True, adversary).findings if each.kind == kind)


def test_a_race_names_both_sides(rules: Executable) -> None:
    message = message_of(rules, "overwritten_while_read", "race")
    expected = (
        r"CTA \(0,0,0\) thread \d+ reads shared memory at byte \d+ without synchronization after the write by thread"
    )
    assert re.match(expected, message.replace("writes", "reads").replace("the read", "the write"))
    line = int(re.search(r"kernel\.ptx:(\d+)", message)[1])
    assert re.search(r"(st|ld)\.shared", translatable(SOURCE, "executor_rules").splitlines()[line - 1])


def test_a_deadlock_says_who_waits_for_what(rules: Executable) -> None:
    message = message_of(rules, "missing_arrival", "deadlock")
    assert re.search(r"CTA 0 warps 0 to 3: mbarrier_wait at \S+:\d+ \(mbarrier at byte \d+, parity 0", message)
    assert "1 of 129 arrivals and 0 bytes missing" in message
    assert "0 of 1 arrivals and 4 bytes missing" in message_of(rules, "too_many_expected", "deadlock")


def test_lanes_that_miss_a_collective_are_counted(rules: Executable) -> None:
    assert "16 lanes mma at" in message_of(rules, "a_collective_for_all", "divergence")


def test_poison_and_bounds_name_the_element(rules: Executable) -> None:
    assert message_of(rules, "set", "poison").startswith("out[row 0][column 0] depends on")
    assert "read of 4 bytes outside all regions, 4 bytes past the end of in" in message_of(
        rules, "inside_global", "bounds"
    )


@pytest.mark.parametrize("rule", ["neighbours_of_a_warp", "stores_awaited", "cluster_waits"])
def test_the_same_adversary_replays_the_same_run(rules: Executable, rule: str) -> None:
    for adversary in ALL[-3:]:
        assert run(rules, rule, True, adversary) == run(rules, rule, True, adversary)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"parameters": (bytes(31), bytes(128))}, "parameter 0 of the kernel has 32 bytes, that of the request 31"),
        ({"parameters": (bytes(32),)}, "the kernel takes 2 parameters, the request has 1"),
        ({"threads": 48}, "threads must be a multiple of 32"),
        ({"smem_bytes": 232449}, "shared_bytes exceeds the limit"),
        ({"grid": (3, 1, 1), "cluster": (2, 1, 1)}, "grid must be a multiple of cluster"),
    ],
)
def test_illegal_launch_is_rejected(rules: Executable, change: dict, reason: str) -> None:
    launch = Launch((1, 1, 1), (1, 1, 1), 128, SHARED_BYTES, (bytes(32), bytes(128)), (), 0, 1000)
    with pytest.raises(DeviceError, match=reason):
        rules.run(replace(launch, **change), ALL[0])


def test_launches_are_serialised(rules: Executable) -> None:
    refused: list[str] = []

    def second(_: int) -> None:
        try:
            run(rules, "endless", True, ALL[0])
        except DeviceError as error:
            refused.append(str(error))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(second, range(8)))
    assert len(refused) < 8 and all("another thread runs" in reason for reason in refused)


# ---- What is counted ------------------------------------------------------------------------------------------------


def test_costs_follow_from_the_addresses(rules: Executable) -> None:
    sites = {site.line: site for site in run(rules, "halves_of_a_word", False, ALL[0]).sites}
    (stored, put) = (site for site in sites.values())
    assert (stored.space, stored.requests, stored.wavefronts, stored.ideal_wavefronts, stored.bytes) == (
        "shared",
        4,
        4,
        4,
        256,
    )
    assert (put.space, put.requests, put.sectors, put.ideal_sectors, put.bytes) == ("global", 4, 16, 16, 512)


def test_instructions_are_counted(rules: Executable) -> None:
    counters = run(rules, "products_fenced", False, ALL[0]).counters
    assert counters["wgmma_m64n64k16"] == 1 and counters["cta_barrier"] == 1
    assert run(rules, "a_collective_for_all", False, ALL[0]).counters["mma_m16n8k16"] == 4
    loaded = run(rules, "cluster_waits", False, ALL[0]).counters
    assert loaded["bytes_global_to_shared"] == 2 * 2 * 16 * 64 and loaded["cluster_barrier"] == 2


# ---- Other ways to build it -----------------------------------------------------------------------------------------

SANITIZED = """
import sys
from pathlib import Path
from generator.proof.executor import Executable
from test_executor import ALL, RULES, run
executable = Executable(Path(sys.argv[1]))
for rule in RULES:
    for fault in (False, True):
        for adversary in ALL[::5]:
            run(executable, rule, fault, adversary)
print("clean")
"""


@pytest.mark.slow(seconds=12)
def test_sanitizers_find_nothing_in_the_executor(host_toolchain: HostToolchain) -> None:
    """Address and undefined behaviour, over all rules kept and broken: fibers that end, and those that never do."""
    flags = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    library = subprocess.run(
        [*host_toolchain.compiler.command, "-print-file-name=libasan.so"], capture_output=True, text=True
    ).stdout.strip()
    if not Path(library).is_file():
        pytest.skip(f"{host_toolchain.compiler.command[0]} has no address sanitizer that can be preloaded")
    ptx = translatable(SOURCE, "executor_rules")
    built = replace(host_toolchain, flags=flags).executable("executor_rules", ptx)
    environment = {
        **os.environ,
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
    }
    done = subprocess.run(
        [sys.executable, "-c", SANITIZED, str(built)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout == "clean\n", done.stderr[-3000:]


# ==== Building kernels for the CPU ===================================================================================

TEMPLATES = templates_folder()
FAKE = """#!/bin/sh
case "$*" in
  *--version) echo "fake++ 1.0"; exit;;
  *-dumpmachine) echo "none-none"; exit;;
  *linked.so) exit 1;;
esac
echo "$@" >> "$(dirname "$0")/calls"
while [ $# -gt 1 ]; do shift; done
echo object > "$1"
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A compiler that notes how it was called and writes something."""
    path = tmp_path / "bin" / "fake++"
    path.parent.mkdir()
    path.write_text(FAKE)
    path.chmod(0o755)
    return path


def host_toolchain(fake: Path, templates: Path = TEMPLATES, **others) -> HostToolchain:
    return HostToolchain(find_compiler(str(fake)), templates, fake.parent / "cache", **others)


def ptx_of(number: int) -> str:
    """Return the PTX of a kernel that sets a register."""
    return (
        ".version 9.0\n.target sm_80\n.visible .entry hgemm_x()\n{\n.reg .b32 %r1;\n"
        f"mov.u32 %r1, {number};\nret;\n}}\n"
    )


TEXT, OTHER = ptx_of(1), ptx_of(2)


def calls(fake: Path) -> list[str]:
    place = fake.parent / "calls"
    return place.read_text().splitlines() if place.exists() else []


# ---- The compiler ---------------------------------------------------------------------------------------------------


def test_compiler_is_identified_by_its_version_output(fake: Path) -> None:
    found = find_compiler(f"{fake} -m64")
    assert found == HostCompiler((str(fake), "-m64"), "fake++ 1.0 none-none")


def test_kernels_are_linked_by_gold_if_the_compiler_links_with_it(fake: Path) -> None:
    assert find_compiler(str(fake)).linker == ()
    fake.write_text(FAKE.replace("exit 1", "exit"))
    made = host_toolchain(fake)
    made.executable("hgemm_x", TEXT)
    executor, kernel = calls(fake)
    assert "-fuse-ld=gold" in kernel.split() and "-fuse-ld=gold" not in executor.split()


def test_compiler_is_searched(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(fake, fake.with_name("clang++"))
    monkeypatch.setenv("PATH", f"{fake.parent}:/bin:/usr/sbin")
    monkeypatch.setattr("generator.proof.executor.CANDIDATES", ("no-such++", "clang++"))
    assert find_compiler().command == ("clang++",)


def test_missing_host_compiler_gives_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoCompiler, match=r"needs a C\+\+ compiler \(g\+\+, clang\+\+\).*install g\+\+ 12.*CXX") as told:
        find_compiler()
    assert told.value.exit_code == 1 and "\n" not in str(told.value)
    with pytest.raises(NoCompiler, match="CXX is no-such, which is not installed"):
        find_compiler("no-such --flag")


def test_programs_that_are_no_compiler_are_rejected() -> None:
    with pytest.raises(NoCompiler, match="so it is not a compiler"):
        find_compiler("/bin/false")


def test_compiler_without_loadable_output_gives_a_one_line_error(host_compiler: HostCompiler, fake: Path) -> None:
    require_working(host_compiler, TEMPLATES)
    with pytest.raises(NoCompiler, match="does not build a C.*17 shared object that loads .*probe.cpp.*error: .*CXX"):
        require_working(replace(host_compiler, command=(*host_compiler.command, "-fno-exceptions")), TEMPLATES)
    with pytest.raises(NoCompiler, match=r"fake\+\+ does not build .* \(OSError: .*CXX") as told:
        require_working(find_compiler(str(fake)), TEMPLATES)
    assert str(told.value).isprintable()


# ---- Building -------------------------------------------------------------------------------------------------------


def test_nothing_is_compiled_twice(fake: Path) -> None:
    first = host_toolchain(fake).executable("hgemm_x", TEXT)
    assert first == host_toolchain(fake).executable("hgemm_x", TEXT) and first.read_text().startswith("object\n")
    assert len(calls(fake)) == 2  # the executor, and the kernel
    assert host_toolchain(fake).executable("hgemm_x", OTHER) != first and len(calls(fake)) == 3
    assert host_toolchain(fake, flags=("-fsanitize=address",)).executable("hgemm_x", TEXT) != first
    assert len(calls(fake)) == 5
    assert not [path for path in first.parent.iterdir() if path.name.startswith(".tmp")]


def test_kernels_are_compiled_with_the_required_options(fake: Path) -> None:
    host_toolchain(fake).executable("hgemm_x", TEXT)
    executor, kernel = calls(fake)
    assert "-c" in executor.split() and "executor/executor.cpp" in executor
    for option in ("-std=c++17", "-fPIC", "-shared", "-fwrapv", f"-I {TEMPLATES}"):
        assert option in kernel, option


def test_unloadable_cached_objects_are_rebuilt_once(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kernels() -> int:
        return sum("x c++" in call for call in calls(fake))

    subject = proving.Subject("hgemm_x", TEXT, {}, 0)
    path = host_toolchain(fake).executable("hgemm_x", TEXT)
    with pytest.raises(ProofError, match=r"the output of .*fake\+\+ .* cannot be loaded \(.*: set CXX to another"):
        proving.load(subject, host_toolchain(fake))
    assert kernels() == 2 and path.read_text().startswith("object\n")

    def loaded(found: Path, runner: Path, *rest: str) -> bytes:
        content = found.read_bytes()
        return content if content.startswith(b"object") else ctypes.CDLL(str(found))

    path.write_bytes(b"")
    seal(path)
    monkeypatch.setattr(proving, "SandboxedExecutable", loaded)
    assert proving.load(subject, host_toolchain(fake)).startswith(b"object\n") and kernels() == 3


def test_changed_header_rebuilds_its_users(fake: Path, tmp_path: Path) -> None:
    templates = tmp_path / "templates"
    shutil.copytree(TEMPLATES, templates)
    before = host_toolchain(fake, templates).executable("hgemm_x", TEXT)
    (templates / "common" / "unrelated.cuh").write_text("// nobody includes this\n")
    assert host_toolchain(fake, templates).executable("hgemm_x", TEXT) == before
    header = templates / "executor" / "ptx.hpp"
    header.write_text(header.read_text() + "\n// changed\n")
    assert host_toolchain(fake, templates).executable("hgemm_x", TEXT) != before
    assert len(calls(fake)) == 4  # the executor, too


def test_template_folder_is_no_part_of_the_cache_key(fake: Path, tmp_path: Path) -> None:
    shutil.copytree(TEMPLATES, tmp_path / "elsewhere")
    here, there = (
        host_toolchain(fake, place).executable("hgemm_x", TEXT) for place in (TEMPLATES, tmp_path / "elsewhere")
    )
    assert here == there


def test_includes_are_followed() -> None:
    found = includes_of(b"#include <mma_sync/kernel.cuh>\n#include <vector>\n", TEMPLATES)
    assert {"mma_sync/kernel.cuh", "mma_sync/operand.cuh", "common/atoms.cuh"} <= {*found}
    assert "executor/abi.h" in includes_of_file("executor/ptx.hpp", TEMPLATES)


def test_compiler_errors_are_kept(tmp_path: Path, fake: Path) -> None:
    broken = fake.with_name("broken++")
    broken.write_text(FAKE.split('echo "$@"')[0] + "echo 'kernel.cu:3: error: what' >&2; exit 1\n")
    broken.chmod(0o755)
    with pytest.raises(BuildError, match="the executor does not compile: kernel.cu:3: error: what"):
        host_toolchain(broken).executable("hgemm_x", TEXT)
    assert not any((fake.parent / "cache").iterdir())


def test_structures_match_the_header(host_compiler: HostCompiler, tmp_path: Path) -> None:
    structures = {"region": abi._Region, "tensor_map": abi.EmulatedTensorMap, "emulation": abi._Emulation}
    lines = [f'printf("%zu\\n", sizeof(struct hgemm_{name}));' for name in structures]
    expected = [str(abi.ctypes.sizeof(structure)) for structure in structures.values()]
    for name, structure in structures.items():
        for field, _ in structure._fields_:
            lines.append(f'printf("%zu\\n", offsetof(struct hgemm_{name}, {field}));')
            expected.append(str(getattr(structure, field).offset))
    for constant, value in (
        ("HGEMM_ABI_VERSION", abi.ABI_VERSION),
        ("HGEMM_TENSOR_MAP", abi.TENSOR_MAP_MAGIC),
        ("HGEMM_LATE", abi.TIMINGS.index("late")),
        ("HGEMM_ANY_TIME", abi.TIMINGS.index("any_time")),
        ("HGEMM_AHEAD_HIGH", abi.ORDERS.index("ahead_high")),
        ("HGEMM_ANY_ORDER", abi.ORDERS.index("any_order")),
        ("HGEMM_WRITE_ONCE", abi.WRITE_ONCE),
        ("HGEMM_PADDING_READABLE", abi.PADDING_READABLE),
        ("HGEMM_MATRIX_READABLE", abi.MATRIX_READABLE),
    ):
        lines.append(f'printf("%zu\\n", (size_t){constant});')
        expected.append(str(value))
    program = tmp_path / "sizes.cpp"
    program.write_text("#include <cstdio>\n#include <executor/abi.h>\nint main() {\n" + "\n".join(lines) + "\n}\n")
    command = [*host_compiler.command, "-I", str(TEMPLATES), str(program), "-o", str(tmp_path / "sizes")]
    subprocess.run(command, check=True)
    assert subprocess.check_output([str(tmp_path / "sizes")], text=True).split() == expected


# ---- The cache ------------------------------------------------------------------------------------------------------


def test_cache_folder_is_configurable() -> None:
    assert cache_folder({"HGEMM_CACHE_DIR": "/x"}) == Path("/x/executor")
    assert cache_folder({"XDG_CACHE_HOME": "/y"}) == Path("/y/hgemm/executor")
    assert cache_folder({}) == Path.home() / ".cache" / "hgemm" / "executor"


def test_missing_home_folder_asks_for_a_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", refuse)
    with pytest.raises(LibraryError, match="no home folder for the cache: set HGEMM_CACHE_DIR"):
        cache_folder({})


def planted(place: Path, kind: str, victim: Path) -> None:
    place.parent.mkdir(exist_ok=True)
    if kind == "link":
        place.symlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "huge":
        place.touch(0o700)
        os.truncate(place, 2**40)
    else:
        place.write_bytes(victim.read_bytes())
        place.chmod(0o777)


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "huge", "writable"])
def test_planted_objects_are_rebuilt(tmp_path: Path, kind: str) -> None:
    victim, place = tmp_path / "victim", tmp_path / "cache" / "object.so"
    victim.write_bytes(b"sound")
    seal(victim)
    planted(place, kind, victim)
    built = []
    assert get_or_build(place, lambda: built.append(kind), timeout_s=1) == place and built == [kind]


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_planted_locks_are_harmless(tmp_path: Path, kind: str) -> None:
    victim, place = tmp_path / "victim", tmp_path / "cache" / "object.so"
    victim.write_bytes(b"precious")
    planted(place.with_suffix(".lock"), kind, victim)
    with suppress(OSError):
        get_or_build(place, lambda: None, timeout_s=1)
    assert victim.read_bytes() == b"precious"


def test_a_sound_object_needs_no_lock(tmp_path: Path) -> None:
    place = tmp_path / "cache" / "object.so"
    place.parent.mkdir()
    place.write_bytes(b"sound")
    seal(place)
    place.with_suffix(".lock").mkdir()
    assert get_or_build(place, lambda: pytest.fail("it is built again"), timeout_s=1) == place
    assert place.parent.stat().st_mode & 0o777 == 0o700


def test_unused_objects_expire(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "old", "oldest")):
        made = temporary_file(tmp_path)
        made.write_bytes(b"x" * 100)
        path = add_to_cache(made, name)
        os.utime(path, (1e9 - age, 1e9 - age))
    assert cached(tmp_path, "oldest") and cached(tmp_path, "none") is None  # now it is the newest
    left = tmp_path / temporary_name().replace(str(os.getpid()), "999999999")
    left.write_bytes(b"x" * 7)
    size = (tmp_path / "new").stat().st_size
    assert trim(tmp_path, max_bytes=2 * size) == size + 7
    assert {path.name for path in tmp_path.iterdir()} == {"new", "oldest"}


@pytest.fixture
def object_path(tmp_path: Path) -> Path:
    made = temporary_file(tmp_path / "cache")
    made.write_bytes(b"x" * 100)
    return add_to_cache(made, "object")


@pytest.mark.parametrize("place", [0, 99, 110, -1])
def test_a_damaged_object_is_built_again(object_path: Path, caplog, place: int) -> None:
    assert cached(object_path.parent, "object") == object_path
    content = bytearray(object_path.read_bytes())
    content[place] ^= 1
    object_path.write_bytes(content)
    assert cached(object_path.parent, "object") is None and "is damaged" in caplog.text
    object_path.write_bytes(content[:50])
    assert cached(object_path.parent, "object") is None


def test_objects_are_private(object_path: Path, tmp_path: Path, monkeypatch) -> None:
    folder = object_path.parent
    assert folder.stat().st_mode & 0o777 == object_path.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    temporary_file(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    object_path.chmod(0o722)
    assert cached(folder, "object") is None
    object_path.chmod(0o700)
    object_path.rename(folder / "elsewhere")
    object_path.symlink_to("elsewhere")
    assert cached(folder, "object") is None and cached(folder, "elsewhere")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    stat = os.stat
    foreign = os.stat_result((*stat(folder)[:4], 4711, *stat(folder)[5:]))
    monkeypatch.setattr(os, "stat", lambda path, **more: foreign if path == folder else stat(path, **more))
    for use in (lambda: cached(folder, "elsewhere"), lambda: temporary_file(folder)):
        with pytest.raises(LibraryError, match="belongs to user 4711.*set HGEMM_CACHE_DIR"):
            use()


def test_unwritable_cache_gives_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LibraryError, match="cannot write to the cache"):
        temporary_file(tmp_path / "file" / "cache")


def test_the_templates_of_the_executor_are_shipped() -> None:
    assert (ROOT / "templates" / "executor" / "abi.h").is_file()

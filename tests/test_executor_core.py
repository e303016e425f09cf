"""The executor itself: every rule that it judges by has a kernel that keeps it and is clean, and one that breaks it."""

from __future__ import annotations

import os
import re
import shlex
import struct
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT

from generator.proof import executor as abi
from generator.proof.executor import Adversary, Executable, HostToolchain, Launch, Region, Report, TensorMap
from hgemm.errors import DeviceError

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
    "boxes_reused": {"race", "poison", "deadlock"},
    "boxes_aligned": {"alignment"},
    "stores_fenced": {"proxy"},
    "stores_awaited": {"race"},
    "stores_within_rows": {"bounds"},
    "products_fenced": {"wgmma"},
    "products_awaited": {"poison"},
    "operands_kept": {"race"},
    "registers_handed_over": {"deadlock"},
    "cluster_waits": {"divergence", "race", "uninitialised", "poison"},
    "cluster_reads": {"race", "cluster"},
    "cluster_outlives": {"cluster"},
    "launches_awaited": {"launch"},
}
"""What a broken rule may be called; at least one of them must be found, whatever the adversary does, and nothing else."""
GRIDS = {"fences_between_ctas": (4, 1), "cluster_waits": (2, 2), "cluster_reads": (2, 2), "cluster_outlives": (2, 2)}
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
    tensor = TensorMap(
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
    launch = Launch(ctas, cluster, threads, SHARED_BYTES, (parameters, bytes(tensor)), regions, 0, 20_000)
    return executable.run(launch, adversary)


@pytest.fixture(scope="session")
def rules(host_toolchain: HostToolchain) -> Executable:
    return Executable(host_toolchain.executable("executor_rules", SOURCE))


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


# ---- What is told ---------------------------------------------------------------------------------------------------


def told(executable: Executable, rule: str, kind: str, adversary: Adversary = ALL[0]) -> str:
    return next(each.message for each in run(executable, rule, True, adversary).findings if each.kind == kind)


def test_a_race_names_both_sides(rules: Executable) -> None:
    message = told(rules, "overwritten_while_read", "race")
    expected = (
        r"CTA \(0,0,0\) thread \d+ reads shared memory at byte \d+ without synchronization after the write by thread"
    )
    assert re.match(expected, message.replace("writes", "reads").replace("the read", "the write"))
    line = int(message.rpartition(":")[2])
    assert "st_shared" in SOURCE.splitlines()[line - 1] or "ld_shared" in SOURCE.splitlines()[line - 1]


def test_a_deadlock_says_who_waits_for_what(rules: Executable) -> None:
    message = told(rules, "missing_arrival", "deadlock")
    assert re.search(r"CTA 0 warps 0 to 3: mbarrier_wait at \S+:\d+ \(mbarrier at byte \d+, parity 0", message)
    assert "1 of 129 arrivals and 0 bytes missing" in message
    assert "0 of 1 arrivals and 4 bytes missing" in told(rules, "too_many_expected", "deadlock")


def test_lanes_that_miss_a_collective_are_counted(rules: Executable) -> None:
    assert "16 lanes mma at" in told(rules, "a_collective_for_all", "divergence")


def test_poison_and_bounds_name_the_element(rules: Executable) -> None:
    assert told(rules, "set", "poison").startswith("out[row 0][column 0] depends on")
    assert "read of 4 bytes outside all regions, 4 bytes past the end of in" in told(rules, "inside_global", "bounds")


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
        ({"grid_x": 3, "cluster_ctas": 2}, "grid must be a multiple of cluster"),
    ],
)
def test_a_launch_that_makes_no_sense_is_refused(rules: Executable, change: dict, reason: str) -> None:
    launch = Launch(1, 1, 128, SHARED_BYTES, (bytes(32), bytes(128)), (), 0, 1000)
    with pytest.raises(DeviceError, match=reason):
        rules.run(replace(launch, **change), ALL[0])


def test_one_launch_at_a_time(rules: Executable) -> None:
    refused: list[str] = []

    def second() -> None:
        try:
            run(rules, "endless", True, ALL[0])
        except DeviceError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=second) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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

EXAMPLE = ROOT / "templates" / "executor" / "example.cpp"


def test_the_example_in_the_text_of_the_example_works(host_toolchain: HostToolchain, tmp_path: Path) -> None:
    """As its first lines say, with stacks that take turns through the C library, as on hosts without an own switch."""
    lines = [line[2:].strip() for line in EXAMPLE.read_text().splitlines()[2:5]]
    command, _, program = " ".join(lines).partition(" && ")
    words = [*host_toolchain.compiler.command, "-DHGEMM_FIBER_UCONTEXT", *shlex.split(command)[1:], "-O0"]
    words[words.index("example")] = str(tmp_path / "example")
    subprocess.run(words, cwd=ROOT, check=True)
    done = subprocess.run([tmp_path / Path(program).name], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith('{"findings": []') and "\n0 of 19650" in done.stdout


SANITIZED = """
import sys
from pathlib import Path
from generator.proof.executor import Executable
from test_executor_core import ALL, RULES, run
executable = Executable(Path(sys.argv[1]))
for rule in RULES:
    for fault in (False, True):
        for adversary in ALL[::3]:
            run(executable, rule, fault, adversary)
print("clean")
"""


def test_sanitizers_find_nothing_in_the_executor(host_toolchain: HostToolchain) -> None:
    """Address and undefined behaviour, over all rules kept and broken: fibers that end, and those that never do."""
    flags = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    library = subprocess.run(
        [*host_toolchain.compiler.command, "-print-file-name=libasan.so"], capture_output=True, text=True
    ).stdout.strip()
    if not Path(library).is_file():
        pytest.skip(f"{host_toolchain.compiler.command[0]} has no address sanitizer that can be preloaded")
    built = replace(host_toolchain, flags=flags).executable("executor_rules", SOURCE)
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

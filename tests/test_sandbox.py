"""The sandbox: a kernel's process can compute, and nothing else."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from generator.proof.executor import Adversary, HostToolchain, Launch
from generator.proof.sandbox import SandboxedExecutable, arena, require_well_formed
from hgemm.errors import DeviceError

HOSTILE = r"""
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <executor/abi.h>

static int tried(long result) { return result < 0 ? errno : 0; }

struct Constructor {
  Constructor() { puts("{\"symbol\": \"x\", \"checks\": [{\"passed\": true}]}"); fflush(stdout); }
} constructor;

extern "C" __attribute__((visibility("default"))) int hgemm_emulate(hgemm_emulation const* request, char* report, size_t) {
  switch (*static_cast<char const*>(request->parameters[0])) {
    case 'w': memset(request->regions[0].base, 7, request->regions[0].row_bytes); break;
    case 'c': abort();
    case 'n': strcpy(report, "[[[[ no report"); return 0;
    case 't': strcpy(report, "{\"findings\": [], \"sites\": [], \"counters\": {\"steps\": \"many\"}}"); return 0;
    case 'm': for (;;) memset(malloc(1 << 24), 1, 1 << 24);
  }
  int descriptors = 0;
  for (int i = 0; i < 256; ++i) descriptors += lseek(i, 0, SEEK_CUR) != -1 || errno != EBADF;
  char word = 0;
  iovec const here = {&word, 1}, there = {&word, 1};
  sprintf(report, "{\"predicates\": \"\", \"findings\": [], \"sites\": [], "
          "\"counters\": {\"descriptors\": %d, \"environment\": %d, \"write\": %d, "
          "\"connect\": %d, "
          "\"fork\": %d, \"kill\": %d, \"other memory\": %d}}",
          descriptors, getenv("SECRET") != nullptr, tried(open("/tmp/hgemm_sandbox", O_WRONLY | O_CREAT, 0600)),
          tried(socket(AF_INET, SOCK_STREAM, 0)), tried(fork()), tried(kill(getppid(), 0)),
          tried(process_vm_writev(getppid(), &here, 1, &there, 1, 0)));
  return 0;
}
"""
LATE = Adversary("late", "round_robin", 1)


@pytest.fixture(scope="module")
def hostile(
    host_toolchain: HostToolchain, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[], SandboxedExecutable]:
    folder = tmp_path_factory.mktemp("hostile")
    source, built = folder / "hostile.cpp", folder / "hostile.so"
    source.write_text(HOSTILE)
    options = ["-shared", "-fPIC", "-I", str(host_toolchain.templates), "-o", str(built)]
    subprocess.run([*host_toolchain.compiler.command, *options, str(source)], check=True)
    return lambda: SandboxedExecutable(built, host_toolchain.runner())


def launch(action: str, regions: tuple = ()) -> Launch:
    return Launch((1, 1, 1), (1, 1, 1), 32, 0, (action.encode(),), regions, 1, 1)


@pytest.fixture
def filtered(hostile: Callable[[], SandboxedExecutable]) -> None:
    if not os.path.exists("/proc/sys/kernel/seccomp/actions_avail"):
        pytest.skip("this kernel of Linux filters no system calls")


def test_kernels_run_without_environment_and_system_calls(
    hostile: Callable[[], SandboxedExecutable], filtered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "secret")
    counters = hostile().run(launch("a"), LATE).counters
    assert counters.pop("environment") == 0
    assert counters.pop("descriptors") == 3 + 2  # /dev/null as standard streams, and two pipes
    assert counters == dict.fromkeys(["write", "connect", "fork", "kill", "other memory"], errno.EPERM)
    assert not Path("/tmp/hgemm_sandbox").exists()


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("c", "its process ended with status -6"),
        ("n", "answers with nonsense"),
        ("t", "answers with nonsense"),
        ("m", "MiB of memory and was killed"),
    ],
    ids=["it crashes", "no report", "a malformed report", "it takes all memory"],
)
def test_misbehaving_process_is_reported(
    hostile: Callable[[], SandboxedExecutable], action: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("generator.proof.sandbox.MAX_RESIDENT_BYTES", 64 << 20)
    with pytest.raises(DeviceError, match=reason):
        hostile().run(launch(action), LATE)


def test_files_that_are_no_shared_object_do_not_load(host_toolchain: HostToolchain, tmp_path: Path) -> None:
    (tmp_path / "kernel.so").write_text("text")
    with pytest.raises(OSError, match=r"kernel\.so"):
        SandboxedExecutable(tmp_path / "kernel.so", host_toolchain.runner())


def test_arena_reuses_blocks() -> None:
    first = arena().allocate(5000)
    arena().free(first)
    assert arena().allocate(8192) == first and arena().allocate(8192) != first
    with pytest.raises(DeviceError, match="exceed the 32768 GiB"):
        arena().allocate(2**46)


def test_texts_for_a_terminal_are_printable() -> None:
    finding = {"kind": "race", "count": 1, "message": "\x1b]0;owned\x07", "file": "x", "line": 1}
    with pytest.raises(TypeError, match="message is not a printable str"):
        require_well_formed({"findings": [finding], "sites": [], "counters": {}, "predicates": ""})
    with pytest.raises(TypeError, match="predicates are not digits from 0 to 3"):
        require_well_formed({"findings": [], "sites": [], "counters": {}, "predicates": "0123x"})

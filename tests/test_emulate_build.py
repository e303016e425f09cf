"""Executable variants are built by the compiler of this machine, once for each content."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT

from generator.build.toolchain import templates_folder
from generator.errors import BuildError, LibraryError, ProofError
from generator.proof import executor as abi
from generator.proof import proving
from generator.proof.executor import (
    HostCompiler,
    HostToolchain,
    NoCompiler,
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

TEMPLATES = templates_folder()
FAKE = """#!/bin/sh
case "$*" in
  *--version) echo "fake++ 1.0"; exit;;
  *-dumpmachine) echo "none-none"; exit;;
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


def calls(fake: Path) -> list[str]:
    place = fake.parent / "calls"
    return place.read_text().splitlines() if place.exists() else []


# ---- The compiler ---------------------------------------------------------------------------------------------------


def test_a_compiler_is_known_by_what_it_says(fake: Path) -> None:
    found = find_compiler(f"{fake} -m64")
    assert found == HostCompiler((str(fake), "-m64"), "fake++ 1.0 none-none")


def test_a_compiler_is_looked_for(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(fake, fake.with_name("clang++"))
    monkeypatch.setenv("PATH", f"{fake.parent}:/bin:/usr/sbin")
    monkeypatch.setattr("generator.proof.executor.CANDIDATES", ("no-such++", "clang++"))
    assert find_compiler().command == ("clang++",)


def test_without_a_compiler_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoCompiler, match=r"needs a C\+\+ compiler \(g\+\+, clang\+\+\).*install g\+\+ 12.*CXX") as told:
        find_compiler()
    assert told.value.exit_code == 1 and "\n" not in str(told.value)
    with pytest.raises(NoCompiler, match="CXX is no-such, which is not installed"):
        find_compiler("no-such --flag")


def test_what_is_no_compiler_is_refused() -> None:
    with pytest.raises(NoCompiler, match="so it is not a compiler"):
        find_compiler("/bin/false")


def test_a_compiler_that_makes_nothing_to_load_is_told_in_one_line(host_compiler: HostCompiler, fake: Path) -> None:
    require_working(host_compiler, TEMPLATES)
    with pytest.raises(NoCompiler, match="does not build a C.*17 shared object that loads .*probe.cpp.*error: .*CXX"):
        require_working(replace(host_compiler, command=(*host_compiler.command, "-fno-exceptions")), TEMPLATES)
    with pytest.raises(NoCompiler, match=r"fake\+\+ does not build .* \(OSError: .*CXX") as told:
        require_working(find_compiler(str(fake)), TEMPLATES)
    assert str(told.value).isprintable()


# ---- Building -------------------------------------------------------------------------------------------------------


def test_nothing_is_compiled_twice(fake: Path) -> None:
    first = host_toolchain(fake).executable("hgemm_x", "text")
    assert first == host_toolchain(fake).executable("hgemm_x", "text") and first.read_text() == "object\n"
    assert len(calls(fake)) == 2  # the executor, and the variant
    assert host_toolchain(fake).executable("hgemm_x", "other text") != first and len(calls(fake)) == 3
    assert host_toolchain(fake, flags=("-fsanitize=address",)).executable("hgemm_x", "text") != first
    assert len(calls(fake)) == 5
    assert not [path for path in first.parent.iterdir() if path.name.startswith(".tmp")]


def test_a_variant_is_built_as_the_interface_says(fake: Path) -> None:
    host_toolchain(fake).executable("hgemm_x", "text")
    executor, variant = calls(fake)
    assert "-c" in executor.split() and "executor/executor.cpp" in executor
    for option in ("-std=c++17", "-fPIC", "-shared", "-DHGEMM_HOST", "-DHGEMM_VARIANT=hgemm_x", f"-I {TEMPLATES}"):
        assert option in variant, option


def test_what_the_cache_has_and_does_not_load_is_built_again_once(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = proving.Subject("hgemm_x", "text", {}, 0)
    path = host_toolchain(fake).executable("hgemm_x", "text")
    path.write_bytes(b"")
    with pytest.raises(ProofError, match=r"the output of .*fake\+\+ .* cannot be loaded \(.*: set CXX to another"):
        proving.load(subject, host_toolchain(fake))
    assert len(calls(fake)) == 4 and path.read_text() == "object\n"  # the executor and the variant, twice
    path.write_bytes(b"")
    monkeypatch.setattr(proving, "Executable", lambda found: found.read_bytes() or ctypes.CDLL(str(found)))
    assert proving.load(subject, host_toolchain(fake)) == b"object\n" and len(calls(fake)) == 6


def test_a_changed_header_builds_what_can_include_it_anew(fake: Path, tmp_path: Path) -> None:
    templates = tmp_path / "templates"
    shutil.copytree(TEMPLATES, templates)
    source = "#include <mma_sync/kernel.cuh>\n"
    before = host_toolchain(fake, templates).executable("hgemm_x", source)
    (templates / "common" / "unrelated.cuh").write_text("// nobody includes this\n")
    assert host_toolchain(fake, templates).executable("hgemm_x", source) == before
    header = templates / "common" / "warp_epilogue.cuh"
    header.write_text(header.read_text() + "\n// changed\n")
    assert host_toolchain(fake, templates).executable("hgemm_x", source) != before
    assert len(calls(fake)) == 3  # not the executor


def test_the_place_of_the_templates_is_not_part_of_a_name(fake: Path, tmp_path: Path) -> None:
    shutil.copytree(TEMPLATES, tmp_path / "elsewhere")
    here, there = (
        host_toolchain(fake, place).executable("hgemm_x", "text") for place in (TEMPLATES, tmp_path / "elsewhere")
    )
    assert here == there


def test_includes_are_followed() -> None:
    found = includes_of(b"#include <mma_sync/kernel.cuh>\n#include <vector>\n", TEMPLATES)
    assert {"mma_sync/kernel.cuh", "mma_sync/operand.cuh", "common/atoms_host.hpp"} <= {*found}
    assert "executor/abi.h" in includes_of_file("executor/variant.cpp", TEMPLATES)


def test_a_compilers_complaint_is_kept(tmp_path: Path, fake: Path) -> None:
    broken = fake.with_name("broken++")
    broken.write_text(FAKE.split('echo "$@"')[0] + "echo 'kernel.cu:3: error: what' >&2; exit 1\n")
    broken.chmod(0o755)
    with pytest.raises(BuildError, match="the executor does not compile: kernel.cu:3: error: what"):
        host_toolchain(broken).executable("hgemm_x", "text")
    assert not any((fake.parent / "cache").iterdir())


def test_a_text_that_is_no_cpp_is_refused_without_building_the_executor_again(fake: Path) -> None:
    host_toolchain(fake).executable("hgemm_x", "text")
    fake.write_text(FAKE.partition("while")[0] + "echo 'kernel.cu:3: error: what' >&2; exit 1\n")
    with pytest.raises(BuildError, match="hgemm_x does not compile: kernel.cu:3: error: what"):
        proving.load(proving.Subject("hgemm_x", "no text", {}, 0), host_toolchain(fake))
    again = [("-fsyntax-only" in call, "executor.cpp" in call) for call in calls(fake)[2:]]
    assert again == [(False, False), (True, False)]


def test_the_structures_are_those_of_the_header(host_compiler: HostCompiler, tmp_path: Path) -> None:
    structures = {"region": abi._Region, "tensor_map": abi.TensorMap, "emulation": abi._Emulation}
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


def test_the_cache_lies_where_the_user_says() -> None:
    assert cache_folder({"HGEMM_CACHE_DIR": "/x"}) == Path("/x/executor")
    assert cache_folder({"XDG_CACHE_HOME": "/y"}) == Path("/y/hgemm/executor")
    assert cache_folder({}) == Path.home() / ".cache" / "hgemm" / "executor"


def test_what_was_not_used_for_long_is_dropped(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "old", "oldest")):
        made = temporary_file(tmp_path)
        made.write_bytes(b"x" * 100)
        path = add_to_cache(made, name)
        os.utime(path, (1e9 - age, 1e9 - age))
    assert cached(tmp_path, "oldest") and cached(tmp_path, "none") is None  # now it is the newest
    left = tmp_path / temporary_name().replace(str(os.getpid()), "999999999")
    left.write_bytes(b"x" * 7)
    assert trim(tmp_path, max_bytes=200) == 107
    assert {path.name for path in tmp_path.iterdir()} == {"new", "oldest"}


def test_a_cache_that_cannot_be_written_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LibraryError, match="cannot write to the cache"):
        temporary_file(tmp_path / "file" / "cache")


def test_the_templates_of_the_executor_are_shipped() -> None:
    assert (ROOT / "templates" / "executor" / "abi.h").is_file()

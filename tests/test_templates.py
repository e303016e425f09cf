"""The templates: each header compiles alone, includes only known headers, and defines nothing but the kernel."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from records import make_artefacts, make_record, resources_of

import generator.build.compile
from generator.build.compile import Compiled, compile_kernel, options
from generator.build.emit import EmittedKernel, emit
from generator.build.inspect import read_cubin
from generator.build.pipeline import planned_sections
from generator.build.toolchain import Headers, cuda_include, cutlass_include, headers, templates_folder
from generator.errors import BuildError
from generator.export.c_library import source_files
from generator.families import FAMILIES, family_of
from generator.families.mma_sync.emit import FORMS
from generator.store.library import Library
from generator.sweep import sweep
from hgemm.record import SOURCE_NAME

TEMPLATES = templates_folder()
ENTRY_HEADER = FORMS["atoms"].entry_header
EXAMPLE = TEMPLATES / "examples" / "gemm_128x128x32.cu"
FOLDERS = ("common", "mma_sync", "mma_sync_direct", "mma_sync_tma", "wgmma")
"""The folder that families share, and one folder for each family."""
HEADERS = sorted(
    path.relative_to(TEMPLATES).as_posix() for folder in FOLDERS for path in (TEMPLATES / folder).glob("*.cuh")
)
IN_CUTE = [header for header in HEADERS if "/cute_" in header]
OWN = [header for header in HEADERS if header not in IN_CUTE]
LEAN = sorted(path.relative_to(TEMPLATES / "cute_lean").as_posix() for path in (TEMPLATES / "cute_lean").rglob("*.h*"))
DOORS = ("common/types.cuh", "common/atoms.cuh", "common/atoms_math.cuh", "common/atoms_sm90.cuh", "mma_sync/wmma.cuh")
"""The implementations of the atom layer, which alone may touch the machine, and set the switches of CuTe."""
MAX_LITERAL_BYTES = 64
"""Literals of the kernel that ptxas keeps in a constant bank of its own."""


def text_of(header: str) -> str:
    return (TEMPLATES / header).read_text(encoding="ascii")


def kernel_of(source: str = "", symbol: str = "", **texts: str) -> EmittedKernel:
    """Return the kernel of a small spec, with another source and symbol where they are given."""
    tile = "64x32x32" if texts.get("arch") == "sm_90a" else "32x32x16"
    (plan,) = sweep([{"arch": "sm_80", "tile": tile, "stages": "2", **texts}]).plans
    kernel = emit(plan, TEMPLATES)
    return replace(kernel, source=source or kernel.source, symbol=symbol or kernel.symbol)


def compiled_alone(header: str, reachable: Headers) -> Compiled:
    source = f'#include <{header}>\nextern "C" __global__ void alone() {{}}\n'
    return compile_kernel(kernel_of(source, "alone"), reachable)


# ---- Headers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", OWN + LEAN)
def test_a_header_compiles_alone(header: str) -> None:
    assert compiled_alone(header, headers(header, TEMPLATES)).cubin


@pytest.mark.parametrize("header", [*OWN, *IN_CUTE, *LEAN])
def test_headers_are_ascii_and_state_their_purpose(header: str) -> None:
    text = text_of(f"cute_lean/{header}" if header in LEAN else header)
    lines = text.splitlines()
    assert lines[0].startswith("// ") and text.endswith("\n") and text.count("#pragma once") == 1
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", text)
    assert not [line for line in lines if "\t" in line or line != line.rstrip()]


@pytest.mark.parametrize("header", HEADERS)
def test_a_family_reads_no_header_of_another(header: str) -> None:
    included = re.findall(r"#include <(\w+)/", text_of(header))
    assert {folder for folder in included if folder in FOLDERS} <= {"common", header.partition("/")[0]}


@pytest.mark.parametrize("header", OWN)
def test_header_names_have_the_namespace_or_the_prefix(header: str) -> None:
    text = text_of(header)
    prefixes = ("HGEMM_", "CUTE_") if header in DOORS else ("HGEMM_",)
    assert not [name for name in re.findall(r"#[ \t]*define[ \t]+(\w+)", text) if not name.startswith(prefixes)]
    macros = re.compile(r"#[ \t]*define\b(?:.*\\\n)*.*\n")
    outside = re.sub(r"namespace hgemm \{.*\}  // namespace hgemm\n", "", macros.sub("", text), flags=re.DOTALL)
    assert not re.search(r"^\s*(struct|class|enum|template|using|constexpr|static)\b", outside, re.MULTILINE)


@pytest.mark.parametrize("header", [header for header in OWN if header not in DOORS])
def test_only_atoms_use_machine_instructions(header: str) -> None:
    """A kernel that bypasses the atom layer cannot be run or checked on the CPU."""
    code = re.sub(r"//.*", "", text_of(header))
    around = re.findall(
        r"\b(?:threadIdx|blockIdx|gridDim|blockDim|asm|cute::|cutlass::|atomic[A-Z]\w*|erff|__(?!builtin)\w+)", code
    )
    assert not around


# ---- Hermetic -------------------------------------------------------------------------------------------------------


def test_compiler_reads_the_given_headers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one of them a kernel does not compile, even in the folder where the header lies."""
    monkeypatch.chdir(TEMPLATES)
    whole = headers(ENTRY_HEADER, TEMPLATES)
    assert not [option for option in options(kernel_of()) if "include" in option or option.startswith("-I")]
    for name in ("common/problem.cuh", "cute/config.hpp", "cute/arch/mma_sm80.hpp", "cuda_fp16.h"):
        part = Headers(whole.root, tuple(header for header in whole.files if header.name != name))
        with pytest.raises(BuildError, match=f'open source file "{name}"'):
            compile_kernel(kernel_of(), part)


def test_header_names_have_no_absolute_paths() -> None:
    names = [header.name for entry in OWN for header in headers(entry, TEMPLATES).files]
    assert not [name for name in names if name.startswith("/") or ".." in name.split("/")]
    assert {*OWN} <= {*names}
    assert not [name for name in {*names} - {*LEAN} if name.startswith(("cutlass/", "cuda/std/", "cccl/"))]


# ---- Lean stand-ins -------------------------------------------------------------------------------------------------

KINDS = (
    {"arch": "sm_89", "tile": "64x64x32"},
    {"arch": "sm_90", "tile": "64x64x32", "layout": "nt", "dtype": "bf16", "schedule": "persistent"},
    {"arch": "sm_80", "tile": "32x64x32", "layout": "tt", "acc": "f16", "align": "2", "mma": "m16n8k8"},
    {"arch": "sm_75", "tile": "64x64x32", "acc": "f16", "smem_alloc": "static"},
)


@pytest.fixture
def genuine(monkeypatch: pytest.MonkeyPatch) -> Headers:
    """Let compile_kernel read CuTe's own headers, and the C++ library that they need, from where they are installed."""
    cuda = cuda_include()
    folders = (TEMPLATES, cutlass_include(), cuda, cuda / "cccl")
    more = ("-default-device", *(f"-I{folder}" for folder in folders))
    monkeypatch.setattr(generator.build.compile, "options", lambda kernel: (*options(kernel), *more))
    return Headers(ENTRY_HEADER, ())


@pytest.mark.slow
@pytest.mark.parametrize("texts", KINDS, ids=lambda texts: texts["arch"])
def test_the_genuine_headers_of_cute_give_the_same_machine_code(
    texts: dict[str, str], genuine: Headers, request: pytest.FixtureRequest
) -> None:
    kernel = kernel_of(**texts)
    guard = "#ifndef CUTLASS_HOST_DEVICE\n#error these are not the genuine headers\n#endif\n"
    from_genuine = compile_kernel(replace(kernel, source=kernel.source + guard), genuine)
    request.getfixturevalue("monkeypatch").undo()
    from_lean = compile_kernel(kernel, headers(kernel.entry_header, TEMPLATES))
    assert read_cubin(from_lean.cubin, kernel.symbol).text == read_cubin(from_genuine.cubin, kernel.symbol).text
    assert from_lean.ptx == from_genuine.ptx


def test_changed_cute_headers_are_detected() -> None:
    guarded = kernel_of(kernel_of().source + "#ifndef CUTLASS_HOST_DEVICE\n#error lean\n#endif\n")
    with pytest.raises(BuildError, match="lean"):
        compile_kernel(guarded, headers(ENTRY_HEADER, TEMPLATES))


# ---- What reaches the binary ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120"])
def test_ptx_and_cubin_have_only_the_kernel(arch: str) -> None:
    kernel = kernel_of(arch=arch)
    compiled = compile_kernel(kernel, headers(kernel.entry_header, TEMPLATES))
    ptx = compiled.ptx.decode("ascii")
    assert re.findall(r"^\.target (\w+)", ptx, re.MULTILINE) == [arch]
    assert re.findall(r"\.entry (\w+)", ptx) == [kernel.symbol]
    assert not re.findall(r"^\s*(?:\.visible |\.weak |\.extern )?\.(?:func|global|const)\b.*", ptx, re.MULTILINE)
    traits = read_cubin(compiled.cubin, kernel.symbol)
    assert traits.symbols == (kernel.symbol,), "a helper of the compiler's is called, and registers kept free for it"
    assert traits.global_bytes == 0 and traits.constant_bytes <= MAX_LITERAL_BYTES


# ---- The example ----------------------------------------------------------------------------------------------------


def the_same_emitted() -> EmittedKernel:
    wanted = {"arch": "sm_80", "layout": "tn", "dtype": "f16", "acc": "f32", "out": "f16", "tile": "128x128x32"}
    how = {"warp_tile": "64x64", "stages": "3", "fragment_stages": "2", "smem": "xor:2,3,3", "mma_order": "zigzag"}
    order = {"raster": "group:8", "schedule": "one_tile", "ctas_per_sm": "2"}
    return kernel_of(**wanted, **how, **order, beta="on", store="smem", align="8")


def test_handwritten_example_equals_the_emitted_kernel() -> None:
    emitted = the_same_emitted()
    by_hand = replace(emitted, source=EXAMPLE.read_text(encoding="ascii"), symbol="gemm_128x128x32")
    texts = [
        read_cubin(compile_kernel(kernel, headers(ENTRY_HEADER, TEMPLATES)).cubin, kernel.symbol).text
        for kernel in (by_hand, emitted)
    ]
    assert texts[0] == texts[1]


def test_the_example_explains_every_field_of_a_policy() -> None:
    def fields(source: str) -> list[str]:
        policy = re.sub(r"//.*", "", source[source.index("struct Policy") : source.index("static_assert")])
        return re.findall(r"(\w+) = ", policy)

    assert sorted(fields(EXAMPLE.read_text())) == sorted(fields(the_same_emitted().source))
    bare = [line for line in EXAMPLE.read_text().splitlines() if " = " in line and ";" in line and "//" not in line]
    assert {line.split(" = ")[0].split()[-1] for line in bare} <= {"align", "pitch", "swizzle_bits", "epilogue_pitch"}


@pytest.fixture
def nvcc() -> str:
    """nvcc of the PATH, or of the wheel nvidia-cuda-nvcc."""
    wheel = cuda_include().parent / "bin" / "nvcc"
    found = shutil.which("nvcc") or (str(wheel) if wheel.is_file() else None)
    if found is None:
        pytest.skip(
            "no nvcc here, which only this test needs: put CUDA 12.4 or later on the PATH, or install its wheel"
        )
    return found


ONE_OF_EACH_FAMILY = (
    {"arch": "sm_75", "tile": "64x64x32"},
    {"arch": "sm_80", "tile": "64x64x32", "epilogue": "relu(alpha * acc + bias)"},
    {"arch": "sm_80", "tile": "64x64x32", "dtype": "tf32"},
    {"arch": "sm_90", "tile": "64x64x32", "copy": "tma"},
    {"arch": "sm_80", "tile": "64x64x64", "schedule": "launch"},
    {"arch": "sm_90", "tile": "16x64x128", "copy": "ldg"},
    {"arch": "sm_90a", "tile": "128x128x64", "activation": "gelu"},
    {"arch": "sm_90a", "tile": "128x128x64", "align": "4"},
)


def test_the_kernels_for_nvcc_are_of_every_family() -> None:
    plans = sweep(ONE_OF_EACH_FAMILY).plans
    assert {family_of(plan.spec).name for plan in plans} == {family.name for family in FAMILIES}


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("texts", ONE_OF_EACH_FAMILY, ids=lambda texts: " ".join(texts.values()))
def test_plain_nvcc_compiles_exported_sources(texts: dict[str, str], nvcc: str, tmp_path: Path) -> None:
    """With the headers of the export as a host compiler sees them, too; with all headers of CUTLASS as device code."""
    (plan,) = sweep([texts]).plans
    kernel, library = emit(plan, TEMPLATES), Library(tmp_path / "lib")
    # With the record of a built kernel; only its code is made up.
    record, artefacts = make_record(
        kernel.symbol, {**make_artefacts(kernel.symbol), SOURCE_NAME: kernel.source.encode()}
    )
    record["resources"] = resources_of(plan, plan.spec.ctas_per_sm)
    record.update(planned_sections(kernel), inputs=headers(kernel.entry_header, TEMPLATES).hashes())
    library.publish(record, artefacts)
    for name, content in source_files(library, [kernel.symbol], TEMPLATES).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    number = plan.spec.arch.removeprefix("sm_")
    for first, output in ((cutlass_include(), "-cubin"), ("include/cute_lean", "-c")):
        command = [nvcc, "-std=c++17", "-diag-suppress", "177", f"-gencode=arch=compute_{number},code=sm_{number}"]
        command += [output, "-I", first, "-Iinclude", "-o", "x.o", "-I", cuda_include() / "cccl"]
        command += [f"instances/{kernel.symbol}.cu"]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0 and "warning" not in done.stderr, (kernel.symbol, done.stderr)


@pytest.mark.slow
def test_plain_nvcc_compiles_the_example(nvcc: str, tmp_path: Path) -> None:
    command = [nvcc, "-std=c++17", "-arch=sm_80", "-cubin", "-I", TEMPLATES, "-I", cutlass_include(), EXAMPLE]
    done = subprocess.run([*map(str, command), "-o", str(tmp_path / "x.cubin")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert read_cubin((tmp_path / "x.cubin").read_bytes(), "gemm_128x128x32").max_threads == 128

"""Exports to test with: planned records of the catalog and further kernels, and the C interface in ctypes."""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import astuple, fields
from pathlib import Path

import pytest
from records import make_record, resources_of

from generator.build.emit import EmittedKernel, emit
from generator.build.pipeline import planned_sections
from generator.build.toolchain import templates_folder
from generator.catalog import group_names, load_catalog
from generator.export.c_library import EXPORT_MANIFEST, ExportOptions, export
from generator.store.library import Library
from generator.sweep import sweep
from hgemm.dispatch_table import kind_of
from hgemm.epilogue import NONE, parse_epilogue
from hgemm.epilogue_language import as_epilogue
from hgemm.launch_traits import LaunchTraits
from hgemm.library import open_library
from hgemm.problem import ACCUMULATIONS, ACTIVATIONS, BIASES, LAUNCH, LAYOUTS, TYPES, Kind, Problem
from hgemm.record import ARTEFACTS

TESTS = Path(__file__).resolve().parent
GELU = "gelu_tanh(alpha * acc + bias)"
SCALED = "scale: Column['f32']; bias: Row; residual: Matrix; relu(acc * scale + bias) + residual"
"""The epilogue of examples/c/fused.c."""
AT_LAUNCH = {"schedule": "launch", "raster": "launch", "bias": "launch"}
MORE = (
    {"arch": "sm_80,sm_90", "tile": "128x128x32", "bias": "row,column", "activation": "gelu,relu"},
    {"arch": "sm_80", "tile": "128x128x32,64x128x32", "schedule": "persistent", "layout": "tn,nt", "align_b": "4,1"},
    {"arch": "sm_80,sm_120", "tile": "64x64x32", "schedule": "split_k:3", "align_a": "2", "out": "f32"},
    {"arch": "sm_89", "tile": "64x64x32", "beta": "off", "align": "1"},
    {"arch": "sm_90a", "tile": "128x256x64,64x128x64", "layout": "tn,nt", "swap_ab": "on,off"},
    {"arch": "sm_90a", "tile": "128x128x64", "schedule": "split_k_cluster:2"},
    *({**AT_LAUNCH, "arch": arch, "tile": "64x64x32"} for arch in ("sm_80", "sm_90")),
    {**AT_LAUNCH, "arch": "sm_90a", "tile": "128x256x64,64x128x64", "acc": "f32"},
    {**AT_LAUNCH, "arch": "sm_90a", "tile": "128x128x64", "layout": "nn", "cluster": "2x1"},
    {"arch": "sm_80", "tile": "64x64x32", "pointer_arrays": "on"},
)
"""Kinds, schedules and alignments that the catalog has none of."""


WGMMA = {"arch": "sm_90a", "cluster": "2x1", "cooperation": "cooperative", "stages": "4", "raster": "group:16"}
HOPPER = (
    {"tile": "128x256x64", "layout": "tn,nn,nt,tt"},
    {"tile": "128x256x64", "dtype": "bf16"},
    {"tile": "128x256x64", "acc": "f16"},
    {"tile": "128x256x64", "out": "f32", "align_d": "4"},
    {"tile": "256x128x64", "raster": "group:8"},
    {"tile": "128x208x64"},
    {"tile": "128x128x64", "cooperation": "pingpong", "stages": "6"},
    {"tile": "64x256x64", "cooperation": "pingpong", "cluster": "1x1"},
    {"tile": "128x128x64", "schedule": "split_k:4", "cluster": "1x1", "stages": "6"},
    {"tile": "128x256x64", "schedule": "stream_k"},
    {"tile": "16x128x64,64x128x64", "swap_ab": "on", "cluster": "1x1", "stages": "8", "raster": "group:8"},
    {"tile": "8x64x128", "layout": "nn", "swap_ab": "on", "cluster": "1x1", "stages": "8", "raster": "group:8"},
)
"""Kernels on wgmma with TMA copies."""


def more_kernels() -> Iterator[EmittedKernel]:
    """Emit kernels of kinds that the catalog lacks."""
    templates = templates_folder()
    for texts in MORE:
        yield from (emit(plan, templates) for plan in sweep([texts]).plans)


def paper_library(folder: Path, kernels: list[EmittedKernel]) -> Library:
    """Return a library of kernels that were planned and not compiled: their code is a line that says what they do."""
    library = Library(folder)
    for kernel in kernels:
        spec = kernel.plan.spec
        does = " ".join([*["beta"] * spec.beta, *["pointers"] * spec.pointer_arrays, spec.bias, spec.activation])
        if expression := parse_epilogue(spec.epilogue):  # tests/fake_libcuda.c computes these
            named = {as_epilogue(GELU): "by_tanh", as_epilogue(SCALED): "scaled"}
            does = "several" if expression.outputs else named.get(expression, "fused")
        record, files = make_record(
            kernel.symbol, {name: f"{name} of {kernel.symbol} {does}\n".encode() for name in ARTEFACTS}
        )
        record.update(planned_sections(kernel))
        record["resources"] = resources_of(kernel.plan, spec.ctas_per_sm)
        library.publish(record, files)
    return library


def full_library(folder: Path) -> Library:
    """Return planned records of the catalog and more. Those on wgmma are fixed, so that choices do not change with the catalog."""
    names = [name for name in group_names() if not name.startswith("hopper")]
    plans = [
        *sweep(load_catalog(names)).plans,
        *(plan for texts in HOPPER for plan in sweep([{**WGMMA, **texts}]).plans),
    ]
    templates = templates_folder()
    return paper_library(folder, [*(emit(plan, templates) for plan in plans), *more_kernels()])


FAST_CC = str(TESTS / "fast_cc")
"""A C compiler that does not optimize: it builds an export in a quarter of the time."""


def export_paper(library: Library, to: Path, name: str = "hgemm", compiler: str = FAST_CC) -> Path:
    """Export a library without nvFatbin, which would refuse code that is none; skip where there is no compiler."""
    need_compiler()
    opened = open_library(library.folder)
    export(opened, to, ExportOptions(opened.symbols, name, compressed=False, compiler=compiler))
    return to


def check_manifest(folder: Path) -> list[str]:
    """Return what differs from an export's manifest: files that are missing, changed or more."""
    wanted = json.loads((folder / EXPORT_MANIFEST).read_bytes())["files"]
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.name != EXPORT_MANIFEST:
            text = path.read_bytes()
            found[path.relative_to(folder).as_posix()] = {
                "sha256": hashlib.sha256(text).hexdigest(),
                "bytes": len(text),
            }
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def need_compiler() -> str:
    compiler = shutil.which("cc")
    if compiler is None or shutil.which("ar") is None:
        pytest.skip("no C compiler, cc, and ar here: nothing is built")
    return compiler


def compiled(*arguments: object, cwd: Path | None = None) -> None:
    """Run the C compiler with all warnings as errors."""
    command = [need_compiler(), "-Wall", "-Wextra", "-Werror", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def fake_driver(folder: Path) -> Path:
    """Build a libcuda.so.1 without a GPU, which computes what is launched on the CPU; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    compiled("-std=gnu11", "-O2", "-shared", "-fPIC", TESTS / "fake_libcuda.c", "-o", folder / "libcuda.so.1", "-lm")
    return folder


# ---- hgemm.h --------------------------------------------------------------------------------------------------------

ANY_WORKSPACE = 2**64 - 1


class CAux(ctypes.Structure):
    _fields_ = [
        ("pointer", ctypes.c_void_p),
        ("ld", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
        ("value", ctypes.c_float),
    ]


POINTER_ARRAYS = 4
"""HGEMM_POINTER_ARRAYS of hgemm.h."""


class CProblem(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint64),
        *((name, ctypes.c_int32) for name in ("layout", "dtype_a", "dtype_b", "dtype_d")),
        *((name, ctypes.c_int32) for name in ("acc", "bias_kind", "activation", "flags")),
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "batch")),
        *((name, ctypes.c_void_p) for name in ("a", "b", "c", "d", "bias", "workspace")),
        ("workspace_bytes", ctypes.c_uint64),
        *((name, ctypes.c_int64) for name in ("lda", "ldb", "ldc", "ldd")),
        *((f"batch_stride_{name}", ctypes.c_int64) for name in ("a", "b", "c", "d", "bias")),
        ("alpha", ctypes.c_float),
        ("beta", ctypes.c_float),
        ("epilogue", ctypes.c_char_p),
        ("aux", CAux * 8),
    ]

    @classmethod
    def of(cls, kind: Kind, problem: Problem, workspace_bytes: int, flags: int = 0) -> CProblem:
        """Return a problem as C takes it."""
        words = {
            "layout": LAYOUTS.index(kind.layout),
            **{f"dtype_{name}": TYPES.index(getattr(kind, f"dtype_{name}")) for name in "abd"},
            "acc": ACCUMULATIONS.index(kind.acc),
            "bias_kind": BIASES.index(problem.bias_kind if kind.bias == LAUNCH else kind.bias),
            "activation": ACTIVATIONS.index(kind.activation),
            "flags": flags | POINTER_ARRAYS * kind.pointer_arrays,
        }
        if kind.epilogue != NONE:
            words["epilogue"] = kind.epilogue.encode()
            words["aux"] = (CAux * 8)(*(astuple(one) for one in problem.aux))
        others = {field.name for field in fields(problem)} - {"bias_kind", "options", "aux", "pointer_arrays"}
        values = {name: getattr(problem, name) for name in others}
        return cls(struct_size=ctypes.sizeof(cls), workspace_bytes=workspace_bytes, **words, **values)


class CDevice(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("major", "minor", "sms", "smem_bytes")]


class CChoice(ctypes.Structure):
    _fields_ = [
        ("symbol", ctypes.c_char_p),
        ("kernel", ctypes.c_int32),
        ("jit", ctypes.c_int32),
        ("workspace_bytes", ctypes.c_uint64),
        ("estimated_clocks", ctypes.c_uint64),
        ("rule", ctypes.c_int32),
        ("splits", ctypes.c_int32),
        ("whole_tiles", ctypes.c_int32),
        ("raster_tiles", ctypes.c_int32),
    ]


def loaded(folder: Path, name: str = "hgemm") -> ctypes.CDLL:
    """Load an export's shared library."""
    library = ctypes.CDLL(str(folder / "lib" / f"lib{name}.so"))
    for function in ("status_string", "last_message", "version"):
        getattr(library, f"{name}_{function}").restype = ctypes.c_char_p
    return library


class ByC:
    """Stands for a Kernel where a trial launches: C chooses among the export's kernels, and launches."""

    def __init__(self, library: ctypes.CDLL, traits: LaunchTraits) -> None:
        self.library, self.traits, self.chosen = library, traits, ""
        self.handle = ctypes.c_void_p()
        assert library.hgemm_create(ctypes.byref(self.handle), 0) == 0, library.hgemm_last_message()

    def problem(self, problem: Problem, workspace_bytes: int) -> ctypes.Structure:
        return CProblem.of(kind_of(self.traits), problem, workspace_bytes)

    def launch(
        self,
        problem: Problem,
        *,
        device: int = 0,
        workspace_size: int | None = None,
        stream: int | None = None,
        zeroed: bool = False,
    ) -> None:
        given, choice = self.problem(problem, workspace_size or 0), CChoice()
        status = self.library.hgemm_select(self.handle, ctypes.byref(given), ctypes.byref(choice))
        status = status or self.library.hgemm_run(self.handle, ctypes.byref(given), ctypes.c_void_p(stream))
        assert status == 0, self.library.hgemm_last_message()
        self.chosen = choice.symbol.decode()

    def close(self) -> None:
        self.library.hgemm_destroy(self.handle)

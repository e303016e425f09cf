"""Compile emitted kernels to PTX and cubins.

CuTe declares each shape and type of wgmma as a struct: 77,000 lines, which take 0.9 s to parse. A kernel gets only the one that
it uses.
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from generator.arch import ARCHS
from generator.build import dsl as translate
from generator.build.emit import EmittedKernel
from generator.build.inspect import parse_ptxas_log
from generator.build.toolchain import Header, Headers, version_of
from generator.errors import INSTALL, BuildError, HgemmError

ATOMS = "cute/arch/mma_sm90_gmma.hpp"
MORE_ATOMS = "cute/arch/mma_sm90_gmma_ext.hpp"
_NAMED = re.compile(r"^\s*HGEMM_WGMMA(?:_TN)?\((\w+)\)", re.MULTILINE)
_FIRST_ATOM = b"template <\n  GMMA::Major tnspA"
_END_OF_ATOM = b"\n};\n"
_TAIL = b"\n}  // namespace SM90::GMMA\n}  // namespace cute\n"


def only_named_atom(headers: tuple[Header, ...], source: str) -> tuple[Header, ...]:
    """Return the headers with only the wgmma atom that `source` names by HGEMM_WGMMA (or _TN), if any.

    Raises: HgemmError if CuTe has no such atom, or its header has another layout.
    """
    named = _NAMED.search(source)
    texts = {header.name: header.text for header in headers}
    if ATOMS not in texts:
        return headers
    atom = _atom(f"MMA_{named[1]}", texts[ATOMS], texts.get(MORE_ATOMS, b"")) if named else b""
    text = _prelude(texts[ATOMS]) + atom + _TAIL
    cut = Header(ATOMS, text, hashlib.sha256(text).hexdigest())
    return tuple(cut if header.name == ATOMS else header for header in headers if header.name != MORE_ATOMS)


def every_atom(headers: tuple[Header, ...]) -> tuple[Header, ...]:
    """Return the headers for a kernel that uses all of CuTe.

    Headers of further shapes get a second name, because NVRTC does not search the folder of the including file.
    """
    beside = (header for header in headers if header.name.startswith("cute/") and header.name.endswith("_ext.hpp"))
    return (*headers, *(replace(header, name=header.name.rpartition("/")[2]) for header in beside))


def _prelude(text: bytes) -> bytes:
    """Return the text before the first atom: the synchronisation instructions of wgmma and the enumerations."""
    before, found, _ = text.partition(_FIRST_ATOM)
    if not found:
        raise HgemmError(f"{ATOMS} of the installed CUTLASS has an unknown layout: install nvidia-cutlass 4.2.0.0")
    return before


def _atom(name: str, *texts: bytes) -> bytes:
    opening = f"struct {name}\n".encode()
    for text in texts:
        at = text.find(opening)
        if at >= 0:
            start, end = text.rfind(b"template <", 0, at), text.find(_END_OF_ATOM, at)
            return text[start : end + len(_END_OF_ATOM)]
    raise HgemmError(f"the installed CUTLASS has no wgmma atom {name}: install nvidia-cutlass 4.2.0.0")


# ---- Compilation: NVRTC to LTO-IR, nvJitLink to PTX, nvJitLink to a cubin --------------------------------------------

WHEELS = {
    "nvrtc": "nvidia-cuda-nvrtc",
    "nvjitlink": "nvidia-nvjitlink",
    "cutlass": "nvidia-cutlass",
    "cudart": "nvidia-cuda-runtime",
}

FRUGAL = (
    (),
    ("-Xptxas=-regUsageLevel=0",),
    ("-Xptxas=-O2", "-Xptxas=-regUsageLevel=0"),
    ("-Xptxas=-O1", "-Xptxas=-regUsageLevel=0"),
)
"""Options of ptxas, tried in order until a kernel does not spill. Each reorders less, so fewer values are live at once.

Source: docs/performance-notes.md, "Registers and spills".
"""


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel: the cubin, its PTX, the report of ptxas, and all compiler options."""

    cubin: bytes
    ptx: bytes
    ptxas_log: str
    options: tuple[str, ...]


def options(kernel: EmittedKernel) -> tuple[str, ...]:
    """Return the options of the front end. They contain no path.

    CuTe has functions without `__device__`, so a kernel that uses all of it needs -default-device."""
    if _in_dsl(kernel):
        return translate.options(kernel.plan.spec.arch)
    headers = "-default-device" if kernel.plan.spec.form == "cute" else "--minimal"
    return (f"--gpu-architecture={ARCHS[kernel.plan.spec.arch].compute}", "--std=c++17", headers, "-dlto")


def link_options(kernel: EmittedKernel) -> tuple[str, ...]:
    """Return the options of the linker from LTO-IR to PTX."""
    if _in_dsl(kernel):
        return ()
    return (f"-arch={kernel.plan.spec.arch}", "-lto", "-ptx", *_kept(kernel))


def assemble_options(kernel: EmittedKernel) -> tuple[str, ...]:
    """Return the options of the linker for a cubin: from PTX, or from LTO-IR if ptxas must see the whole program."""
    whole = ("-lto", *_kept(kernel)) if _from_lto_ir(kernel) else ()
    return (f"-arch={kernel.plan.spec.arch}", "-Xptxas=-v", *whole)


def _kept(kernel: EmittedKernel) -> tuple[str, ...]:
    """Return the options that make the linker drop everything but the kernel."""
    return ("-optimize-unused-variables", f"-kernels-used={kernel.symbol}")


def _from_lto_ir(kernel: EmittedKernel) -> bool:
    return kernel.plan.whole_program


def _in_dsl(kernel: EmittedKernel) -> bool:
    return kernel.plan.spec.form == "dsl"


def versions() -> dict[str, str]:
    """Return the versions of everything that compiles a C++ kernel."""
    return {name: version_of(wheel) for name, wheel in WHEELS.items()}


def versions_of(kernel: EmittedKernel) -> dict[str, str]:
    """Return the versions of everything that compiles a kernel. Raises: HgemmError if a wheel is missing."""
    if _in_dsl(kernel):
        return {"cutlass_dsl": translate.version(), "nvjitlink": version_of(WHEELS["nvjitlink"])}
    return versions()


def key_of(kernel: EmittedKernel, headers: Headers) -> str:
    """Return the content key: a hash of source, headers, options and compiler versions, without paths."""
    recipe = (options(kernel), link_options(kernel), assemble_options(kernel), FRUGAL)
    content = {"source": kernel.source, "headers": headers.hashes(), "versions": versions_of(kernel), "options": recipe}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Let signals interrupt system calls again after NVRTC, which restores handlers with SA_RESTART.

    Only handlers that Python set are changed.
    """
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(signal.getsignal(number)) and hasattr(signal, "siginterrupt"):  # Windows has none
                signal.siginterrupt(number, True)


@_signals_kept()
def compile_kernel(kernel: EmittedKernel, headers: Headers) -> Compiled:
    """Compile a kernel for its architecture. It reads only `headers` and needs no GPU.

    Raises: BuildError with the log of the compiler; HgemmError if the wheel of a compiler is missing.
    """
    if _in_dsl(kernel):
        translate.begin()
    try:
        from cuda.bindings import (  # takes 0.1 s and loads the compilers
            nvjitlink,
            nvrtc,
        )
    except ImportError as missing:
        raise HgemmError(f"wheel cuda-python is missing: {INSTALL}") from missing
    if _in_dsl(kernel):
        ptx = translate.ptx_of(kernel.symbol, kernel.source, kernel.plan.spec.arch)
        return _assembled(nvjitlink, kernel, nvjitlink.InputType.PTX, ptx, lambda: ptx)
    lto_ir = _front_end(nvrtc, kernel, headers)
    ptx_of = partial(_link, nvjitlink, kernel, link_options(kernel), nvjitlink.InputType.LTOIR, lto_ir, "ptx")
    if _from_lto_ir(kernel):
        from concurrent.futures import ThreadPoolExecutor  # needed only to compile

        with ThreadPoolExecutor(1) as beside:  # the linker releases the GIL: 0.5 s instead of 0.8 s
            written = beside.submit(ptx_of)
            return _assembled(nvjitlink, kernel, nvjitlink.InputType.LTOIR, lto_ir, lambda: written.result()[0])
    ptx, _ = ptx_of()
    return _assembled(nvjitlink, kernel, nvjitlink.InputType.PTX, ptx, lambda: ptx)


@_signals_kept()
def ptx_of(kernel: EmittedKernel, headers: Headers, lines: bool = False) -> bytes:
    """Return the PTX of a kernel, as `compile_kernel` does. `lines` adds the source line of each instruction (.loc).

    Raises: BuildError with the log of the compiler; HgemmError for the lines of a CuTe DSL module, or if the wheel of a
        compiler is missing.
    """
    if _in_dsl(kernel):
        if lines:
            raise HgemmError("CuTe DSL modules have no source lines in their PTX")
        translate.begin()
        return translate.ptx_of(kernel.symbol, kernel.source, kernel.plan.spec.arch).rstrip(b"\0")
    try:
        from cuda.bindings import nvjitlink, nvrtc  # takes 0.1 s and loads the compilers
    except ImportError as missing:
        raise HgemmError(f"wheel cuda-python is missing: {INSTALL}") from missing
    further = ("-lineinfo",) if lines else ()
    lto_ir = _front_end(nvrtc, kernel, headers, further)
    arguments = (*link_options(kernel), *further)
    ptx, _ = _link(nvjitlink, kernel, arguments, nvjitlink.InputType.LTOIR, lto_ir, "ptx")
    return ptx.rstrip(b"\0")


def _assembled(nvjitlink, kernel: EmittedKernel, kind, code: bytes, ptx: Callable[[], bytes]) -> Compiled:
    """Return the first cubin that does not spill, else the first one."""
    first = None
    for further in FRUGAL:
        assemble = (*assemble_options(kernel), *further)
        cubin, log = _link(nvjitlink, kernel, assemble, kind, code, "cubin")
        made = Compiled(cubin, ptx().rstrip(b"\0"), log, options=(*options(kernel), *link_options(kernel), *assemble))
        if not any(report.spill_bytes for report in parse_ptxas_log(log).values()):
            return made
        first = first or made
    return first


@_signals_kept()
def compile_text(source: str, name: str, arch: str) -> bytes:
    """Compile CUDA C++ without includes: to PTX for an `arch` such as compute_75, to a cubin for one such as sm_75.

    Raises: BuildError with the log of the compiler; HgemmError if the wheel of a compiler is missing.
    """
    try:
        from cuda.bindings import nvrtc

        program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], []))
    except (ImportError, RuntimeError) as missing:
        raise HgemmError(f"wheel cuda-python or nvidia-cuda-nvrtc 13.0 is missing ({missing}): {INSTALL}") from missing
    try:
        arguments = [f"--gpu-architecture={arch}".encode(), b"--std=c++17"]
        if nvrtc.nvrtcCompileProgram(program, len(arguments), arguments)[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BuildError(name, _fetch(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace"))
        return _fetch(nvrtc, program, "PTX" if arch.startswith("compute_") else "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def supported_archs() -> frozenset[str]:
    """Return the architectures that NVRTC supports. Raises: HgemmError if its wheel is missing."""
    from cuda.bindings import nvrtc

    return frozenset(f"sm_{number}" for number in _checked(nvrtc, nvrtc.nvrtcGetSupportedArchs()))


def _front_end(nvrtc, kernel: EmittedKernel, headers: Headers, further: tuple[str, ...] = ()) -> bytes:
    whole = kernel.plan.spec.form == "cute"  # its traits name every instruction
    files = every_atom(headers.files) if whole else only_named_atom(headers.files, kernel.source)
    names = [header.name.encode() for header in files]
    texts = [header.text for header in files]
    try:
        source = kernel.source.encode()
        program = _checked(nvrtc, nvrtc.nvrtcCreateProgram(source, b"kernel.cu", len(names), texts, names))
    except RuntimeError as missing:  # raised by the bindings if a library does not load
        raise HgemmError(f"wheel nvidia-cuda-nvrtc 13.0 is missing or broken ({missing}): {INSTALL}") from missing
    try:
        arguments = [option.encode() for option in (*options(kernel), *further)]
        status = nvrtc.nvrtcCompileProgram(program, len(arguments), arguments)[0]
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BuildError(kernel.symbol, _fetch(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace"))
        return _fetch(nvrtc, program, "LTOIR")
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _fetch(nvrtc, program, what: str) -> bytes:
    size = _checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program))
    buffer = bytes(size)
    _checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer


def _checked(nvrtc, result):
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise HgemmError(f"NVRTC failed: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
    return values[0] if values else None


def _link(
    nvjitlink, kernel: EmittedKernel, arguments: tuple[str, ...], kind, data: bytes, product: str
) -> tuple[bytes, str]:
    handle = nvjitlink.create(len(arguments), list(arguments))
    try:
        nvjitlink.add_data(handle, kind, data, len(data), kernel.symbol)
        nvjitlink.complete(handle)
        output = bytearray(getattr(nvjitlink, f"get_linked_{product}_size")(handle))
        getattr(nvjitlink, f"get_linked_{product}")(handle, output)
        return bytes(output), _log(nvjitlink, handle, "info")
    except nvjitlink.nvJitLinkError as error:
        raise BuildError(kernel.symbol, _log(nvjitlink, handle, "error") or str(error)) from error
    finally:
        nvjitlink.destroy(handle)


def _log(nvjitlink, handle, kind: str) -> str:
    size = getattr(nvjitlink, f"get_{kind}_log_size")(handle)
    log = bytearray(size)
    if size:
        getattr(nvjitlink, f"get_{kind}_log")(handle, log)
    return log.rstrip(b"\0").decode(errors="replace")

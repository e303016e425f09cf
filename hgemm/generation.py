"""`hgemm.generate` and `hgemm.verify`: build and check kernels from Python, by the plug-in of the generator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from hgemm import plugin
from hgemm.cases import MAX_SEED
from hgemm.errors import GenerationError, RequestError, VerificationError, unknown_word
from hgemm.kernel import Kernel
from hgemm.library import Library
from hgemm.locations import default_library, existing_library, named_folder
from hgemm.plugin import GenerateRequest, Progress, Verified, VerifyRequest

Specs = str | PathLike[str] | Mapping[str, Any]
"""The path of a TOML file, or options by name."""


def generate(
    spec: Specs | Sequence[Specs] | None = None,
    *,
    library: str | PathLike[str] | Library | None = None,
    epilogue: Any = None,
    verify: bool = False,
    jobs: int | None = None,
    force: bool = False,
    allow_spills: bool = False,
    progress: Callable[[Progress], None] | None = None,
    **fields: Any,
) -> list[Kernel]:
    """Build kernels into a library, and return them in the order of the request.

    This is the command `generate`, with the same options and the same cache:

        hgemm.generate(arch="sm_90a", tile=["128x256x64", "128x128x64"], layout="tn")

    `spec` is the path of a TOML file, or a mapping of options, or several of them. `fields` are options, too, and override it.
    A list sweeps: every legal combination is built. Notes go to the logger `hgemm`. It needs the package hgemm-generator, and
    no GPU.

    Fields: `library` is a folder or an open library; default: as `hgemm.open`. `epilogue` is a Python function, a text, or a
        traced function. `verify` runs each kernel on the CPU, and keeps it only if it passes; this needs a C++ compiler.
        `jobs` is the number of worker processes; default: one per core; 1 builds in this process. `force` builds kernels
        again that the library has. `allow_spills` keeps kernels that spill registers. `progress` is called with each
        finished kernel.
    Raises: RequestError for an illegal request; GenerationError if kernels failed, after all others were built; LibraryError if
        the generator is not installed or the folder cannot be written.
    """
    folder = _folder(library) or default_library().absolute()
    if isinstance(epilogue, str):
        fields = {**fields, "epilogue": epilogue}
    elif epilogue is not None:
        from hgemm.epilogue_language import epilogue_text  # most programs need no tracer

        fields = {**fields, "epilogue": epilogue_text(epilogue)}
    specs = [] if spec is None else [spec] if isinstance(spec, (str, PathLike, Mapping)) else [*spec]
    request = GenerateRequest(
        specs=[one if isinstance(one, Mapping) else Path(one) for one in specs],
        fields=fields,
        folder=folder,
        verify=verify,
        jobs=jobs,
        force=force,
        allow_spills=allow_spills,
    )
    built: dict[int, str] = {}
    failed: dict[str, str] = {}
    for one in plugin.load("hgemm.generate").generate(request):
        if one.error:
            failed[one.symbol] = one.error
        else:
            built[one.place] = one.symbol
        if progress:
            progress(one)
    opened = (
        library if isinstance(library, Library) and not force else Library(folder)
    )  # a library keeps what it has read
    opened.refresh()
    kernels = [opened.kernel(symbol) for _, symbol in sorted(built.items())]
    if failed:
        raise GenerationError(failed, kernels)
    return kernels


VERIFY_DEVICES = ("cpu", "cuda")


def verify(
    kernels: str | Kernel | Sequence[str | Kernel] | None = None,
    *,
    library: str | PathLike[str] | Library | None = None,
    device: str = "cpu",
    shapes: str = "",
    seed: int = 0,
    jobs: int | None = None,
    force: bool = False,
    progress: Callable[[Verified], None] | None = None,
) -> list[Verified]:
    """Check kernels of a library on the CPU or on the GPU, and return the result of each.

    This is the command `hgemm verify`, with the same checks:

        hgemm.verify(library="kernels")
        hgemm.verify(kernels[0], library="kernels", device="cuda", shapes="128x128x64,33x65x17@3")

    `device="cpu"` runs each thread of the kernel's PTX on the CPU, and stores the proof in the kernel's record, unless the library
    is read-only. It needs a C++ compiler, and no GPU. `device="cuda"` runs the kernel on the GPU and stores nothing. Both need the
    package hgemm-generator.

    Fields: `kernels` are kernels, symbols, hashes, prefixes or globs; default: all of the library. `library` is a folder or an open
        library; default: as `hgemm.open`. `shapes` replaces the default problems, which follow from the tile; a proof with
        other shapes is not stored. `jobs` is the number of processes. `force` repeats proofs that the records have.
        `progress` is called with each result.
    Raises: VerificationError if kernels failed, after all others were checked; RequestError for an illegal request; LibraryError if
        the generator is not installed, the library cannot be read or, without `kernels`, a record is damaged; DeviceError if there
        is no GPU.
    """
    if device not in VERIFY_DEVICES:
        raise unknown_word("device", device, VERIFY_DEVICES)
    if force and device != "cpu":
        raise RequestError('force is for device="cpu": checks on the GPU keep no result')
    if not 0 <= seed <= MAX_SEED:
        raise RequestError(f"seed is {seed}: pass 0 to {MAX_SEED}")
    given = [kernels] if isinstance(kernels, (str, Kernel)) else [*(kernels or ())]
    symbols = [one if isinstance(one, str) else one.symbol for one in given]
    folder = _folder(library) or existing_library().absolute()
    if kernels is not None and not symbols:
        return []
    request = VerifyRequest(folder, symbols, device, shapes, seed, jobs, force)
    results = []
    for one in plugin.load("hgemm.verify", "check the kernels on another machine").verify(request):
        results.append(one)
        if progress:
            progress(one)
    if failed := {one.symbol: one.reason for one in results if not (one.passed or one.skipped)}:
        raise VerificationError(failed, results)
    return results


def _folder(library: str | PathLike[str] | Library | None) -> Path | None:
    """Return the folder of a library that a caller named, or None."""
    if library is None:
        return None
    return library.folder if isinstance(library, Library) else named_folder(library)

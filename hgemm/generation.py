"""`hgemm.generate`: builds kernels from Python, by the plug-in of the generator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from hgemm import plugin
from hgemm.errors import GenerationError
from hgemm.growth import default_library
from hgemm.kernel import Kernel
from hgemm.library import Library
from hgemm.plugin import GenerateRequest, Progress

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
    folder = library.folder if isinstance(library, Library) else Path(library) if library else default_library()
    if isinstance(epilogue, str):
        fields = {**fields, "epilogue": epilogue}
    elif epilogue is not None:
        from hgemm.epilogue_language import as_epilogue  # most programs need no tracer

        expression = as_epilogue(epilogue)
        fields = {**fields, "epilogue": expression.text if expression else "none"}
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

"""The kernels as sources: the text of each variant, and every header that it includes but the CUDA toolkit's own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from generator.errors import LibraryError, RequestError
from generator.toolchain import cutlass_include
from hgemm.library import Library
from hgemm.record import SOURCE_NAME
from hgemm.variants import read_variant

_FOR_THE_CPU = "executor/"
"""Headers that the kernels' own include only where a C++ compiler makes them run on the CPU."""
README = """\
Each file of instances/ is one kernel; it includes headers of include/ and, of a CUDA toolkit, cuda_fp16.h and what that needs.

    nvcc -std=c++17 -arch=sm_89 -Iinclude -Iinclude/lean -c instances/SYMBOL.cu

An architecture with a letter, such as sm_90a, is written out. include/lean comes before any other copy of CuTe,
and is left out for kernels with _cute_ in their names, which are made of all of it.
hgemm/problem.cuh is what a kernel takes; launch.json says with how many threads, how much shared memory, and which grid.
"""


def source_files(library: Library, symbols: Iterable[str], templates: Path) -> dict[str, bytes]:
    """Return the files by their paths.

    Raises: LibraryError where a header is not the one a variant was made from, RequestError where a variant is not in C++.
    """
    files = {"README": README.encode()}
    for symbol in symbols:
        variant = read_variant(library.folder, symbol)
        if variant.record.source_name != SOURCE_NAME:
            raise RequestError(
                f'{symbol} is a module of CuTe DSL, which nvcc does not compile: leave it out by --where "not form=dsl"'
            )
        files[f"instances/{symbol}.cu"] = variant.source
        for path, text in _headers(variant.record.data["inputs"], symbol, templates):
            files[f"include/{path}"] = text
    return files


def _headers(inputs: dict[str, str], symbol: str, templates: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the headers that are ours or CUTLASS's; those of the toolkit stay where it is."""
    for name, sha256 in inputs.items():
        if name.startswith(_FOR_THE_CPU):
            continue
        places = ((templates, ""), (templates / "lean", "lean/"), (cutlass_include(), ""))
        here = {place + name: (folder / name).read_bytes() for folder, place in places if (folder / name).is_file()}
        same = [path for path, text in here.items() if hashlib.sha256(text).hexdigest() == sha256]
        if here and not same:
            raise LibraryError(f"{symbol} was made from another {name} than is installed: generate it anew")
        yield from ((path, here[path]) for path in same[:1])

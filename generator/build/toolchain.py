"""The installed compilers and headers: their versions, and the text of every header that a kernel can include."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from generator.errors import INSTALL, HgemmError

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', re.MULTILINE)
_MACRO_INCLUDE = re.compile(rb"^[ \t]*#[ \t]*include[ \t]+CUDA_STD_HEADER\((\w+)\)", re.MULTILINE)
"""How CUTLASS includes headers that CUDA 13 has in `cccl/`."""
_WHOLE_CUTE = "/cute_"
"""Part of the name of each header that needs all of CuTe, and not our replacements in templates/cute_lean."""
OWN_HEADERS = ("common/", "mma_sync/", "mma_sync_tma/", "wgmma/")
"""The folders of kernel headers: one per family, and common."""


def in_whole_cute(header: str) -> bool:
    """Return whether a header needs all of CuTe."""
    return _WHOLE_CUTE in header


@dataclass(frozen=True)
class Header:
    """A header: the name in `#include`, its text and its hash."""

    name: str
    text: bytes
    sha256: str


@dataclass(frozen=True)
class Headers:
    """Every file that a kernel can include, starting from `root`. The compiler sees no other file."""

    root: str
    files: tuple[Header, ...]

    def hashes(self) -> dict[str, str]:
        return {header.name: header.sha256 for header in self.files}


def templates_folder() -> Path:
    """Return the templates folder: in the installed package, or in the checkout.

    Raises: HgemmError if there is neither.
    """
    here = Path(__file__).resolve().parents[1]
    for folder in (here / "templates", here.parent / "templates"):
        if (folder / "common" / "problem.cuh").is_file():
            return folder
    raise HgemmError(f"templates are missing beside {here}: reinstall the package ({INSTALL})")


def cutlass_include() -> Path:
    """Return CUTLASS's include folder, from the wheel nvidia-cutlass. Raises: HgemmError if it is not installed."""
    return _folder_in("cutlass_library", "source/include", "cutlass/version.h", "nvidia-cutlass")


def cuda_include() -> Path:
    """Return the CUDA runtime's include folder, from its wheel. Raises: HgemmError if it is not installed."""
    return _folder_in("nvidia", "cu13/include", "cuda_fp16.h", "nvidia-cuda-runtime 13.0")


def _folder_in(module: str, folder: str, file: str, wheel: str) -> Path:
    """Find the folder with `file` in a package. A namespace package such as `nvidia` has several locations."""
    spec = find_spec(module)
    for location in (spec.submodule_search_locations if spec else None) or ():
        if (Path(location) / folder / file).is_file():
            return Path(location) / folder
    raise HgemmError(f"wheel {wheel} is missing: {INSTALL}")


@cache
def headers(root: str, templates: Path) -> Headers:
    """Collect every header that `root` can include, directly or not. Preprocessor conditions are ignored.

    The headers of templates/cute_lean come before CUTLASS's and stand in for the genuine CuTe configuration headers, but not where
    a kernel is written in all of CuTe.
    Includes that no folder has (the host's standard library) are left to the compiler. An empty root has no headers.
    """
    if not root:
        return Headers(root, ())
    cuda = cuda_include()
    lean = [] if in_whole_cute(root) else [templates / "cute_lean"]
    folders = [templates, *lean, cutlass_include(), cuda, cuda / "cccl"]
    found: dict[str, Header] = {}
    queue = [root]
    while queue:
        name = queue.pop()
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if name in found or path is None:
            continue
        text = path.read_bytes()
        found[name] = Header(name, text, hashlib.sha256(text).hexdigest())
        written, by_macro = _includes_of(text)
        queue += [_resolve(included, name, folders) for included in written]
        queue += [f"cccl/cuda/std/{included}" for included in by_macro]
    return Headers(root, tuple(found[name] for name in sorted(found)))


@cache
def _includes_of(text: bytes) -> tuple[list[str], list[str]]:
    """Return the names in the `#include` lines of a header, and those in lines that use a macro of CUTLASS."""
    written, by_macro = ([name.decode() for name in pattern.findall(text)] for pattern in (_INCLUDE, _MACRO_INCLUDE))
    return written, by_macro


def _resolve(included: str, includer: str, folders: list[Path]) -> str:
    """Return the name of an include relative to a folder. It may be written relative to the including file."""
    beside = (Path(includer).parent / included).as_posix()
    return beside if any((folder / beside).is_file() for folder in folders) else included


@cache
def version_of(wheel: str) -> str:
    """Return an installed wheel's version. Raises: HgemmError if it is not installed."""
    try:
        return metadata.version(wheel)
    except metadata.PackageNotFoundError as missing:
        raise HgemmError(f"wheel {wheel} is missing: {INSTALL}") from missing

"""The variants of a library's folder, read without the generator."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Sequence
from pathlib import Path

from hgemm.errors import LibraryError
from hgemm.kernel import Kernel


def read_kernels(folder: Path, names: str = "") -> list[Kernel]:
    """Return the variants whose symbol or alias one of the globs `names` matches, or all.

    Raises: LibraryError where the folder has none, or a record cannot be read.
    """
    patterns = [word.strip() for word in names.split(",") if word.strip()] or ["*"]
    found = [_read(path) for path in sorted(folder.glob("*/record.json")) if _named(path, patterns)]
    if not found:
        raise LibraryError(f"no variant in {folder} matches {', '.join(patterns)}: `generate` makes them")
    return found


def _named(path: Path, patterns: Sequence[str]) -> bool:
    names = [path.parent.name, str(_record(path).get("alias", ""))]
    return any(fnmatch.fnmatch(name, pattern) for name in names for pattern in patterns)


def _read(path: Path) -> Kernel:
    cubin, ptx = (path.with_name(f"kernel.{kind}") for kind in ("cubin", "ptx"))
    return Kernel(_record(path), *(one.read_bytes() if one.exists() else b"" for one in (cubin, ptx)))


def _record(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LibraryError(f"{path} cannot be read: {error}") from None

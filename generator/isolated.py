"""Start Python processes that import nothing from the current folder."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import hgemm

NEUTRAL_FOLDER = os.sep
"""The current folder of a child: it holds no Python files, and a child opens nothing by a relative path."""
_CHILD = Path(__file__).with_name("isolated_child.py")
_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = {"generator": str(_ROOT / "generator"), "hgemm": str(Path(hgemm.__file__).resolve().parent)}


def command(target: str, *arguments: str) -> list[str]:
    """Return the command of a process that runs a module of this package, or `MODULE:FUNCTION`, with these arguments.

    Python runs with -I, so neither the current folder nor an environment variable adds a place to import from. The process
    imports this copy of the packages, and otherwise searches where this process searches, without the current folder.
    """
    setup = {"packages": _PACKAGES, "path": search_path(), "parent": os.getpid()}
    return [sys.executable, "-I", str(_CHILD), json.dumps(setup), target, *arguments]


def search_path() -> list[str]:
    """Return the folders of sys.path. The current folder is left out unless PYTHONPATH names it, or it is this checkout.

    A checkout comes last, so that none of its files hides a module of Python.
    """
    here = os.path.realpath(os.getcwd())
    named = {os.path.realpath(entry) for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry}
    root = str(_ROOT)
    found = [entry for entry in sys.path if os.path.isabs(entry) and entry != root]
    kept = [entry for entry in found if os.path.realpath(entry) != here or here in named]
    return [*kept, root] if root in sys.path or here == root else kept

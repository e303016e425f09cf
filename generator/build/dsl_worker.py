"""The process that CuTe DSL lives in: reads the name of a module's folder from each line of stdin, and leaves PTX in it.

It runs what the generator has just written, and nothing else: no module of a library comes here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE_NAME, PTX_NAME = "kernel.py", "kernel.ptx"
_VARIABLES = "CUTE_DSL_"


def serve() -> None:
    """Answer each request with one line, an error or an empty line, until stdin ends."""
    for name in [name for name in os.environ if name.startswith(_VARIABLES)]:
        del os.environ[name]  # it would change the compilation
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the DSL prints to stdout
    import cutlass.cute as cute

    for line in sys.stdin:
        request = json.loads(line)
        try:
            _translate(cute, Path(request["folder"]), request["options"])
            message = ""
        except Exception as error:
            message = f"error: {_words(error)}\n{traceback.format_exc()}"
        answers.write(json.dumps(message) + "\n")
        answers.flush()


def _translate(cute: Any, folder: Path, options: str) -> None:
    module = _loaded(folder / MODULE_NAME)
    message = f"{options} --keep-ptx --dump-dir {folder}"
    cute.compile(module.gemm, module.make_problem(), module.Int32(1), options=message)
    (written,) = folder.glob("*.ptx")
    written.rename(folder / PTX_NAME)


def _loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernel", path)
    assert spec and spec.loader
    module = sys.modules["kernel"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _words(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__

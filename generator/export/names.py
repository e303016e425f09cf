"""The name of an export: every symbol, file and package of it begins with that, so that several live in one program."""

from __future__ import annotations

import re

from generator.errors import RequestError

DEFAULT = "hgemm"
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_RESERVED = {"std", "int", "char", "float", "double", "struct", "cu", "cuda", "lib"}


def check_name(name: str) -> str:
    """Return a name that C, C++, CMake and file systems take. Raises RequestError for another."""
    if not _NAME.fullmatch(name) or name in _RESERVED or name.endswith("_"):
        raise RequestError(f"prefix {name!a} is no name: use a to z, 0 to 9 and _, such as mylib_gemm")
    return name


def renamed(text: str, name: str) -> str:
    """Return a template's text with the names of an export called `name`: hgemm_run becomes name_run, HGEMM_OK NAME_OK."""
    return text.replace(DEFAULT, name).replace(DEFAULT.upper(), name.upper())

"""CuTe's wgmma atoms, cut down to the one that a kernel names, or all of them.

CuTe writes each shape and type of wgmma out as a struct: 77,000 lines, 0.9 s of parsing. A kernel uses one of them.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

from generator.errors import HgemmError
from generator.toolchain import Header

ATOMS = "cute/arch/mma_sm90_gmma.hpp"
MORE_ATOMS = "cute/arch/mma_sm90_gmma_ext.hpp"
_NAMED = re.compile(r"^\s*HGEMM_WGMMA(?:_TN)?\((\w+)\)", re.MULTILINE)
_FIRST_ATOM = b"template <\n  GMMA::Major tnspA"
_END_OF_ATOM = b"\n};\n"
_TAIL = b"\n}  // namespace SM90::GMMA\n}  // namespace cute\n"


def only_named_atom(headers: tuple[Header, ...], source: str) -> tuple[Header, ...]:
    """Return the headers with one wgmma atom left, that which `source` names by HGEMM_WGMMA (or _TN); with none if it names none.

    Raises: HgemmError where CuTe has no such atom, or lays its header out in another way.
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
    """Return the headers for a kernel in all of CuTe: those of further shapes also by the names that CuTe includes them by.

    NVRTC does not look beside the includer.
    """
    beside = (header for header in headers if header.name.startswith("cute/") and header.name.endswith("_ext.hpp"))
    return (*headers, *(replace(header, name=header.name.rpartition("/")[2]) for header in beside))


def _prelude(text: bytes) -> bytes:
    """Return what comes before the first atom: the instructions around wgmma and the enumerations."""
    before, found, _ = text.partition(_FIRST_ATOM)
    if not found:
        raise HgemmError(f"{ATOMS} of the installed CUTLASS is not as expected: install nvidia-cutlass 4.2.0.0")
    return before


def _atom(name: str, *texts: bytes) -> bytes:
    opening = f"struct {name}\n".encode()
    for text in texts:
        at = text.find(opening)
        if at >= 0:
            start, end = text.rfind(b"template <", 0, at), text.find(_END_OF_ATOM, at)
            return text[start : end + len(_END_OF_ATOM)]
    raise HgemmError(f"the installed CUTLASS has no wgmma atom {name}: install nvidia-cutlass 4.2.0.0")

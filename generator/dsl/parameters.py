"""PTX of a kernel that takes a problem's fields one by one, to PTX of a kernel that takes the problem.

The fields stand in the order and with the types of hgemm/problem.cuh, so each lies where it lies in the struct: the kernel's
parameters become one of 144 bytes, and a load of the fifth becomes a load at its offset.
"""

from __future__ import annotations

import re

from hgemm.problem import PROBLEM_BYTES

_FIELDS = (*["u64"] * 6, *["u64"] * 9, *["u32"] * 4, *["f32"] * 2)
"""The types of a problem's fields: addresses, strides, extents, scalars."""
_ENTRY = re.compile(r"\.visible \.entry (?P<name>\w+)\((?P<parameters>[^)]*)\)")
_PARAMETER = re.compile(r"\.param \.(?P<type>\w+)(?: \.ptr[ .\w]*)? (?P<name>\w+)")


def take_problem(ptx: str, symbol: str) -> str:
    """Return the PTX of a kernel named `symbol` that takes a problem.

    Raises: ValueError where there is not one kernel, or it does not take the fields of a problem.
    """
    entries = [*_ENTRY.finditer(ptx)]
    if len(entries) != 1:
        raise ValueError(f"error: {len(entries)} kernels in the PTX, 1 is expected")
    (entry,) = entries
    parameters = [*_PARAMETER.finditer(entry["parameters"])]
    types = tuple(parameter["type"] for parameter in parameters)
    if types != _FIELDS:
        raise ValueError(f"error: the kernel takes {', '.join(types)}, not the fields of a problem")
    problem = f"{symbol}_param_0"
    head = f".visible .entry {symbol}(\n\t.param .align 8 .b8 {problem}[{PROBLEM_BYTES}]\n)"
    body = (ptx[: entry.start()] + head + ptx[entry.end() :]).replace(f".globl\t{entry['name']}", f".globl\t{symbol}")
    offset = 0
    for parameter in parameters:
        place = problem + (f"+{offset}" if offset else "")
        body = body.replace(f"[{parameter['name']}]", f"[{place}]")
        offset += int(parameter["type"][1:]) // 8
    if entry["name"] in body:
        raise ValueError("error: the kernel uses its parameters otherwise than by loads")
    return body

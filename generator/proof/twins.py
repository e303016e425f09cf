"""Kernels that differ only in numbers: in the type of their elements, f16 or bf16, or in the arithmetic of their architecture.

The PTX of such twins is the same but for the names of the types and the target. Then all have the same addresses, predicates,
barriers, copies and branches. So what a proof shows of one schedule holds for the others: no race, no access out of bounds, no
uninitialised read, no deadlock, and the costs. Only numbers may differ: they are rounded to another type, or added by the tensor
cores of another architecture.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

TYPES = ("f16", "bf16")
TARGET = re.compile(r"^\.target .*$", re.MULTILINE)
_NAME = {
    "f16": re.compile(r"(?<![\w%])f16(?:x2)?(?!\w)"),
    "bf16": re.compile(r"(?<![\w%])bf16(?:x2)?(?!\w)"),
}
"""The names of a type and of a pair of its numbers, among the words of an opcode."""
_BF16_BITS = re.compile(r"mov\.b32(%\w+),\{0,(%\w+)\};")
"""The upper half of an f32 number becomes a bf16 number: how compilers convert bf16 to f32 without an instruction for it."""
_F16_TO_F32 = r"cvt.f32.f16\1,\2;"


def twin_key(symbol: str, ptx: str, record: Mapping[str, Any]) -> str:
    """Return a hash that is the same for twins, or "" if a kernel has elements of both types or of another one.

    It covers the PTX but for its name, its target and spaces, and what a proof reads of the record but for the architecture.
    """
    spec = record["spec"]
    own = spec["dtype_a"]
    if own not in TYPES or {spec["dtype_b"], spec["dtype_d"]} != {own}:
        return ""
    other = TYPES[own == TYPES[0]]
    text = TARGET.sub("", ptx.replace(symbol, "")).replace(" ", "").replace("\t", "")
    sections = [{**record[name], "arch": ""} for name in ("spec", "traits")]
    facts = json.dumps([*sections, record["launch"], record.get("accumulation_order", {}).get("text")])
    if any(other in one and _NAME[other].search(one) for one in (text, facts)):
        return ""
    if own == "f16" and _BF16_BITS.search(text):
        return ""
    text = _NAME[own].sub(lambda found: "e16" + found[0][len(own) :], text)
    text = _BF16_BITS.sub(_F16_TO_F32.replace("f16", "e16"), text)
    return hashlib.sha256(f"{text}\n{_NAME[own].sub('e16', facts)}".encode()).hexdigest()

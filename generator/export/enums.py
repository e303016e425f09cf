"""The enumerations of hgemm.h, generated from the words of hgemm/problem.py: a new activation needs no change of a C file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hgemm.dtypes import OUTPUTS
from hgemm.problem import ACCUMULATIONS, ACTIVATIONS, BIASES, LAYOUTS, TYPES


@dataclass(frozen=True)
class Enum:
    """One C enumeration, hgemm_<name>. Each constant is `prefix` and a word in capitals."""

    name: str
    prefix: str
    words: tuple[str, ...]


ENUMS = (
    Enum("layout", "HGEMM_", LAYOUTS),
    Enum("dtype", "HGEMM_", TYPES),
    Enum("acc", "HGEMM_ACC_", ACCUMULATIONS),
    Enum("bias", "HGEMM_BIAS_", BIASES),
    Enum("activation", "HGEMM_ACTIVATION_", ACTIVATIONS),
)
COUNTS = {**{f"{enum.name.upper()}_COUNT": len(enum.words) for enum in ENUMS}, "OUTPUT_COUNT": len(OUTPUTS)}
"""How many values each enumeration has. The types of D are the first OUTPUT_COUNT of hgemm_dtype."""
_NOTES = {"gelu": "x * (1 + erf(x / sqrt(2))) / 2", "silu": "x / (1 + exp(-x))", "relu": "max(x, 0)"}
_PLACE = re.compile(r"@ENUM (\w+)@")


def with_enums(text: str) -> str:
    """Replace each line `@ENUM name@` of a header template by the definition of hgemm_<name>."""
    definitions = {enum.name: _definition(enum) for enum in ENUMS}
    return _PLACE.sub(lambda found: definitions[found[1]], text)


def _definition(enum: Enum) -> str:
    lines = [f"  {enum.prefix}{word.upper()} = {value}," for value, word in enumerate(enum.words)]
    lines[-1] = lines[-1].removesuffix(",")
    lines = [
        f"{line} /* {_NOTES[word]} */" if word in _NOTES else line for line, word in zip(lines, enum.words, strict=True)
    ]
    return "\n".join([f"typedef enum hgemm_{enum.name} {{", *lines, f"}} hgemm_{enum.name};"])

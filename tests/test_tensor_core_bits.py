"""The arithmetic of tensor cores: the executor and the reference in NumPy give the same bits."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from benchmarks.tensor_core_bits import FORMATS, KINDS, Cpu, Instruction, arithmetic_of, instructions, operands
from generator.proof.executor import HostToolchain

ON_THE_CPU = [one for one in instructions(90) if one.name != "mma_k4_tf32_f32"]  # the executor has no m16n8k4
FEW_TILES = 2


def is_nan(bits: np.ndarray, name: str) -> np.ndarray:
    form = FORMATS[name]
    return (bits & (form.sign - 1)) > form.infinity


@cache
def cpu(arch: int, toolchain: HostToolchain) -> Cpu:
    return Cpu(arch, toolchain)


def differing(one: Instruction, arch: int, toolchain: HostToolchain, kind: str) -> int:
    """Return how many results differ. All NaNs count as one number: the executor tells poison from other NaNs."""
    a, b, c = (x[:FEW_TILES] for x in operands(one, kind))
    found = cpu(arch, toolchain).execute(one, a, b, c)
    expected = one.model(arithmetic_of(arch, one.k, FORMATS[one.input].storage().itemsize), a, b, c)
    return int((~((found == expected) | (is_nan(found, one.sum) & is_nan(expected, one.sum)))).sum())


QUICK = ("mma_k16_f16_f32", "wgmma_k16_f16_f16")


@pytest.mark.parametrize(
    "one",
    [pytest.param(one, marks=() if one.name in QUICK else pytest.mark.slow, id=one.name) for one in ON_THE_CPU],
)
def test_executor_bits_match_the_reference(one: Instruction, o0_toolchain: HostToolchain):
    assert {kind: differing(one, 90, o0_toolchain, kind) for kind in KINDS} == dict.fromkeys(KINDS, 0)


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 75])
def test_older_architectures_keep_fewer_bits(arch: int, o0_toolchain: HostToolchain):
    one = next(one for one in instructions(arch) if one.name == f"mma_k{16 if arch == 80 else 8}_f16_f32")
    assert {kind: differing(one, arch, o0_toolchain, kind) for kind in KINDS} == dict.fromkeys(KINDS, 0)

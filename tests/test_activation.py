"""Activations: the arithmetic of the templates against the float64 reference."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from atom_runs import translatable

from generator.proof.executor import (
    INITIALISED,
    READABLE,
    WRITABLE,
    Adversary,
    Executable,
    HostToolchain,
    Launch,
    Region,
)
from hgemm.errors import HgemmError
from hgemm.problem import ACTIVATIONS
from hgemm.reference import ACTIVATION_FORMULAS, formula_of

NAMES = [name for name in ACTIVATIONS if name != "none"]
THREADS = 256
TEXT = (
    """
#include <common/activation.cuh>
extern "C" __global__ void activate(float* x, int count, int which) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    float const before = x[i];
    float after = before;
"""
    + "".join(
        f"    if (which == {i}) after = hgemm::activation::{name}::apply(before);\n" for i, name in enumerate(NAMES)
    )
    + "    x[i] = after;\n  }\n}\n"
)


@pytest.fixture(scope="module")
def compiled(host_toolchain: HostToolchain) -> Executable:
    return Executable(host_toolchain.executable("activate", translatable(TEXT, "activate")))


def activated(executable: Executable, name: str, x: np.ndarray) -> np.ndarray:
    y = np.array(x, np.float32)
    region = Region("x", y.ctypes.data, 1, y.nbytes, y.nbytes, 1, 0, 4, READABLE | WRITABLE | INITIALISED)
    parameters = (struct.pack("<Q", y.ctypes.data), struct.pack("<i", y.size), struct.pack("<i", NAMES.index(name)))
    launch = Launch((1, 1, 1), (1, 1, 1), THREADS, 0, parameters, (region,), 1, 1_000_000)
    assert not executable.run(launch, Adversary("early", "round_robin", 1)).findings
    return y


@pytest.mark.parametrize("name", NAMES)
def test_activation_is_within_the_checked_bound(compiled: Executable, name: str) -> None:
    x = np.concatenate(
        [np.linspace(-20, 20, 40_001), np.geomspace(1e-38, 3e38, 2_000), -np.geomspace(1e-38, 3e38, 2_000)]
    )
    x = x.astype(np.float32).astype(np.float64)
    formula = formula_of(name)
    error = np.abs(activated(compiled, name, x) - formula.function(x)) - 1e-37
    worst = (error / (1 + np.abs(x))).max()
    assert worst <= formula.error, f"the error is {worst * 2**23:.2f} * 2**-23 * (1 + |x|)"


def test_every_activation_has_a_reference() -> None:
    assert {*ACTIVATION_FORMULAS} == {*ACTIVATIONS}
    with pytest.raises(HgemmError, match="activation swish has no float64 reference"):
        formula_of("swish")


def test_gelu_tail_is_as_exact_as_erf_in_f32(compiled: Executable) -> None:
    x = np.linspace(-9, -3, 10_001).astype(np.float32).astype(np.float64)
    wanted = ACTIVATION_FORMULAS["gelu"].function(x)
    assert (np.abs(activated(compiled, "gelu", x) - wanted) / np.abs(x)).max() < 7e-8


def test_gelu_has_a_small_relative_error_up_to_3(compiled: Executable) -> None:
    for largest, error in ((0.01, 3e-6), (2.0, 2e-5), (3.0, 5e-5)):
        x = np.linspace(-largest, largest, 10_000).astype(np.float32).astype(np.float64)  # none of them is 0
        wanted = ACTIVATION_FORMULAS["gelu"].function(x)
        assert np.abs(activated(compiled, "gelu", x) / wanted - 1).max() < error


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_activations_keep_nan_and_saturate_large_numbers(compiled: Executable, name: str) -> None:
    far = activated(compiled, name, np.array([np.inf, 1e30, 0.0, -1e4, np.nan]))
    assert far[0] == np.inf and far[1] == np.float32(1e30) and far[2] == 0 and abs(far[3]) < 1e-30 and np.isnan(far[4])


def test_leaky_relu_has_a_slope_of_one_hundredth_below_zero(compiled: Executable) -> None:
    found = activated(compiled, "leaky_relu", np.array([-200.0, -0.0, 3.0, np.inf, -np.inf, np.nan]))
    assert found[:5].tolist() == [-2.0, 0.0, 3.0, np.inf, -np.inf] and np.isnan(found[5])

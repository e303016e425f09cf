"""The epilogue's activations in the templates' own arithmetic, beside the reference's in f64."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

from generator.build.toolchain import templates_folder
from generator.proof.executor import HostCompiler
from hgemm.errors import HgemmError
from hgemm.problem import ACTIVATIONS
from hgemm.reference import ACTIVATION_FORMULAS, formula_of

TEXT = """
#include <common/activation.cuh>
#include <executor/kernel.hpp>
#define DEFINE(NAME) extern "C" __attribute__((visibility("default"))) void NAME(float* x, long count) { \\
  for (long i = 0; i < count; ++i) x[i] = hgemm::activation::NAME::apply(x[i]); }
"""
NAMES = [name for name in ACTIVATIONS if name != "none"]


@pytest.fixture(scope="module")
def compiled(host_compiler: HostCompiler, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("activation")
    (folder / "activation.cpp").write_text(TEXT + "".join(f"DEFINE({name})\n" for name in NAMES))
    command = [*host_compiler.command, "-std=c++17", "-O1", "-fPIC", "-shared", "-DHGEMM_HOST"]
    command += ["-I", str(templates_folder()), "activation.cpp", "-o", "activation.so"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(Path(folder) / "activation.so"))


def activated(library: ctypes.CDLL, name: str, x: np.ndarray) -> np.ndarray:
    y = np.array(x, np.float32)
    getattr(library, name)(y.ctypes.data_as(ctypes.c_void_p), ctypes.c_long(y.size))
    return y


@pytest.mark.parametrize("name", NAMES)
def test_it_is_within_the_bound_by_which_kernels_are_checked(compiled: ctypes.CDLL, name: str) -> None:
    x = np.concatenate(
        [np.linspace(-20, 20, 200_001), np.geomspace(1e-38, 3e38, 2_000), -np.geomspace(1e-38, 3e38, 2_000)]
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


def test_the_far_end_of_gelu_keeps_its_leading_digits(compiled: ctypes.CDLL) -> None:
    x = np.linspace(-9, -2, 10_001).astype(np.float32).astype(np.float64)
    wanted = ACTIVATION_FORMULAS["gelu"].function(x)
    assert np.abs(activated(compiled, "gelu", x) / wanted - 1).max() < 2e-4


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_what_is_no_number_stays_so_and_large_ones_are_kept_or_cut(compiled: ctypes.CDLL, name: str) -> None:
    far = activated(compiled, name, np.array([np.inf, 1e30, 0.0, -1e4, np.nan]))
    assert far[0] == np.inf and far[1] == np.float32(1e30) and far[2] == 0 and abs(far[3]) < 1e-30 and np.isnan(far[4])


def test_leaky_relu_has_a_slope_of_one_hundredth_below_zero(compiled: ctypes.CDLL) -> None:
    found = activated(compiled, "leaky_relu", np.array([-200.0, -0.0, 3.0, np.inf, -np.inf, np.nan]))
    assert found[:5].tolist() == [-2.0, 0.0, 3.0, np.inf, -np.inf] and np.isnan(found[5])

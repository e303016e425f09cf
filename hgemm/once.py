"""One variant run on one problem: its time, and a check that costs little however large the problem is."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from hgemm.cases import Case
from hgemm.device import Device
from hgemm.dtypes import decode
from hgemm.kernel import Kernel
from hgemm.reference import reference
from hgemm.timing import median_us
from hgemm.verify import Check, Options, Trial, compare

CHECKED_PRODUCTS = 2**32
"""Products that are computed again at most: some seconds of NumPy. A larger problem is checked on some of its rows."""


@dataclass(frozen=True)
class Run:
    """What was measured; `check` is None where none was asked for, and `digest` is a hash of all of D."""

    time_us: float
    tflops: float
    checked_rows: int
    check: Check | None
    digest: str


def run(kernel: Kernel, case: Case, device: Device, seed: int = 0, samples: int = 20, checked: bool = True) -> Run:
    """Run a variant on normal random data, time it by CUDA events, and compare rows of D with the reference.

    Raises: ProblemError where the variant does not take the problem, DeviceError where a launch fails.
    """
    # Aligned as allocations are: 16 bytes off a sector costs a third of the speed (465 us for 324 at 4096^3, H200).
    trial = Trial(kernel, case, device, Options(seed=seed, align_bytes=256), "normal")
    try:
        trial.prepare()
        problem = trial.problem()
        found, complaint = trial.launch(problem)
        check, rows = None, _rows(case, seed) if checked else np.zeros(0, int)
        if checked and complaint:
            check = Check(str(case), float("inf"), float("inf"), False, complaint)
        elif checked:
            expected = reference(kernel.facts, trial.operands, rows)
            check = compare(str(case), decode(found[:, rows], kernel.facts.dtype_d), expected, "normal")
        size = trial.workspace.size_bytes if trial.workspace else None
        time_us = median_us(device, kernel.bind(problem, device=device.ordinal, workspace_size=size), samples)
        digest = hashlib.sha256(found.tobytes()).hexdigest()
        return Run(time_us, problem.flops / time_us * 1e-6, len(rows), check, digest)
    finally:
        trial.free()


def _rows(case: Case, seed: int) -> np.ndarray:
    """Return all rows of D or, of a large one, the first, the last and some between."""
    s = case.shape
    count = max(3, CHECKED_PRODUCTS // (s.n * s.k * s.batch))
    if count >= s.m:
        return np.arange(s.m)
    between = np.random.default_rng(seed).choice(s.m, count - 2, replace=False)
    return np.unique([0, s.m - 1, *between])

"""A product without k, as exported libraries launch it: kernels get k = -tile_k, and read nothing of A and B.

Kernels count (k + tile_k - 1) / tile_k k-tiles, which is none, and take one at least, all of which is past the end.
"""

from __future__ import annotations

import numpy as np
import pytest
from conftest import SMALL

from generator.build.pipeline import planned
from generator.build.toolchain import templates_folder
from generator.emit import emit
from generator.proof import executor as abi
from generator.proof.executor import Adversary, Executable, HostToolchain, Launch, Region
from generator.proof.machine import STEP_LIMIT
from generator.proof.proving import adversaries_of
from generator.sweep import sweep
from hgemm.launch import counter_bytes, grid_x, workspace_bytes
from hgemm.launch_traits import LaunchTraits
from hgemm.problem import Problem

M, N, LDD = 37, 43, 48
VARIANTS = (
    {**SMALL, "layout": "tn"},
    {**SMALL, "layout": "nt", "stages": "1"},
    {**SMALL, "layout": "nn", "align": "1"},
    {**SMALL, "layout": "tt", "align_a": "2", "schedule": "persistent", "stages": "4"},
    {**SMALL, "layout": "tn", "tile": "64x64x64", "stages": "3", "schedule": "split_k:4"},
    {**SMALL, "layout": "tn", "tile": "64x64x32", "stages": "4", "fragment_stages": "1"},
    {**SMALL, "layout": "tn", "schedule": "stream_k"},
)


@pytest.mark.parametrize("options", VARIANTS, ids=lambda options: "-".join(options.values()))
def test_d_is_what_is_left_and_nothing_is_read(options: dict[str, str], host_toolchain: HostToolchain) -> None:
    (plan,) = sweep([options]).plans
    kernel = emit(plan, templates_folder())
    traits = LaunchTraits.of(planned(kernel))
    executable = Executable(host_toolchain.executable(kernel.symbol, kernel.source))
    for adversary in adversaries_of(kernel.symbol, 0):
        d, guard = emulated(traits, executable, adversary)
        assert (d[:, :N] == 2 * np.arange(M * N).reshape(M, N) % 1024).all(), adversary
        assert (guard == 7).all()


def emulated(traits: LaunchTraits, executable: Executable, adversary: Adversary) -> tuple[np.ndarray, np.ndarray]:
    """Launch D = 2 C in place, with no A and B anywhere; return D and what lies beside it."""
    d = np.full((M, LDD), 7, np.float16)
    d[:, :N] = (2 * np.arange(M * N).reshape(M, N) % 1024) / 2
    size = workspace_bytes(traits, M, N)
    workspace = np.zeros(size + 256, np.uint8)
    at = -(-workspace.ctypes.data // 256) * 256
    place = d.ctypes.data
    problem = Problem(
        *(M, N, -traits.tile_k),
        c=place,
        d=place,
        ldc=LDD,
        ldd=LDD,
        workspace=at if size else 0,
        alpha=0.0,
        beta=2.0,
    )
    flags = abi.READABLE | abi.WRITABLE | abi.INITIALISED
    regions = [Region("D", place, M, 2 * N, 2 * LDD, 1, 0, 2, flags)]
    if size:
        counters = counter_bytes(traits, M, N)
        regions.append(Region("counters", at, 1, counters, counters, 1, 0, 4, flags))
        sums = size - counters
        regions.append(Region("sums", at + counters, 1, sums, sums, 1, 0, 4, abi.READABLE | abi.WRITABLE))
    launch = Launch(
        grid_x=grid_x(traits, M, N, 1, 3),
        cluster_ctas=1,
        threads=traits.threads,
        smem_bytes=traits.smem_bytes,
        parameters=(problem.pack(),),
        regions=tuple(regions),
        resident_ctas=4,
        step_limit=STEP_LIMIT,
    )
    report = executable.run(launch, adversary)
    assert not report.findings, [str(finding) for finding in report.findings]
    return d, d[:, N:]

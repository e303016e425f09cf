"""On a GPU: the benchmark beside the real cuBLASLt, and variants that load by TMA."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import made

from generator.build.pipeline import Settings
from generator.device_check import open_kernel
from generator.store.library import Library
from hgemm import Kernel
from hgemm.bench.protocol import Protocol
from hgemm.bench.runner import Plan, run
from hgemm.bench.torch_matmul import Torch
from hgemm.bench.work import Work
from hgemm.cases import default_cases
from hgemm.device import open_device

pytestmark = pytest.mark.gpu
QUICK = Protocol(seconds=0.1, warm_up_s=0.1, rewarm_s=0.0, cool_down_s=0.05, burst_rounds=2, solo_s=0.1, algorithms=8)


@pytest.fixture
def kernels(small_library: Library) -> list[Kernel]:
    return [open_kernel(small_library, record.symbol) for record in small_library.records()]


def measured(works: list[Work], kernels: list[Kernel], **changed) -> list[dict]:
    document = run(Plan(works, kernels, **{"protocol": QUICK, **changed}), open_device(), print)
    assert not document["lost"] and document["baseline"].startswith("cuBLASLt")
    return document["results"]


@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
def test_both_sides_are_right_and_are_paired(kernels: list[Kernel], layout: str) -> None:
    work = Work(512, 384, 256, layout=layout)
    for result in measured([work, replace(work, batch=3, m=8)], kernels):
        assert result["ours"] and result["first"] and result["best"] and not result["refused"]
        assert 0.1 < result["ratio_best"]["median"] < 10 and result["figures"][result["ours"]]["rounds"] >= 15


def test_torch_is_a_baseline_too(kernels: list[Kernel]) -> None:
    pytest.importorskip("torch")
    works = [Work(512, 384, 256, layout=layout, batch=batch) for layout in ("tn", "nt") for batch in (1, 3)]
    document = run(Plan(works, kernels, protocol=QUICK, baseline=Torch), open_device(), print)
    assert document["baseline"].startswith("torch")
    for result in document["results"]:
        assert result["ours"] and result["best"] == "torch" and not result["refused"]


def test_bursts_and_solos_are_measured_too(kernels: list[Kernel]) -> None:
    burst, solo = measured([Work(1024, 1024, 1024)], kernels, states=("burst", "solo"))
    assert burst["figures"][burst["ours"]]["rounds"] == 2 and set(solo["alone"]) == set(solo["figures"])


@pytest.mark.parametrize("types", [("bf16", "f32", "bf16"), ("f16", "f16", "f16"), ("f16", "f32", "f32")])
def test_the_baseline_takes_every_type(settings: Settings, types: tuple[str, str, str]) -> None:
    dtype, acc, out = types
    texts = {"arch": "sm_80", "tile": "64x64x32", "dtype": dtype, "acc": acc, "out": out, "layout": "tn"}
    symbol = made(texts, settings)[0].record.symbol
    work = Work(256, 256, 512, dtype_a=dtype, dtype_b=dtype, acc=acc, dtype_d=out)
    result = measured([work], [open_kernel(settings.library, symbol)])[0]
    assert result["ours"] == symbol and result["best"] and not result["refused"]


@pytest.mark.parametrize("layout", ["tn", "nn", "nt", "tt"])
def test_variants_that_load_by_tma_are_right(settings: Settings, layout: str) -> None:
    from hgemm.verify import verify

    device = open_device()
    if device.capability != (9, 0):
        pytest.skip("wgmma runs on compute capability 9.0 only")
    outcome = made({"arch": "sm_90a", "tile": "128x128x64", "layout": layout}, settings)[0]
    kernel = open_kernel(settings.library, outcome.record.symbol)
    assert kernel.traits.tensor_maps
    for case in default_cases(kernel.traits, kernel.prepare().resident_ctas):
        found = verify(kernel, case, device)
        assert found.passed, found


def test_a_graph_keeps_the_tensor_maps_that_it_was_captured_with(settings: Settings) -> None:
    torch = pytest.importorskip("torch")
    if open_device().capability != (9, 0):
        pytest.skip("wgmma runs on compute capability 9.0 only")
    outcome = made({"arch": "sm_90a", "tile": "128x128x64", "layout": "tn"}, settings)[0]
    kernel = open_kernel(settings.library, outcome.record.symbol)
    a, w, other = (torch.randn(256, 256, device="cuda", dtype=torch.float16) for _ in range(3))
    out = torch.zeros(256, 256, device="cuda", dtype=torch.float16)
    kernel.prepare()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(a, w.t(), out, stream=torch.cuda.current_stream())
    kernel(other, w.t(), torch.empty_like(out))  # other maps in between
    a.copy_(torch.randn_like(a))
    graph.replay()
    torch.cuda.synchronize()
    assert (out.double() - a.double() @ w.double().t()).abs().max() < 0.1
